"""A supporter behind any OpenAI-compatible server (vLLM, llama.cpp, Ollama, a hosted one), with our prompt and guard.

Outputs are streamed from it. Forced decisions and second attempts begin the answer for the model: vLLM must be told so
(`constrain="vllm"`), llama.cpp and Ollama go on from a last assistant message by themselves. A server that knows
grammars is given the one of a turn. The key is read from the environment and appears in no log and no error.
"""

from __future__ import annotations

import asyncio
import base64
import json
import mimetypes
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from compeer import __version__
from compeer.models.base import Message, Request, Sampling
from compeer.models.connections import checked_url, seconds_until
from compeer.models.endpoint import EndpointSettings
from compeer.policy.repeats import told_once
from compeer.reward.form import Judge
from compeer.safety.guard import Guard
from compeer.talk.guarded import GuardedSupporter
from compeer.talk.writing import Ending, NotWritten

_LONGEST_PAUSE = 5.0
"""Seconds at most before another try: somebody is waiting."""
_LARGEST = 2**20
"""Bytes of a line of a stream at most."""


class UpstreamWriter:
    """Writes by asking a server, which is called as its settings say; its retries are those of the supporter."""

    def __init__(self, settings: EndpointSettings, sees: bool = False) -> None:
        self._settings, self._sees = settings, sees
        self._url = f"{checked_url(settings.url)}/chat/completions"
        self._key = os.environ.get(settings.key_variable, "").strip()

    @property
    def name(self) -> str:
        return self._settings.model

    @property
    def sees(self) -> bool:
        return self._sees

    @property
    def constrained(self) -> bool:
        return self._settings.constrain != "off"

    def close(self) -> None: ...

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        return True

    async def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[str | Ending, None]:
        import httpx

        headers = {"User-Agent": f"compeer/{__version__}", "Accept": "text/event-stream"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        body = await asyncio.to_thread(self._body, request, sampling)
        try:
            async with (
                httpx.AsyncClient(verify=self._trusted, timeout=self._settings.timeout) as client,
                client.stream("POST", self._url, content=body, headers=headers | _JSON) as reply,
            ):
                if reply.status_code != 200:
                    raise await _refused(reply.status_code, reply.headers.get("retry-after"))
                async for piece in _once(_pieces(reply.aiter_bytes()), request.prefix):
                    yield piece
        except httpx.TimeoutException:
            raise NotWritten("the server did not answer in time") from None
        except httpx.HTTPError as error:
            await asyncio.sleep(0.2)
            raise NotWritten(f"the server cannot be reached or broke off: {type(error).__name__}") from None

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _body(self, request: Request, sampling: Sampling) -> bytes:
        messages: list[dict[str, Any]] = [_sendable(message) for message in request.messages]
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.prefix:
            messages.append({"role": "assistant", "content": request.prefix})
            if self._settings.constrain == "vllm":
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        elif request.grammar and self._settings.constrain == "vllm":
            body["structured_outputs"] = {"grammar": request.grammar}
        elif request.grammar and self._settings.constrain == "llama.cpp":
            body["grammar"] = f"%llguidance {{}}\n{request.grammar}"
        return json.dumps(body).encode()


_JSON = {"Content-Type": "application/json"}


async def _refused(status: int, retry_after: str | None) -> NotWritten:
    """Why a server gave no answer, after the pause that it asked for, if another try makes sense."""
    passing = status in (408, 409, 429) or status >= 500
    if passing:
        await asyncio.sleep(min(seconds_until(retry_after) or 0.5, _LONGEST_PAUSE))
    return NotWritten(f"the server answered {status}", passing)


async def _once(pieces: AsyncGenerator[str | Ending, None], begun: str) -> AsyncGenerator[str | Ending, None]:
    """The pieces until the output repeats itself; its ending is waited for, as it tells what the answer has cost."""
    text, told, over = "", 0, False
    async for piece in pieces:
        ended = isinstance(piece, Ending)
        if not over:
            text += piece if isinstance(piece, str) else ""
            known, over = told_once(text, begun, last=ended)
            if len(known) > told:
                yield known[told:]
                told = len(known)
        if isinstance(piece, Ending):
            yield replace(piece, cut_off=piece.cut_off and not over)


async def _pieces(received: AsyncIterator[bytes]) -> AsyncGenerator[str | Ending, None]:
    """The text of a stream of events, and its ending; a stream that ends without one has broken off."""
    finish: str | None = None
    usage: dict[str, Any] = {}
    async for line in _lines(received):
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        try:
            chunk = json.loads(data)
            if chunk.get("error"):
                raise NotWritten("the server broke off with an error")
            choice = (chunk.get("choices") or [{}])[0]
            text = (choice.get("delta") or {}).get("content")
            finish = choice.get("finish_reason") or finish
            usage = chunk.get("usage") or usage
        except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
            raise NotWritten("the server's answer cannot be read") from None
        if isinstance(text, str) and text:
            yield text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a character stays unread
    if finish is None:
        raise NotWritten("the server broke off")
    yield Ending(finish == "length", _count(usage, "completion_tokens"), _count(usage, "prompt_tokens"))


async def _lines(received: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    left = b""
    async for data in received:
        *lines, left = (left + data).split(b"\n")
        if len(left) > _LARGEST:
            raise NotWritten("the server's answer cannot be read")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if left:
        yield left.decode("utf-8", "replace")


def _count(usage: dict[str, Any], what: str) -> int:
    count = usage.get(what) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


def _sendable(message: Message) -> dict[str, Any]:
    """The message as servers take it: pictures that are files become part of it."""
    content = message["content"]
    if isinstance(content, str):
        return {"role": message["role"], "content": content}
    blocks = [_picture(block) if block["type"] == "image" else block for block in content]
    return {"role": message["role"], "content": blocks}


def _picture(block: dict[str, Any]) -> dict[str, Any]:
    if "url" in block:
        return {"type": "image_url", "image_url": {"url": block["url"]}}
    path = Path(block["path"])
    try:
        coded = base64.b64encode(path.read_bytes()).decode()
    except OSError:
        raise NotWritten("a picture cannot be read", passing=False) from None
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{coded}"}}


class UpstreamSupporter(GuardedSupporter):
    """Takes the supporter's part with a model behind a server; `concurrency` outputs at a time, as many may wait."""

    def __init__(
        self,
        settings: EndpointSettings,
        guard: Guard | None = None,
        judge: Judge | None = None,
        *,
        sees: bool = False,
        language: str = "en",
        history: int | None = None,
    ) -> None:
        writer = UpstreamWriter(settings, sees)
        super().__init__(writer, guard, judge, language=language, history=history, places=2 * settings.concurrency)
