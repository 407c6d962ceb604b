"""The workbench's pages in a real browser, against the real application on a real store.

After every visit the browser must have logged no error and asked no other host for anything.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compeer.annotate.items import add_items, read_items
from compeer.annotate.labels import own_labels
from compeer.annotate.people import people
from compeer.annotate.projects import ProjectSettings, add_project, change_settings
from compeer.annotate.questions import DIMENSIONS
from compeer.annotate.store import Store, create_store
from compeer.ser.record import SerRecord, read_records
from tests.support.annotation import PASSWORD, RIGHT, cheap_hashes_fixture, new_item, person, record, steps_project  # noqa: F401
from tests.support.browser import browser_fixture  # noqa: F401
from tests.support.browser import visit as visit_page
from tests.support.workbench import workbench

PAGES = Path(__file__).parents[2] / "src" / "compeer" / "annotate" / "pages"
ANOTHER = "#work:not(:has([data-seen]))"
"""What is shown once the item that was marked as seen has gone."""
MARKUP = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
"""Text that must stay text; "x" would be asked for, and logged, if it became a picture."""


# --- what the files hold: no browser needed ---------------------------------------------------------------------------


def test_the_pages_ask_nobody_else_and_run_nothing_inline() -> None:
    for path in sorted(PAGES.iterdir()):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?:src|href)=\"(?!/static/|#)|url\(|@import|from \"(?!\.\.?/)", text), path
        assert not re.search(r"\son\w+=|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|style=", text), path
        assert "<script>" not in text, path


# --- the browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> Store:
    return create_store(str(tmp_path / "store.sqlite"))


@pytest.fixture(name="url")
def url_fixture(store: Store) -> Iterator[str]:
    with workbench(store) as started:
        yield started.url


visit = partial(visit_page, ready="body", viewport={"width": 1280, "height": 900})


def log_in(page: Any, name: str) -> None:
    """Logs in by keyboard; who annotates stands before the content notice then."""
    page.wait_for_selector("#title:not(:empty)")
    page.keyboard.type(name)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")


def begin(page: Any) -> None:
    """Past the content notice, to the first item."""
    page.wait_for_selector("#notice")
    page.keyboard.press("Enter")
    page.wait_for_selector("#item-name")


@contextlib.contextmanager
def at_work(browser: Any, url: str, name: str, **options: Any) -> Iterator[Any]:
    """Somebody in front of their first item."""
    with visit(browser, f"{url}/login", **options) as page:
        log_in(page, name)
        begin(page)
        yield page


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def matter(page: Any) -> int:
    """Which item this is, by what the seeker says."""
    return int(re.findall(r"matter (\d+)", page.inner_text("#said"))[-1])


def submit(page: Any, *keys: str) -> None:
    """Answers and submits, and waits for what comes next."""
    page.evaluate("questions.dataset.seen = 'yes'")
    press(page, *keys, "Enter")
    page.wait_for_selector(ANOTHER)


# --- the whole life ---------------------------------------------------------------------------------------------------

ANN = ["TTTc", "TFTc", "TTTr", "FFTb", "TTTn", "FTTc"]
BOB = ["TTTc", "TFTc", "FTTr", "FFTb", "TTTn", "FTTr"]
"""What two people say on six items: each step True or False, and candidate, reference, both or neither."""


def keys_for(page: Any, answers: str) -> list[str]:
    """The keys for some answers: which response is first is another matter for each person."""
    steps = ["1" if one == "T" else "2" for one in answers[:3]]
    candidate_first = "What happened then" in page.locator(".response").first.inner_text()
    indices = {"c": "1" if candidate_first else "2", "r": "2" if candidate_first else "1", "b": "3", "n": "4"}
    return [*steps, indices[answers[3]]]


def test_the_whole_life(browser: Any, url: str, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    marked = [_with_markup(record(number)) for number in range(6)]
    file.write_text("".join(one.model_dump_json() + "\n" for one in marked), encoding="utf-8")
    person(store, "Ada", "admin")
    with visit(browser, f"{url}/login") as admin:
        log_in(admin, "Ada")
        links = _prepare(admin, file)
        change_settings(store, 1, ProjectSettings(correction_seconds=0))
        with _joined(browser, links[0], f"Ann {MARKUP}") as ann, _joined(browser, links[1], "Bob") as bob:
            assert "Be kind" in ann.inner_text("#guide-text strong")
            assert MARKUP in ann.inner_text("#guide-text")
            assert MARKUP in ann.inner_text("#said")
            ends = ("Nothing for you right now", "All done. Thank you.")  # not whether anything is in dispute
            for page, plan, end in zip((ann, bob), (ANN, BOB), ends, strict=True):
                for _ in plan:
                    submit(page, *keys_for(page, plan[matter(page)]))
                assert end in page.inner_text("h2")
        with _joined(browser, links[2], "Cat") as cat:
            _adjudicate(cat)
        _check_metrics(admin)
        _check_disagreements(admin)
        admin.click("#tabs a[href='#audit']")
        admin.wait_for_selector("#view[aria-busy='false'] td:text('labelled')")
        log = admin.inner_text("#view")
        assert "role: first" in log
        assert "hash" not in log
        _check_export(admin, tmp_path)
        admin.click("#tabs a[href='#people']")
        admin.wait_for_selector("tbody tr >> nth=3")
        assert f"Ann {MARKUP}" in admin.inner_text("tbody")


def _with_markup(one: SerRecord) -> SerRecord:
    messages = [one.history[0].model_copy(update={"text": f"{MARKUP} {one.history[0].text}"})]
    step = one.candidate.strategy.model_copy(update={"text": f"{MARKUP} helps."})
    candidate = one.candidate.model_copy(update={"strategy": step})
    return one.model_copy(update={"history": tuple(messages), "candidate": candidate, "author": MARKUP})


def _prepare(admin: Any, file: Path) -> list[str]:
    """Makes a project with guidelines and items, and three invitations; all on the admin's page."""
    admin.fill("#project-name", "pilot")
    admin.click("text=Make the project")
    admin.set_input_files("#import-file", file)
    admin.click("text=Add them")
    admin.wait_for_selector("#import-result:not(:empty)")
    assert admin.inner_text("#import-result") == "6 added, 0 already there, 0 marked as crisis."
    admin.fill("#guidelines-text", f"# Rules\n\n- **Be kind** {MARKUP}\n- [see](https://example.org)\n")
    assert "see (https://example.org)" in admin.inner_text("#guidelines-preview")
    admin.click("text=Save as a new version")
    admin.wait_for_selector("text=Version 2 holds from now on.")
    admin.click("#tabs a[href='#people']")
    links = []
    for role in ("annotator", "annotator", "adjudicator"):
        admin.wait_for_selector("#invite-languages")
        for box in ("annotator", "adjudicator"):
            admin.set_checked(f"input[value={box}]", box == role)
        admin.click("text=Make an invitation")
        admin.wait_for_selector("#invitation-link")
        links.append(admin.input_value("#invitation-link"))
        admin.wait_for_selector(f"#invitations tbody tr:nth-child({len(links)})")
        admin.reload()
    admin.wait_for_selector("#invite-languages")
    admin.click("text=Make an invitation")
    admin.click("#invitations tbody tr:nth-child(4) >> text=Withdraw")
    admin.wait_for_selector("#invitations tbody tr:nth-child(4)", state="detached")
    assert admin.locator("#invitation-link").count() == 1, "what was made stays to be seen"
    return links


