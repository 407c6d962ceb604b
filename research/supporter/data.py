"""Which moments of ESConv and SMILE train and measure the 1.5B supporter and its judge, and what was written for them.

A context is a history that ends with the seeker, one line of `contexts.jsonl`. Splits share no dialogue: ESConv's
train split is halved by situation into `policy` (targets for the supporter) and `reward` (outputs for the judge), SMILE
by blocks of fifty lines (near-duplicates stand close together) into policy, reward, valid and test; ESConv has valid
and test of its own.

    python research/supporter/data.py contexts CORPORA FOLDER              # FOLDER/contexts.jsonl
    python research/supporter/data.py packets CORPORA FOLDER               # moments to write turns for, packet-*.txt
    python research/supporter/data.py targets CORPORA OUT.jsonl FILE…       # what they wrote, parsed and checked
    python research/supporter/data.py invented OUT.jsonl FILE…             # conversations invented with their turns
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from compeer.dialogue import Utterance
from compeer.models import Message
from compeer.policy.control import Control, sampled_control
from compeer.policy.prompt import Task, direct_prompt, supporter_prompt
from compeer.reasoning import SupportTurn, parse_turn, render_turn, sentiment_of
from compeer.statistics import generator

HERE = Path(__file__).parent
SEED = 20261117
LAST = 12
"""Turns of a history that a supporter sees."""
COPIED = {"en": 8, "zh": 14}
"""Words (characters) in a row that a kept text may not share with its history."""


# --- contexts ---------------------------------------------------------------------------------------------------------


def _merged(turns: list[tuple[str, str, str | None]]) -> list[tuple[str, str, list[str]]]:
    found: list[tuple[str, str, list[str]]] = []
    for speaker, text, strategy in turns:
        text, own = " ".join(text.split()), [strategy] if strategy else []
        if text and found and found[-1][0] == speaker:
            found[-1] = (speaker, f"{found[-1][1]} {text}", found[-1][2] + own)
        elif text:
            found.append((speaker, text, own))
    return found


def _sampled(places: list[int], count: int, rng: random.Random) -> set[int]:
    """Equation 1: places drawn without replacement, more from the middle; and one of the first three."""
    left, total = list(places), len(places)
    weights = [math.exp(-((i + 1 - total / 2) ** 2) / (2 * (total / 4) ** 2)) for i in range(total)]
    found: set[int] = set()
    while left and len(found) < count:
        place = rng.choices(range(len(left)), weights)[0]
        found.add(left.pop(place))
        weights.pop(place)
    return found | {rng.choice(places[:3])} if places else found


def contexts(corpora: Path, every: bool = False) -> Iterator[dict[str, Any]]:
    """The contexts that were sampled, in a fixed order; `every`: all that could have been."""
    rng = random.Random(SEED)
    for name, count in (("train", 3), ("valid", 2), ("test", 2)):
        for number, line in enumerate((corpora / "esconv" / f"{name}.jsonl").open(encoding="utf-8")):
            own = json.loads(line)
            situation = " ".join(own["situation"].lower().split())
            half = int(hashlib.sha256(situation.encode()).hexdigest(), 16) % 2
            split = name if name != "train" else ("policy", "reward")[half]
            said = [
                ("seeker" if u["speaker"] == "usr" else "supporter", u["text"], u.get("strategy"))
                for u in own["dialog"]
            ]
            known = {"emotion": own["emotion_type"], "problem": own["problem_type"]}
            yield from _of_dialogue(
                f"esconv-{name}-{number}", "en", split, _merged(said), 10_000 if every else count, rng, known
            )
    for number, line in enumerate((corpora / "smile" / "smile_2000.jsonl").open(encoding="utf-8")):
        said = [
            ("seeker" if u["role"] == "client" else "supporter", u["content"], None) for u in json.loads(line)["dialog"]
        ]
        split = ("policy", "policy", "policy", "policy", "reward", "reward", "reward", "reward", "valid", "test")[
            number // 50 % 10
        ]
        yield from _of_dialogue(f"smile-{number}", "zh", split, _merged(said), 10_000 if every else 1, rng, {})


def all_moments(corpora: Path, split: str) -> Iterator[dict[str, Any]]:
    """Every moment of a split at which the supporter speaks, as contexts, with the same ids."""
    known = {one["id"].rsplit("-", 1)[0] for one in contexts(corpora) if one["split"] == split}
    for one in contexts(corpora, every=True):
        if one["id"].rsplit("-", 1)[0] in known:
            yield one


def _of_dialogue(
    name: str, language: str, split: str, turns: list[Any], count: int, rng: random.Random, known: dict[str, str]
) -> Iterator[dict[str, Any]]:
    places = [i for i, turn in enumerate(turns) if turn[0] == "supporter" and any(t[0] == "seeker" for t in turns[:i])]
    for place in sorted(_sampled(places, count, rng)):
        history = [{"speaker": speaker, "text": text} for speaker, text, _ in turns[max(0, place - LAST) : place]]
        yield {
            "id": f"{name}-{place}", "language": language, "split": split, "history": history,
            "reference": turns[place][1], "strategies": turns[place][2], **known,
        }  # fmt: skip


# --- prompts ----------------------------------------------------------------------------------------------------------


def guided_prompt(
    history: list[dict[str, str]], control: Control | None = None, task: Task | Literal["direct"] = "guided"
) -> list[Message]:
    """What the 1.5B supporter is asked; with the task `shown`, what the base is asked that was not trained."""
    utterances = [Utterance.model_validate(one) for one in history]
    if task == "direct":
        return direct_prompt(utterances, LAST)
    return supporter_prompt(utterances, LAST, control, task=task)


def chat(context: dict[str, Any], turn: SupportTurn, share: float = 0.3) -> dict[str, Any]:
    """A training example; a share of them asks in the prompt for what the turn is anyway."""
    control = sampled_control(turn, None, share, generator(SEED, "control", context["id"]))
    messages = [*guided_prompt(context["history"], control), {"role": "assistant", "content": render_turn(turn)}]
    return {"id": context["id"], "messages": messages}


# --- targets ----------------------------------------------------------------------------------------------------------


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a file that begin with `### id`."""
    for block in re.split(r"(?m)^### ", text)[1:]:
        id_, _, rest = block.partition("\n")
        yield id_.strip(), rest.strip()


