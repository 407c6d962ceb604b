"""Help lines as data: complete, dated, overlaid by a service's own file, and never without a number."""

from itertools import pairwise
from pathlib import Path

import pytest

from compeer.errors import InputError
from compeer.safety.fixed_replies import LANGUAGES, Replies, language_of, wordings
from compeer.safety.resources import VARIABLE, load_resources, region_of
from compeer.safety.risk import CATEGORIES, KINDS

GOOD = """
[neutral]
en = "Call us."
[countries.US]
name = "Here"
emergency = "911"
[[countries.US.lines]]
name = "Our own line"
kinds = ["suicide", "general"]
phone = "555 0100"
hours = "24/7"
languages = ["en"]
checked = 2026-01-01
source = "ourselves"
verified_by_phone = true
"""


def test_many_countries_each_with_numbers_for_every_kind() -> None:
    resources = load_resources()
    assert len(resources.countries) >= 20
    assert {"US", "GB", "CN", "HK", "TW", "IN", "DE", "FR", "BR", "ZA"} <= set(resources.countries)
    for code, country in resources.countries.items():
        assert country.fitting("suicide", "en"), code
        for kind in KINDS:
            for language in LANGUAGES:
                numbers = Replies(language, resources, code).numbers([kind])
                assert country.urgent(kind) in numbers
        assert all(line.source and not line.verified_by_phone for line in country.lines)


def test_the_well_known_numbers() -> None:
    resources = load_resources()
    assert "988" in Replies("en", resources, "en-US").numbers(["suicide"])
    assert "116 123" in Replies("en", resources, "en_GB.UTF-8").numbers(["suicide"])
    chinese = Replies("zh", resources, "zh-CN")
    assert "12356" in chinese.numbers(["suicide"])
    assert "120" in chinese.numbers(["medical emergency"])
    assert "110" in chinese.numbers(["abuse"])


@pytest.mark.parametrize(
    ("locale", "region"),
    [
        ("en-US", "US"),
        ("zh_CN.UTF-8", "CN"),
        ("zh-Hant-TW", "TW"),
        ("GB", "GB"),
        ("en-UK", "GB"),
        ("en", None),
        ("", None),
        (None, None),
        ("C.UTF-8", None),
    ],
)
def test_the_country_of_a_locale(locale: str | None, region: str | None) -> None:
    assert region_of(locale) == region


@pytest.mark.parametrize("locale", [None, "en", "xx-XX", "nonsense"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_where_the_place_is_unknown_a_neutral_text_helps(locale: str | None, language: str) -> None:
    text = Replies(language, load_resources(), locale).numbers(["suicide"])
    assert "findahelpline.com" in text
    assert "112" in text


def test_a_service_lays_its_own_file_over_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.toml"
    path.write_text(GOOD)
    own = load_resources(path)
    assert [line.name for line in own.countries["US"].lines] == ["Our own line"], "a country is replaced whole"
    assert "GB" in own.countries
    assert Replies("en", own, None).numbers(["suicide"]) == "Call us."
    assert "findahelpline" in Replies("zh", own, None).numbers(["suicide"])
    monkeypatch.setenv(VARIABLE, str(path))
    assert load_resources() == own


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (('phone = "555 0100"\n', ""), "countries.US.lines.0"),
        (('phone = "555 0100"', 'phone = "call us"'), "countries.US.lines.0.phone"),
        (('kinds = ["suicide", "general"]', 'kinds = ["sadness"]'), "countries.US.lines.0.kinds.0"),
        (("checked = 2026-01-01", 'checked = "last year"'), "countries.US.lines.0.checked"),
        (('source = "ourselves"\n', ""), "countries.US.lines.0.source"),
        (('emergency = "911"', 'emergency = ""'), "countries.US.emergency"),
        (("verified_by_phone", "verified"), "countries.US.lines.0"),
        (("countries.US", "countries.us"), "us"),
        (("[neutral]", "[neutral"), "TOML"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(InputError) as error:
        load_resources(path)
    assert str(path) in str(error.value)
    assert named in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.toml"):
        load_resources(tmp_path / "gone.toml")


def test_every_wording_keeps_the_numbers_and_the_door_open() -> None:
    away = (
        "can't help you",
        "cannot help you",
        "unable to help",
        "goodbye",
        "end this conversation",
        "帮不了你",
        "再见",
    )
    for language in LANGUAGES:
        words, replies = wordings(language), Replies(language, load_resources(), "US")
        for kind in KINDS:
            texts = [replies.crisis([kind], earlier, False) for earlier in range(5)]
            assert all("911" in text for text in texts)
            assert all(first != second for first, second in pairwise(texts))
            assert all(len(text) < len(texts[0]) for text in texts[1:]), "later replies are shorter"
            assert not [word for text in texts for word in away if word in text.lower()]
        assert set(words.safe) == {*CATEGORIES, "general"}
        assert all(len(texts) >= 2 for texts in words.safe.values())


def test_the_language_of_the_newest_words() -> None:
    assert language_of(["hello", "我很难过"]) == "zh"
    assert language_of(["我很难过", "sorry, in English"]) == "en"
    assert language_of(["我很难过", "...?!"]) == "zh"
    assert language_of([]) == "en"
