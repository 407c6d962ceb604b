"""Which supporter, and which judge, is meant by a name on the command line.

best                              the large packaged supporter if its base is here, else the small one
supporter                         the small packaged supporter, trained, in this process
supporter-1.5b                    the large one, over a base of the catalogue (compeer models get qwen-1.5b)
embedded                          the packaged model as it is, in this process
qwen-1.5b                         a base of the catalogue (compeer models list), in this process
runs/demo/grpo/model              a folder that transformers loads, or of adapters, in this process
path/to/model.gguf                a file that llama.cpp runs, in this process
Qwen2.5-7B@http://host:8000/v1    a model behind an OpenAI-compatible server
"""

from __future__ import annotations

from functools import partial

from compeer.chat.conversation import GuardedSupporter
from compeer.chat.local import local_supporter
from compeer.chat.upstream import StreamCall, UpstreamWriter
from compeer.models.base import CallSettings
from compeer.models.catalogue import PACKAGED_MODELS, best_supporter
from compeer.models.resolve import ModelSettings, Use, check_local, display_name, open_model
from compeer.reward.judges import check_judge, open_judge
from compeer.reward.score import Judge
from compeer.safety.guard import Guard

DEFAULT = "best"
"""What is packaged, trained."""


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
    """The supporter of a name. Without a guard everything it writes is shown: whoever does that tells the seeker so.

    `call`, `multimodal` and `language` describe a model behind a server, whose outputs are written `call.concurrency`
    at a time while as many may wait; `waiting` (outputs in line) and `use` are for models in this process, and decide
    with the name what runs it on a CPU.
    """
    model, at, url = name.partition("@http")
    if at and model:
        settings = StreamCall(**(call or CallSettings()).model_dump())
        writer = UpstreamWriter(f"http{url}", model, settings, multimodal)
        return GuardedSupporter(writer, guard, judge, language=language, capacity=2 * settings.concurrency)
    name = best_supporter() if name == DEFAULT else name
    _check_folder(name, "model", DEFAULT)
    return local_supporter(name, guard, judge, waiting=waiting, use=use)


def larger_note(name: str) -> str | None:
    """How to get the larger supporter, for who talks to the small packaged one."""
    if name != display_name("supporter"):
        return None
    base = PACKAGED_MODELS["supporter-1.5b"].base
    return f"A small model answers, in English only. For a larger one, English and Chinese: compeer models get {base}"


def resolve_judge(name: str, *, call: CallSettings | None = None) -> Judge:
    """The judge of a name."""
    if "@http" not in name:
        _check_folder(name, "judge", "judge")
        check_judge(name)
    known = set(ModelSettings.model_fields)  # a stream has limits of its own
    settings = ModelSettings.model_validate((call or CallSettings()).model_dump(include=known))
    return open_judge(name, model=partial(open_model, settings=settings))


def _check_folder(name: str, field: str, own: str) -> None:
    if not name.endswith(".gguf"):
        check_local(name, field, own, ("config.json", "adapter_config.json"))
