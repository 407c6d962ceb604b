"""What the engines on a CPU gain: the same turns in eight bits, by llama.cpp and by torch in float32, in one run.

    python benchmarks/serve.py small [--turns 6] [--clients 8] [--max-tokens 120] [--backends int8 llama.cpp torch]
    python benchmarks/serve.py large qwen-1.5b [--judge judge-1.5b] [--turns 3]
    python benchmarks/serve.py agreement [--verdicts 500] [--backend int8]
    python benchmarks/serve.py outputs [--outputs 1000] [--model random]

`small` answers histories of 300 to 900 tokens with the packaged supporter, guard and all, for one client and for
several at once, new ones and ones whose earlier turns were read before, and has one history judged, on one backend
after the other, `--turns` times over: machines are noisy, so compare within a run. Ratios say how many times better
than torch. Set `COMPEER_GUARD=small` where the large base is there. `large` takes a base (a name of the catalogue, or a
GGUF file) and measures how fast it reads and writes, when the first word of a reply can be seen in the first and in the
second turn of a conversation, and its memory. `agreement` counts how often a backend judges as torch does. `outputs`
counts how many outputs under the form can be read and decide as they were steered, on histories that hold pieces of the
form themselves; `random` is a tiny model with random weights, which knows nothing of the form. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import psutil
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from compeer.chat import TurnDone, TurnRequest
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.local import LocalWriter
from compeer.chat.turn import ReplyPart, StepDone
from compeer.chat.writing import Ending, fixed_grammar
from compeer.corpora import read_corpus
from compeer.dialogue import Utterance, rounds_of
from compeer.engine.cpu_table import CpuEngine
from compeer.engine.network import load_tokenizer
from compeer.models import Request, Sampling, model_folder
from compeer.models.resolve import prepare
from compeer.policy.control import Control, decisions
from compeer.policy.prompt import supporter_prompt
from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES, parse_turn
from compeer.reward import Case, JudgeForm, Judgment, LocalJudge
from compeer.safety import Guard
from compeer.statistics import generator

BACKENDS = ("int8", "llama.cpp", "torch")
TURN = """History: The job is gone and the rent is due. [exploration]
Emotion: Worry about the next weeks. [negative, anxiety, 4]
Strategy: I ask how it began. [Question]
Response: That is a lot at once. What did they say to you?"""


def histories(count: int, shortest: int = 1200, longest: int = 3600) -> list[tuple[Utterance, ...]]:
    """Histories of the sample corpus between so many characters, of as many dialogues as can be, without danger."""
    guard, found = Guard(), []
    dialogues = [list(rounds_of(dialogue)) for dialogue in read_corpus("sample")]
    for one in (rounds[-1 - back] for back in range(8) for rounds in dialogues if len(rounds) > back):
        if len(found) == count:
            break
        said = [utterance.text for utterance in one.history if utterance.speaker == "seeker"]
        length = sum(len(utterance.text) for utterance in one.history)
        if not shortest <= length <= longest or one.history[-1].speaker != "seeker":
            continue
        if guard.before(said).risk.level == "none":
            found.append(one.history)
    return found


@contextmanager
def on(backend: str) -> Iterator[None]:
    """Models that are opened now run on this backend."""
    if backend == "torch":
        with mock.patch("compeer.chat.local.cpu_files", return_value=None):
            yield
    else:
        with (
            mock.patch.dict(os.environ, {"COMPEER_CPU": backend}),
            mock.patch("compeer.chat.local.cpu_files", lambda model, use: prepare(model)),
            mock.patch("compeer.reward.judge.cpu_files", lambda model, use: prepare(model)),
        ):
            yield


class Clock:
    """Seconds by the clock, and of the processor."""

    def __enter__(self) -> Clock:
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


async def answered(supporter: GuardedSupporter, requests: Sequence[TurnRequest]) -> list[tuple[TurnDone, float, float]]:
    """All requests at once: their ends, and the seconds to the first step and to the first word of the reply."""

    async def one(request: TurnRequest) -> tuple[TurnDone, float, float]:
        start, step, reply, done = time.perf_counter(), 0.0, 0.0, None
        async for event in supporter.converse(request):
            if isinstance(event, StepDone) and not step:
                step = time.perf_counter() - start
            if isinstance(event, ReplyPart) and not reply:
                reply = time.perf_counter() - start
            if isinstance(event, TurnDone):
                done = event
        assert done is not None
        return done, step, reply

    return list(await asyncio.gather(*map(one, requests)))


def forget(supporter: GuardedSupporter) -> None:
    """What was read before is known no more, but for how all prompts begin."""
    batcher = supporter.writer._batcher
    batcher.ask(batcher.table.clear).result()


def earlier(request: TurnRequest) -> TurnRequest:
    """The request before the last exchange, answered with a few tokens."""
    shorter = request.history[:-2]
    while shorter and shorter[-1].speaker != "seeker":
        shorter = shorter[:-1]
    return TurnRequest(shorter or request.history[:1], sampling=Sampling(max_tokens=4))


def middle(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def small(options: argparse.Namespace) -> dict[str, Any]:
    """The packaged supporter and judge on each backend."""
    sampling = Sampling(temperature=0.7, max_tokens=options.max_tokens)
    asked = histories(options.turns * options.clients)
    opened, judges = {}, {}
    for backend in options.backends:
        with on(backend):
            opened[backend] = LocalWriter("supporter", options.clients).supporter(Guard(), waiting=options.clients)
            judges[backend] = LocalJudge("judge")
        asyncio.run(answered(opened[backend], [TurnRequest(asked[-1], sampling=Sampling(max_tokens=4))]))
    rows: dict[str, dict[str, list[float]]] = {backend: {} for backend in options.backends}

    def note(backend: str, **values: float) -> None:
        for name, value in values.items():
            rows[backend].setdefault(name, []).append(value)

    for turn in range(options.turns):
        many = [asked[(turn * options.clients + n) % len(asked)] for n in range(options.clients)]
        for backend in options.backends if turn % 2 else reversed(options.backends):
            supporter = opened[backend]
            for name, known in (("new", False), ("going_on", True)):
                for count in (1, options.clients):
                    requests = [
                        TurnRequest(one, sampling=sampling, seed=100 * turn + n) for n, one in enumerate(many[:count])
                    ]
                    forget(supporter)
                    if known:  # all but the last exchange of each conversation was read in an earlier turn
                        for request in requests:
                            asyncio.run(answered(supporter, [earlier(request)]))
                    with Clock() as clock:
                        found = asyncio.run(answered(supporter, requests))
                    tokens = sum(done.tokens for done, _, _ in found)
                    values = {"s": clock.wall, "tokens_a_s": tokens / clock.wall, "tokens_a_cpu_s": tokens / clock.cpu}
                    note(backend, **{f"{name}_{count}_{what}": value for what, value in values.items()})
                    note(backend, **{f"{name}_{count}_first_word_s": middle([reply for _, _, reply in found])})
                    note(backend, prompt_tokens=middle([done.prompt_tokens for done, _, _ in found]))
            with Clock() as clock:
                judges[backend].judge([Case(many[0], parse_turn(TURN), "I am sorry. What happened?")])
            note(backend, verdicts_s=clock.wall, verdicts_cpu_s=clock.cpu)
        print(json.dumps(rows), file=sys.stderr, flush=True)
    for supporter in opened.values():
        supporter.close()
    medians = {backend: {name: middle(values) for name, values in own.items()} for backend, own in rows.items()}

    def ratio(name: str, ours: float, theirs: float) -> float:
        return round(ours / theirs if "tokens_a" in name else theirs / ours, 2)

    return {
        **medians,
        "memory_mb": {backend: memory("memory", backend) for backend in options.backends},
        "ratios": {
            backend: {
                name: ratio(name, value, medians["torch"][name])
                for name, value in medians[backend].items()
                if name != "prompt_tokens"
            }
            for backend in options.backends
            if backend != "torch"
        },
        "clients": options.clients,
    }


def memory(*words: str) -> int:
    """The memory of a process of its own that has answered one message, in megabytes."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    return int(done.stdout.strip().splitlines()[-1])


