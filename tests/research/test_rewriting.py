"""Rewording records: what is asked, what is accepted, what the filter drops, and sets of equal size."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from research.personality.clusters import Member
from research.personality.drift import Line, likeness, why_not
from research.personality.rewriting import RewriteSettings, rewrite_stage
from research.personality.sets import SETS, equal_sets

from compeer.dialogue import Strategy, Utterance
from compeer.errors import InputError
from compeer.models.base import Failure, Generation, Request, Sampling
from compeer.models.embedder import ngram_vector
from compeer.policy.persona import Profile, Scores
from compeer.reasoning import EmotionStep, HistoryStep, StrategyStep, SupportTurn
from compeer.ser.record import PreferenceLabel, SerRecord, StepLabel, StepLabels, read_records, write_records
from tests.support.scripted_model import ScriptedModel


class Characters:
    """Embeds by shared characters, which needs no model."""

    def embed(self, texts: Sequence[str]) -> Any:
        return np.array([ngram_vector(text) for text in texts], dtype=np.float32).reshape(-1, 1024)


# --- the filter -------------------------------------------------------------------------------------------------------


def verdict(old: str, new: str, alike: float = 1.0, asks: bool = False) -> str | None:
    return why_not([Line("seeker", old, asks)], [Line("seeker", new)], [alike])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("I can't sleep because my landlord wants me out", "My landlord wants me gone, so I don't sleep"),
        ("I am not happy with how Monday went at all", "I'm unhappy with the way Monday went"),
        ("We have been married for 12 years and have two girls", "Twelve years of marriage, and both kids are girls"),
        ("No wonder you are tired after such a week", "Of course you are worn out after a week like that"),
        ("Have you told your sister about any of this?", "does your sister know about any of this"),
        ("Oh no, that is a hard thing to hear about", "That's tough news to get"),
        ("My friend Tobias moved to Lisbon last spring", "last spring tobias, my friend, went to lisbon"),
        ("Hi", "Hello"),
        ("我不想去上班，因为领导总是批评我", "领导老是批评我，所以我不愿意上班"),
    ],
)
def test_good_rewrites_pass(old: str, new: str) -> None:
    assert verdict(old, new) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("I do not want to see my brother again", "I want to see my brother again", "a negation vanished"),
        ("I want to see my brother this summer", "I do not want to see my brother this summer", "a negation appeared"),
        ("She left 3 weeks ago and took the dog", "She left a while ago and took the dog along", "a number vanished"),
        ("She left 3 weeks ago and took the dog", "She left five weeks ago, and took the dog", "a number vanished"),
        ("She left weeks ago and took the dog", "She left 5 weeks ago and the dog went too", "a number appeared"),
        ("My friend Tobias moved out last spring", "My friend moved out in spring last year", "a name vanished"),
        ("Please write to [email] when you can", "Please write to me when you find time", "a mask vanished"),
        (
            "I am happy with the flat we found there",
            "I am sad about the flat we found over there",
            "the feeling turned",
        ),
        ("I said so", "What I told them back then was a very long story about " + "this and that " * 12, "much longer"),
        ("The flat is cold and the heating is off today", "As an AI I have no flat, but the heating is off", "machine"),
        ("The flat is cold and the heating is off today", "Here is the rewritten line: the flat is cold", "machine"),
        ("The flat is cold and the heating is off today", "**The flat** is freezing with the heating off", "machine"),
        ("The flat is cold and the heating is off today", "1. The flat is freezing, no, icy", "machine"),
        ("The flat is cold and the heating is off today", "the flat is cold, and the heating is off today!", "hardly"),
        ("The flat is cold and the heating is off today", "  ", "empty"),
        ("我三天没睡了，很难受", "我好几天没睡了，很难受啊", "a number vanished"),
    ],
)
def test_drift_and_machine_marks_are_named(old: str, new: str, reason: str) -> None:
    assert reason in (verdict(old, new) or "")


def test_an_unlike_line_has_drifted_unless_it_is_very_short() -> None:
    old, new = (
        "My boss shouted at me in front of everybody yesterday",
        "Apples are cheaper at the market this season, they say",
    )
    assert verdict(old, new, alike=0.1) == "drift: not alike in meaning"
    assert verdict(old, new, alike=0.6) is None
    assert verdict("Hello again", "Good to see you", alike=0.1) is None


def test_a_question_stays_one_only_where_the_strategy_asks() -> None:
    old, new = "What did your sister say to that?", "Your sister must have had something to say to that."
    assert verdict(old, new, asks=True) == "decision: no longer a question"
    assert verdict(old, new) is None
    assert verdict("Tell me about your sister and you", "I would like to hear of your sister", asks=True) is None


def test_lines_that_all_open_alike_are_machine_made() -> None:
    old = [Line("seeker", text) for text in ("I slept badly", "Work was long", "Nobody called", "It rained all day")]
    new = [Line("seeker", f"Well, honestly {text}") for text in ("my night was bad", "a long day", "no call", "rain")]
    assert why_not(old, new, [1.0] * 4) == "machine-made: every line opens alike"
    assert why_not(old, [*new[:3], Line("seeker", "Rain, all day long")], [1.0] * 4) is None


def test_other_speakers_are_no_rewrite() -> None:
    old = [Line("seeker", "a"), Line("supporter", "b")]
    assert why_not(old, old[::-1], [1.0, 1.0]) == "other lines or speakers"
    assert why_not(old, old[:1], [1.0]) == "other lines or speakers"


def test_only_lines_that_share_few_words_are_embedded() -> None:
    asked: list[str] = []

    class Listening(Characters):
        def embed(self, texts: Sequence[str]) -> Any:
            asked.extend(texts)
            return super().embed(texts)

    old = [Line("seeker", "the old cat sat down"), Line("seeker", "my train is late again")]
    new = [Line("seeker", "the old cat sat there"), Line("seeker", "another delay at the station")]
    first, second = likeness(old, new, Listening())
    assert first == 1.0
    assert 0 < second < 0.6
    assert asked == [old[1].text, new[1].text]


# --- the stage --------------------------------------------------------------------------------------------------------


def record(
    number: int, kind: str, response: str, reference: str, strategy: Strategy = "Question", **more: Any
) -> SerRecord:
    true = StepLabel(value=True, source="silver", how="test")
    false = StepLabel(value=False, source="silver", how="test", kind="swapped")
    return SerRecord.model_validate(
        {
            "id": f"d{number}:2:{kind}",
            "dialogue": f"d{number}",
            "round": 2,
            "language": "en",
            "source": "test",
            "split": "reward",
            "history": (
                Utterance(speaker="seeker", text=f"The lift in house {number} broke\nand I am not able to get out."),
                Utterance(speaker="supporter", text="That sounds like a hard place to be in."),
                Utterance(speaker="seeker", text="It is {really} the third time since we moved here."),
            ),
            "candidate": SupportTurn(
                history=HistoryStep(text="Stuck at home.", stage="exploration"),
                emotion=EmotionStep(text="Fed up.", sentiment="negative", emotion="frustration", intensity=3),
                strategy=StrategyStep(text="Ask first.", strategy=strategy),
                response=response,
            ),
            "author": "silver",
            "reference": reference,
            "labels": StepLabels(history=true, emotion=false, strategy=true),
            "preference": PreferenceLabel(value="both", source="silver", how="test"),
            "candidate_first": True,
            **more,
        }
    )


ASK, TELL = "Who could you ring when the lift stops working?", "Some buildings keep a spare key for the back stairs."


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    found = []
    for number in range(6):
        split = "test" if number == 5 else "reward"
        found += [record(number, "reference", ASK, ASK, split=split), record(number, "true", ASK, TELL, split=split)]
    write_records(path, found)
    return path


REWORDED = {
    "The lift in house": "Our lift, the one of house",
    "broke and I am not able to get out": "is broken and I can't leave",
    "That sounds like a hard place to be in": "What a hard spot to find yourself in",
    "It is {really} the third time since we moved here": "For the third time since our move, {really}",
    "Who could you ring when the lift stops working?": "If the lift stops, who is there for you to ring?",
    "Some buildings keep a spare key for the back stairs": "A spare key for the back stairs is kept in some buildings",
}


def asked_lines(request: Request) -> list[str]:
    return re.findall(r"^\d+\. .*$", str(request.messages[0]["content"]).split("The conversation:")[1], re.MULTILINE)


def reworded(request: Request) -> str:
    text = "\n".join(asked_lines(request))
    for old, new in REWORDED.items():
        text = text.replace(old, new)
    return text


def run(records: Path, out: Path, model: Any, retries: int = 1, **more: Any) -> dict[str, Any]:
    settings = RewriteSettings(retries=retries)
    return asyncio.run(rewrite_stage(records, out, model, 3, settings, embedder=Characters(), **more))


def test_records_are_reworded_and_keep_their_labels(records: Path, tmp_path: Path) -> None:
    model = ScriptedModel(reworded, batch_size=2, at_once=3)
    manifest = run(records, tmp_path / "out.jsonl", model)
    old = {found.id: found for found in read_records(records)}
    new = list(read_records(tmp_path / "out.jsonl"))
    assert [found.id for found in new] == [f"{name}~plain" for name in old if not name.startswith("d5")]
    for found in new:
        before = old[found.id.removesuffix("~plain")]
        assert found.rewritten == "plain"
        assert found.history[0].text == f"Our lift, the one of house {found.dialogue[1:]} is broken and I can't leave."
        assert [said.speaker for said in found.history] == [said.speaker for said in before.history]
        assert found.candidate.response == REWORDED[ASK]
        assert (found.labels, found.preference) == (before.labels, before.preference)
        assert found.candidate.model_copy(update={"response": ASK}) == before.candidate
    assert new[1].reference.startswith("A spare key")
    assert manifest["counts"]["rewrite"] == {"records read": 10, "records written": 10}
    assert len(model.requests) == 5  # one call a round
    assert asked_lines(model.requests[0])[3:] == [f"4. Supporter: {ASK}", f"5. Supporter: {TELL}"]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda lines: "Sure, here you go:\n" + "\n".join(lines), "stands where line 1 should be"),
        (lambda lines: "\n".join(lines[:-1]), "it has 4 lines and not 5"),
        (lambda lines: "\n".join([*lines, "6. Supporter: And one more."]), "no more than 5"),
        (lambda lines: "\n".join([lines[1], lines[0], *lines[2:]]), "there is a line 2 where line 1 should be"),
        (lambda lines: "\n".join(lines).replace("2. Supporter", "2. Seeker"), "line 2 is the supporter's"),
        (lambda lines: "\n".join(lines).replace("3. Seeker: ", "3. Seeker:\n"), "stands where line 3 should be"),
    ],
)
def test_another_shape_is_complained_of_and_then_dropped(
    records: Path, tmp_path: Path, spoil: Callable[[list[str]], str], complaint: str
) -> None:
    def stubborn(request: Request) -> str:
        lines = reworded(request).splitlines()
        mended = len(request.messages) > 1 and "house 2" not in str(request.messages[0]["content"])
        return "\n".join(lines) if mended else spoil(lines)

    model = ScriptedModel(stubborn)
    manifest = run(records, tmp_path / "out.jsonl", model)
    assert manifest["counts"]["dropped"] == {"unread": 2}
    assert "d2" not in {found.dialogue for found in read_records(tmp_path / "out.jsonl")}
    assert complaint in str(model.requests[1].messages[-1]["content"])


def test_what_drifts_is_dropped_by_reason(records: Path, tmp_path: Path) -> None:
    def drifting(request: Request) -> str:
        text = reworded(request)
        prompt = str(request.messages[0]["content"])
        if "house 0" in prompt:
            return text.replace("I can't leave", "I can leave")
        if "house 1" in prompt:
            return text.replace(
                "If the lift stops, who is there for you to ring?", "A lift that stops is a pity for you."
            )
        if "house 2" in prompt:
            return text.replace("A spare key", "As an AI: a spare key")
        return "\n".join(asked_lines(request)) if "house 3" in prompt else text

    manifest = run(records, tmp_path / "out.jsonl", ScriptedModel(drifting))
    assert manifest["counts"]["dropped"] == {
        "drift: a negation vanished": 2,  # in the history: both records
        "decision: no longer a question": 2,
        "machine-made: a tell-tale phrase or markup": 1,  # in one response: the record that holds it
        "hardly changed": 2,
    }
    assert [found.id for found in read_records(tmp_path / "out.jsonl")] == [
        "d2:2:reference~plain",
        "d4:2:reference~plain",
        "d4:2:true~plain",
    ]


def test_a_stopped_stage_goes_on_to_the_same_bytes(records: Path, tmp_path: Path) -> None:
    run(records, tmp_path / "whole.jsonl", ScriptedModel(reworded))
    asked: Counter[str] = Counter()

    def killed(request: Request) -> str:
        asked["calls"] += 1
        if asked["calls"] == 3:
            raise KeyboardInterrupt
        return reworded(request)

    with pytest.raises(KeyboardInterrupt):
        run(records, tmp_path / "out.jsonl", ScriptedModel(killed))
    assert not (tmp_path / "out.jsonl").exists()
    again = ScriptedModel(reworded)
    run(records, tmp_path / "out.jsonl", again)
    assert len(again.requests) == 3  # two rounds were written
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


class Failing(ScriptedModel):
    """Cannot be asked about one house."""

    kind: Any = "timeout"

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        answers = await super().generate(requests, sampling)
        lost = [self.kind and "house 2" in str(request.messages[0]["content"]) for request in requests]
        return [Failure(self.kind, "no") if bad else given for bad, given in zip(lost, answers, strict=True)]


def test_failures_leave_the_stage_unfinished(records: Path, tmp_path: Path) -> None:
    model = Failing(reworded)
    manifest = run(records, tmp_path / "out.jsonl", model)
    assert (manifest["failed"], manifest["counts"]["failed"]) == (1, {"timeout": 1})
    model.kind = None
    assert run(records, tmp_path / "out.jsonl", model)["failed"] == 0
    model.kind = "refused"
    manifest = run(records, tmp_path / "other.jsonl", model)
    assert (manifest["failed"], manifest["counts"]["dropped"]) == (0, {"refused": 2})


@pytest.mark.parametrize("name", ["embedded", "SmolLM2-135M-Instruct", "/cache/smollm2-135m-instruct-b179c9523d0e"])
def test_the_embedded_model_is_not_asked(records: Path, tmp_path: Path, name: str) -> None:
    model = ScriptedModel(reworded, name=name)
    with pytest.raises(InputError, match="too small") as caught:
        run(records, tmp_path / "out.jsonl", model)
    assert "--model" in str(caught.value)
    assert not model.requests


# --- toward a personality ---------------------------------------------------------------------------------------------


@pytest.fixture
def people(tmp_path: Path) -> dict[str, Path]:
    """d0-d2 in cluster 0, d3 alone in 1, d4 without a profile, and d5, which is in the test split, in cluster 0."""
    scores = Scores(dominance=3, influence=3, steadiness=3, compliance=3)
    profiles, members = [], []
    for number, cluster in ((0, 0), (1, 0), (2, 0), (3, 1), (5, 0)):
        for who in ("seeker", "supporter"):
            text = f"{who} manner {number} {{curly}}"
            given = {
                "dialogue": f"d{number}",
                "participant": who,
                "scores": scores,
                "description": text,
                "source": "llm",
            }
            profiles.append(Profile.model_validate(given).model_dump_json() + "\n")
            member = Member.model_validate({"dialogue": f"d{number}", "participant": who, "cluster": cluster})
            members.append(member.model_dump_json() + "\n")
    (tmp_path / "profiles.jsonl").write_text("".join(profiles))
    (tmp_path / "clusters.jsonl").write_text("".join(members))
    return {"profiles": tmp_path / "profiles.jsonl", "clusters": tmp_path / "clusters.json"}


def test_a_manner_is_drawn_from_the_same_cluster(records: Path, tmp_path: Path, people: dict[str, Path]) -> None:
    model = ScriptedModel(reworded)
    manifest = run(records, tmp_path / "out.jsonl", model, **people)
    assert manifest["counts"]["dropped"] == {"no profile": 2}
    assert {found.rewritten for found in read_records(tmp_path / "out.jsonl")} == {"personality"}
    drawn = []
    for request in model.requests:
        prompt = str(request.messages[0]["content"])
        house = int(re.findall(r"house (\d)", prompt)[0])
        seeker = int(re.findall(r"Seeker: seeker manner (\d) \{curly\}", prompt)[0])
        supporter = int(re.findall(r"Supporter: supporter manner (\d) \{curly\}", prompt)[0])
        drawn.append((house, seeker, supporter))
        if house == 3:
            assert (seeker, supporter) == (3, 3)  # there is nobody else
        else:
            assert {seeker, supporter} <= {0, 1, 2} - {house}
    assert len(drawn) == 4
    again = ScriptedModel(reworded, batch_size=5)
    run(records, tmp_path / "again.jsonl", again, **people)
    assert [r.messages for r in again.requests] == [r.messages for r in model.requests]


def test_clusters_of_other_profiles_are_told(records: Path, tmp_path: Path, people: dict[str, Path]) -> None:
    lines = people["profiles"].read_text().splitlines(keepends=True)
    for changed in ("".join(lines[::-1]), "".join(lines[:-1])):
        people["profiles"].write_text(changed)
        with pytest.raises(InputError, match="not the clusters"):
            run(records, tmp_path / "out.jsonl", ScriptedModel(reworded), **people)
    with pytest.raises(InputError, match="needs profiles"):
        run(records, tmp_path / "out.jsonl", ScriptedModel(reworded), clusters=people["clusters"])


# --- sets of equal size -----------------------------------------------------------------------------------------------


def rewrites(records: Path, out: Path, kind: str, without: Sequence[str] = ()) -> Path:
    kept = [found for found in read_records(records) if found.split == "reward" and found.id not in without]
    write_records(out, [found.model_copy(update={"id": f"{found.id}~{kind}", "rewritten": kind}) for found in kept])
    return out


def test_three_sets_of_the_same_records(records: Path, tmp_path: Path) -> None:
    plain = rewrites(records, tmp_path / "plain.jsonl", "plain", without=["d0:2:true"])
    other = rewrites(records, tmp_path / "other.jsonl", "personality", without=["d1:2:true", "d1:2:reference"])
    manifest = equal_sets(records, tmp_path, plain, other)
    assert manifest["counts"]["sets"] == {"original": 12, "added": 7}
    originals = [found.id for found in read_records(records)]
    added = {}
    for suffix, name in SETS.items():
        found = list(read_records(tmp_path / name))
        ids = [one.id for one in found]
        assert len(set(ids)) == len(ids) == 19
        assert set(originals) < set(ids)
        new = [one for one in found if one.id not in originals]
        assert {one.rewritten for one in new} == {None if suffix == "duplicate" else suffix}
        assert {one.split for one in new} == {"reward"}
        added[suffix] = {one.id.removesuffix(f"~{suffix}") for one in new}
    assert added["duplicate"] == added["plain"] == added["personality"]
    assert not added["plain"] & {"d0:2:true", "d1:2:true", "d1:2:reference"}


def test_sets_with_one_rewrite_and_sets_that_cannot_be_made(records: Path, tmp_path: Path) -> None:
    plain = rewrites(records, tmp_path / "plain.jsonl", "plain")
    assert equal_sets(records, tmp_path, plain)["counts"]["sets"] == {"original": 12, "added": 10}
    assert not (tmp_path / SETS["personality"]).exists()
    with pytest.raises(InputError, match="no rewrites"):
        equal_sets(records, tmp_path)
    with pytest.raises(InputError, match="is no personality rewrite"):
        equal_sets(records, tmp_path, personality=plain)
    stranger = tmp_path / "stranger.jsonl"
    write_records(stranger, [record(9, "true", ASK, TELL)])
    with pytest.raises(InputError, match="no record has its rewrites"):
        equal_sets(stranger, tmp_path, plain)
    doubled = tmp_path / "doubled.jsonl"
    doubled.write_text(plain.read_text() * 2)
    with pytest.raises(InputError, match="reworded twice"):
        equal_sets(records, tmp_path, doubled)