@contextlib.contextmanager
def _joined(browser: Any, link: str, name: str) -> Iterator[Any]:
    """Somebody who takes up an invitation, in a browser of their own."""
    with visit(browser, link) as page:
        page.wait_for_selector("#title:text('Join')")
        page.fill("#name", name)
        page.fill("#password", PASSWORD)
        page.fill("#again", PASSWORD)
        page.press("#again", "Enter")
        begin(page)
        yield page


def _adjudicate(cat: Any) -> None:
    known = set()
    for _ in range(2):
        known.add(matter(cat))
        assert cat.inner_text(".tag") == "two labels differ"
        assert "Ann" not in cat.inner_text("#work")
        assert "Bob" not in cat.inner_text("#work")
        assert not re.search(r"\bA\d\b", cat.inner_text("#work"))
        assert cat.locator("[role=radiogroup]").count() == 1  # only what is in dispute is asked
        if matter(cat) == 2:
            words = cat.locator(".question.history .others-said").inner_text()
            assert sorted(re.findall("True|False", words)) == ["False", "True"]
            submit(cat, "f")
        else:
            submit(cat, keys_for(cat, "FTTc")[3])
    assert known == {2, 5}
    assert cat.inner_text("h2") == "All done. Thank you."


def _check_metrics(admin: Any) -> None:
    """By hand. History: of 12 values 7 True, 5 False, one pair differs: α = 1 − 11·2 / (2·7·5); κ: 5/6 equal, 1/2 by
    chance. Preference: 5 candidate, 3 reference, 2 both, 2 neither, one pair differs: α = 1 − 11·2 / (144 − 42).
    κ: chance is (3·2 + 1·2 + 1 + 1) / 36."""
    admin.click("#tabs a[href='#agreement']")
    admin.wait_for_selector("#agreement-card tbody tr")
    assert "6 / 6 closed" in admin.inner_text("#progress-card")
    rows = [_cells(row) for row in admin.locator("#agreement-card tbody tr").all()]
    history, preference = 1 - 11 * 2 / (2 * 7 * 5), 1 - 11 * 2 / (144 - 42)
    assert [row[:4] for row in rows] == [
        ["History", "6", "83.3 %", f"{history:.3f}"],
        ["Emotion", "6", "100.0 %", "1.000"],
        ["Strategy", "6", "100.0 %", "–"],  # all say True: nothing can be told
        ["Better reply", "6", "83.3 %", f"{preference:.3f}"],
    ]
    assert [row[5] for row in rows] == ["0", "0", "0", "0"]
    pair = _cells(admin.locator("#pairs-card tbody tr").first)
    by_chance = (3 * 2 + 1 * 2 + 1 + 1) / 36
    assert pair == [
        "A2 · A3",
        "6",
        f"{(5 / 6 - 1 / 2) / (1 / 2):.3f}",
        "1.000",
        "–",
        f"{(5 / 6 - by_chance) / (1 - by_chance):.3f}",
    ]