def one_message(options: argparse.Namespace) -> None:
    """Answers a message, and prints the memory that it took."""
    with on(options.backend):
        supporter = LocalWriter("supporter").supporter(Guard())
    asyncio.run(answered(supporter, [TurnRequest(histories(1)[0], sampling=Sampling(max_tokens=40))]))
    print(psutil.Process().memory_info().rss >> 20)


def large(options: argparse.Namespace) -> dict[str, Any]:
    """A base of the catalogue: speed, first words, verdicts, memory."""
    before = psutil.Process().memory_info().rss
    with Clock() as opening:
        supporter = LocalWriter(options.model).supporter(Guard())
    prepared = prepare(options.model)
    assert prepared is not None
    tokenizer = load_tokenizer(prepared.tokenizer)
    engine = CpuEngine(prepared, tokenizer.eos_token_id)
    judge = LocalJudge(options.judge or options.model, form=None if options.judge else JudgeForm())
    asked = histories(2 * options.turns)
    found: dict[str, list[float]] = {}
    for turn in range(options.turns):
        ids = tokenizer(" ".join(one.text for one in asked[turn]), add_special_tokens=False)["input_ids"][:384]
        ids[0] = 1000 + turn  # nothing of it is known
        with Clock() as clock:
            engine.logits(ids).result()
        found.setdefault("reads_tokens_a_s", []).append(len(ids) / clock.wall)
        found.setdefault("reads_tokens_a_cpu_s", []).append(len(ids) / clock.cpu)
        request = Request(({"role": "user", "content": "Tell me of a river, at length."},), seed=turn)
        pieces = asyncio.run(timed(supporter.writer, request))
        found.setdefault("writes_tokens_a_s", []).append((pieces[-1][1] - 1) / (pieces[-1][0] - pieces[0][0]))
        history = asked[-1 - turn]
        for name in ("first", "second"):
            sampling = Sampling(temperature=0.7, max_tokens=options.max_tokens)
            with Clock() as clock:
                ((done, step, reply),) = asyncio.run(
                    answered(supporter, [TurnRequest(history, sampling=sampling, seed=turn)])
                )
            for what, value in (("first_step_s", step), ("first_word_s", reply), ("turn_s", clock.wall)):
                found.setdefault(f"{name}_turn_{what}", []).append(value)
            found.setdefault(f"{name}_turn_prompt_tokens", []).append(done.prompt_tokens)
            history = (
                *history,
                Utterance(speaker="supporter", text=done.reply),
                Utterance(speaker="seeker", text="Yes. I do not know how to tell my family about it."),
            )
        with Clock() as clock:
            judge.judge([Case(asked[-1 - turn], parse_turn(TURN), "I am sorry. What happened?")])
        found.setdefault("verdicts_s", []).append(clock.wall)
        print(json.dumps(found), file=sys.stderr, flush=True)
    taken = psutil.Process().memory_info().rss
    return {
        "model": options.model,
        "opening_s": round(opening.wall, 2),
        **{name: middle(values) for name, values in found.items()},
        "memory_mb": taken >> 20,
        "memory_before_mb": before >> 20,
    }


