"""SAGE transcripts that somebody else made, scored again."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from research.seeker.rescore import rescore, rescore_command

from compeer.errors import InputError
from compeer.simulate.emotion import RLVER


def written(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def transcript(emotion: Any, name: str) -> dict[str, Any]:
    history = [{"role": "user", "content": "hi", "emotion-point": 40, "thinking": "", "planning": {"change": 0}}]
    return {"id": name, "emo_point": emotion, "emo_state": "Emotion-B", "history": history}


def test_a_file_is_rescored_to_the_number(tmp_path: Path) -> None:
    numbers = [100, 99, 10, 9, 0, 50.5]
    path = written(tmp_path / "t.jsonl", *(transcript(one, str(place)) for place, one in enumerate(numbers)))
    found = rescore(path)
    assert (found.dialogues, found.successes, found.failures, found.repeated) == (6, 1, 2, 0)
    assert found.emotion == pytest.approx(268.5 / 6)
    assert found.unread == {}
    assert rescore(path, RLVER).failures == 1
    assert rescore_command(path).splitlines() == [
        "Mean final emotion  44.75",
        "Successes           1",
        "Failures            2",
        "Dialogues           6",
        "Not read            0",
    ]


def test_lines_that_cannot_be_scored_are_named_and_count_for_nothing(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl",
        transcript(60, "a"),
        "{broken",
        "",
        {"id": "b", "history": []},
        transcript("45", "c"),
        transcript(True, "d"),
        transcript(101, "e"),
        transcript(-1, "f"),
        transcript(float("nan"), "g"),
        transcript(10**400, "h"),
        [1],
        transcript(61, "a"),
    )
    found = rescore(path)
    assert (found.emotion, found.dialogues, found.successes, found.failures) == (60.5, 2, 0, 0)
    assert found.repeated == 1
    assert list(found.unread) == [2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert found.unread[4] == "field 'emo_point': it is missing."
    printed = rescore_command(str(path))
    assert "Mean final emotion  60.50" in printed
    assert "  line 7: field 'emo_point': it does not lie between 0 and 100." in printed
    assert "Same id as before   1" in printed


def test_a_file_without_any_dialogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no dialogue with a final emotion"):
        rescore(written(tmp_path / "empty.jsonl"))
    with pytest.raises(InputError, match="Line 1: this is not JSON"):
        rescore(written(tmp_path / "prose.jsonl", "not a transcript"))
    with pytest.raises(InputError, match="no such file"):
        rescore_command(tmp_path / "none.jsonl")


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20), st.randoms())
def test_the_order_of_dialogues_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], chance: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("rescore")
    rows = [transcript(one, str(place)) for place, one in enumerate(numbers)]
    before = rescore_command(written(folder / "a.jsonl", *rows))
    chance.shuffle(rows)
    assert rescore_command(written(folder / "b.jsonl", *rows)) == before
    assert f"{sum(numbers) / len(numbers):.2f}" in before


def test_the_command_prints_the_figures_and_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from research.command import run_command
    from research.seeker import rescore as script

    file = tmp_path / "transcripts.jsonl"
    file.write_text('{"emo_point": 100}\n{"emo_point": 41}\n', "utf-8")
    monkeypatch.setattr("sys.argv", ["rescore.py", str(file)])
    with pytest.raises(SystemExit) as ended:
        run_command(script.main)
    assert not ended.value.code
    assert "Mean final emotion  70.50" in capsys.readouterr().out
    file.write_text("nonsense\n", "utf-8")
    with pytest.raises(SystemExit) as ended:
        run_command(script.main)
    assert ended.value.code == 2
    assert "no dialogue with a final emotion" in " ".join(capsys.readouterr().err.split())
