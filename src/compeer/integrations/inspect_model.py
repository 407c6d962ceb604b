"""A model of Inspect as a `TextModel`, so that the evaluations ask it as they ask any other.

An error of the provider is not caught here: it ends the sample, and Inspect retries or reports it by its own options
(`--retry-on-error`, `--fail-on-error`).
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from inspect_ai import model as ai

from compeer.models.base import Failure, Generation, Request, Sampling, TextModel

_KINDS = {"system": ai.ChatMessageSystem, "user": ai.ChatMessageUser, "assistant": ai.ChatMessageAssistant}
_AT_ONCE = 64  # Inspect limits the connections to a provider itself (`--max-connections`)
# Our own: providers look up addresses in the event loop's, and would wait for ever if the samples held them all.
_THREADS = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="compeer")
Result = TypeVar("Result")


class InspectModel:
    """Asks a model of Inspect, one request a call. Grammars are ignored, as providers have no common form of them."""

    batch_size, at_once = 1, _AT_ONCE

    def __init__(self, model: ai.Model) -> None:
        self._model = model
        self.name = str(model.name)  # without its provider, as an endpoint has it: seeds of judges depend on it

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        return [await self._answer(request, sampling) for request in requests]

    async def _answer(self, request: Request, sampling: Sampling) -> Generation | Failure:
        config = ai.GenerateConfig(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop_seqs=list(sampling.stop) or None,
            seed=request.seed,
        )
        messages = [_KINDS[one["role"]](content=str(one["content"])) for one in request.messages]  # text alone
        if request.prefix:
            messages.append(ai.ChatMessageAssistant(content=request.prefix))
        output = await self._model.generate(messages, config=config)
        if output.error:
            return Failure("server", output.error)
        if output.stop_reason == "model_length":
            return Failure("refused", "the conversation is too long for the model")
        usage = output.usage
        return Generation(
            request.prefix + output.completion,
            cut_off=output.stop_reason == "max_tokens",
            prompt_tokens=usage.input_tokens if usage else 0,
            tokens=usage.output_tokens if usage else 0,
        )


def in_role(role: str | None = None) -> InspectModel:
    """The model of a role, or the one under evaluation where no role is named or nobody plays it."""
    return InspectModel(ai.get_model(role=role))


def graders() -> list[InspectModel]:
    """All models of the role `grader`, which may be a list, or the one under evaluation."""
    found = ai.model_roles().get("grader") or ai.get_model()
    return [InspectModel(one) for one in (found if isinstance(found, list) else [found])]


class FromThread:
    """A model for code that runs in a thread of its own; the model itself is asked in Inspect's event loop."""

    def __init__(self, model: TextModel) -> None:
        self._model, self._loop = model, asyncio.get_running_loop()
        self.name, self.batch_size, self.at_once = model.name, model.batch_size, model.at_once

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        asked = asyncio.run_coroutine_threadsafe(self._model.generate(requests, sampling), self._loop)
        return await asyncio.wrap_future(asked)


async def in_thread(work: Callable[[TextModel], Result], model: TextModel) -> Result:
    """What a function that is not async makes of a model, without blocking the other samples."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, FromThread(model))