def _cells(row: Any) -> list[str]:
    return [cell.inner_text() for cell in row.locator("th, td").all()]


def _check_disagreements(admin: Any) -> None:
    admin.click("#agreement-card a:text('Better reply')")
    admin.wait_for_selector("caption:text('1 items')")
    row = _cells(admin.locator("tbody tr").first)
    assert row[1] == MARKUP
    assert row[3] == "A2: Candidate · A3: Reference · A4: Candidate"
    admin.click("tbody a")
    admin.wait_for_selector("h3:text('Item ')")
    assert "matter 5" in admin.inner_text(".talk")
    assert MARKUP in admin.inner_text(".talk")
    assert _cells(admin.locator("tbody tr").last)[2:6] == ["False", "True", "True", "Candidate"]


def _check_export(admin: Any, folder: Path) -> None:
    admin.click("#tabs a[href='#data']")
    with admin.expect_download() as download:
        admin.click("a[data-format=records]")
    download.value.save_as(folder / "out.jsonl")
    records = {int(one.id[1:]): one for one in read_records(folder / "out.jsonl")}
    names = {"c": "candidate", "r": "reference", "b": "both", "n": "neither"}
    for number, words in enumerate([*ANN[:2], BOB[2], *ANN[3:]]):  # as the adjudicator decided
        one = records[number]
        assert one.labels is not None
        assert one.preference is not None
        steps = [getattr(one.labels, step).value for step in ("history", "emotion", "strategy")]
        assert steps == [sign == "T" for sign in words[:3]]
        assert one.preference.value == names[words[3]]
        assert one.labels.history.source == "human"


# --- working by keys --------------------------------------------------------------------------------------------------


