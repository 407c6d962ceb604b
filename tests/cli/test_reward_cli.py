"""`compeer reward`: from records to a trained judge, its judgments, its metrics, and a table of several judges."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from research.judge.compare import main as compare

from compeer.cli.training import NEEDS
from compeer.errors import InputError
from compeer.models.base import Request
from compeer.reward.conversation import JudgeForm
from compeer.reward.judges import open_judge
from compeer.reward.judgments import write_judgments
from compeer.reward.score import Judgment
from compeer.reward.train import RewardSettings, is_usable, sampling_weights
from compeer.ser import SerSettings, build_ser, read_records, write_records
from compeer.ser.record import SerRecord
from tests.support.commands import exit_code
from tests.support.scripted_model import ScriptedModel

ENDPOINT = "m@http://127.0.0.1:9/v1"
"""Nobody listens there."""
QUICKLY = ("--call", "retries=0")
OUTPUT = (
    "History: A flood took the shed. [exploration]\nEmotion: Shaken by the loss. [negative, sadness, 4]\n"
    "Strategy: Ask what was in it. [Question]\nResponse: Was anything dear to you in there, or could you save it all?"
)


def run_cli(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command."""
    return exit_code(monkeypatch, "reward", *words)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few records of each split of the sample corpus."""
    folder = tmp_path_factory.mktemp("records")
    build_ser(SerSettings(embedder="words"), folder, 3)
    every = [record for record in read_records(folder / "records.jsonl") if record.preference]
    few = [record for split in ("reward", "test") for record in [r for r in every if r.split == split][:12]]
    write_records(folder / "few.jsonl", few)
    return folder / "few.jsonl"


@pytest.fixture(scope="module")
def mixed(records: Path) -> Path:
    """The test records, three of them without a preference and two without labels."""
    every = [record for record in read_records(records) if record.split == "test"]
    lacking: list[dict[str, Any]] = [{"preference": None}] * 3 + [{"labels": None}] * 2 + [{}] * (len(every) - 5)
    path = records.with_name("mixed.jsonl")
    write_records(path, [one.model_copy(update=update) for one, update in zip(every, lacking, strict=True)])
    return path


def scripted(monkeypatch: pytest.MonkeyPatch, word: str | None = None) -> ScriptedModel:
    """In the place of an endpoint, a model that gives the first word it may, or always the same answer."""

    def answer(request: Request) -> str:
        return word or ("A" if "Reply A" in str(request.messages[-1]["content"]) else "True")

    model = ScriptedModel(answer)
    monkeypatch.setattr(sys.modules["compeer.cli.reward"], "open_named", lambda *_: model)
    return model


def notes_of(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said to the person, on one line."""
    return " ".join(capsys.readouterr().err.split())


