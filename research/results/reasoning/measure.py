"""Is reasoning before the reply worth it? The same model trained to write steps first, and to reply at once.

    python research/results/reasoning/measure.py run FOLDER [--parallel 7]        what is done is not done again
    python research/results/reasoning/measure.py table FOLDER --corpus CORPUS …  results.json, tables.md

FOLDER holds policy.jsonl and test.jsonl, as `results/supporter/measure.py prepare` leaves them, and two judges that
trained neither supporter: outcome/model, which compares responses without steps, and feedback/model, taught by
nothing but what seekers thought of replies (`outcome-1` and `feedback-1` of results/judges). `steps-1` … and `direct-1`
… are trained as recipes/claims/steps.toml and direct.toml say: on the same records, with the same seeds, rate and
number of steps, all without control words. They answer the same held-out histories, several times each. Only the
responses are measured: the judges never see a step. A reply that cannot be read, or did not end, has no opinion and no
words; how many are there stands beside. `human` is the corpus' own reply in the same place.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[3])]

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
SEEDS = (1, 2, 3)
VARIANTS = ("steps", "direct")
HISTORIES, GROUP, MAX_TOKENS = 256, 4, 224
BATCH = 256
"""Outputs written or judged at a time."""


@dataclass(frozen=True)
class Reply:
    """What a seeker would read: the response, or None where there is none that can be read."""

    response: str | None
    written: str
    ended: bool


def do(folder: Path, name: str) -> None:
    """One training with its measurement, or the human's replies, by its name."""
    import torch

    from compeer.evaluate.runner import sample
    from compeer.ser.record import read_records

    own = [record for record in read_records(folder / "test.jsonl") if record.author == "corpus"]
    asked = sample(own, HISTORIES, 1, "supporters")
    figures: dict[str, Any] = {}
    if name == "human":
        replies = [[Reply(record.reference, record.reference, True)] for record in asked]
    else:
        figures["training"] = trained(folder, name)
        gc.collect()
        torch.cuda.empty_cache()
        start = time.monotonic()
        replies = replies_of(folder / name / "model", asked)
        figures["seconds_asking"] = round(time.monotonic() - start)
    start = time.monotonic()
    figures["rows"] = measured(folder, asked, replies, against_the_human=name != "human")
    figures["seconds_measuring"] = round(time.monotonic() - start)
    figures["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    figures["torch"] = torch.__version__
    (folder / "said").mkdir(exist_ok=True)
    (folder / "said" / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def settings_of(variant: str) -> dict[str, Any]:
    """What a supporter's recipe says of its training, without the checkpoints: here there is one, at the end."""
    from compeer.recipe import load_recipe

    recipe = load_recipe(RECIPES / "claims" / f"{variant}.toml")
    return recipe.sft.model_dump(exclude_unset=True, exclude={"save_every"})


def trained(folder: Path, name: str) -> dict[str, Any]:
    """Trains a supporter, or goes on with it; its figures are kept beside its model."""
    from compeer.policy.sft import SupporterSettings, train_supporter
    from compeer.ser.record import read_records

    told = folder / name / "training.json"
    if not told.is_file():
        variant, seed = name.split("-")
        chosen = settings_of(variant)
        settings = SupporterSettings(**chosen, save_every=chosen["steps"])
        start = time.monotonic()
        figures = train_supporter(list(read_records(folder / "policy.jsonl")), settings, folder / name, int(seed))
        figures["seconds"] = round(time.monotonic() - start)
        told.write_text(json.dumps(figures) + "\n", encoding="utf-8")
        shutil.rmtree(folder / name / "checkpoints", ignore_errors=True)
    found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return found


def replies_of(model: Path, asked: Sequence[Any]) -> list[list[Reply]]:
    """What the supporter replies to each history, several times, asked as its card says."""
    from compeer.models import Sampling
    from compeer.models.local import LocalModel
    from compeer.models.training import model_card
    from compeer.policy import Output, generate_turns

    sampling = Sampling(temperature=1.0, max_tokens=MAX_TOKENS)
    direct = bool(model_card(model).get("direct"))
    answers = generate_turns(
        LocalModel(model, batch_size=BATCH), asked, sampling, seed=1, candidates=GROUP, direct=direct
    )
    replies = []
    for answer in answers:
        assert isinstance(answer, Output), f"not answered: {answer}"
        response = answer.parsed.parts.get("response")
        replies.append(Reply(str(response) if response else None, answer.text, not answer.cut_off))
    return _grouped(replies, GROUP)


# --- measuring --------------------------------------------------------------------------------------------------------


def measured(
    folder: Path, asked: Sequence[Any], replies: Sequence[Sequence[Reply]], against_the_human: bool
) -> list[dict[str, Any]]:
    """A row of figures a history, most of them a value a reply, None where there is no reply."""
    from research.judge.people import ANCHORS

    from compeer.models.embedder import Embedder
    from compeer.policy.redundancy import in_group_similarity
    from compeer.safety.output import check_reply
    from compeer.statistics import mean, words

    size = len(replies[0])
    flat = [reply.response for group in replies for reply in group]
    histories = [record.history for record in asked for _ in range(size)]
    opinions = {"feedback": as_good(folder / "feedback" / "model", histories, flat, [ANCHORS[0]] * len(flat))}
    if against_the_human:
        references = [record.reference for record in asked for _ in range(size)]
        opinions["outcome"] = as_good(folder / "outcome" / "model", histories, flat, references)
    grouped = {name: _grouped(values, size) for name, values in opinions.items() if values}
    embedded = iter(Embedder().embed([response for response in flat if response is not None]))
    rows = []
    for place, (record, group) in enumerate(zip(asked, replies, strict=True)):
        said = [utterance.text for utterance in record.history if utterance.speaker == "seeker"]
        there = [reply.response for reply in group if reply.response is not None]
        rows_of_group = [next(embedded) for _ in there]
        rows.append(
            {
                "dialogue": record.dialogue,
                "strategy": record.candidate.strategy.strategy,
                "responses": [reply.response for reply in group],
                "there": [reply.response is not None for reply in group],
                "ended": [reply.ended for reply in group],
                "words": [None if reply.response is None else len(words(reply.response)) for reply in group],
                "words_written": [len(words(reply.written)) for reply in group],
                "rejected": [None if one.response is None else bool(check_reply(one.response, said)) for one in group],
                "s_in": [mean(in_group_similarity(rows_of_group)) if len(there) > 1 else None],
                **{name: values[place] for name, values in grouped.items()},
            }
        )
    return rows


def as_good(
    model: Path, histories: Sequence[Any], responses: Sequence[str | None], references: Sequence[str]
) -> list[float | None]:
    """How probable a judge finds it, asked in both orders, that a response is at least as good as its reference.

    None where there is no response or the judge failed; 0 where a response only copies. Nothing without the judge.
    """
    from compeer.reasoning import ParsedTurn
    from compeer.reward import LocalJudge
    from compeer.reward.conversation import Case
    from compeer.reward.score import Judgment

    if not model.is_dir():
        return []
    judge = LocalJudge(model, batch_size=BATCH, both_orders=True)
    assert judge.form.kind == "outcome", f"{model} is asked about steps as well, and one of the supporters has none"
    there = [place for place, response in enumerate(responses) if response is not None]
    cases = [
        Case(histories[place], ParsedTurn(None, {"response": str(responses[place])}), references[place])
        for place in there
    ]
    found: list[float | None] = [None] * len(responses)
    for place, one in zip(there, judge.judge(cases), strict=True):
        if isinstance(one, Judgment) and one.response:
            found[place] = 0.0 if one.void else one.response["candidate"] + one.response["both"]
    return found


def _grouped(values: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(values[start : start + size]) for start in range(0, len(values), size)]


# --- tables -----------------------------------------------------------------------------------------------------------

FIGURES = {
    "outcome": "as good as the human's (judge of responses)",
    "feedback": "as good as the anchor (judge of feedback)",
    "strategy_probability": "the human's strategy (classifier, probability)",
    "strategy_best": "the human's strategy (classifier, best guess)",
    "distinct_2": "distinct-2 of a history's replies",
    "s_in": "similarity of a history's replies",
    "words": "words of a reply",
    "words_written": "words written, steps included",
    "rejected": "rejected by the guard",
    "there": "replies that can be read",
    "ended": "outputs that ended",
}


def table(folder: Path, corpus: Sequence[Path]) -> None:
    """Means with intervals over dialogues and seeds, and the difference between the two supporters, paired."""
    from compeer.statistics import distinct

    names = {variant: [f"{variant}-{seed}" for seed in SEEDS] for variant in VARIANTS} | {"human": ["human"]}
    paths = {name: folder / "said" / f"{name}.json" for members in names.values() for name in members}
    said = {n: json.loads(path.read_text(encoding="utf-8")) for n, path in paths.items() if path.is_file()}
    report = add_strategies([row for one in said.values() for row in one["rows"]], corpus)
    found: dict[str, Any] = {
        "settings": {**settings_of("steps"), "histories": HISTORIES, "group": GROUP, "max_tokens": MAX_TOKENS}
    }
    found |= {"classifier": report, "supporters": {}, "difference": {}, "distinct_by_seed": {}}
    draws: dict[str, dict[str, Any]] = {}
    for variant, members in names.items():
        there = [said[name] for name in members if name in said]
        if not there:
            continue
        for row in (row for one in there for row in one["rows"]):
            replies = [text for text in row["responses"] if text is not None]
            row["distinct_2"] = [distinct(replies, 2) if len(replies) > 1 else None]
        known = [key for key in FIGURES if all(key in one["rows"][0] for one in there)]
        figures = {key: _drawn(there, key) for key in known}
        draws[variant] = {key: values for key, values in figures.items() if math.isfinite(values[0])}
        found["supporters"][variant] = {key: _interval(values) for key, values in draws[variant].items()}
        texts = [[text for row in one["rows"] for text in row["responses"] if text is not None] for one in there]
        found["distinct_by_seed"][variant] = {n: [distinct(own, n) for own in texts] for n in (1, 2)}
    if set(VARIANTS) <= draws.keys():
        steps, direct = (draws[variant] for variant in VARIANTS)
        found["difference"] = {key: _interval(steps[key] - direct[key]) for key in steps if key in direct}
    found["trainings"] = {n: {k: v for k, v in one.items() if k != "rows"} for n, one in said.items()}
    here = Path(__file__).parent
    (here / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (here / "tables.md").write_text(_as_text(found), encoding="utf-8")


def add_strategies(rows: Sequence[dict[str, Any]], corpus: Sequence[Path]) -> dict[str, Any]:
    """Adds to each row how far its replies carry the human's strategy, told by a classifier; how good it is."""
    from research.judge.strategies import DecidingClassifier, strategy_replies

    from compeer.corpora import read_corpus
    from compeer.reasoning import STRATEGIES

    if not corpus:
        return {}
    dialogues = (dialogue for path in corpus for dialogue in read_corpus(str(path)))
    classifier = DecidingClassifier(strategy_replies(dialogues), seed=0)
    for row in rows:
        place = STRATEGIES.index(row["strategy"])
        chances = [None if text is None else classifier.probabilities([text])[0] for text in row["responses"]]
        row["strategy_probability"] = [None if one is None else float(one[place]) for one in chances]
        row["strategy_best"] = [None if one is None else int(one.argmax()) == place for one in chances]
    return classifier.report


def _drawn(there: Sequence[dict[str, Any]], key: str) -> Any:
    """A figure's mean over histories and seeds, then the same with dialogues and seeds drawn anew.

    The same dialogues and seeds are drawn for every supporter, so that draws can be held against each other.
    """
    import numpy as np
    from research.judge.compare import over_seeds

    from compeer.statistics import group_weights, mean, ratio

    places = {name: place for place, name in enumerate(sorted({row["dialogue"] for row in there[0]["rows"]}))}
    weights = group_weights(len(places))
    by_seed = []
    for one in there:
        sums = np.zeros((len(places), 2))
        for row in one["rows"]:
            value = mean([float(value) for value in row[key] if value is not None])
            if value is not None:
                sums[places[row["dialogue"]]] += (value, 1)
        by_seed.append(ratio(weights @ sums[:, 0], weights @ sums[:, 1]))
    return over_seeds(np.stack(by_seed), 0)


def _interval(draws: Any) -> list[float | None]:
    from compeer.statistics import percentile_interval

    return [float(draws[0]), *(percentile_interval(draws[1:]) or (None, None))]


def _as_text(found: dict[str, Any]) -> str:
    columns = {**found["supporters"], "steps − direct": found["difference"]}
    lines = ["# Reasoning before the reply, as measured", ""]
    lines += ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for key, title in FIGURES.items():
        cells = [_cell(part[key]) if key in part else "" for part in columns.values()]
        if any(cells):
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for n in (1, 2):
        seeds = [found["distinct_by_seed"].get(name, {}).get(n, []) for name in columns]
        cells = [", ".join(f"{value:.3f}" for value in own) for own in seeds]
        lines.append(f"| distinct-{n} of all replies, by seed | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: Sequence[float | None]) -> str:
    return "{} ({} to {})".format(*("?" if one is None else f"{one:.3f}" for one in value))


# --- running ----------------------------------------------------------------------------------------------------------


def run(folder: Path, parallel: int, only: Sequence[str]) -> None:
    """All trainings side by side, those with steps first: they take longer."""
    names = [*(f"{variant}-{seed}" for variant in VARIANTS for seed in SEEDS), "human"]
    from side_by_side import chosen, side_by_side

    side_by_side(__file__, folder, chosen(names, only), parallel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("what", choices=["run", "one", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--parallel", type=int, default=7)
    parser.add_argument(
        "--corpus", type=Path, nargs="*", default=[], help="table: dialogues with strategies, none of the test set"
    )
    options = parser.parse_args()
    if options.what == "run":
        run(options.folder, options.parallel, options.only)
    elif options.what == "one":
        do(options.folder, options.only[0])
    else:
        table(options.folder, options.corpus)


if __name__ == "__main__":
    main()
