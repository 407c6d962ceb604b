"""Any OpenAI-compatible server: vLLM, llama.cpp, Ollama, or a hosted service.

The key is read from the environment (`OPENAI_API_KEY`, or the variable named in `key_variable`) and appears in no log
and no error. A request that fails for good gives a `Failure` and does not disturb the others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import openai

from compeer.errors import InputError
from compeer.models.base import Failure, Generation, Request, Sampling


class EndpointModel:
    """Asks a server by its base URL, `concurrency` requests at a time."""

    def __init__(
        self,
        url: str,
        model: str,
        key_variable: str = "OPENAI_API_KEY",
        concurrency: int = 16,
        timeout: float = 120.0,
        retries: int = 3,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"'{url}' is no URL", field="url", do="Give the server's base URL, as http://host:8000/v1")
        self._url, self._model, self._concurrency = url, model, concurrency
        self._options: dict[str, Any] = {
            "base_url": url,
            "api_key": os.environ.get(key_variable) or "none",
            "timeout": timeout,
            "max_retries": retries,
        }

    @property
    def name(self) -> str:
        return self._model

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        gate = asyncio.Semaphore(self._concurrency)
        async with openai.AsyncOpenAI(**self._options) as client:

            async def one(request: Request) -> Generation | Failure:
                async with gate:
                    return await self._ask(client, request, sampling)

            return list(await asyncio.gather(*(one(request) for request in requests)))

    async def _ask(self, client: openai.AsyncOpenAI, request: Request, sampling: Sampling) -> Generation | Failure:
        messages: list[Any] = list(request.messages)
        if request.prefix:
            messages.append({"role": "assistant", "content": request.prefix})
        try:
            answer = await client.chat.completions.create(
                model=self._model,
                messages=messages,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                stop=list(sampling.stop) or None,
                seed=request.seed,
            )
            choice = answer.choices[0]
            text = choice.message.content
            usage = answer.usage
            generation = Generation(
                text=request.prefix + (text or ""),
                cut_off=choice.finish_reason == "length",
                prompt_tokens=int(usage.prompt_tokens or 0) if usage else 0,
                tokens=int(usage.completion_tokens or 0) if usage else 0,
            )
        except openai.APITimeoutError:
            return Failure("timeout", f"{self._url} did not answer in time")
        except openai.APIConnectionError:
            return Failure("connection", f"{self._url} cannot be reached; is the server running?")
        except openai.RateLimitError:
            return Failure("rate limit", f"{self._url} refused for its rate limit (429)")
        except openai.APIStatusError as error:
            kind = "server" if error.status_code >= 500 else "refused"
            return Failure(kind, f"{self._url} answered {error.status_code}")  # type: ignore[arg-type]
        except (openai.OpenAIError, IndexError, TypeError, AttributeError, ValueError) as error:
            return Failure("answer", f"{self._url} gave an answer that cannot be read ({type(error).__name__})")
        if not text:
            return Failure("answer", f"{self._url} gave an empty answer")
        return generation
