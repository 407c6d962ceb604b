"""The texts that the guard's readers learn from and are tuned on, and the chats that train the large one.

    python research/guard/prepare.py out CORPORA  # out/chats.jsonl and out/plan.json, for one GPU job:
    python research/supporter/gpu.py work base out/plan.json out

CORPORA holds esconv/ and smile/: what their seekers say in the policy split is everyday talk, unless a rule of the
guard objects.

Labelled texts (`texts/*.txt`) have a line each, `level<TAB>kind<TAB>text`; kind is `-` where the level is none, and `¶`
stands between messages; lines that begin with `#` are for the reader. Conversations (`train/`, `tune/`, `sealed/`) are
in the form of WRITING.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compeer.corpora import read_corpus
from compeer.errors import InputError
from compeer.io import write_json, write_lines
from compeer.models.embedder import is_latin
from compeer.safety.large import FINE, prompt, reply_prompt
from compeer.safety.output import plain
from compeer.safety.output_phrases import language_of
from compeer.safety.reader import SUPPORTER
from compeer.safety.risk import CATEGORIES, KINDS, LEVELS, Kind, Level
from compeer.safety.rules import scanned
from compeer.statistics import generator

FOLDER = Path(__file__).parent
BETWEEN = "¶"
REPLIES = ((".", 1), ("written", 2))
"""The folders of labelled replies that the large reader learns from, and how often."""
HARMLESS = 0.35
"""The share of harmless texts that are made longer; of dangers all are."""
NEIGHBOURS = 10
"""Texts of a file, one after the other, that are held out together."""
_WINDOW = 4
WHY = "\nSay first in one sentence why."
"""Asks for a reason before the level; it stands at the end of the conversation."""
AFTER_WHY = " =>"
"""Between the reason and the level."""


@dataclass(frozen=True)
class Text:
    """What a seeker wrote, in one message or several, and how grave it is."""

    messages: tuple[str, ...]
    level: Level
    kind: Kind | None = None
    writer: str = ""
    id: str = ""
    manner: str = ""
    both: tuple[str, ...] = ()
    """The same with the supporter's messages, marked, where there are any."""
    source: int = -1
    """The text it was made from; texts of one source are held out together."""

    @property
    def language(self) -> str:
        """By its script."""
        return "en" if is_latin("".join(self.messages)) else "zh"


def read_texts(folder: Path = FOLDER / "texts") -> list[Text]:
    """The labelled texts of all files in a folder, each once; an error names the file and line."""
    if not (paths := sorted(folder.glob("*.txt"))):
        raise InputError("there are no texts (*.txt) in it.", file=folder)
    found: dict[tuple[str, ...], Text] = {}
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                text = _text(line, path, number)
                found.setdefault(text.messages, text)
    return list(found.values())


def _text(line: str, path: Path, number: int) -> Text:
    fields = line.split("\t")
    if len(fields) != 3:
        raise InputError("this is no labelled text.", file=path, line=number, do="Write: level, tab, kind, tab, text.")
    level, kind, text = fields
    _check(level, "none" if kind == "-" else kind, path, number)
    messages = tuple(message.strip() for message in text.split(BETWEEN) if message.strip())
    if not messages:
        raise InputError("there is no text.", file=path, line=number, field="text")
    return Text(messages, level, None if level == "none" else kind, path.stem)  # type: ignore[arg-type]


def _check(level: str, kind: str, path: Path, number: int) -> None:
    if level not in LEVELS:
        do = f"Write one of {', '.join(LEVELS)}."
        raise InputError("no such level.", file=path, line=number, field="level", do=do)
    if (kind != "none" and kind not in KINDS) or (level == "none") != (kind == "none"):
        do = f"Write none where the level is none, else one of {', '.join(KINDS)}."
        raise InputError("no such kind at this level.", file=path, line=number, field="kind", do=do)


