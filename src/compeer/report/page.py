"""Puts the report together: reads the run, asks each module for its section, and writes one HTML file whole.

The page needs nothing from outside and no script. It holds no clock time and no path of the machine, so that a run that
was stopped and went on gives the same page as one that was left in peace.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from compeer.models.catalogue import find_base, is_base
from compeer.models.packaged import is_packaged
from compeer.report.charts import MANY_POINTS
from compeer.report.drawn import judge_chart, reward_charts, supervised_charts, supporter_charts
from compeer.report.headlines import headlines
from compeer.report.limits import limits_of, warnings_of
from compeer.report.reading import RunFigures, find, read_run
from compeer.report.said import examples
from compeer.report.tables import data_tables, judge_tables, supporter_tables
from compeer.report.wording import count, language_name, listing, percent, plural, toml, without_place


def write_report(run: Path, recipe: dict[str, Any], path: Path) -> None:
    """Writes what the run found to `path`, one self-contained HTML file, whole or not at all."""
    page = render_report(read_run(run, recipe))
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(page.encode("utf-8", errors="replace"))  # a model may write half a surrogate pair
    os.replace(unfinished, path)


def render_report(figures: RunFigures) -> str:
    """The page as text."""
    environment = Environment(
        loader=FunctionLoader(lambda name: files("compeer.report").joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    recipe = without_place(dict(figures.recipe))
    settings = toml(recipe)
    return environment.get_template("report.html.jinja").render(
        name=str(recipe.get("name", "run")),
        what_was_run=_what_was_run(figures, recipe),
        versions=_from_manifests(figures, "versions"),
        machine=_from_manifests(figures, "machine"),
        headlines=headlines(figures),
        warnings=warnings_of(figures),
        limits=limits_of(figures),
        data_tables=data_tables(figures),
        judge_charts=[*supervised_charts(figures, "2-judge")[:1], judge_chart(figures)],
        judge_tables=judge_tables(figures),
        judge_training=_supervised(figures, "2-judge"),
        sft_charts=supervised_charts(figures, "3-sft"),
        sft_training=_supervised(figures, "3-sft"),
        reward_charts=reward_charts(figures),
        reward_training=_by_reward(figures),
        many_points=MANY_POINTS,
        supporter_tables=supporter_tables(figures),
        supporter_charts=supporter_charts(figures),
        examples=examples(figures),
        settings=settings,
        places_left_out="…/" in settings,
    )


def _from_manifests(figures: RunFigures, key: str) -> dict[str, str]:
    """Versions or machine, as the stages recorded them; where stages differ, all of them."""
    found: dict[str, list[str]] = {}
    for manifest in figures.manifests.values():
        entries = manifest.get(key)
        for name, value in entries.items() if isinstance(entries, dict) else []:
            seen = found.setdefault(str(name), [])
            if (text := str(without_place(value))) not in seen:
                seen.append(text)
    return {name: " / ".join(values) for name, values in found.items()}


def _what_was_run(figures: RunFigures, recipe: dict[str, Any]) -> list[str]:
    corpus = find(recipe, "ser", "corpus")
    languages = find(recipe, "ser", "languages")
    spoken = [language_name(str(code)) for code in languages] if isinstance(languages, list | tuple) else []
    return [
        f"Recipe {recipe.get('name', 'without a name')}, seed {recipe.get('seed', 'not known')}.",
        f"The corpus is {'the sample that comes with the package' if corpus == 'sample' else corpus or 'not known'}"
        f" ({count(figures.number('1-ser', 'dialogues'))} dialogues, "
        f"{listing(spoken) if spoken else 'all languages'}).",
        _started(find(recipe, "judge", "model"), find(recipe, "sft", "model")),
        _learnt(recipe),
        "All are measured on dialogues of the corpus kept out of training.",
    ]


def _started(judge: Any, supporter: Any) -> str:
    if is_packaged(str(judge)) and is_packaged(str(supporter)):
        return "Judge and supporter start as those that come with the package, trained on a larger corpus before."
    if judge == supporter:
        return f"Judge and supporter both start from {_model(judge)}."
    return f"The judge starts from {_model(judge)}, the supporter from {_model(supporter)}."


def _learnt(recipe: dict[str, Any]) -> str:
    """Who learns what from whom; what was taken as it is learns nothing here."""
    judge, sft = (find(recipe, part, "steps") != 0 for part in ("judge", "sft"))
    told = "learns to tell right steps and better responses" if judge else "is not trained further"
    first = "first learns from the corpus (SFT), then" if sft else "is not fine-tuned further (SFT), but learns"
    return f"The judge {told}. The supporter {first} by the judge's rewards (GRPO)."


def _model(name: Any) -> str:
    if name == "embedded":
        return "the packaged SmolLM2-135M-Instruct"
    if is_packaged(str(name)):
        return f"the packaged {name}"
    if is_base(str(name)):
        return find_base(str(name)).title
    return str(name or "a model that is not known")


def _supervised(figures: RunFigures, stage: str) -> str:
    chats, steps = figures.number(stage, "chats"), figures.number(stage, "steps")
    too_long = figures.number(stage, "too_long")
    if steps == 0:
        return "It was not trained here: the model was taken as it is."
    left_out = f" {plural(too_long, 'was', 'were')} too long and left out." if too_long else ""
    return f"Trained for {plural(steps, 'step', 'steps')} on {plural(chats, 'chat', 'chats')}.{left_out}"


def _by_reward(figures: RunFigures) -> str:
    size = find(figures.manifests.get("4-grpo"), "settings", "group")
    group = f" in groups of {size}" if isinstance(size, int) else ""
    steps = plural(figures.number("4-grpo", "steps"), "step", "steps")
    outputs, histories = (count(figures.number("4-grpo", key)) for key in ("outputs", "histories"))
    return (
        f"{steps}, {outputs} outputs{group} for {histories} histories. "
        f"Groups whose raw scores tied, and so taught nothing: {percent(figures.number('4-grpo', 'tied_groups'))}."
    )
