"""What a judgment costs: UnifiReward against PRM + ORM on the same engine, and against four plain `generate` calls.

All judge the same outputs with the same weights in one process, one after the other, and the whole round is repeated
with other outputs, so that a busy machine disturbs all alike and nobody has met what it is given; the median counts.
Plain calls feed the whole chat anew for each verdict, in batches of the same size, and draw one token. On a GPU they
are measured twice: as torch comes (`as_torch_comes`), where it attends by cuDNN and makes a plan for every new shape,
and without that, as everything here runs (`models/network.py`). Then the same for more outputs a history and for longer
histories: a cost a unit that stays the same means that cost grows linearly.

    python benchmarks/judge.py [--model embedded] [--histories 4] [--outputs 4] [--repeats 3]

On a GPU the defaults are some hundred outputs: a few do not keep it busy, and then every call costs the same, whatever
it is given (`--histories 4 --batch 16` shows it). Prints one JSON object; ratios above 1 favour UnifiReward.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from compeer.corpora import read_corpus
from compeer.dialogue import Utterance, rounds_of
from compeer.engine.attention import FOLDED, attend
from compeer.engine.network import best_device, fast_dtype, load_network, load_tokenizer, steady_attention
from compeer.models.resolve import model_folder
from compeer.reasoning import EmotionStep, HistoryStep, StrategyStep, SupportTurn, parse_turn, render_turn
from compeer.reward import Case, JudgeForm, LocalJudge, PairJudge
from compeer.reward.conversation import branches, system_message

Cost = Callable[[Sequence[Case]], object]


def made_up(histories: int, outputs: int, utterances: int, draw: int = 0) -> list[Case]:
    """Cases from the sample corpus: `outputs` for each history of `utterances` utterances, each output another.

    No text of a `draw` is in another.
    """
    said = [
        (utterance.model_copy(update={"text": f"{utterance.text} ({draw})"}), f"{one.reply.text} ({draw})")
        for d in read_corpus("sample")
        for one in rounds_of(d)
        for utterance in one.history
    ]
    found = []
    for number in range(draw * histories, (draw + 1) * histories):
        history = [said[(number * 97 + place) % len(said)][0] for place in range(utterances)]
        texts = [said[(number * 89 + place * 31) % len(said)] for place in range(outputs)]
        found += [Case(tuple(history), parse_turn(_turn(text)), reply) for text, reply in texts]
    return found


def _turn(utterance: Utterance) -> str:
    words = utterance.text.split()
    return render_turn(
        SupportTurn(
            history=HistoryStep(text="It is about this: " + " ".join(words[:12]), stage="comforting"),
            emotion=EmotionStep(
                text="The words are: " + " ".join(words[-8:]), sentiment="negative", emotion="sadness", intensity=3
            ),
            strategy=StrategyStep(text="First of all be with them.", strategy="Reflection of feelings"),
            response="That sounds hard. " + " ".join(words[:20]),
        )
    )


def plain_calls(network: Any, tokenizer: Any, batch: int) -> Cost:
    """Four calls of transformers' `generate` an output, a token each, the earlier verdicts written into the chat.

    Not `LocalModel`, which on a CPU remembers the prompts that it has read.
    """

    def verdicts(chats: Sequence[list[dict[str, Any]]]) -> None:
        texts = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in chats]
        for start in range(0, len(texts), batch):
            inputs = tokenizer(texts[start : start + batch], return_tensors="pt", padding=True, padding_side="left")
            network.generate(**inputs.to(network.device), max_new_tokens=1, do_sample=False)

    def judge(cases: Sequence[Case]) -> None:
        chats = [[system_message(JudgeForm())] for _ in cases]
        rounds = [branches(case, JudgeForm())[0] for case in cases]
        for number in range(4):
            for messages, questions in zip(chats, rounds, strict=True):
                messages.append({"role": "user", "content": questions[number].text})
            verdicts(chats)
            for messages in chats:
                messages.append({"role": "assistant", "content": "True"})

    return judge


def as_torch_comes(work: Cost) -> Cost:
    """The same work with torch's own choice of how to attend."""

    def run(cases: Sequence[Case]) -> None:
        torch.backends.cuda.enable_cudnn_sdp(True)
        try:
            work(cases)
        finally:
            steady_attention()

    return run