def test_everything_by_keyboard(browser: Any, url: str, store: Store) -> None:
    project = steps_project(store, 4, correction_seconds=300)
    add_items(store, project, [new_item(record(9), crisis=True)], priority=-1)
    ann = person(store, "Ann")
    with at_work(browser, url, "Ann") as page:
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        assert page.evaluate("questions.scrollHeight <= questions.clientHeight")  # no scrolling for a usual item
        press(page, "Enter")
        assert page.inner_text("#status") == "Still open: History, Emotion, Strategy, Better reply"
        press(page, "t", "f")
        assert page.inner_text("#status") == "Emotion: False. Next: Strategy."
        press(page, "u")  # the last answer is taken back
        assert page.locator(".question.now h3").inner_text().startswith("Emotion")
        press(page, "y", "ArrowUp", "ArrowUp", "2")
        assert page.locator("input[name=history]:checked").get_attribute("value") == "false"
        press(page, "1", "c")
        page.keyboard.type("t1 a remark")
        press(page, "Escape", "4")
        first = matter(page)
        submit(page)
        label = own_labels(store, ann, project.id)[0]
        assert label.answers == {"history": False, "emotion": True, "strategy": True, "preference": "neither"}
        assert label.note == "t1 a remark"
        press(page, "u")  # nothing answered yet: the label before is opened
        page.wait_for_selector(".tag.changing")
        assert matter(page) == first
        submit(page, "1")
        assert own_labels(store, ann, project.id)[0].answers["history"] is True
        skipped = matter(page)
        press(page, "s")
        page.wait_for_selector("#reason-dialog[open]")
        press(page, "1")
        page.wait_for_selector(f"#said:not(:has-text('matter {skipped}.'))")
        flagged = matter(page)
        press(page, "x")
        page.wait_for_selector("#reason-dialog[open]")
        press(page, "Tab", "Tab", "Tab")
        page.keyboard.type("Half is missing.")
        press(page, "Enter")
        page.wait_for_selector(f"#said:not(:has-text('matter {flagged}.'))")
        press(page, "p")
        assert page.is_visible("#pause-dialog")
        press(page, "1", "Enter")
        assert page.is_hidden("#pause-dialog")
        assert page.locator("input:checked").count() == 0
        submit(page, "1", "1", "1", "3")
        assert page.inner_text(".tag.crisis") == "crisis content"
        press(page, "d")
        page.wait_for_selector("h2:text('Nothing for you right now')")
        press(page, "u")
        page.wait_for_selector(".tag.changing")
        press(page, "Escape")
        page.wait_for_selector("h2:text('Nothing for you right now')")
        press(page, "?")
        assert "seen by others as A1" in page.inner_text("#help-dialog")


def test_tab_and_space_do_it_too_and_single_keys_can_be_switched_off(browser: Any, url: str, store: Store) -> None:
    project = steps_project(store, 2)
    ann = person(store, "Ann")
    with at_work(browser, url, "Ann") as page:
        press(page, "?")
        page.uncheck("#keys-on")
        press(page, "Escape", "1")
        assert page.locator("input:checked").count() == 0
        page.focus("input[name=history]")
        press(page, "Space", "Tab", "ArrowDown", "Tab", "Space", "Tab", "Space")
        group = page.locator("[role=radiogroup]").first
        assert page.locator(f"#{group.get_attribute('aria-labelledby')}").inner_text().startswith("History")
        submit(page)
    assert own_labels(store, ann, project.id)[0].answers == {
        "history": True, "emotion": False, "strategy": True, "preference": "first"
    }  # fmt: skip


def test_training_is_reported_and_ratings_go_by_digits(browser: Any, url: str, store: Store, tmp_path: Path) -> None:
    project = steps_project(store)
    add_items(store, project, [new_item(record(1), RIGHT)], kind="training")
    rating = add_project(store, "rating", "rating")
    messages = [{"speaker": "seeker", "text": "Hello."}, {"speaker": "supporter", "text": "Good to hear from you."}]
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps({"id": "c1", "language": "en", "model": "m", "history": messages}), encoding="utf-8")
    add_items(store, rating, read_items(file, rating.task))
    ann = person(store, "Ann")
    with at_work(browser, url, "Ann") as page:
        press(page, "t", "t", "t", "3", "Enter")
        page.wait_for_selector(".told")
        reported = [one.inner_text() for one in page.locator(".told").all()]
        assert reported == ["✓ right", "✓ right", "✗ the right answer: False", "✓ right"]
        press(page, "Enter")
        page.wait_for_selector(".of-rating")
        page.locator("#said").focus()
        submit(page, *"0123443")
    given = own_labels(store, ann, rating.id)[0].answers
    assert [given[name] for name in DIMENSIONS] == [0, 1, 2, 3, 4, 4, 3]


# --- nothing is lost --------------------------------------------------------------------------------------------------


