"""Profiles by word counts and by a model, the elbow, and clusters that a person can name."""

import asyncio
import json
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from research.personality import clusters
from research.personality import profiles as personality
from research.personality.clusters import cluster_profiles, find_elbow, in_words, read_members
from research.personality.profiles import (
    DescribedBoth,
    answer_grammar,
    describe,
    estimate,
    habits,
    lexical_profiles,
    profile_stage,
    read_answer,
)

from compeer.corpora import read_corpus, write_jsonlines
from compeer.dialogue import Dialogue, Speaker, Utterance, merge_consecutive
from compeer.errors import InputError
from compeer.models.base import Failure, Generation, Request, Sampling
from compeer.policy.persona import TRAITS, Profile, Scores, Trait, read_profiles
from compeer.statistics import generator
from tests.support.scripted_model import ScriptedModel

REAL = Path(__file__).parents[3] / "shared" / "data"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the public corpora are not at hand")

# --- the lexical estimate -------------------------------------------------------------------------------------------

FORCEFUL = ["You must call them now. Stop waiting. Tell them no. You have to decide. I want this done, I insist."] * 3
HESITANT = ["Maybe, I guess. I think it might perhaps be a bit much, sorry. Possibly it could help, please."] * 3
LIVELY = ["Wow, this is so great! We really love it! Everyone is so happy, it is wonderful! So much fun!"] * 3
DRY = ["The form went out on paper. The desk took it. The window shut and the queue went home again then."] * 3
STEADY = ["Yes, thank you. I understand, of course. I hear you, okay. Thanks, I appreciate it, take your time."] * 3
ABRUPT = ["But never. Wrong! Whatever! However you put it, no! Ridiculous! I hate it! Hell, actually stupid!"] * 3
EXACT = [
    "Because the first appointment starts at 9:30, which leaves 45 minutes, the arrangement depends on whether both "
    "documents arrive, since the second department processes applications for 3 weeks."
] * 3
SLOPPY = ["nah we go on", "it was so so", "he up and went off", "got it all in", "no way to go on it", "too big a go"]


@pytest.mark.parametrize(
    ("trait", "more", "less"),
    [
        ("dominance", FORCEFUL, HESITANT),
        ("influence", LIVELY, DRY),
        ("steadiness", STEADY, ABRUPT),
        ("compliance", EXACT, SLOPPY),
    ],
)
@pytest.mark.parametrize("who", ["seeker", "supporter"])
def test_each_trait_follows_its_habits(trait: Trait, more: list[str], less: list[str], who: Speaker) -> None:
    high, low = estimate(more, "en", who).scores[trait], estimate(less, "en", who).scores[trait]
    assert high > 3 > low
    assert high - low > 1


CHINESE: dict[Trait, tuple[str, str]] = {
    "dominance": (
        "你必须马上去做，你一定要告诉他们，我决定了，我坚持，别再等了。",
        "也许吧，我觉得可能有点难，或许不太行，谢谢您，抱歉。",
    ),
    "influence": (
        "哈哈真的太好了！大家一起非常开心！我们特别喜欢！加油！",
        "表格放在桌上，窗口关了，队伍散了，天也黑了，灯灭了。",
    ),
    "steadiness": (
        "是的，谢谢您，我理解，确实，好的，没错，感谢，慢慢来，嗯。",
        "但是不对！讨厌！凭什么！根本不是！可是！其实！然而！",
    ),
    "compliance": (
        "因为上周有三个月的数据，所以如果需要，首先看原因，其次比如5次，因此推断",
        "走吧\n来吧\n哎哟\n哦哦\n去吧\n好吃\n睡了\n起来\n算了\n完了",
    ),
}


@pytest.mark.parametrize("trait", TRAITS)
def test_the_same_in_chinese(trait: Trait) -> None:
    more, less = CHINESE[trait]
    high = estimate([more] * 3, "zh", "seeker").scores[trait]
    low = estimate([less] * 3, "zh", "seeker").scores[trait]
    assert high > 3
    assert high > low


def test_who_said_little_or_speaks_another_language_is_neutral() -> None:
    assert set(estimate(["You must stop. I insist!"], "en", "seeker").scores.values()) == {3.0}
    assert set(estimate(FORCEFUL, "fi", "seeker").scores.values()) == {3.0}