def agreement(options: argparse.Namespace) -> dict[str, Any]:
    """Verdicts of the packaged judge on a backend and on torch."""
    judges = {}
    for backend in (options.backend, "torch"):
        with on(backend):
            judges[backend] = LocalJudge("judge")
    rng = generator(0, "agreement")
    rounds = [one for dialogue in read_corpus("sample") for one in rounds_of(dialogue) if one.history]
    chosen = [rounds[int(n)] for n in rng.integers(len(rounds), size=-(-options.verdicts // 4))]
    cases = []
    for one in chosen:
        stage, emotion, strategy = (str(rng.choice(list(words))) for words in (STAGES, EMOTIONS, STRATEGIES))
        text = (
            f"History: They tell what happened. [{stage}]\nEmotion: It shows in the words. [negative, {emotion}, 3]\n"
            f"Strategy: This fits now. [{strategy}]\nResponse: {one.reply.text}"
        )
        cases.append(Case(one.history, parse_turn(text), str(rng.choice([other.reply.text for other in rounds]))))
    ours, theirs = (judge.judge(cases) for judge in judges.values())
    apart = []
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, Judgment) and isinstance(other, Judgment):
            apart += [abs(one.steps[part] - other.steps[part]) for part in one.steps]
            apart += [max(abs(one.response[w] - other.response[w]) for w in one.response)] if one.response else []
    apart = sorted(apart[: options.verdicts])
    return {
        "verdicts": len(apart),
        "verdicts_within_0.05": round(sum(one < 0.05 for one in apart) / max(1, len(apart)), 4),
        "verdicts_apart_median": round(statistics.median(apart), 4) if apart else None,
        "verdicts_apart_95": round(apart[int(0.95 * len(apart))], 4) if apart else None,
    }


FORMS = (
    "",
    "Response: I am done.",
    "History: x [action]\nEmotion: y [positive, joy, 5]",
    "[Question]",
    "<|im_end|>",
    "]]",
)


def outputs(options: argparse.Namespace) -> dict[str, Any]:
    """Outputs under the form, steered at random."""
    rng = generator(options.seed, "outputs")
    rounds = [one for dialogue in read_corpus("sample") for one in rounds_of(dialogue) if one.history]
    with TemporaryDirectory() as folder:
        writer = LocalWriter(random_model(folder, options.tokenizer) if options.model == "random" else options.model)
        read = steered = 0
        for start in range(0, options.outputs, 64):
            requests, controls = [], []
            for number in range(start, min(start + 64, options.outputs)):
                seed = 1_000_000 * options.seed + number
                words = {"stage": STAGES, "emotion": EMOTIONS, "strategy": STRATEGIES}
                wanted = {name: str(rng.choice(list(own))) for name, own in words.items() if rng.random() < 0.4}
                controls.append(Control.model_validate(wanted))
                last = rounds[int(rng.integers(len(rounds)))].history[-1]
                text = f"{last.text} {FORMS[int(rng.integers(len(FORMS)))]}"
                messages = supporter_prompt([Utterance(speaker="seeker", text=text)], control=controls[-1])
                requests.append(Request(tuple(messages), seed=seed, grammar=fixed_grammar(controls[-1])))
            for control, (text, ending) in zip(controls, asyncio.run(written(writer, requests)), strict=True):
                parsed = parse_turn(text, ending.cut_off)
                read += parsed.turn is not None
                asked = control.requested()
                steered += parsed.turn is not None and {name: decisions(parsed)[name] for name in asked} == asked
            print(start, read, steered, file=sys.stderr, flush=True)
        writer.close()
    return {"model": options.model, "outputs": options.outputs, "read": read, "as_steered": steered}


def random_model(folder: str, tokens: str) -> str:
    """Writes a Llama of two layers with random weights and the tokenizer of a model."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder(tokens))
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(tokenizer), **sizes, max_position_embeddings=4096, tie_word_embeddings=True, **ends
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


async def timed(writer: Any, request: Request) -> list[tuple[float, int]]:
    """When each piece of an output came; the last has the number of its tokens."""
    found = []
    async for piece in writer.write(request, Sampling(temperature=0, max_tokens=48)):
        found.append((time.perf_counter(), piece.tokens if isinstance(piece, Ending) else 0))
    return found


async def written(writer: LocalWriter, requests: Sequence[Request]) -> list[tuple[str, Ending]]:
    async def one(request: Request) -> tuple[str, Ending]:
        pieces = [piece async for piece in writer.write(request, Sampling(temperature=1.0, max_tokens=1200))]
        assert isinstance(pieces[-1], Ending)
        return "".join(str(piece) for piece in pieces[:-1]), pieces[-1]

    return list(await asyncio.gather(*map(one, requests)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(required=True)
    for name, work in (("small", small), ("large", large), ("agreement", agreement), ("outputs", outputs)):
        way = ways.add_parser(name)
        way.set_defaults(work=work)
        if name == "large":
            way.add_argument("model")
            way.add_argument("--judge", help="the judge of the same base; without it, the base itself judges")
        if name == "agreement":
            way.add_argument("--verdicts", type=int, default=500)
            way.add_argument("--backend", choices=BACKENDS[:-1], default="int8")
        elif name == "outputs":
            way.add_argument("--outputs", type=int, default=1000)
            way.add_argument("--model", default="random")
            way.add_argument("--tokenizer", default="embedded", help="the model whose tokenizer a random one gets")
            way.add_argument("--seed", type=int, default=0)
        else:
            way.add_argument("--turns", type=int, default=6 if name == "small" else 3)
            way.add_argument("--max-tokens", type=int, default=120)
        if name == "small":
            way.add_argument("--clients", type=int, default=8)
            way.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    way = ways.add_parser("memory")
    way.set_defaults(work=None)
    way.add_argument("backend", choices=BACKENDS)
    options = parser.parse_args()
    if options.work is None:
        one_message(options)
        return
    found = options.work(options)
    found["machine"] = {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "xllamacpp": version("xllamacpp"),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
