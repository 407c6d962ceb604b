"""`compeer serve`: the chat page and the OpenAI-compatible API of one supporter, on a port of this machine."""

import os
from functools import partial
from pathlib import Path

from compeer.cli.options import HOST, PROXY, option
from compeer.cli.printing import note_unknown_locale
from compeer.cli.talk import MODEL
from compeer.cli.training import read_settings
from compeer.errors import InputError

KEY_VARIABLE = "COMPEER_API_KEY"
_SHORTEST_KEY = 16
_WEBHOOK_SECONDS = 20.0  # so long the end waits for events that are still to be sent


def serve(
    model: str = MODEL,
    judge: str = option("For /v1/judge and best_of: 'judge' (packaged), a folder, NAME@URL, or 'none'.", "judge"),
    host: str = HOST,
    port: int = option("The port; 0 takes a free one.", 8000, min=0, max=65535),
    name: str | None = option("What the supporter is called in requests."),
    locale: str | None = option("The place whose help lines are named, as en-GB."),
    no_guard: bool = option("Switch the guard off. The page says so.", False, "--no-guard"),
    webhook: str | None = option("An address that gets a message about each crisis, without its words."),
    webhook_text: bool = option("Send the seeker's words to the webhook too.", False, "--webhook-text"),
    keep: Path | None = option("A folder to keep conversations in; without it none is."),
    rate: float = option("Requests a minute for each client; 0 for no limit.", 120, min=0),
    waiting: int | None = option("Turns that may wait for a model in this process; more get 429.", min=0),
    allowed_host: list[str] | None = option("A further name that the server goes by, as behind a proxy."),
    proxy: list[str] | None = PROXY,
    multimodal: bool = option("A model behind a server can look at images.", False, "--sees"),
    language: str = option("The language that a model behind a server speaks.", "en"),
    call: list[str] | None = option("How a server is called: timeout=60, say.", None, "--call", metavar="KEY=VALUE"),
    grace: float = option("Seconds that open answers get when it is to stop.", 60, min=1),
) -> None:
    """Serve a supporter: a chat page, and an API that OpenAI's clients speak. Ctrl-C lets open answers finish.

    Keys, separated by commas, come from the environment variable COMPEER_API_KEY; without one everybody who can reach
    the port may come in. docs/api.md says more, docs/privacy.md what is stored and sent.
    """
    from compeer.chat.app import ServeSettings, create_app
    from compeer.chat.resolve import larger_note, resolve_judge, resolve_supporter
    from compeer.chat.upstream import StreamCall
    from compeer.safety.guard import Guard
    from compeer.safety.hooks import LogLine, Webhook
    from compeer.web import serving

    keys = read_keys(os.environ.get(KEY_VARIABLE, ""))
    calls = read_settings(StreamCall, {}, call)
    proxies = serving.checked_proxies(proxy or ())
    sock = serving.bound_socket(host, port)  # before the model is loaded: a port that is taken is an error at once
    if no_guard and webhook:
        do = "Leave out --no-guard or --webhook."
        raise InputError("a webhook is told by the guard, which is off.", field="webhook", do=do)
    hook = Webhook(webhook, include_text=webhook_text) if webhook else None
    note_unknown_locale(None if no_guard else locale)
    guard = None if no_guard else Guard(locale=locale, hooks=[LogLine(), *([hook] if hook else [])], spoken=language)
    known = None if judge == "none" else resolve_judge(judge, call=calls)
    supporter = resolve_supporter(
        model, guard, known, call=calls, multimodal=multimodal, language=language, waiting=waiting, use="serve"
    )
    hosts = serving.served_hosts(host, allowed_host or ())
    settings = ServeSettings(name=name, keys=keys, hosts=hosts, rate=rate or None, keep=keep)
    finish = partial(hook.wait, _WEBHOOK_SECONDS) if hook else None
    app = create_app(supporter, judge=known, settings=settings, on_close=finish)
    address = serving.served_address(host, sock)
    notes = _notes(guard is not None, bool(keys), not serving.is_loopback(host), keep, supporter.language)
    lines = [f"Page   {address}/", f"API    {address}/v1   described in {address}/openapi.json"]
    notes += [larger] if (larger := larger_note(supporter.name)) else []
    serving.serve_announced(app, sock, settings.name or supporter.name, lines, notes, grace, proxies)


def read_keys(text: str) -> tuple[str, ...]:
    """The keys in the environment variable; an error, which does not show them, where one cannot be sent or guarded."""
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    if any(len(key) < _SHORTEST_KEY or not (key.isascii() and key.isprintable()) for key in keys):
        what = f"a key must have at least {_SHORTEST_KEY} characters, all of them ASCII."
        do = "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        raise InputError(what, field=KEY_VARIABLE, do=do)
    return keys


def _notes(guarded: bool, keyed: bool, outside: bool, keep: Path | None, language: str) -> list[str]:
    """What whoever starts a server should know."""
    from compeer.safety.languages import READ

    found = ["This is research software: not a clinician, not a crisis service."]
    if not guarded:
        found.append("The guard is OFF: nothing looks for danger, and every word of the model is shown.")
    elif language.split("-")[0].lower() not in READ:
        found.append(
            f"The guard reads English and Chinese only: danger put in '{language}' passes it. Every reply in "
            "such a conversation says where help is, and its `problems` why."
        )
    if outside and not keyed:
        found.append(f"Everybody who can reach this port may come in: set {KEY_VARIABLE} to ask for a key.")
    if keep:
        found.append(f"Conversations are kept in {keep}: tell those who talk to it.")
    return found
