"""A supporter behind any OpenAI-compatible server (vLLM, llama.cpp, Ollama, a hosted one), with our prompt and guard.

Outputs are streamed from it. Forced decisions and second attempts begin the answer for the model: vLLM needs
`constrain="vllm"` for that, llama.cpp and Ollama go on from a last assistant message by themselves. A server that
starts again instead is noticed the first time, and not asked so again. A server that knows grammars gets the one of a
turn. A server that is silent, never stops or floods is left after a time and a length: somebody is waiting, and others
are talking too. The key is read from the environment and appears in no log and no error.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from compeer.chat.writing import Ending, NotWritten, Piece, Restart
from compeer.io import readable
from compeer.models.base import CallSettings, Message, Request, Sampling
from compeer.models.client import CallError, Endpoint, seconds_until, used_tokens
from compeer.policy.repeats import RepetitionFilter
from compeer.reasoning import STEPS, label_of, may_become_label
from compeer.ser.asking import data_url

_LONGEST_PAUSE = 5.0  # seconds at most before another try: somebody is waiting
_CHARACTERS_A_TOKEN = 16  # a server that writes more of them, on average, does not heed how many were asked for
Written = AsyncGenerator[str | Ending, None]


class StreamCall(CallSettings):
    """How a server is called that streams its answers to somebody who waits."""

    stream_seconds: float = Field(120.0, gt=0, description="seconds from a call to the last word of a streamed answer")
    stream_bytes: int = Field(2**21, ge=2**12, description="bytes that a streamed answer may have")


class UpstreamWriter:
    """Writes by asking a server, which is called as its settings say; its retries are those of the supporter."""

    def __init__(self, url: str, model: str, settings: StreamCall, multimodal: bool = False) -> None:
        self._settings, self.name, self.multimodal = settings, model, multimodal
        self._endpoint = Endpoint(url, model, settings)
        self.constrained, self.continues = settings.constrain != "off", True

    def close(self) -> None: ...

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        return True

    async def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        body = await asyncio.to_thread(self._body, request, sampling)
        deadline = asyncio.get_running_loop().time() + self._settings.stream_seconds
        try:
            async with AsyncExitStack() as opened:
                stream = self._endpoint.stream(body, timeout=self._settings.timeout)
                async with asyncio.timeout_at(deadline):
                    reply = await opened.enter_async_context(stream)
                if reply.status_code != 200:
                    raise await _refused(reply.status_code, reply.headers.get("retry-after"))
                received = _within(reply.aiter_bytes(), deadline, self._settings.stream_bytes)
                most, begun, pieces = _CHARACTERS_A_TOKEN * sampling.max_tokens, request.prefix, _pieces(received)
                if begun:
                    pieces, heeded = await _with_head(pieces)
                    if not heeded:
                        self.continues, begun = False, ""
                        yield Restart()
                async with aclosing(_once(pieces, begun, most)) as output:
                    async for piece in output:
                        yield piece
        except (TimeoutError, CallError) as error:
            if isinstance(error, TimeoutError) or error.failure.kind == "timeout":  # nobody waits for as long again
                raise NotWritten("the server did not answer in time", passing=False) from None
            await asyncio.sleep(0.2)
            raise NotWritten("the server cannot be reached or broke off") from None

    def _body(self, request: Request, sampling: Sampling) -> bytes:
        messages = tuple(_sendable(message) for message in request.messages)
        more = {"stream": True, "stream_options": {"include_usage": True}}
        return self._endpoint.body(replace(request, messages=messages), sampling, **more)


async def _refused(status: int, retry_after: str | None) -> NotWritten:
    """Why a server gave no answer, after the pause that it asked for, if another try makes sense."""
    passing = status in (408, 409, 429) or status >= 500
    if passing:
        await asyncio.sleep(min(seconds_until(retry_after) or 0.5, _LONGEST_PAUSE))
    return NotWritten(f"the server answered {status}", passing)


async def _within(received: AsyncIterator[bytes], deadline: float, most: int) -> AsyncGenerator[bytes, None]:
    """What a server sends until the deadline, which raises `TimeoutError`; others get their turn between two parts."""
    size = 0
    while True:
        async with asyncio.timeout_at(deadline):
            data = await anext(received, None)
        if data is None:
            return
        size += len(data)
        if size > most:
            raise NotWritten("the server's answer has no end", passing=False)
        yield data
        await asyncio.sleep(0)


async def _with_head(pieces: Written) -> tuple[Written, bool]:
    """The pieces of an answer with a prefix, and whether it goes on: one that opens with the first step does not."""
    head, ending = "", None
    async for piece in pieces:
        if isinstance(piece, Ending):
            ending = piece
            break
        head += piece
        if head.strip() and not may_become_label(head.lstrip()):
            break

    async def whole() -> Written:
        async with aclosing(pieces):
            if head:
                yield head
            if ending is not None:
                yield ending
                return
            async for piece in pieces:
                yield piece

    label = label_of(head.lstrip().split("\n")[0])
    return whole(), label is None or label[0] != STEPS[0]


async def _once(pieces: Written, begun: str, most: int) -> Written:
    """The pieces until the output repeats itself or has `most` characters, and its ending, with the token counts."""
    output, size = RepetitionFilter(begun), 0
    async with aclosing(pieces):
        async for piece in pieces:
            ending = piece if isinstance(piece, Ending) else None
            text = "" if isinstance(piece, Ending) else piece[: most - size]
            size += len(text)
            if ending is None and size == most:
                ending = Ending(cut_off=True)
            if new := output.feed(text, last=ending is not None):
                yield new
            if ending is not None:
                yield replace(ending, cut_off=ending.cut_off and not output.over)
                return


async def _pieces(received: AsyncIterator[bytes]) -> Written:
    """A stream's text, what arrives together yielded together, since a flood takes others' time, and its ending."""
    finish: str | None = None
    usage: dict[str, Any] = {}
    async for lines in _lines(received):
        texts = []
        for line in lines:
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
            if isinstance(text, str):
                texts.append(readable(text))
        if text := "".join(texts):
            yield text
    if finish is None:
        raise NotWritten("the server broke off")
    yield Ending(finish == "length", used_tokens(usage, "completion_tokens"), used_tokens(usage, "prompt_tokens"))


async def _lines(received: AsyncIterator[bytes]) -> AsyncGenerator[list[str], None]:
    """The lines that are whole after each part that comes."""
    left = b""
    async for data in received:
        *lines, left = (left + data).split(b"\n")
        yield [line.decode("utf-8", "replace") for line in lines]
    yield [left.decode("utf-8", "replace")]


def _sendable(message: Message) -> Message:
    """The message as servers take it: pictures that are files become part of it."""
    content = message["content"]
    if not isinstance(content, str):
        content = [_picture(block) if block["type"] == "image" else block for block in content]
    return {"role": message["role"], "content": content}


def _picture(block: dict[str, Any]) -> dict[str, Any]:
    try:
        address = block["url"] if "url" in block else data_url(Path(block["path"]))
    except OSError:
        raise NotWritten("a picture cannot be read", passing=False) from None
    return {"type": "image_url", "image_url": {"url": address}}