def read_turn(text: str) -> SupportTurn | str:
    """The turn of a block, its sentiment made the emotion's own; or what is wrong with it."""
    parsed = parse_turn(text)
    if parsed.turn is None:
        return "; ".join(f"{part}: {reason}" for part, reason in parsed.missing.items())
    emotion = parsed.turn.emotion
    own = emotion.model_copy(update={"sentiment": sentiment_of(emotion.emotion)})
    return parsed.turn.model_copy(update={"emotion": own})


def copied(text: str, history: list[dict[str, str]], language: str) -> bool:
    """Whether a text shares a long run of words (characters) with the history."""
    size = COPIED[language]

    def runs(one: str) -> set[tuple[str, ...]]:
        units = list(re.sub(r"\W+", "", one)) if language == "zh" else re.findall(r"\w+", one.lower())
        return {tuple(units[i : i + size]) for i in range(len(units) - size + 1)}

    return bool(runs(text) & set().union(*(runs(one["text"]) for one in history)))


def tidied(text: str) -> str:
    """A person's reply without what gives it away at a glance: sentences begin with a capital, "i" is "I"."""
    text = re.sub(r"\bi\b(?!\.)", "I", " ".join(text.split()))
    return re.sub(r"(^|[.!?] )([a-z])", lambda found: found[1] + found[2].upper(), text)


def packets(corpora: Path, folder: Path, size: int = 125, each: int = 10) -> None:
    """Writes moments of the policy split that have no target yet, as writers get them."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {json.loads(line)["id"] for path in HERE.glob("targets*.jsonl") for line in path.open(encoding="utf-8")}
    left = [one for one in all_moments(corpora, "policy") if one["id"] not in done]
    random.Random(SEED + len(done)).shuffle(left)
    for language in ("en", "zh"):
        own = [one for one in left if one["language"] == language]
        for number in range(each):
            shown = map(_shown, own[number * size : (number + 1) * size])
            (folder / f"packet-{language}-{number + 1}.txt").write_text("\n".join(shown), encoding="utf-8")


def _shown(context: dict[str, Any]) -> str:
    lines = [f"{one['speaker'].capitalize()}: {one['text']}" for one in context["history"]]
    if context["strategies"]:
        lines.append(f"(A person answered, {' and '.join(context['strategies'])}: {context['reference']})")
    return "\n".join([f"### {context['id']}", *lines, ""])


def targets(corpora: Path, out: Path, *files: Path) -> None:
    """Writes what could be read of the files, a line a turn, without histories; prints what could not."""
    known = {one["id"]: one for one in all_moments(corpora, "policy")}
    found: dict[str, dict[str, Any]] = {}
    problems: Counter[str] = Counter()
    for file in files:
        for id_, text in blocks(file.read_text(encoding="utf-8")):
            turn = read_turn(text)
            if id_ not in known or isinstance(turn, str):
                problems["unknown id" if id_ not in known else "unreadable"] += 1
                print(f"{file.name} {id_}: {turn if isinstance(turn, str) else 'unknown id'}")
            elif copied(render_turn(turn), known[id_]["history"], known[id_]["language"]):
                problems["copied"] += 1
            else:
                found[id_] = {"id": id_, "output": render_turn(turn)}
    out.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in found.values()), encoding="utf-8")
    print(len(found), "targets", dict(problems))


def invented(out: Path, *files: Path) -> None:
    """Writes conversations that were invented together with their turns, a line each, as contexts with an `output`."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for id_, text in blocks(file.read_text(encoding="utf-8")):
            before, _, after = text.partition("\n---\n")
            said = [re.fullmatch(r"(Seeker|Supporter): *(.+)", line) for line in before.split("\n") if line.strip()]
            turn = read_turn(after)
            if isinstance(turn, str) or not all(said) or not said or said[-1][1] != "Seeker":  # type: ignore[index]
                print(f"{file.name} {id_}: {turn if isinstance(turn, str) else 'the conversation cannot be read'}")
                continue
            history = [{"speaker": one[1].lower(), "text": one[2]} for one in said if one]
            language = "zh" if re.search(r"[\u4e00-\u9fff]", before) else "en"
            found[id_] = {
                "id": id_,
                "language": language,
                "split": "policy",
                "history": history,
                "output": render_turn(turn),
            }
    out.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in found.values()), encoding="utf-8")
    print(len(found), "invented", Counter(one["language"] for one in found.values()))


def write_contexts(corpora: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(contexts(corpora))
    (folder / "contexts.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    print(Counter((row["language"], row["split"]) for row in rows))


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    {"contexts": write_contexts, "packets": packets, "targets": targets, "invented": invented}[command](
        *map(Path, words)
    )