def seconds(costs: dict[str, Cost], rounds: Sequence[Sequence[Case]]) -> dict[str, float]:
    """The median time of each, all measured in turn in each round; the first round warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in costs}
    for repeat, cases in enumerate(rounds):
        for name, cost in costs.items():
            start = time.perf_counter()
            cost(cases)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat:
                times[name].append(time.perf_counter() - start)
    found = {name: round(statistics.median(values), 4) for name, values in times.items()}
    print(len(rounds[0]), "outputs:", found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="embedded")
    cuda = torch.cuda.is_available()
    parser.add_argument("--histories", type=int, default=64 if cuda else 4)
    parser.add_argument("--outputs", type=int, default=4, help="outputs a history")
    parser.add_argument("--utterances", type=int, default=8, help="utterances a history")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256 if cuda else 16)
    options = parser.parse_args()
    folder = model_folder(options.model)
    network, plain = (load_network(folder, best_device(), fast_dtype(best_device())) for _ in range(2))
    tokenizer = load_tokenizer(folder)
    attend(network, FOLDED)  # as a judge that loads its own does
    shared = {"network": network, "tokenizer": tokenizer}

    def judge(form: JudgeForm) -> LocalJudge:
        return LocalJudge(folder, options.batch, form=form, **shared)

    unified = judge(JudgeForm())
    pair = PairJudge(judge(JudgeForm(kind="process")), judge(JudgeForm(kind="outcome")))
    costs: dict[str, Cost] = {
        "unified": unified.judge,
        "unified_two_looks": judge(JudgeForm(alone=True)).judge,
        "process_and_outcome": pair.judge,
        "plain_calls": plain_calls(plain, tokenizer, options.batch),
    }
    if cuda:
        costs["as_torch_comes"] = as_torch_comes(costs["plain_calls"])

    def rounds(outputs: int, utterances: int) -> list[list[Case]]:
        return [made_up(options.histories, outputs, utterances, draw) for draw in range(options.repeats + 1)]

    gc.freeze()  # else Python looks through all of torch now and then, a quarter of a second in anybody's time
    whole = seconds(costs, rounds(options.outputs, options.utterances))
    alone = {"unified": costs["unified"]}
    by_outputs, by_history = {}, {}
    for factor in (1, 2, 4):
        count = options.histories * options.outputs * factor
        by_outputs[count] = seconds(alone, rounds(factor * options.outputs, options.utterances))["unified"] / count
        longer = rounds(1, factor * options.utterances)
        tokens = round(statistics.mean(len(unified.pieces(case)[1][0]) for cases in longer[1:] for case in cases))
        by_history[tokens] = seconds(alone, longer)["unified"] / (tokens * options.histories)
    found = {
        "machine": platform.machine(),
        "device": str(best_device()),
        "device_name": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "settings": vars(options),
        "seconds": whole,
        "pair_over_unified": round(whole["process_and_outcome"] / whole["unified"], 2),
        "pair_over_two_looks": round(whole["process_and_outcome"] / whole["unified_two_looks"], 2),
        "plain_over_unified": round(whole["plain_calls"] / whole["unified"], 2),
        **({"as_torch_comes_over_unified": round(whole["as_torch_comes"] / whole["unified"], 2)} if cuda else {}),
        "seconds_an_output_by_outputs": {count: round(value, 5) for count, value in by_outputs.items()},
        "seconds_a_token_by_history_tokens": {count: round(value, 7) for count, value in by_history.items()},
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