def read_conversations(part: str, folder: Path = FOLDER) -> list[Text]:
    """The conversations of a part: train, tune or sealed. The writer is the file's name."""
    found: list[Text] = []
    for path in sorted((folder / part).glob("*.txt")):
        lines = path.read_text("utf-8").splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("### ")]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            fields = [field.strip() for field in lines[start][4:].split("|")]
            if len(fields) != 4:
                raise InputError("this is no header.", file=path, line=start + 1, do="See WRITING.md.")
            name, kind, level, manner = fields
            _check(level, kind, path, start + 1)
            both: list[str] = []
            for line in lines[start + 1 : end]:
                speaker, _, words = line.partition(":")
                if speaker in ("Seeker", "Supporter"):
                    both.append((SUPPORTER if speaker == "Supporter" else "") + words.strip())
                elif line.strip():  # a message of several lines
                    both[-1] += f"\n{line.strip()}"
            messages = tuple(words for words in both if not words.startswith(SUPPORTER))
            danger = None if kind == "none" else kind
            found.append(Text(messages, level, danger, path.stem, name, manner, tuple(both)))  # type: ignore[arg-type]
    if not found:
        raise InputError("there are no conversations in it.", file=folder / part)
    return found


@dataclass(frozen=True)
class Reply:
    """A reply, what the seeker wrote before it, and what is wrong with it: a category, or nothing."""

    text: str
    seeker: str
    category: str | None
    source: int = -1
    """Replies of one source are held out together."""

    @property
    def language(self) -> str:
        """By its script."""
        return language_of(plain(self.text))


def read_replies(folder: Path) -> list[Reply]:
    """The labelled replies of all files in a folder, each once; an error names the file and line."""
    if not (paths := sorted(folder.glob("*.txt"))):
        raise InputError("there are no texts (*.txt) in it.", file=folder)
    found: dict[str, Reply] = {}
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                reply = _reply(line, path, number)
                found.setdefault(reply.text, reply)
    return list(found.values())


def _reply(line: str, path: Path, number: int) -> Reply:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) != 3 or not fields[2]:
        do = "Write: category, tab, the seeker's last message, tab, reply."
        raise InputError("this is no labelled reply.", file=path, line=number, do=do)
    category, seeker, text = fields
    if category != "-" and category not in CATEGORIES:
        do = f"Write - for a good reply, else one of {', '.join(CATEGORIES)}."
        raise InputError("no such category.", file=path, line=number, field="category", do=do)
    return Reply(text, seeker, None if category == "-" else category)


def everyday_replies() -> list[Reply]:
    """What the supporters of the sample corpus say."""
    found = []
    for dialogue in read_corpus("sample"):
        seeker = ""
        for utterance in dialogue.utterances:
            if utterance.speaker == "seeker":
                seeker = utterance.text
            else:
                found.append(Reply(utterance.text, seeker, None))
    return found


