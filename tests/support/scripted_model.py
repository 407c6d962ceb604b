"""A model that answers from a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from compeer.models.base import Failure, Generation, Request, Sampling


class ScriptedModel:
    """Gives its answers in order, or what a function makes of each request; after the last one it fails."""

    def __init__(
        self,
        answers: Iterable[str] | Callable[[Request], str],
        name: str = "scripted",
        batch_size: int = 1,
        at_once: int = 1,
    ) -> None:
        self._function = answers if callable(answers) else None
        self._answers = iter(()) if callable(answers) else iter(answers)
        self.name, self.batch_size, self.at_once = name, batch_size, at_once
        self.requests: list[Request] = []

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        return [self._answer(request, sampling) for request in requests]

    def _answer(self, request: Request, sampling: Sampling) -> Generation | Failure:
        self.requests.append(request)
        text = self._function(request) if self._function else next(self._answers, None)
        if text is None:
            return Failure("script", "the script has no more answers")
        for stop in sampling.stop:
            text = text.split(stop, 1)[0]
        return Generation(text=request.prefix + text)