@given(st.lists(st.text(max_size=300), min_size=1, max_size=5), st.sampled_from(["en", "zh", "de"]))
def test_any_text_gives_scores_in_range_and_a_description(texts: list[str], language: str) -> None:
    found = estimate(texts, language, "supporter")
    assert list(found.scores) == list(TRAITS)
    assert all(1 <= score <= 5 for score in found.scores.values())
    assert found == estimate(texts, language, "supporter")
    assert describe(found).endswith(".")


def test_descriptions_tell_the_manner_and_not_the_topic() -> None:
    forceful, hesitant = describe(estimate(FORCEFUL, "en", "seeker")), describe(estimate(HESITANT, "en", "seeker"))
    assert "forceful" in forceful or "firm" in forceful
    assert forceful != hesitant
    about_cheese = [text.replace("them", "the cheesemonger") for text in FORCEFUL]
    assert "cheese" not in describe(estimate(about_cheese, "en", "seeker"))


@real
def test_the_reference_values_are_those_of_the_corpus() -> None:
    rows: dict[Speaker, list[dict[str, float]]] = {"seeker": [], "supporter": []}
    scores: dict[Speaker, list[list[float]]] = {"seeker": [], "supporter": []}
    for dialogue in islice(read_corpus(REAL / "esconv" / "train.jsonl"), 150):
        for who in rows:
            texts = [block.text for block in merge_consecutive(dialogue.utterances) if block.speaker == who]
            rows[who].append(habits(texts, "en"))
            scores[who].append(list(estimate(texts, "en", who).scores.values()))
    from research.personality.profiles import _REFERENCES

    for who, found in rows.items():
        for habit, (mean, deviation) in _REFERENCES["en", who].items():
            assert abs(np.mean([row[habit] for row in found]) - mean) < 0.35 * deviation, (who, habit)
        assert np.allclose(np.mean(scores[who], axis=0), 3, atol=0.25)
        assert np.all(np.std(scores[who], axis=0) > 0.5)


# --- the stage --------------------------------------------------------------------------------------------------------


