"""`compeer annotate`: a store of annotations, the people who work in it, and what goes in and out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import typer

from compeer.cli.options import HOST, PROXY, argument, option
from compeer.cli.printing import note, plain, print_folded
from compeer.errors import InputError
from compeer.progress import console

if TYPE_CHECKING:
    from compeer.annotate.store import Store

annotate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Annotation by people, blind and double.")

STORE = argument("An SQLite file, or postgresql://…", metavar="STORE")
PROJECT = option("The project's name, where there are several.")


@annotate.command()
def init(
    store: str = STORE,
    admin: str | None = option("The first admin's name; the password is asked for."),
    password: str | None = option("Instead of being asked.", envvar="COMPEER_ADMIN_PASSWORD", show_envvar=True),
    backup: Path | None = option("A backup to fill the new store from.", None, "--from"),
) -> None:
    """Make a store, or bring an older one up to date."""
    from compeer.annotate.backup import restore
    from compeer.annotate.people import add_person
    from compeer.annotate.store import create_store

    opened = restore(backup, store) if backup else create_store(store)
    if admin:
        secret = password or typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        add_person(opened, admin, secret, ["admin"], ["en"])
    note(f"{store.partition('@')[2] or store} is ready.")


@annotate.command()
def invite(
    store: str = STORE,
    role: list[str] = option("annotator, adjudicator or admin; may be given several times.", ...),
    language: list[str] = option("A language the person speaks, as en; may be repeated.", ...),
    program: bool = option("It is for a program; its labels have the source llm.", False, "--program"),
    days: int = option("How long the invitation holds.", 14, min=1),
    url: str = option("Where the workbench is reached.", "http://127.0.0.1:8020"),
) -> None:
    """Print a link with which one person can join, once."""
    from compeer.annotate.people import invite as make

    token = make(_open(store), role, language, program=program, days=days)
    typer.echo(f"{url.rstrip('/')}/join#{token}")


@annotate.command()
def invitations(
    store: str = STORE, withdraw: int | None = option("Withdraw the invitation of this number.", min=1)
) -> None:
    """List the invitations that nobody took up yet, or withdraw one."""
    from compeer.annotate import people

    opened = _open(store)
    if withdraw is not None:
        people.withdraw(opened, withdraw)
        note(f"invitation {withdraw} is withdrawn.")
        return
    if not (listed := people.invitations(opened)):
        note("no invitation is open.")
    for one in listed:
        who = f"{', '.join(one.roles)}{' (program)' if one.program else ''}, {', '.join(one.languages)}"
        typer.echo(f"{one.id}  {who}, until {datetime.fromtimestamp(one.expires / 1000):%Y-%m-%d %H:%M}")


@annotate.command("import")
def import_(
    store: str = STORE,
    path: Path = argument("SER records, models' outputs or conversations (docs/annotate.md)."),
    project: str = option("The project's name.", ..., "--project"),
    task: Literal["steps", "compare", "rating"] | None = option("Makes the project."),
    guidelines: Path | None = option("Guidelines in Markdown; a new text is a new version."),
    kind: Literal["real", "training", "gold"] = option("The last two need known answers.", "real"),
    priority: int = option("Items with a higher number come first.", 0),
) -> None:
    """Add items to a project, which is made if it is new."""
    from compeer.annotate import items, projects

    if not path.is_file():
        raise InputError("there is no such file.", file=path)
    try:
        words = guidelines.read_text(encoding="utf-8") if guidelines else None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"this cannot be read: {error}", file=guidelines) from None
    opened = _open(store)
    if task and project not in [one.name for one in projects.projects(opened)]:
        projects.add_project(opened, project, task, words or "")
    chosen = projects.project_by_name(opened, project)
    if task and task != chosen.task:
        raise InputError(f"this project's task is {chosen.task}.", field="task", do="Choose another project name.")
    if words is not None:
        projects.set_guidelines(opened, chosen.id, words)
    read = items.read_items(path, chosen.task, known=kind != "real")
    _print_counts(items.add_items(opened, chosen, read, kind, priority))


@annotate.command()
def export(store: str = STORE, out: Path = argument("The folder to write."), project: str | None = PROJECT) -> None:
    """Write the labels: SER records with the consensus and a card, every label by itself, and the agreement."""
    from compeer.annotate.projects import project_by_name
    from compeer.annotate.results import export_project

    opened = _open(store)
    chosen = project_by_name(opened, project)
    counts = export_project(opened, chosen, out)
    if chosen.task == "steps" and counts["with consensus"]:
        from compeer.annotate.store import make_private_folder
        from compeer.report.card import write_card

        write_card(out, examples=0)
        make_private_folder(out)
    _print_counts(counts)
    note(f"written: {out}")


@annotate.command()
def agreement(
    store: str = STORE, project: str | None = PROJECT, as_json: bool = option("All metrics, as JSON.", False, "--json")
) -> None:
    """Show how far annotators agree, by question and by pair."""
    from compeer.annotate.projects import project_by_name
    from compeer.annotate.results import dashboard

    opened = _open(store)
    metrics = dashboard(opened, project_by_name(opened, project).id)
    if as_json:
        typer.echo(json.dumps(metrics, indent=1, ensure_ascii=False))
        return
    rows = []
    for name, found in metrics["questions"].items():
        alpha, percent = found["alpha"], found["percent"]
        share = "–" if percent is None else f"{100 * percent:.1f} %"
        interval = "–" if alpha["value"] is None else "{value:.3f} ({low:.3f} to {high:.3f})".format(**alpha)
        rows.append([name, f"{found['items']:,}", share, interval, str(found["without_consensus"])])
    print_folded(("question", "items", "percent", "Krippendorff's α", "without consensus"), rows)
    rows = []
    for pair in metrics["pairs"]:
        kappas = [one["kappa"] for one in pair["questions"].values()]
        cells = ["–" if kappa is None else f"{kappa:.3f}" for kappa in kappas]
        rows.append([" and ".join(pair["annotators"]), f"{pair['items']:,}", *cells])
    if rows:
        print_folded(("pair", "items", *(f"κ {name}" for name in metrics["questions"])), rows)
    if drifting := [name for name, found in metrics["gold"].items() if found["drifting"]]:
        note(f"drifting from gold: {', '.join(drifting)}")


@annotate.command()
def backup(store: str = STORE, path: Path = argument("The file to write.")) -> None:
    """Write a copy of the store as it is now; others may go on working."""
    from compeer.annotate.backup import backup as make

    found = make(_open(store), path)
    note(f"{found.events:,} events copied to {path} and checked; the chain ends with {found.head}")


@annotate.command()
def verify(
    store: str = STORE, head: str | None = option("The end of the chain, as an earlier check printed it.")
) -> None:
    """Prove that the store is whole; exit code 1 and what is wrong if it is not."""
    from compeer.annotate.backup import verify as check

    found = check(_open(store), head)
    for problem in found.problems:
        console.print(f"[red]✗[/] {plain(problem)}", highlight=False, soft_wrap=True)
    if found.problems:
        raise typer.Exit(1)
    note(f"{found.events:,} events, all texts and all tables are whole; the chain ends with {found.head}")


@annotate.command()
def delete(store: str = STORE, dialogue: str = argument("The dialogue's id, as its records have it.")) -> None:
    """Delete a dialogue everywhere in the store, with all labels and remarks on it."""
    from compeer.annotate.items import delete_dialogue

    count = delete_dialogue(_open(store), dialogue)
    note(f"{count:,} items deleted. Backups and exports made before still hold them: delete those too.")


@annotate.command()
def serve(
    store: str = STORE,
    host: str = HOST,
    port: int = option("The port; 0 takes a free one.", 8020, min=0, max=65535),
    public_url: str | None = option("Where people reach it, as behind a proxy: https://labels.example.org"),
    proxy: list[str] | None = PROXY,
    media: Path | None = option("The folder of the pictures and clips that items name."),
    rate: float = option("Requests a minute for each address; 0 for no limit.", 6000, min=0),
) -> None:
    """Serve the workbench: pages to annotate in and to watch agreement, and an API that does all they do."""
    from compeer.annotate.api_models import WorkbenchSettings
    from compeer.annotate.app import workbench_app
    from compeer.web import serving

    if media is not None and not media.is_dir():
        raise InputError("there is no such folder.", file=media, field="media")
    public = urlsplit(public_url) if public_url is not None else None
    if public and (public.scheme not in ("http", "https") or not public.hostname or public.path not in ("", "/")):
        do = "Give a scheme and a name, as https://labels.example.org"
        raise InputError("this is no address that a workbench can have.", field="public-url", do=do)
    proxies = serving.checked_proxies(proxy or ())
    opened = _open(store)
    sock = serving.bound_socket(host, port)
    hosts = serving.served_hosts(host, [public.hostname] if public and public.hostname else [])
    settings = WorkbenchSettings(public_url=public_url, hosts=hosts, rate=rate or None, media=media)
    address = public_url or serving.served_address(host, sock)

    notes = []
    if not serving.is_loopback(host) and not address.startswith("https:"):
        notes.append("Passwords travel unprotected: put a proxy with TLS in front, and give --public-url https://…")
    if public_url and not proxies:
        notes.append("Behind a proxy everybody is one client, also in counting wrong passwords: name it with --proxy.")
    lines = ["API    described in /openapi.json"]
    serving.serve_announced(workbench_app(opened, settings), sock, f"{address}/", lines, notes, 10, proxies)


def _open(name: str) -> Store:
    from compeer.annotate.store import open_store

    return open_store(name)


def _print_counts(counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        note(f"  {name}  {count:,}")