def test_train_judge_evaluate_compare(
    records: Path,
    tiny_learner: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    base = ["--set", f"model={tiny_learner}", "--set", "steps=2", "--set", "history=2", "--set", "max_length=1024"]
    for name, kind, blind in (
        ("u", "unified", "false"),
        ("ut", "unified", "true"),
        ("p", "process", "false"),
        ("o", "outcome", "false"),
    ):
        words = ["train", str(records), name, *base, "--set", f"kind={kind}", "--set", f"blind={blind}"]
        assert run_cli(monkeypatch, *words) == 0
        assert json.loads((tmp_path / name / "model" / "compeer.json").read_text())["kind"] == kind
        assert run_cli(monkeypatch, "judge", str(records), f"{name}/model", f"{name}.jsonl", "--both-orders") == 0
    capsys.readouterr()
    assert run_cli(monkeypatch, "train", str(records), "u", *base, "--set", "steps=3") == 2
    assert "a training with other settings was begun here (steps)" in " ".join(capsys.readouterr().err.split())
    assert run_cli(monkeypatch, "evaluate", str(records), "u.jsonl") == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["records"] == measured["scored"] == 12
    assert {"history", "emotion", "strategy", "response", "calibration", "position", "test_set"} <= set(measured)
    rows = ["UnifiReward=u.jsonl::ut.jsonl", "PRM=p.jsonl", "ORM=o.jsonl"]
    compare(records, rows, out=Path("table.md"))
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    for name in ("UnifiReward", "PRM + ORM", "always True"):
        assert name.lower() in table.lower()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "RECORDS", "out", "--set", "kind=best"], "kind"),
        (["train", "RECORDS", "out", "--set", "stepz=3"], "Known settings"),
        (["train", "RECORDS", "out", "--set", "steps"], "key=value"),
        (["train", "RECORDS", "out", "--split", "valid"], "unknown split"),
        (["train", "RECORDS", "out", "--split", "policy"], "there is no record in the policy split"),
        (["train", "nowhere.jsonl", "out"], "no such file"),
        (["judge", "RECORDS", "nowhere", "out.jsonl"], "no model folder"),
        (["train", "RECORDS", "out", "--set", "sources={silver=-1.0}"], "greater than or equal to 0"),
        (["train", "RECORDS", "out", "--set", "sources={silver=0.0}"], "no record would ever be sampled"),
        (["judge", "RECORDS", ENDPOINT, "out.jsonl", "--kind", "best"], "'best' is not one of"),
        (["judge", "RECORDS", ENDPOINT, "nowhere/out.jsonl"], "no such folder"),
        (["judge", "RECORDS", ENDPOINT, "out.jsonl", "--threshold", "0.4"], "--threshold: only for judges in this"),
        (["judge", "RECORDS", "judge", "out.jsonl", "--threshold", "7"], "7 is no probability"),
        (["judge", "RECORDS", "judge", "out.jsonl", "--threshold", "nan"], "nan is no probability"),
        (["judge", "RECORDS", "judge", "out.jsonl", "--kind", "process"], "--kind: only for endpoints"),
        (["judge", "RECORDS", "judge", "o", "--reasons", "--trained"], "--reasons and --trained: only for endpoints"),
        (["judge", "--said", "Oh.", "--output", "x", "--call", "retries=0"], "--call: only for endpoints"),
        (["evaluate", "RECORDS", "nowhere.jsonl"], "nowhere.jsonl"),
        (["evaluate", "RECORDS", "nowhere.jsonl", "--plot", "nowhere/a.svg"], "no such folder"),
    ],
)
def test_what_a_person_did_wrong_is_told(
    words: list[str], expected: str, records: Path, refused: Callable[..., str]
) -> None:
    assert expected in refused("reward", *(str(records) if word == "RECORDS" else word for word in words))


# --- what was scored, and what not ------------------------------------------------------------------------------------


def test_judging_says_how_many_were_scored(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "said.jsonl"
    scripted(monkeypatch)
    assert run_cli(monkeypatch, "judge", str(records), ENDPOINT, str(out)) == 0
    assert f"12 judgments written to {out}: 12 scored, 0 not" in notes_of(capsys)


def test_judging_fails_where_nothing_is_scored_and_says_why(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(monkeypatch, "judge", str(records), ENDPOINT, "dead.jsonl", *QUICKLY) == 1
    assert ": 0 scored, 12 not (most often: the judge could not be asked (connection)" in notes_of(capsys)
    assert len((tmp_path / "dead.jsonl").read_text(encoding="utf-8").splitlines()) == 12
    scripted(monkeypatch, "It depends.")
    assert run_cli(monkeypatch, "judge", str(records), ENDPOINT, "unread.jsonl") == 1
    assert "most often: the judge's answer cannot be read" in notes_of(capsys)


def test_one_turn_that_could_not_be_judged_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for more in ((), ("--json",)):
        words = ["judge", "--said", "Oh.", "--output", OUTPUT, "-m", ENDPOINT, *QUICKLY, *more]
        assert run_cli(monkeypatch, *words) == 1
        assert "could not be asked (connection)" in capsys.readouterr().out


def test_why_a_response_counts_for_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch)
    copied = OUTPUT.rpartition("Response: ")[2]
    words = ["judge", "--said", "The river took it.", "--output", OUTPUT, "--reference", copied, "-m", ENDPOINT]
    assert run_cli(monkeypatch, *words) == 0
    assert "response  counts for nothing: the response copies the reference" in capsys.readouterr().out
    assert run_cli(monkeypatch, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["void"] == "the response copies the reference"
    assert found["score"]["response"] == -1
    assert run_cli(monkeypatch, *words[:5], "-m", ENDPOINT, "--json") == 0
    assert json.loads(capsys.readouterr().out)["void"] is None


@pytest.mark.parametrize("given", ['{"a":' * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000])
def test_json_that_is_nested_too_deeply_is_no_turn(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert run_cli(monkeypatch, "judge", "--said", "Oh.", "--output", "-", "-m", ENDPOINT) == 2
    assert "this JSON holds no turn" in notes_of(capsys)


def test_what_is_piped_must_be_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"History: \xff\xfe"), encoding="utf-8"))
    assert run_cli(monkeypatch, "judge", "--said", "Oh.", "--output", "-", "-m", ENDPOINT) == 2
    assert "not UTF-8 text" in notes_of(capsys)