def test_offline_for_a_while(browser: Any, url: str, store: Store) -> None:
    project = steps_project(store, 3)
    ann = person(store, "Ann")
    with at_work(browser, url, "Ann", errors="ERR_INTERNET_DISCONNECTED") as page:
        first = matter(page)
        with page.expect_response(lambda one: one.request.method == "PUT" and "emotion" in one.request.post_data):
            press(page, "1", "2")  # the draft is saved on the server
        page.evaluate("localStorage.removeItem('compeer.workbench.draft')")
        page.reload()
        page.wait_for_selector("input[name=emotion][value=false]:checked")
        page.context.set_offline(True)
        press(page, "1", "3", "Enter")
        page.wait_for_selector("#connection:not([hidden])")
        assert page.inner_text("#connection") == "Offline. Kept here, will be sent."
        assert own_labels(store, ann, project.id) == []
        page.wait_for_timeout(1300)  # tries again, in vain
        page.context.set_offline(False)
        page.wait_for_selector(f"#said:not(:has-text('matter {first}.'))")
        assert page.is_hidden("#connection")
        assert page.inner_text("#progress").startswith("Today 1 of 150")
    labels = own_labels(store, ann, project.id)
    assert [label.answers["emotion"] for label in labels] == [False]


def test_a_label_that_waits_is_sent_after_a_closed_tab(browser: Any, url: str, store: Store) -> None:
    project = steps_project(store, 2)
    ann = person(store, "Ann")
    with at_work(browser, url, "Ann", errors="ERR_INTERNET_DISCONNECTED") as page:
        page.context.set_offline(True)
        press(page, "1", "1", "1", "1", "Enter")
        page.wait_for_selector("#connection:not([hidden])")
        page.goto("about:blank")
        page.context.set_offline(False)
        page.goto(url)
        page.wait_for_selector("#item-name")
        page.wait_for_selector("#progress:text('Today 1 of 150')")
    assert len(own_labels(store, ann, project.id)) == 1


def test_a_label_is_not_lost_with_the_session(browser: Any, url: str, store: Store) -> None:
    project = steps_project(store, 2)
    ann = person(store, "Ann")
    with at_work(browser, url, "Ann", errors="status of 401") as page:
        press(page, "1", "1", "1")
        page.context.clear_cookies()
        press(page, "1", "Enter")
        page.wait_for_url(f"{url}/login")
        log_in(page, "Ann")
        page.wait_for_selector("#progress:text('Today 1 of 150')")
    assert len(own_labels(store, ann, project.id)) == 1


def test_nobody_sees_what_another_began_in_the_same_browser(browser: Any, url: str, store: Store) -> None:
    steps_project(store, 1)
    person(store, "Ann")
    person(store, "Bob")
    with at_work(browser, url, "Ann") as page:
        press(page, "1", "2", "c")
        page.keyboard.type("Hm.")
        page.context.clear_cookies()
        page.goto(f"{url}/login")
        log_in(page, "Bob")
        begin(page)
        assert matter(page) == 0
        assert page.locator("input:checked").count() == 0
        assert page.input_value("#remark") == ""


def test_time_stands_still_in_a_pause_and_when_nobody_is_there(browser: Any, url: str) -> None:
    with visit(browser, f"{url}/login") as page:
        reported = page.evaluate(
            """async () => {
              let now = 0;
              performance.now = () => now;
              const { startClock } = await import("/static/workbench/clock.js");
              const clock = startClock();
              const told = [];
              const pass = (seconds) => (now += seconds * 1000);
              pass(10); told.push(clock.seconds());
              clock.hold(true); pass(100); clock.hold(false);
              pass(5); told.push(clock.seconds());
              pass(1000); told.push(clock.seconds());
              document.dispatchEvent(new KeyboardEvent("keydown", { key: "1" }));
              pass(3); told.push(clock.seconds());
              Object.defineProperty(document, "hidden", { value: true, configurable: true });
              document.dispatchEvent(new Event("visibilitychange"));
              pass(50);
              Object.defineProperty(document, "hidden", { value: false, configurable: true });
              document.dispatchEvent(new Event("visibilitychange"));
              pass(2); told.push(clock.seconds());
              return told;
            }"""
        )
    assert reported == [10, 15, 130, 133, 135]


# --- other pages and looks --------------------------------------------------------------------------------------------