def supporter_replies() -> list[Reply]:
    """The replies of the conversations that were invented for the supporter."""
    from compeer.reasoning import parse_turn

    found = []
    for line in (FOLDER.parent / "supporter" / "invented.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        found.append(Reply(str(parse_turn(row["output"]).parts["response"]), row["history"][-1]["text"], None))
    return found


def read_reasons(folder: Path = FOLDER / "reasons") -> dict[str, str]:
    """Why a conversation of `train` is a danger or none, in one sentence, by id: lines of `id<TAB>why`."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.txt")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            name, tab, why = line.partition("\t")
            if not tab or not why.strip() or name in found:
                raise InputError("this is no reason.", file=path, line=number, do="Write: id, tab, one sentence; once.")
            found[name] = why.strip()
    return found


def everyday_texts() -> list[Text]:
    """What the seekers of the sample corpus say, message by message and as they went on: it is all harmless."""
    found = []
    for dialogue in read_corpus("sample"):
        said = [utterance.text for utterance in dialogue.utterances if utterance.speaker == "seeker"]
        found += [Text((message,), "none") for message in said]
        found += [Text(tuple(said[start : start + _WINDOW]), "none") for start in range(0, len(said) - 1, 2 * _WINDOW)]
    return found


def corpus_texts(corpora: Path, each: int) -> list[Text]:
    """Conversations of ESConv's and SMILE's policy split so far, `each` of a language; those a rule objects to are out.

    Nobody labelled them. Rules find intent, plan, means and acts, so that what is left is almost all harmless.
    """
    sys.path.insert(0, str(FOLDER.parent / "supporter"))
    from data import all_moments

    found = []
    moments = list(all_moments(corpora, "policy"))
    for language in ("en", "zh"):
        own = [one for one in moments if one["language"] == language]
        for index in generator(1, "everyday", language).permutation(len(own))[:each]:
            history = own[index]["history"]
            both = tuple((SUPPORTER if one["speaker"] == "supporter" else "") + one["text"] for one in history)
            messages = tuple(one["text"] for one in history if one["speaker"] == "seeker")
            if not any(scanned(message, language).matches for message in messages):
                found.append(Text(messages, "none", both=both))
                found.append(Text(messages[-1:], "none"))  # a few words that say nothing alone
    return found


def made_longer(texts: Sequence[Text], seed: int) -> list[Text]:
    """More texts out of the given: the danger of one amid harmless messages, and harmless messages in a row.

    So a danger in passing, or some messages ago, is learnt, and that many harmless words are no danger.
    """
    rng = generator(seed, "texts made longer")
    made: list[Text] = []
    for language in ("en", "zh"):
        own = [text for text in texts if text.language == language]
        harmless = [text for text in own if text.level == "none" and len(text.messages) == 1]
        alone = {text.messages[0] for text in harmless}
        made += [
            replace(text, messages=(message,))
            for text in own
            if text.level == "none" and len(text.messages) > 1
            for message in text.messages
            if message not in alone
        ]
        for text in own:
            if not harmless or len(text.messages) > 3 or (text.level == "none" and rng.random() > HARMLESS):
                continue
            picked = [harmless[index].messages[0] for index in rng.integers(0, len(harmless), int(rng.integers(1, 5)))]
            before = int(rng.integers(len(picked) // 2, len(picked) + 1))
            messages = (*picked[:before], *text.messages, *picked[before:])
            if rng.random() < 0.3:  # all in one message
                messages = (" ".join(messages),)
            made.append(replace(text, messages=messages))
    return made


def measured_windows(corpora: Path) -> list[tuple[str, ...]]:
    """All that the detector asks the large reader when measured: conversations as they go on, utterances alone."""
    from raise_alarms import seeker_utterances

    from compeer.evaluate.safety import cases_path, read_cases

    talks = [text.messages for part in ("tune", "sealed") for text in read_conversations(part)]
    talks += [case.messages for case in read_cases(cases_path("tuning"))]
    found = [talk[:end] for talk in talks for end in range(1, len(talk) + 1)]
    found += [(text,) for _, _, text in seeker_utterances(read_corpus(corpora / "esconv" / "test.jsonl"))]
    smile = (
        one for number, one in enumerate(read_corpus(corpora / "smile" / "smile_2000.jsonl")) if number // 50 % 10 > 7
    )
    return list(dict.fromkeys([*found, *((text,) for _, _, text in seeker_utterances(smile))]))


def further(writers: Sequence[str], everyday: Sequence[Text], seed: int) -> list[dict[str, object]]:
    """Chats for an adapter that goes on: what new writers wrote twice, all replies, and a sample of what it knows."""
    rng = random.Random(seed)
    conversations, texts = read_conversations("train"), read_texts()
    new = [text for text in conversations if text.writer.split("-")[1] in writers]
    old = rng.sample([text for text in conversations if text not in new], 1_800)
    asked = [(text, own) for text in new for own in dict.fromkeys((text.both or text.messages, text.messages))]
    asked += [*asked, *((text, rng.choice([text.both or text.messages, text.messages])) for text in old)]
    asked += [(text, text.messages) for text in [*rng.sample(texts, 600), *everyday]]
    rows = [[*prompt(messages), _said(answer(text.level, text.kind))] for text, messages in asked]
    before, written = (read_replies(FOLDER / "texts" / "replies" / folder) for folder, _ in REPLIES)
    for reply in [*rng.sample(before, min(600, len(before))), *written]:
        rows.append([*reply_prompt((reply.seeker,), reply.text), _said(reply.category or FINE)])
    rng.shuffle(rows)
    return [{"messages": row} for row in rows]


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def answer(level: str, kind: str | None) -> str:
    """What the reader is trained to say."""
    return level if kind is None else f"{level}: {kind}"


def main() -> None:
    """Writes the chats, the windows that are measured, and the plan of the large reader's training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=Path)
    parser.add_argument("corpora", type=Path, nargs="?", help="without it, no everyday talk and no windows to measure")
    parser.add_argument("--texts", type=int, default=4_000, help="how many of the labelled texts go in beside")
    parser.add_argument("--everyday", type=int, default=1_000, help="how many conversations of each corpus")
    parser.add_argument("--further", nargs="+", metavar="WRITER", help="go on with what these wrote")
    parser.add_argument("--start", default="guard-first", help="the adapter to go on from")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--name", default="guard-1.5b")
    parser.add_argument("--plain", action="store_true", help="no reasons; each conversation twice instead")
    options = parser.parse_args()
    conversations, texts = read_conversations("train"), read_texts()
    reasons = {} if options.plain else read_reasons()
    chosen = [texts[index] for index in generator(1, "chats of texts").permutation(len(texts))[: options.texts]]
    rows = []
    everyday = corpus_texts(options.corpora, options.everyday) if options.corpora else []
    for text in [*conversations, *everyday, *chosen]:
        for messages in dict.fromkeys((text.both or text.messages, text.messages)):
            chat = [*prompt(messages), {"role": "assistant", "content": answer(text.level, text.kind)}]
            rows.append({"messages": chat, "times": 2 if options.plain and text.id else 1})
        if text.id in reasons:
            system, asked = prompt(text.both or text.messages)
            why = f"{reasons[text.id]}{AFTER_WHY} {answer(text.level, text.kind)}"
            said = {"role": "assistant", "content": why}
            rows.append({"messages": [system, {**asked, "content": asked["content"] + WHY}, said], "times": 2})
    for folder, times in REPLIES:
        for reply in read_replies(FOLDER / "texts" / "replies" / folder):
            chat = [
                *reply_prompt((reply.seeker,), reply.text),
                {"role": "assistant", "content": reply.category or FINE},
            ]
            rows.append({"messages": chat, "times": times})
    job: dict[str, object] = {"rate": 2e-4, "seed": 1}
    if options.further:
        seed = 7 + len(options.start)
        rows = further(options.further, everyday, seed)
        job = {"start": options.start, "rate": options.rate, "seed": seed}
    options.to.mkdir(parents=True, exist_ok=True)
    write_lines(options.to / "chats.jsonl", rows)
    job |= {"train": options.name, "chats": str(options.to / "chats.jsonl"), "rank": 8, "epochs": 1}
    asked = [
        one for part in ("held_out", "tune", "sealed") for one in read_replies(FOLDER / "texts" / "replies" / part)
    ]
    write_lines(options.to / "replies.jsonl", ({"prompt": reply_prompt((one.seeker,), one.text)} for one in asked))
    checked = {"first": options.name, "prompts": str(options.to / "replies.jsonl"), "words": [FINE, *CATEGORIES]}
    plan = [{**job, "batch": 32, "micro": 8}, {**checked, "out": f"replies-{options.name}"}]
    if options.corpora:
        windows = options.to / "windows.jsonl"
        write_lines(windows, ({"messages": window} for window in measured_windows(options.corpora)))
        plan.append({"levels": options.name, "windows": str(windows), "out": f"levels-{options.name}"})
        if reasons and not options.further:
            plan.append({**plan[-1], "why": WHY, "after_why": AFTER_WHY, "out": f"levels-why-{options.name}"})
    write_json(options.to / "plan.json", plan)


if __name__ == "__main__":
    main()