def dialogue(number: int, opening: str = "I guess the garden wall fell over again") -> Dialogue:
    said: list[tuple[Speaker, str]] = [
        ("seeker", f"{opening}, and number {number} of the plans is maybe not so good, I think."),
        ("supporter", "Oh no! What happened to it? You should call someone and get it fixed this week."),
        ("seeker", "Perhaps. I am not sure, it might be too dear, and I guess nobody has time for it."),
        ("supporter", "I understand. Thank you for telling me! Take your time, we can look at it together."),
    ]
    return Dialogue(
        id=f"d{number}",
        language="en",
        source="test",
        utterances=tuple(Utterance(speaker=speaker, text=text) for speaker, text in said * (1 + number % 3)),
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "screened.jsonl"
    silent = Dialogue(
        id="alone", language="en", source="test", utterances=(Utterance(speaker="seeker", text="Hello?"),)
    )
    write_jsonlines([*(dialogue(number) for number in range(11)), silent], path)
    return path


def profiles_of(corpus: Path, out: Path, model: Any = None, workers: int = 1, retries: int = 1) -> dict[str, Any]:
    return asyncio.run(profile_stage(corpus, out, model, retries, seed=7, workers=workers))


def test_profiles_without_a_model(corpus: Path, tmp_path: Path) -> None:
    manifest = profiles_of(corpus, tmp_path / "profiles.jsonl")
    found = list(read_profiles(tmp_path / "profiles.jsonl"))
    assert manifest["counts"]["profiles"] == {"seeker": 12, "supporter": 11}
    assert [(p.dialogue, p.participant) for p in found[:3]] == [("d0", "seeker"), ("d0", "supporter"), ("d1", "seeker")]
    assert {p.source for p in found} == {"lexical"}
    assert [p for p in found if p.dialogue == "d4"] == lexical_profiles(dialogue(4))


def test_profiles_do_not_depend_on_workers_or_stops(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(personality, "DIALOGUES_A_UNIT", 3)
    whole, stopped, shared = (tmp_path / name for name in ("whole.jsonl", "stopped.jsonl", "shared.jsonl"))
    profiles_of(corpus, whole)
    profiles_of(corpus, shared, workers=2)
    done = personality._estimated
    calls = iter(range(100))

    def killed(block: list[Dialogue]) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return done(block)

    monkeypatch.setattr(personality, "_estimated", killed)
    with pytest.raises(KeyboardInterrupt):
        profiles_of(corpus, stopped)
    monkeypatch.setattr(personality, "_estimated", done)
    assert not stopped.exists()
    profiles_of(corpus, stopped)
    assert whole.read_bytes() == stopped.read_bytes() == shared.read_bytes()


def answer(**changes: Any) -> str:
    one = {"description": "Short and plain, asks back at once.", **dict.fromkeys(TRAITS, 3)}
    return json.dumps({"seeker": one, "supporter": {**one, "dominance": 4.5, **changes}})


def test_profiles_by_a_model(corpus: Path, tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: f"```json\n{answer()}\n```", name="wise", batch_size=4)
    manifest = profiles_of(corpus, tmp_path / "profiles.jsonl", model)
    found = list(read_profiles(tmp_path / "profiles.jsonl"))
    assert len(found) == 23  # one dialogue has no supporter
    assert {(p.source, p.model) for p in found} == {("llm", "wise")}
    assert found[1].scores.dominance == 4.5
    assert not manifest["failed"]
    prompt = str(model.requests[0].messages[0]["content"])
    assert "Supporter: Oh no! What happened to it?" in prompt
    assert '{"seeker": {"description"' in prompt


def test_an_answer_that_cannot_be_read_is_asked_for_again_and_then_counted(corpus: Path, tmp_path: Path) -> None:
    def moody(request: Request) -> str:
        again = len(request.messages) > 1
        if "number 3 of" in str(request.messages[0]["content"]):
            return answer(influence=9)
        return answer() if again else "They seem nice."

    model = ScriptedModel(moody)
    manifest = profiles_of(corpus, tmp_path / "profiles.jsonl", model, retries=2)
    assert manifest["counts"]["dropped"] == {"unread": 1}
    assert "d3" not in {profile.dialogue for profile in read_profiles(tmp_path / "profiles.jsonl")}
    complaints = [str(request.messages[-1]["content"]) for request in model.requests if len(request.messages) > 1]
    assert any("influence" in complaint for complaint in complaints)
    assert any("JSON" in complaint for complaint in complaints)


class Unreachable(ScriptedModel):
    """Fails for one dialogue until it is mended."""

    kind: Any = "server"

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        answers = await super().generate(requests, sampling)
        broken = [self.kind and "number 3 of" in str(request.messages[0]["content"]) for request in requests]
        return [Failure(self.kind, "down") if bad else given for bad, given in zip(broken, answers, strict=True)]


def test_a_failure_leaves_the_stage_unfinished_and_a_refusal_does_not(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "profiles.jsonl"
    model = Unreachable(lambda request: answer())
    manifest = profiles_of(corpus, out, model)
    assert (manifest["failed"], manifest["counts"]["failed"]) == (1, {"server": 1})
    model.kind = None
    assert not profiles_of(corpus, out, model)["failed"]
    assert "d3" in {profile.dialogue for profile in read_profiles(out)}
    model.kind = "refused"
    manifest = profiles_of(corpus, tmp_path / "other.jsonl", model)
    assert (manifest["failed"], manifest["counts"]["dropped"]) == (0, {"refused": 1})


def test_the_grammar_allows_what_the_reader_reads() -> None:
    from llguidance import LLMatcher, LLTokenizer

    grammar = LLMatcher.grammar_from_lark(answer_grammar())
    text = answer().replace("4.5", "4").encode()
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    assert matcher.consume_tokens(list(text)), matcher.get_error()
    assert matcher.is_accepting()
    assert isinstance(read_answer(0, Generation(text.decode())), DescribedBoth)
    assert not LLMatcher(LLTokenizer("byte"), grammar).consume_tokens(list(b'{"seeker": {"dominance"'))


def test_a_bad_profile_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "profiles.jsonl"
    scores = dict.fromkeys(TRAITS, 3)
    good = {"dialogue": "a", "participant": "seeker", "scores": scores, "description": "x", "source": "llm"}
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, "scores": {**scores, "influence": 0}}) + "\n")
    with pytest.raises(InputError, match=r"line 2, field 'scores.influence'"):
        list(read_profiles(path))


# --- the elbow --------------------------------------------------------------------------------------------------------