def test_all_that_is_said_has_words_in_both_languages(browser: Any, url: str) -> None:
    walk = """async () => {
      const walk = (words, path) => Object.entries(words).flatMap(([key, value]) =>
        Array.isArray(value) ? [[path + key, value]] : walk(value, path + key + "."));
      return walk((await import("/static/workbench/strings.js")).STRINGS, "");
    }"""
    with visit(browser, f"{url}/login") as page:
        strings = dict(page.evaluate(walk))
    assert len(strings) > 200
    for key, pair in strings.items():
        english, chinese = pair
        assert english
        assert chinese
        assert set(re.findall(r"\{\w+\}", english)) == set(re.findall(r"\{\w+\}", chinese)), key
    for path in PAGES.iterdir():
        for words in re.findall(r"\bsay\(\"([^\"]+)\"|data-words=\"([^\"]+)\"", path.read_text(encoding="utf-8")):
            assert "".join(words) in strings, path


def test_guidelines_are_displayed_as_written_and_nothing_in_them_acts(browser: Any, url: str) -> None:
    source = f"""# Title
Read **all** of *it*, `<b>`, [here](javascript:alert(1)) or ![this](http://elsewhere/x.png); a_b_c.

- one
  - inside
- two

2. second
3. third

> quoted {MARKUP}

| a | b |
|---|---|
| 1 | 2 |

```
<i>**
```
"""
    displayed = """async (source) => {
      const { markdown } = await import("/static/workbench/markdown.js");
      document.body.replaceChildren(...markdown(source));
      return document.body.innerHTML;
    }"""
    with visit(browser, f"{url}/login") as page:
        html = page.evaluate(displayed, source)
    escaped = MARKUP.replace("<", "&lt;").replace(">", "&gt;")
    assert html == (
        "<h3>Title</h3><p>Read <strong>all</strong> of <em>it</em>, <code>&lt;b&gt;</code>, "
        "here (javascript:alert(1)) or this; a_b_c.</p>"
        "<ul><li>one<ul><li>inside</li></ul></li><li>two</li></ul>"
        '<ol start="2"><li>second</li><li>third</li></ol>'
        f"<blockquote><p>quoted {escaped}</p></blockquote>"
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"
        "<pre><code>&lt;i&gt;**</code></pre>"
    )


def test_phone_width_in_chinese(browser: Any, url: str, store: Store) -> None:
    steps_project(store, 2)
    person(store, "Ann", "annotator", "admin")
    small = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "locale": "zh-CN"}
    with visit(browser, f"{url}/login", **small) as page:
        page.fill("#name", "Ann")
        page.fill("#password", PASSWORD)
        page.tap("#enter")
        page.tap("#begin")
        page.wait_for_selector("#item-name")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.is_hidden("#guide")
        page.tap("#guide-toggle")
        assert page.inner_text("#guide h2") == "标注指南"
        page.tap("#guide-close")
        for name, value in (("history", "true"), ("emotion", "false"), ("strategy", "true"), ("preference", "both")):
            page.tap(f"label:has(input[name={name}][value={value}])")
        page.evaluate("questions.dataset.seen = 'yes'")
        page.tap("#submit")
        page.wait_for_selector(ANOTHER)
        page.goto(f"{url}/admin")
        page.wait_for_selector("#agreement-card")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert "一致性" in page.inner_text("#tabs")


def test_wrong_passwords_and_used_invitations_are_reported(browser: Any, url: str, store: Store) -> None:
    person(store, "Ann")
    with visit(browser, f"{url}/join#1.nothing", errors="status of 403") as page:
        page.wait_for_selector("#title:text('Join')")
        page.fill("#name", "Eve")
        page.fill("#password", PASSWORD)
        page.fill("#again", "something else")
        page.press("#again", "Enter")
        assert page.inner_text("#error") == "The two passwords are not the same."
        page.fill("#again", PASSWORD)
        page.press("#again", "Enter")
        page.wait_for_selector("#error:text('not valid, or was used')")
        page.click("#instead")
        page.fill("#name", "Ann")
        page.fill("#password", "wrong password")
        page.press("#password", "Enter")
        page.wait_for_selector("#error:text('The name or the password is wrong.')")
        page.fill("#password", PASSWORD)
        page.press("#password", "Enter")
        page.wait_for_selector("#notice")
        page.click("#help")
        page.click("#help-dialog summary")
        page.fill("#password-old", PASSWORD)
        page.fill("#password-new", "another long one")
        page.click("#password-set")
        page.wait_for_selector("#password-result:text('Done.')")
        page.click("#leave")
        page.click("#leave-dialog button[value=yes]")
        page.wait_for_selector("#title:text('Log in')")
    assert [one.name for one in people(store)] == [None]
