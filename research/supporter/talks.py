"""Conversations of supporters with simulated seekers: a job of `gpu.py`, all conversations side by side.

    {"talk": "grpo-1", "out": "talks-grpo-1", "rounds": 6, "repeats": 2, "seed": 1}

Seekers are played by the untrained base from our own role cards, English and Chinese; a base of this size is a weak
seeker. The supporter writes as in use (`temperature`, `min_p`); where an output has not the form it tries once more.
Writes {"id", "language", "utterances", "whole"} a conversation. The same card, repeat and round have the same seed for
every supporter. `files` names other cards (`cards-en.jsonl` and `cards-zh.jsonl` here are for training); with
`moments` it also writes contexts with prompts, out/<moments>.jsonl: a conversation each, up to one of its rounds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

WORDS = {"seeker": 96, "supporter": 224}
"""Tokens of the longest message of each side."""


def talk(network: Any, twin: Any, tokenizer: Any, job: dict[str, Any], folder: Path, log: Any) -> None:
    """Lets a supporter talk with every card; the network plays the seekers."""
    from data import guided_prompt
    from gpu import encode, lay_on

    from compeer.engine.rollouts import Decoder, Prompt, RolloutSampling
    from compeer.models.base import Generation
    from compeer.reasoning import parse_turn
    from compeer.simulate.agents import Complaint
    from compeer.simulate.conversation import Turn, view_of
    from compeer.simulate.seekers import card_messages, own_cards, read_card_message, read_cards
    from compeer.statistics import generator

    path = folder / f"{job['out']}.jsonl"
    if path.is_file():
        return
    torch.cuda.empty_cache()
    lay_on(twin, network, None if job["talk"] == "base" else folder / "adapters" / job["talk"], 1.0)
    base = job["talk"] == "base"
    ends = (tokenizer.eos_token_id,)
    size = job.get("rows", 128)
    seeking = RolloutSampling(max_tokens=WORDS["seeker"], ends=ends, temperature=0.8, min_p=0.1)
    helping = RolloutSampling(
        max_tokens=WORDS["supporter"],
        ends=ends,
        temperature=job.get("temperature", 0.4),
        min_p=job.get("min_p", 0.1),
    )
    decoders = {"seeker": Decoder(network, seeking, rows=size), "supporter": Decoder(twin, helping, rows=size)}
    files = [Path(name) for name in job.get("files", ())] or [own_cards("en"), own_cards("zh")]
    cards = [card for file in files for card in read_cards(file)][: job.get("cards")]
    talks = [(card, repeat) for card in cards for repeat in range(job["repeats"])]
    said: list[list[Turn]] = [[Turn(speaker="seeker", text=card.opening or "")] for card, _ in talks]
    alive = set(range(len(talks)))

    def drawn(side: str, numbers: list[int], prompts: list[Any], tag: str) -> list[Generation]:
        seeds = [
            int(generator(job["seed"], side, talks[n][0].id, str(talks[n][1]), tag).integers(1 << 31)) for n in numbers
        ]
        asked = [Prompt(tuple(encode(tokenizer, prompt)[0])) for prompt in prompts]
        outputs = decoders[side].sample(asked, seeds)
        ended = [bool(ids) and ids[-1] in ends for ids in outputs]
        texts = [tokenizer.decode(ids[:-1] if end else ids) for ids, end in zip(outputs, ended, strict=True)]
        return [
            Generation(text=text, cut_off=not end, tokens=len(ids))
            for text, end, ids in zip(texts, ended, outputs, strict=True)
        ]

    for number in range(job["rounds"]):
        waiting = sorted(alive)
        for attempt in range(2):
            prompts = [
                guided_prompt(
                    [{"speaker": one.speaker, "text": one.text} for one in said[n]], task="shown" if base else "guided"
                )
                for n in waiting
            ]
            answers = drawn("supporter", waiting, prompts, f"{number}:{attempt}") if waiting else []
            left = []
            for n, answer in zip(waiting, answers, strict=True):
                response = parse_turn(answer.text, cut_off=answer.cut_off).parts.get("response")
                if isinstance(response, str) and response.strip():
                    said[n].append(Turn(speaker="supporter", text=response))
                else:
                    left.append(n)
            waiting = left
        alive -= set(waiting)
        if number + 1 == job["rounds"]:
            break
        going = sorted(alive)
        prompts = [card_messages(view_of(talks[n][0], said[n], "seeker")) for n in going]
        for n, answer in zip(going, drawn("seeker", going, prompts, str(number)), strict=True):
            found = read_card_message(answer)
            if isinstance(found, Complaint):
                alive.discard(n)
            else:
                said[n].append(Turn(speaker="seeker", text=found.text))
        log({"talk": job["out"], "round": number + 1, "alive": len(alive)})
    lines = [
        {
            "id": f"{card.id}:{repeat}",
            "language": card.language,
            "whole": n in alive,
            "utterances": [{"speaker": one.speaker, "text": one.text} for one in said[n]],
        }
        for n, (card, repeat) in enumerate(talks)
    ]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    if "moments" in job:
        with (folder / f"{job['moments']}.jsonl").open("w", encoding="utf-8") as file:
            for moment in moments(lines, job["seed"]):
                row = moment | {"prompt": guided_prompt(moment["history"])}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def moments(talks: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Of each conversation the beginning up to one of its later rounds, where the supporter is to speak."""
    from compeer.statistics import generator

    found = []
    for talk in talks:
        said = talk["utterances"]
        ends = [n for n, one in enumerate(said) if n > 2 and one["speaker"] == "seeker"]
        if ends:
            end = ends[int(generator(seed, "moment", talk["id"]).integers(len(ends)))]
            own = {"id": f"talk-{talk['id']}-{end}", "language": talk["language"], "split": "policy"}
            found.append(own | {"history": said[: end + 1]})
    return found