@given(st.integers(2, 8), st.floats(0.4, 0.9), st.floats(0.01, 0.08), st.floats(0.01, 1e6))
def test_a_kink_is_found_wherever_it_is(place: int, steep: float, flat: float, size: float) -> None:
    """Falls by `steep` of K's powers up to the place, hardly after it; the unit of the error does not matter."""
    curve = [size * k**-steep for k in range(1, place + 1)]
    curve += [curve[-1] * (k / place) ** -flat for k in range(place + 1, 13)]
    found = find_elbow(curve)
    assert (found.clusters, found.clear) == (place, True)
    assert "clear elbow at" in found.summary


@given(st.floats(0.02, 1.5), st.integers(4, 16))
def test_an_even_fall_has_no_elbow(power: float, most: int) -> None:
    found = find_elbow([1000 * k**-power for k in range(1, most + 1)])
    assert not found.clear
    assert 1 < found.clusters < most
    assert found.summary.startswith("No clear elbow")


@given(st.lists(st.floats(0, 1e9), max_size=14))
def test_any_curve_gives_a_number_of_clusters(curve: list[float]) -> None:
    assert 1 <= find_elbow(curve).clusters <= max(1, len(curve))


def test_nothing_to_tell_apart_is_one_cluster() -> None:
    for curve in ([], [3.0], [3.0, 1.0], [0.0] * 12, [5.0] * 12):
        assert find_elbow(curve).clusters == 1


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_blobs_are_counted(count: int) -> None:
    from sklearn.cluster import KMeans

    rng = generator(3, "blobs", str(count))
    centres = rng.normal(size=(count, 20)) * 2.5
    rows = np.concatenate([centre + rng.normal(size=(40, 20)) for centre in centres])
    curve = [float(KMeans(k, n_init=4, random_state=0).fit(rows).inertia_) for k in range(1, 13)]
    assert (find_elbow(curve).clusters, find_elbow(curve).clear) == (count, True)


def test_a_cloud_without_clusters_has_no_clear_elbow() -> None:
    from sklearn.cluster import KMeans

    rows = generator(3, "cloud").normal(size=(200, 10))
    curve = [float(KMeans(k, n_init=4, random_state=0).fit(rows).inertia_) for k in range(1, 13)]
    assert not find_elbow(curve).clear


# --- clusters ---------------------------------------------------------------------------------------------------------

GROUPS: list[tuple[str, dict[str, float]]] = [
    ("blunt", {"dominance": 5, "influence": 3, "steadiness": 1.5, "compliance": 3}),
    ("chatty", {"dominance": 2, "influence": 5, "steadiness": 3, "compliance": 1.5}),
    ("gentle", {"dominance": 1, "influence": 3, "steadiness": 5, "compliance": 4.5}),
]


class Planted:
    """Embeds a description near the place of the word it begins with."""

    def embed(self, texts: Sequence[str]) -> Any:
        rows = []
        for text in texts:
            row = generator(1, "planted", text).normal(size=12) * 0.05
            row[[name for name, _ in GROUPS].index(text.split()[0])] += 1
            rows.append(row)
        return np.array(rows, dtype=np.float32).reshape(-1, 12)


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """Seekers of three groups, 30, 20 and 10; supporters of two."""
    path = tmp_path / "profiles.jsonl"
    kinds = [0] * 30 + [1] * 20 + [2] * 10
    lines = []
    for number, kind in enumerate(kinds):
        for who, chosen in (("seeker", kind), ("supporter", min(kind, 1))):
            name, scores = GROUPS[chosen]
            profile = Profile.model_validate(
                {
                    "dialogue": f"d{number}",
                    "participant": who,
                    "scores": Scores.model_validate(scores),
                    "description": f"{name} and so on, manner {number % 17}",
                    "source": "llm",
                }
            )
            lines.append(profile.model_dump_json() + "\n")
    path.write_text("".join(lines))
    return path


