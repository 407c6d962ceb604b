"""`compeer annotate`: a store of annotations, the people who work in it, and what goes in and out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from compeer.cli.printing import plain
from compeer.errors import InputError
from compeer.progress import console

if TYPE_CHECKING:
    from compeer.annotate.store import Store

annotate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Annotation by people, blind and double.")

StoreName = Annotated[str, typer.Argument(metavar="STORE", help="An SQLite file, or postgresql://…")]
ProjectName = Annotated[str, typer.Option("--project", help="The project's name.")]
OneProject = Annotated[str | None, typer.Option("--project", help="The project's name, where there are several.")]


@annotate.command()
def init(
    store: StoreName,
    admin: Annotated[str | None, typer.Option(help="The first admin's name; the password is asked for.")] = None,
    password: Annotated[
        str | None, typer.Option(envvar="COMPEER_ADMIN_PASSWORD", show_envvar=True, help="Instead of being asked.")
    ] = None,
    backup: Annotated[Path | None, typer.Option("--from", help="A backup to fill the new store from.")] = None,
) -> None:
    """Make a store, or bring an older one up to date."""
    from compeer.annotate.backup import restore
    from compeer.annotate.people import add_person
    from compeer.annotate.store import create_store

    opened = restore(backup, store) if backup else create_store(store)
    if admin:
        secret = password or typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        add_person(opened, admin, secret, ["admin"], ["en"])
    _say(f"{store.partition('@')[2] or store} is ready.")


@annotate.command()
def invite(
    store: StoreName,
    role: Annotated[list[str], typer.Option(help="annotator, adjudicator or admin; may be given several times.")],
    language: Annotated[list[str], typer.Option(help="A language the person speaks, as en; may be repeated.")],
    program: Annotated[
        bool, typer.Option("--program", help="It is for a program; its labels have the source llm.")
    ] = False,
    days: Annotated[int, typer.Option(help="How long the invitation holds.", min=1)] = 14,
    url: Annotated[str, typer.Option(help="Where the workbench is reached.")] = "http://127.0.0.1:8020",
) -> None:
    """Print a link with which one person can join, once."""
    from compeer.annotate.people import invite as make

    token = make(_open(store), role, language, program=program, days=days)
    typer.echo(f"{url.rstrip('/')}/join#{token}")


@annotate.command()
def invitations(
    store: StoreName,
    withdraw: Annotated[int | None, typer.Option(help="Withdraw the invitation of this number.", min=1)] = None,
) -> None:
    """List the invitations that nobody took up yet, or withdraw one."""
    from compeer.annotate import people

    opened = _open(store)
    if withdraw is not None:
        people.withdraw(opened, withdraw)
        _say(f"invitation {withdraw} is withdrawn.")
        return
    listed = people.invitations(opened)
    if not listed:
        _say("no invitation is open.")
    for one in listed:
        who = f"{', '.join(one.roles)}{' (program)' if one.program else ''}, {', '.join(one.languages)}"
        typer.echo(f"{one.id}  {who}, until {datetime.fromtimestamp(one.expires / 1000):%Y-%m-%d %H:%M}")


@annotate.command("import")
def import_(
    store: StoreName,
    path: Annotated[Path, typer.Argument(help="SER records, models' outputs or conversations (docs/annotate.md).")],
    project: ProjectName,
    task: Annotated[Literal["steps", "compare", "rating"] | None, typer.Option(help="Makes the project.")] = None,
    guidelines: Annotated[
        Path | None, typer.Option(help="Guidelines in Markdown; a new text is a new version.")
    ] = None,
    kind: Annotated[
        Literal["real", "training", "gold"], typer.Option(help="The last two need known answers.")
    ] = "real",
    priority: Annotated[int, typer.Option(help="Items with a higher number come first.")] = 0,
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
    _print_counts(items.import_items(opened, chosen, path, kind, priority))


@annotate.command()
def export(
    store: StoreName,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    project: OneProject = None,
) -> None:
    """Write the labels: SER records with the consensus and a card, every label by itself, and the agreement."""
    from compeer.annotate.exchange import export_project
    from compeer.annotate.projects import project_by_name

    opened = _open(store)
    chosen = project_by_name(opened, project)
    counts = export_project(opened, chosen, out)
    if chosen.task == "steps" and counts["with consensus"]:
        from compeer.annotate.store import make_private_folder
        from compeer.report.card import write_card

        write_card(out, examples=0)
        make_private_folder(out)
    _print_counts(counts)
    _say(f"written: {out}")


@annotate.command()
def agreement(
    store: StoreName,
    project: OneProject = None,
    as_json: Annotated[bool, typer.Option("--json", help="All metrics, as JSON.")] = False,
) -> None:
    """Show how far annotators agree, by question and by pair."""
    import json

    from rich.console import Console
    from rich.table import Table

    from compeer.annotate.metrics import dashboard
    from compeer.annotate.projects import project_by_name

    opened = _open(store)
    metrics = dashboard(opened, project_by_name(opened, project).id)
    if as_json:
        typer.echo(json.dumps(metrics, indent=1, ensure_ascii=False))
        return
    table = Table("question", "items", "percent", "Krippendorff's α", "without consensus", box=None)
    for name, found in metrics["questions"].items():
        alpha, percent = found["alpha"], found["percent"]
        share = "–" if percent is None else f"{100 * percent:.1f} %"
        interval = "–" if alpha["value"] is None else "{value:.3f} ({low:.3f} to {high:.3f})".format(**alpha)
        table.add_row(name, f"{found['items']:,}", share, interval, str(found["without_consensus"]))
    pairs = Table("pair", "items", *(f"κ {name}" for name in metrics["questions"]), box=None)
    for pair in metrics["pairs"]:
        kappas = [one["kappa"] for one in pair["questions"].values()]
        cells = ["–" if kappa is None else f"{kappa:.3f}" for kappa in kappas]
        pairs.add_row(" and ".join(pair["annotators"]), f"{pair['items']:,}", *cells)
    Console().print(table)
    if metrics["pairs"]:
        Console().print(pairs)
    if drifting := [name for name, found in metrics["gold"].items() if found["drifting"]]:
        _say(f"drifting from gold: {', '.join(drifting)}")


@annotate.command()
def backup(store: StoreName, path: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Write a copy of the store as it is now; others may go on working."""
    from compeer.annotate.backup import backup as make

    found = make(_open(store), path)
    _say(f"{found.events:,} events copied to {path} and checked; the chain ends with {found.head}")