@pytest.mark.parametrize("line", ['{"id": ', '{"a":' * 200_000])
def test_the_advice_for_a_broken_record_names_no_option_that_is_not_there(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jsonl").write_text(f"{line}\n", encoding="utf-8")
    assert run_cli(monkeypatch, "evaluate", str(tmp_path / "broken.jsonl"), "said.jsonl") == 2
    said = notes_of(capsys)
    assert "line 1: this" in said
    assert "Mend this line" in said
    assert "skip-bad" not in said


# --- which records are taken ------------------------------------------------------------------------------------------


def test_what_a_kind_of_judge_needs_is_what_it_learns_from(mixed: Path) -> None:
    assert set(NEEDS) == set(get_args(JudgeForm.model_fields["kind"].annotation))
    for kind, needs in NEEDS.items():
        for record in read_records(mixed):
            enough = all(getattr(record, need) is not None for need in needs)
            assert enough == is_usable(record, JudgeForm.model_validate({"kind": kind}))


@pytest.mark.parametrize(
    ("kind", "judged", "why"),
    [
        ("unified", 7, "5 of 12 records are left out: 2 without labels of the steps, 3 without a preference."),
        ("process", 10, "2 of 12 records are left out: 2 without labels of the steps."),
        ("outcome", 9, "3 of 12 records are left out: 3 without a preference."),
    ],
)
def test_each_kind_of_judge_takes_the_records_that_it_can_be_measured_on(
    kind: str,
    judged: int,
    why: str,
    mixed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    scripted(monkeypatch)
    assert run_cli(monkeypatch, "judge", str(mixed), ENDPOINT, "said.jsonl", "--kind", kind) == 0
    said = notes_of(capsys)
    assert why in said
    assert f"{judged} judgments written" in said
    assert run_cli(monkeypatch, "evaluate", str(mixed), "said.jsonl") == 0
    printed = capsys.readouterr()
    assert why in " ".join(printed.err.split())
    measured = json.loads(printed.out)
    assert measured["records"] == measured["scored"] == judged
    assert ("strategy" in measured) == (kind != "outcome")
    assert ("response" in measured) == (kind != "process")
    compare(mixed, [f"{kind}=said.jsonl"], out=Path("table.md"))
    assert why in notes_of(capsys)
    assert kind in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_judges_side_by_side_are_held_to_the_same_records(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scripted(monkeypatch)
    for kind in ("process", "outcome"):
        assert run_cli(monkeypatch, "judge", str(mixed), ENDPOINT, f"{kind}.jsonl", "--kind", kind) == 0
    capsys.readouterr()
    compare(mixed, ["PRM=process.jsonl", "ORM=outcome.jsonl"])
    printed = capsys.readouterr()
    assert "5 of 12 records are left out" in printed.err
    assert "PRM + ORM" in printed.out
    with pytest.raises(InputError, match="NAME=FILE"):
        compare(mixed, ["process.jsonl"])


def test_a_process_judge_is_taught_by_records_without_a_preference(
    records: Path,
    tiny_learner: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    taught = [record for record in read_records(records) if record.split == "reward"]
    few = [record.model_copy(update={"preference": None} if number else {}) for number, record in enumerate(taught)]
    write_records(tmp_path / "few.jsonl", few)
    monkeypatch.chdir(tmp_path)
    base = ["--set", f"model={tiny_learner}", "--set", "steps=1", "--set", "history=2", "--set", "max_length=1024"]
    assert run_cli(monkeypatch, "train", "few.jsonl", "p", *base, "--set", "kind=process") == 0
    said = notes_of(capsys)
    assert "left out" not in said
    assert '"chats": 36' in said
    assert run_cli(monkeypatch, "train", "few.jsonl", "u", *base) == 0
    said = notes_of(capsys)
    assert "11 of 12 records are left out: 11 without a preference." in said
    assert '"chats": 1,' in said


def test_records_without_any_labels_are_an_error(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = [record.model_copy(update={"labels": None, "preference": None}) for record in read_records(mixed)]
    write_records(tmp_path / "bare.jsonl", bare)
    assert run_cli(monkeypatch, "judge", str(tmp_path / "bare.jsonl"), ENDPOINT, str(tmp_path / "o.jsonl")) == 2
    assert "there is no record with labels of the steps and a preference among the 12" in notes_of(capsys)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_source_of_weight_nought_may_stand_beside_others(records: Path) -> None:
    settings = RewardSettings.model_validate({"steps": 1, "learning_rate": 1, "sources": {"silver": 0, "human": 2}})
    silver, other = list(read_records(records))[:2]
    assert silver.labels is not None
    assert other.preference is not None
    liked = other.model_copy(update={"preference": other.preference.model_copy(update={"source": "human"})})
    assert sampling_weights([silver, liked], settings) == [0, 0.5]
    with pytest.raises(InputError, match="weight 0"):
        sampling_weights([silver], settings)


def test_the_threshold_reaches_the_judge(tiny_learner: Path) -> None:
    judge = open_judge(str(tiny_learner), threshold=0.9)
    assert judge.threshold == 0.9  # type: ignore[attr-defined]


# --- the reliability diagram and contradictions -----------------------------------------------------------------------


def said_of(record: SerRecord, doubt: float) -> Judgment:
    """What a judge says that leans to the labels."""
    assert record.labels is not None
    assert record.preference is not None
    steps = {
        part: abs(float(getattr(record.labels, part).value) - doubt) for part in ("history", "emotion", "strategy")
    }
    return Judgment(steps, {record.preference.value: 1 - doubt, "neither": doubt / 2})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def judgments(records: Path) -> Path:
    path = records.with_name("judgments.jsonl")
    tested = [record for record in read_records(records) if record.split == "test"]
    write_judgments(path, tested, [said_of(record, number / 24) for number, record in enumerate(tested)])
    return path


def test_the_reliability_diagram_is_a_picture_of_its_own(
    records: Path,
    judgments: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from xml.etree import ElementTree

    picture = tmp_path / "reliability.svg"
    assert run_cli(monkeypatch, "evaluate", str(records), str(judgments), "--plot", str(picture)) == 0
    measured = json.loads(capsys.readouterr().out)["calibration"]
    drawing = ElementTree.parse(picture).getroot()
    name = "{http://www.w3.org/2000/svg}"
    circles, bars = (len(list(drawing.iter(f"{name}{kind}"))) for kind in ("circle", "rect"))
    bins = [point for part in measured.values() for point in part["points_equal_width"]]
    assert len(measured) == 4
    assert circles == bars - 1 == len(bins)
    written = [text.text or "" for text in drawing.iter(f"{name}text")]
    assert sum("12 verdicts, ECE" in text for text in written) == 4
    assert sum(int(text) for text in written if text.isdigit()) == 4 * 12, "the sizes of the bins"
    text = picture.read_text(encoding="utf-8")
    assert "href" not in text
    assert "url(" not in text


def test_a_diagram_of_nothing_is_not_drawn(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.jsonl").write_text("", encoding="utf-8")
    words = [str(records), str(tmp_path / "none.jsonl"), "--plot", str(tmp_path / "a.svg")]
    assert run_cli(monkeypatch, "evaluate", *words) == 2
    assert "nothing was scored" in notes_of(capsys)
    assert not (tmp_path / "a.svg").exists()


def test_contradictions_are_counted_where_the_strategy_of_a_response_is_known(
    records: Path, judgments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, "evaluate", str(records), str(judgments)) == 0
    found = json.loads(capsys.readouterr().out)["contradictions"]
    tested = [record for record in read_records(records) if record.split == "test"]
    known = [record for record in tested if record.response_strategy]
    assert found["outputs"] == found["judged"] == 12
    assert found["decided"] == len(known) > 0
    assert found["following"] == sum(one.response_strategy == one.candidate.strategy.strategy for one in known)
    assert set(found["judges"]) == {"judge", "the labels themselves"}
    assert found["judges"]["judge"] == found["judges"]["the labels themselves"], "this judge says what the labels say"
    unknown = [record.model_copy(update={"response_strategy": None}) for record in tested]
    write_records(tmp_path / "unknown.jsonl", unknown)
    assert run_cli(monkeypatch, "evaluate", str(tmp_path / "unknown.jsonl"), str(judgments)) == 0
    nothing = json.loads(capsys.readouterr().out)["contradictions"]
    assert (nothing["judged"], nothing["decided"], nothing["judges"]) == (12, 0, {})


def test_contradictions_are_between_steps_and_responses(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scripted(monkeypatch)
    assert run_cli(monkeypatch, "judge", str(records), ENDPOINT, "said.jsonl", "--kind", "process") == 0
    assert run_cli(monkeypatch, "evaluate", str(records), "said.jsonl") == 0
    found = json.loads(capsys.readouterr().out)["contradictions"]
    assert (found["outputs"], found["judged"], found["judges"]) == (12, 0, {})