def test_clusters_are_found_counted_and_named(profiles: Path, tmp_path: Path) -> None:
    out = tmp_path / "clusters.json"
    manifest = cluster_profiles(profiles, out, 5, Planted())
    assert manifest["counts"]["clusters"] == {"of seekers": 3, "of supporters": 2, "profiles": 120}
    found = json.loads(out.read_text())["participants"]
    seekers = found["seeker"]
    assert len(seekers["squared_errors"]) == 12
    assert (seekers["chosen"], seekers["elbow"]["clear"]) == (3, True)
    assert [cluster["size"] for cluster in seekers["clusters"]] == [30, 20, 10]
    assert [cluster["said"] for cluster in seekers["clusters"]] == [
        "very dominant, restless and reserved",
        "very lively and steady, very casual and hardly dominant",
        "very steady and very careful, hardly dominant and reserved",
    ]
    assert [cluster["words"][0] for cluster in seekers["clusters"]] == ["blunt", "chatty", "gentle"]
    assert all(text.startswith("gentle") for text in seekers["clusters"][2]["typical"])
    assert len(seekers["clusters"][2]["typical"]) == 3
    members = list(read_members(tmp_path / "clusters.jsonl"))
    assert [(m.dialogue, m.participant) for m in members] == [
        (p.dialogue, p.participant) for p in read_profiles(profiles)
    ]
    assert [m.cluster for m in members if m.participant == "seeker"] == [0] * 30 + [1] * 20 + [2] * 10
    assert found["supporter"]["chosen"] == 2


def test_the_picture_marks_the_elbow(profiles: Path, tmp_path: Path) -> None:
    cluster_profiles(profiles, tmp_path / "clusters.json", 5, Planted())
    root = ElementTree.fromstring((tmp_path / "elbow.svg").read_text())
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text or "" for element in root.iter(f"{space}text")]
    assert "3 chosen (clear elbow)" in texts
    assert "2 chosen (clear elbow)" in texts
    curves = [element for element in root.iter(f"{space}path") if element.get("class") == "curve"]
    rings = [element for element in root.iter(f"{space}circle") if element.get("class") == "elbow"]
    for curve, ring, chosen in zip(curves, rings, (3, 2), strict=True):
        points = str(curve.get("d"))[1:].split("L")
        assert len(points) == 12
        assert points[chosen - 1] == f"{ring.get('cx')} {ring.get('cy')}"
    assert "prefers-color-scheme:dark" in (tmp_path / "elbow.svg").read_text()


def test_clustering_stopped_half_way_gives_the_same_files(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "PROFILES_A_BLOCK", 25)
    folders = [tmp_path / "whole", tmp_path / "stopped"]
    for folder in folders:
        folder.mkdir()
    cluster_profiles(profiles, folders[0] / "clusters.json", 5, Planted())
    written = clusters._written

    def killed(*given: Any) -> Any:
        yield from islice(written(*given), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(clusters, "_written", killed)
    with pytest.raises(KeyboardInterrupt):
        cluster_profiles(profiles, folders[1] / "clusters.json", 5, Planted())
    monkeypatch.setattr(clusters, "_written", written)
    assert (folders[1] / "clusters.jsonl.unfinished").stat().st_size > 0
    cluster_profiles(profiles, folders[1] / "clusters.json", 5, Planted())
    for name in ("clusters.json", "clusters.jsonl", "elbow.svg"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_a_drawn_sample_is_enough_for_the_fit(profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "FIT_ON", 40)
    cluster_profiles(profiles, tmp_path / "clusters.json", 5, Planted())
    found = json.loads((tmp_path / "clusters.json").read_text())["participants"]["seeker"]
    assert (found["fitted_on"], found["profiles"]) == (40, 60)
    assert [cluster["size"] for cluster in found["clusters"]] == [30, 20, 10]


def test_few_or_no_profiles(profiles: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(profiles.read_text().splitlines(keepends=True)[:2]))
    cluster_profiles(few, tmp_path / "clusters.json", 5, Planted())
    found = json.loads((tmp_path / "clusters.json").read_text())["participants"]
    assert (found["seeker"]["chosen"], found["seeker"]["elbow"]["clear"]) == (1, False)
    few.write_text("")
    with pytest.raises(InputError, match="no profiles"):
        cluster_profiles(few, tmp_path / "clusters.json", 5, Planted())


def test_what_tells_a_cluster_apart_in_words() -> None:
    even = dict.fromkeys(TRAITS, 0.0)
    assert in_words(even) == "near the mean in every trait"
    assert in_words({**even, "steadiness": 0.8, "compliance": 0.5, "dominance": -1.4}) == (
        "steady and careful, hardly dominant"
    )
    assert not math.isnan(find_elbow([1.0, 0.5, 0.2, 0.1]).kink)
