"""The profiles by a language model that the measurements of traits read."""

from pathlib import Path

import pytest

from compeer.corpora import read_corpus
from tests.support.scripts import script

REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not REAL.is_dir(), reason="the public corpora are not at hand")
def test_profiles_made_elsewhere() -> None:
    found = list(script("traits/measure").import_profiles(REAL / "ser_llm" / "profiles.jsonl"))
    assert len(found) == 480
    assert (found[0].dialogue, found[0].participant, found[0].scores.steadiness) == ("esconv-train-0074", "seeker", 4)
    known = {dialogue.id for dialogue in read_corpus(REAL / "esconv" / "train.jsonl")}
    assert {profile.dialogue for profile in found} <= known