@annotate.command()
def verify(
    store: StoreName,
    head: Annotated[str | None, typer.Option(help="The end of the chain, as an earlier check printed it.")] = None,
) -> None:
    """Prove that the store is whole; exit code 1 and what is wrong if it is not."""
    from compeer.annotate.backup import verify as check

    found = check(_open(store), head)
    for problem in found.problems:
        _print(f"[red]✗[/] {plain(problem)}")
    if found.problems:
        raise typer.Exit(1)
    _say(f"{found.events:,} events, all texts and all tables are whole; the chain ends with {found.head}")


@annotate.command()
def delete(
    store: StoreName, dialogue: Annotated[str, typer.Argument(help="The dialogue's id, as its records have it.")]
) -> None:
    """Delete a dialogue everywhere in the store, with all labels and remarks on it."""
    from compeer.annotate.items import delete_dialogue

    count = delete_dialogue(_open(store), dialogue)
    _say(f"{count:,} items deleted. Backups and exports made before still hold them: delete those too.")


@annotate.command()
def serve(
    store: StoreName,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 lets others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8020,
    public_url: Annotated[
        str | None, typer.Option(help="Where people reach it, as behind a proxy: https://labels.example.org")
    ] = None,
    proxy: Annotated[
        list[str] | None, typer.Option(help="A proxy's address or network, whose X-Forwarded-For is believed.")
    ] = None,
    media: Annotated[Path | None, typer.Option(help="The folder of the pictures and clips that items name.")] = None,
    rate: Annotated[float, typer.Option(help="Requests a minute for each address; 0 for no limit.", min=0)] = 6000,
) -> None:
    """Serve the workbench: pages to annotate in and to watch agreement, and an API that does all they do."""
    from compeer.annotate.app import workbench_app
    from compeer.annotate.forms import WorkbenchSettings
    from compeer.cli.serve import served_hosts
    from compeer.web.serving import bound_socket, checked_proxies, is_loopback
    from compeer.web.serving import serve as serve_app

    if media is not None and not media.is_dir():
        raise InputError("there is no such folder.", file=media, field="media")
    public = urlsplit(public_url) if public_url is not None else None
    if public and (public.scheme not in ("http", "https") or not public.hostname or public.path not in ("", "/")):
        do = "Give a scheme and a name, as https://labels.example.org"
        raise InputError("this is no address that a workbench can have.", field="public-url", do=do)
    proxies = checked_proxies(proxy or ())
    opened = _open(store)
    sock = bound_socket(host, port)
    hosts = served_hosts(host, [public.hostname] if public and public.hostname else [])
    settings = WorkbenchSettings(public_url=public_url, hosts=hosts, rate=rate or None, media=media)
    address = public_url or f"http://{'[' + host + ']' if ':' in host else host}:{sock.getsockname()[1]}"

    notes = []
    if not is_loopback(host) and not address.startswith("https:"):
        notes.append("Passwords travel unprotected: put a proxy with TLS in front, and give --public-url https://…")
    if public_url and not proxies:
        what = "Behind a proxy everybody is one client, also to the count of wrong passwords"
        notes.append(f"{what}: name it with --proxy.")

    def started() -> None:
        _print(f"[bold green]Serving[/] {plain(address)}/")
        _print("  API    described in /openapi.json")
        for note in notes:
            _print(f"  [yellow]•[/] {note}")

    serve_app(workbench_app(opened, settings), sock, grace=10, on_start=started, proxies=proxies)
    console.print("Stopped.")


# --- what the commands share ------------------------------------------------------------------------------------------


def _open(name: str) -> Store:
    from compeer.annotate.store import open_store

    return open_store(name)


def _print_counts(counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        _print(f"  {plain(name)}  {count:,}")


def _say(text: str) -> None:
    _print(plain(text))


def _print(markup: str) -> None:
    console.print(markup, highlight=False, soft_wrap=True)
