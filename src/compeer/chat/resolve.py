"""Which supporter, and which judge, is meant by a name on the command line.

It is a name that `compeer.models.resolve` lists, or `best`: the large packaged supporter if its base is here, else the
small one. All but what is behind a server runs in this process.
"""

from functools import partial

from compeer.chat.conversation import GuardedSupporter
from compeer.chat.local import LocalWriter
from compeer.chat.upstream import StreamCall, UpstreamWriter
from compeer.models.base import CallSettings
from compeer.models.catalogue import PACKAGED_MODELS, best_supporter
from compeer.models.resolve import ModelSettings, Use, check_local, display_name, open_model
from compeer.reward.judges import check_judge, open_judge
from compeer.reward.score import Judge
from compeer.safety.guard import Guard

DEFAULT = "best"  # what is packaged, trained


def resolve_supporter(
    name: str = DEFAULT,
    guard: Guard | None = None,
    judge: Judge | None = None,
    *,
    call: CallSettings | None = None,
    multimodal: bool = False,
    language: str = "en",
    waiting: int | None = None,
    use: Use = "chat",
) -> GuardedSupporter:
    """The supporter of a name. Without a guard everything it writes is passed on: whoever does that informs the seeker.

    `call`, `multimodal` and `language` describe a model behind a server: `call.concurrency` outputs are written at a
    time, and as many may wait. `waiting` (outputs in line) and `use` (which decides what runs it on a CPU) are for
    models in this process.
    """
    model, at, url = name.partition("@http")
    if at and model:
        settings = StreamCall(**(call or CallSettings()).model_dump())
        writer = UpstreamWriter(f"http{url}", model, settings, multimodal)
        return GuardedSupporter(writer, guard, judge, language=language, capacity=2 * settings.concurrency)
    name = best_supporter() if name == DEFAULT else name
    _check_folder(name, "model", DEFAULT)
    return LocalWriter(name, use=use).supporter(guard, judge, waiting)


def larger_note(name: str) -> str | None:
    """How to get the larger supporter, for who talks to the small packaged one."""
    if name != display_name("supporter"):
        return None
    base = PACKAGED_MODELS["supporter-1.5b"].base
    return f"A small model answers, in English only. For a larger one, English and Chinese: compeer models get {base}"


def resolve_judge(name: str, *, call: CallSettings | None = None) -> Judge:
    if "@http" not in name:
        _check_folder(name, "judge", "judge")
        check_judge(name)
    known = set(ModelSettings.model_fields)  # a stream has limits of its own
    settings = ModelSettings.model_validate((call or CallSettings()).model_dump(include=known))
    return open_judge(name, model=partial(open_model, settings=settings))


def _check_folder(name: str, field: str, own: str) -> None:
    if not name.endswith(".gguf"):
        check_local(name, field, own, ("config.json", "adapter_config.json"))
