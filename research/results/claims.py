"""What the page of results shows of each of the seven claims: conditions with their estimates, tables, plots.

Each function takes what results/*/*.json hold and chooses; nothing is calculated here that is not a difference, a ratio
or a mean over seeds of what was measured.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import plots

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.judge.comparison_table import comparison_tables
from verdicts import IN_PERCENT, SCALES, Claim, Condition, by_figure, cell, condition, table

from compeer.report.charts import Series, reliability_svg
from compeer.report.wording import DASH, decimal, signed
from compeer.statistics import mean, mean_interval

PARTS = {"history": "step 1", "emotion": "step 2", "strategy": "step 3", "response": "response"}
UNCOUNTED = ("feedback", "judge of feedback", "chosen", "whole form")
"""What is shown and does not count: a judge that is no better than chance, the judge that chose, and what its own score
holds already."""
PUBLISHED_SETS = ("D, data duplicated", "R, plain rewriting", "P, by personality")
TESTS = {"esconv": "ESConv", "near": "near pairs", "random": "random pairs", "llm": "LLM labels"}


def estimate_of(figure: Mapping[str, Any]) -> list[float | None]:
    """Value and interval of a figure as research/results/judges writes it."""
    return [figure["value"], figure["low"], figure["high"]]


def difference_of(
    comparison: Mapping[str, Any], judge: str, rival: str, figure: str = "weighted_f1"
) -> dict[str, list[float | None]]:
    """By part, the difference of two judges in a figure."""
    rows = [row for row in comparison["differences"] if (row["judge"], row["rival"]) == (judge, rival)]
    return {part: estimate_of(one[figure]) for part, one in rows[0]["parts"].items() if figure in one} if rows else {}


def asked_for(key: str, name: str, estimate: Sequence[float | None], wanted: str) -> Condition:
    """A condition on a figure; one that does not count says only what was found."""
    found = condition(name, estimate, wanted, SCALES.get(key, IN_PERCENT))
    return replace(found, met=None) if key in UNCOUNTED else found


def forest(key: str, title: str, differences: Mapping[str, Sequence[float | None]], name: str) -> str:
    """Differences in per cent points with their intervals, beside none."""
    rows = [
        plots.dot(one, *(None if v is None else 100 * v for v in estimate)) for one, estimate in differences.items()
    ]
    return plots.dots(key, title, rows, (name, 0.0))


def judged_tables(comparison: Mapping[str, Any], judges: Sequence[str], published: Sequence[str]) -> str:
    """Figures of some judges, and what was published, as `research/judge/compare.py` prints them."""
    _, (heads, *lines) = comparison_tables(comparison)[0]
    wanted = [*judges, *(f"*{name}*" for name in published)]
    rows = {row[0]: row[:-1] for row in lines}
    return table(heads[:-1], [rows[name] for name in wanted if name in rows])


REASONING = {
    "outcome": "as good as the human's reply, by a judge of responses",
    "feedback": "as good as the anchor, by the judge of feedback",
    "strategy_probability": "probability of the human's strategy",
    "distinct_2": "distinct-2 of a history's replies",
    "s_in": "similarity of a history's replies",
    "words": "words of a reply",
    "words_written": "words written, steps included",
    "rejected": "rejected by the guard",
    "there": "replies that can be read",
    "ended": "outputs that ended",
}
SUPPORTERS = {
    "stage": "stage as the corpus has it",
    "emotion": "emotion as the corpus has it",
    "strategy": "strategy as the corpus has it",
    "second judge": "score by the second judge (−5 to 5)",
    "judge of feedback": "as good as the anchor, by the judge of feedback",
    "raw reward": "score by the judge that gives the rewards (−5 to 5)",
    "whole form": "whole form",
    "similarity in a group": "similarity of a history's replies",
    "distinct_2_by_history": "distinct-2 of a history's replies",
    "distinct_2": "distinct-2 of all replies",
    "words": "words of a reply",
    "rejected by the guard": "rejected by the guard",
    "stage, likeliest": "the likeliest output: stage as the corpus has it",
    "emotion, likeliest": "the likeliest output: emotion",
    "strategy, likeliest": "the likeliest output: strategy",
    "whole, likeliest": "the likeliest output: whole form",
}
DECISIONS = ("stage", "emotion", "strategy")
IN_FULL = ("sft", "sft-whole", "reweighted", "plain")
"""Supporters that are shown with all their figures."""
TRIED = ("anchored", "gold", "chance")
"""What was tried to mend claim 4; their rewards are not the judge's alone."""
OF_WAYS = (
    *("similarity in a group", "words", "raw reward", "second judge", "judge of feedback"),
    *(*DECISIONS, "rejected by the guard"),
)
"""Figures by which ways of reweighting are compared."""
OF_TRIED = (*OF_WAYS[:5], *DECISIONS, *(f"{decision}, likeliest" for decision in DECISIONS), "rejected by the guard")
HABITS = {
    "five sentences": "the five most frequent sentences for step 3",
    "one stage": "the most frequent stage",
    "one strategy": "the most frequent strategy",
    "intensity 5": "intensity 5",
    "no question": "of the turns that plan a question: no question mark in the reply",
}


_REASONING_IN_SHORT = {
    "outcome": "judge of responses",
    "feedback": "judge of feedback",
    "strategy_probability": "the human's strategy",
    "rejected": "rejected by the guard",
    "there": "can be read",
    "ended": "ended",
}


def reasoning(found: Any) -> Claim:
    """Claim 1: steps before the reply."""
    claim = Claim(found)
    apart = found["difference"]
    asked = [key for key in ("outcome", "feedback", "strategy_probability") if key in apart]
    claim.conditions = [asked_for(key, REASONING[key], apart[key], "more") for key in asked]
    claim.tables["figures"] = by_figure({**found["supporters"], "steps − direct": apart}, REASONING)
    shares = {name: apart[key] for key, name in _REASONING_IN_SHORT.items() if key in apart}
    claim.plots["reasoning"] = forest("reasoning", "With steps minus without, in points", shares, "no difference")
    return claim


LOOKS = {
    "UnifiReward, with a second pass": "weighed, cost 1",
    "its second pass by itself, as careful": "without the steps, weighed, cost 1",
}
"""Which rows of judges/looks.json are shown."""


def judges(found: Any, cpu: Any, gpu: Any, looks: Any) -> Claim:
    """Claim 2: one judge for steps and response. `looks` is what a second pass at the responses did."""
    claim, own = Claim(found), found["tests"]["esconv"]
    apart = {name: difference_of(found["tests"][test], "UnifiReward", "PRM + ORM") for test, name in TESTS.items()}
    for part, name in PARTS.items():
        claim.conditions.append(
            condition(f"{name}, Weighted-F1 on ESConv, points", apart["ESConv"][part], "more", IN_PERCENT)
        )
    claim.words["llm_response"] = cell(apart["LLM labels"]["response"], IN_PERCENT)
    accuracy = difference_of(own, "UnifiReward", "PRM + ORM", "accuracy")["response"]
    claim.words["accuracy"] = cell(accuracy, IN_PERCENT)
    by_llm = next(row["margin"] for row in found["tests"]["llm"]["rows"] if row["judge"] == "UnifiReward")
    areas = {PARTS[part]: one.get("auc") or one["acceptable_auc"] for part, one in by_llm.items()}
    claim.words["auc"] = ", ".join(f"{cell(estimate_of(one), (1.0, 2))} for {name}" for name, one in areas.items())
    rated = [rows for name, rows in found["people"].items() if name.startswith("feedback-")]
    together = [row for rows in rated for row in rows if (row["corpus"], row["by"]) == ("together", "judge")]
    claim.words["feedback"] = ", ".join(decimal(row["auc"]["value"], 2) for row in together)
    told = own["contradictions"]["by the annotators"]["judges"]
    ratio = [told["UnifiReward"]["to_rival"], *told["UnifiReward"]["intervals"]["to_rival"]]
    claim.conditions.append(
        condition("contradictions, ratio to PRM + ORM's, less 1", [one - 1 for one in ratio], "less", (1.0, 2))
    )
    shown_looks = {name: row for name, row in LOOKS.items() if looks}
    for name, row in shown_looks.items():
        less = [one - 1 for one in looks["to_measured"][row]]
        title = f"contradictions of {name}, ratio to PRM + ORM's, less 1"
        asked = condition(title, less, "less", (1.0, 2))
        claim.conditions.append(asked if row == LOOKS["UnifiReward, with a second pass"] else replace(asked, met=None))
    for name, cost in (("two CPU cores", cpu), ("one GPU", gpu)):
        saved = cost["seconds"]["unified"] / cost["seconds"]["process_and_outcome"] - 1
        found_once = "less" if saved < 0 else "more"
        claim.conditions.append(
            Condition(f"time for four verdicts, {name}", f"{signed(100 * saved, 0)} %, one run", found_once, None)
        )
    shown_judges = ("always True", "UnifiReward", "UnifiReward, response weighed 3", "PRM", "ORM")
    claim.tables["figures"] = judged_tables(own, shown_judges, ("PRM", "ORM", "UnifiReward"))
    claim.tables["reading"] = table(
        ["judge", *PARTS.values()],
        [
            [f"{name}, {title}", *(_margin(row["margin"].get(part)) for part in PARTS)]
            for test, name in TESTS.items()
            for title in ("UnifiReward", "PRM", "ORM")
            for row in found["tests"][test]["rows"]
            if row["judge"] == title and row["margin"]
        ],
    )
    names = ("UnifiReward", "PRM + ORM", "the labels themselves")
    shares = {name: [told[name]["contradictions"], *told[name]["intervals"]["contradictions"]] for name in names}
    right = {row["judge"]: row["parts"]["response"]["weighted_f1"] for row in own["rows"] if "response" in row["parts"]}
    right["PRM + ORM"] = right["ORM"]
    for name, row in shown_looks.items():
        one = looks["contradictions"]["judges"][row]
        shares[name] = [one["contradictions"], *one["intervals"]["contradictions"]]
        parts = next(judged["parts"] for judged in looks["rows"] if judged["judge"] == row)
        right[name] = parts["response"]["weighted_f1"]
    published = [["*UnifiReward*", "*about 3*", DASH], ["*PRM + ORM*", "*about 12*", DASH]]
    rows = [[name, cell(s, IN_PERCENT), cell(right.get(name, DASH), IN_PERCENT)] for name, s in shares.items()]
    claim.tables["contradictions"] = table(["", "contradictions", "response, Weighted-F1"], [*rows, *published])
    costs = {
        "UnifiReward": "unified",
        "UnifiReward, with a second pass": "unified_two_looks",
        "PRM + ORM": "process_and_outcome",
        "four plain calls": "plain_calls",
    }
    claim.tables["cost"] = table(
        ["seconds", "two CPU cores", gpu["device_name"]],
        [
            [name, decimal(cpu["seconds"].get(key), 1), decimal(gpu["seconds"].get(key), 3)]
            for name, key in costs.items()
        ],
    )
    differences = {f"{test}, {PARTS[part]}": one for test, parts in apart.items() for part, one in parts.items()}
    title = "UnifiReward minus PRM + ORM, Weighted-F1 in points"
    claim.plots["judges"] = forest("judges", title, differences, "PRM + ORM")
    share_dots = [plots.dot(name, *(100 * one for one in share)) for name, share in shares.items()]
    claim.plots["contradictions"] = plots.dots("contradictions", "Contradictions in per cent of outputs", share_dots)
    claim.plots["reliability"] = reliability_svg(own["calibration"]["UnifiReward"])
    bars = {name: [cpu["seconds"][key]] for name, key in costs.items() if key in cpu["seconds"]}
    claim.plots["cost"] = plots.bars("cost", "Seconds on two CPU cores", bars, lambda value: decimal(value, 1))
    return claim


def _margin(figures: Mapping[str, Any] | None) -> str:
    if not figures:
        return DASH
    return cell(figures.get("balanced_accuracy") or figures["acceptable_balanced_accuracy"], IN_PERCENT)


def personality(found: Any) -> Claim:
    """Claim 3: rewriting by personality helps the judge, plain rewriting does not."""
    claim = Claim(found)
    tests = {test: name for test, name in TESTS.items() if test in found["tests"]}
    own = next(test for test in ("llm", *tests) if test in tests)
    pairs = (("personality", "duplicated", "more"), ("plain", "duplicated", "no more"))
    for judge, rival, wanted in pairs:
        for part, estimate in difference_of(found["tests"][own], judge, rival).items():
            name = f"{judge} − {rival}, {PARTS[part]}, Weighted-F1 on {tests[own]}, points"
            claim.conditions.append(condition(name, estimate, wanted, IN_PERCENT))
    published = ("UnifiReward", *(f"UnifiReward-{name}" for name in PUBLISHED_SETS))
    for test in tests:
        judges_shown = ("always True", "original", "duplicated", "plain", "personality")
        claim.tables[test] = judged_tables(found["tests"][test], judges_shown, published if test == own else ())
    for judge, rival, _ in pairs:
        differences = {
            f"{name}, {PARTS[part]}": estimate
            for test, name in tests.items()
            for part, estimate in difference_of(found["tests"][test], judge, rival).items()
        }
        if differences:
            title = f"{judge} minus {rival}, Weighted-F1 in points"
            claim.plots[f"rewriting-{judge}"] = forest(f"rewriting-{judge}", title, differences, rival)
    return claim


def by_reward(found: Any, read: Any = None) -> Claim:
    """Claim 4: GRPO with UnifiReward improves on SFT. `read` is what a reader of outputs found in them."""
    claim, apart = Claim(found), found["differences"].get("reweighted - sft", {})
    for key in (*DECISIONS, *(f"{key}, likeliest" for key in DECISIONS), "second judge", "judge of feedback"):
        if key in apart:
            claim.conditions.append(asked_for(key, SUPPORTERS[key], apart[key], "more"))
    ways = {name: one for name, one in found["supporters"].items() if name in IN_FULL}
    claim.tables["figures"] = supporter_table(ways)
    if found.get("decisions"):
        claim.tables["decisions"] = decisions_table(found["decisions"])
        claim.words["official"] = f"{max(one['report']['turns'] for one in found['decisions'].values()):,}"
    shares = {key: apart[key] for key in SUPPORTERS if key in apart and key not in SCALES}
    if shares:
        claim.plots["grpo"] = forest("grpo", "GRPO with reweighting minus SFT, in points", shares, "SFT")
    if curves := curves_of(found, "raw/total"):
        claim.plots["grpo-curve"] = plots.lines("grpo-curve", "Raw reward in training", curves, "raw reward")
    if "habits" in found:
        habits = {name: one for name, one in found["habits"].items() if name in (*IN_FULL, *TRIED)}
        claim.tables["habits"] = by_figure(habits, HABITS)
    if tried := [name for name in TRIED if f"{name} - sft" in found["differences"]]:
        columns = {
            f"{name} ({found['supporters'][name]['seeds']})": found["differences"][f"{name} - sft"]
            for name in (*tried, "reweighted")
        }
        claim.tables["tried"] = by_figure(columns, {key: SUPPORTERS[key] for key in OF_TRIED})
        claim.words.update({f"two_plans_{name}": two_plans(found["decisions"], name) for name in tried})
    if read and read.get("tried"):
        claim.tables["tried_read"] = reading_table(read["tried"])
    if read:
        claim.conditions.append(preferred(read["pairs"]["sft"], "reweighted − sft", "more"))
        claim.tables.update(reading_tables(read))
        claim.words.update(reading_words(read))
    return claim


def reading_table(read: Mapping[str, Any]) -> str:
    """How a blind reader decided between two sides: better, equal and worse, and how many of each would do harm."""
    heads = ["", "response", "steps", "harm"]
    counts = {name: [*one["better, equal, worse"].values(), one["harm"]] for name, one in read.items()}
    return table(heads, [[name, *(" : ".join(map(str, one)) for one in found)] for name, found in counts.items()])


def two_plans(decisions: Mapping[str, Any], name: str) -> str:
    """In per cent of the likeliest outputs, by seed from the least to the most, a plan that is one of two."""
    of_seeds = [
        one["report"]["strategies"]["all"]["model"]
        for test, one in decisions.items()
        if test.startswith(f"decided-{name}-")
    ]
    shares = sorted(100 * (plans["Question"] + plans["Providing Suggestions"]) for plans in of_seeds)
    return f"{shares[0]:.0f} to {shares[-1]:.0f} %" if shares else "–"


def preferred(pairs: Any, which: str, wanted: str) -> Condition:
    """How often a blind reader prefers one side's response to the other's, less how often the other's."""
    values = [float(one) for one in pairs["response"]]
    title = f"{which}: response preferred by a blind reader, points"
    return condition(title, [mean(values), *mean_interval(values)], wanted, IN_PERCENT)


def reading_tables(read: Any) -> dict[str, str]:
    """What a blind reader found in outputs of the trained supporters and of the fine-tuned model beside them."""
    chosen = {"highest": f"{read['of']} of the highest reward", "gain": f"{read['of']} of the largest gain"}
    columns = [(name, whose) for name in chosen for whose in ("trained", "fine-tuned")]
    heads = [f"{chosen[name]}: {whose}" for name, whose in columns]
    parts = [
        [PARTS[part], *(" / ".join(map(str, one[name][whose])) for name, whose in columns)]
        for part, one in read["ok, weak, wrong"].items()
    ]
    parts.append(["harm", *(str(read["harm"][name][whose]) for name, whose in columns)])
    found = {
        pattern: [one.get(name, {}).get(whose, 0) for name, whose in columns]
        for pattern, one in read["patterns"].items()
    }
    often = sorted((one for one in found.items() if sum(one[1]) >= _OFTEN), key=lambda one: -sum(one[1]))
    patterns = [[pattern, *map(str, counts)] for pattern, counts in often]
    return {"read": table(["ok / weak / wrong", *heads], parts), "patterns": table(["pattern", *heads], patterns)}


def reading_words(read: Any) -> dict[str, str]:
    """The same in a few words, and what was preferred of pairs by lot."""
    pairs = read["pairs"]["sft"]
    harm = {whose: str(sum(one[whose] for one in read["harm"].values())) for whose in ("trained", "fine-tuned")}
    chosen = {what: " : ".join(map(str, counts)) for what, counts in pairs["better, equal, worse"].items()}
    return {
        **chosen,
        "pairs": str(len(pairs["response"])),
        "harm": " of the trained and ".join(map(str, pairs["harm"])) + " of the fine-tuned outputs",
        "stopped": str(read["harm that the guard stops"]),
        "harm_trained": harm["trained"],
        "harm_tuned": harm["fine-tuned"],
    }


_OFTEN = 10
"""Patterns that are found less often, in all that was read, are left out."""


def decisions_table(found: Mapping[str, Any]) -> str:
    """The likeliest outputs' decisions on a whole test set, beside the largest class; of several seeds their range."""
    columns: dict[str, dict[str, Any]] = {}
    by_way: dict[str, list[dict[str, Any]]] = {}
    for name, one in found.items():
        way, _, rest = name.partition("-")
        report = one["report"]
        figures = {**report["gold"], **report["derived"]}
        title = rest.partition("@")[0] + (", held to the form" if way == "held" else "")
        told = {key: estimate_of(figures[key]["accuracy"]) for key in figures} | {"whole form": report["complete"]}
        trained, _, seed = title.rpartition("-")
        if seed.isdecimal():
            by_way.setdefault(trained, []).append(told)
        else:
            columns[title] = told
    for trained, seeds in by_way.items():
        values = {key: [told[key][0] for told in seeds] for key in figures}
        columns[f"{trained} ({len(seeds)} seeds)"] = {
            key: [mean(own), min(own), max(own)] for key, own in values.items()
        } | {"whole form": mean([told["whole form"] for told in seeds])}
    columns["the largest class"] = {key: one["majority_accuracy"] for key, one in figures.items()}
    return by_figure(columns, {key: SUPPORTERS[key] for key in (*DECISIONS, "whole form")})


def curves_of(found: Any, key: str) -> list[Series]:
    """By way of training, the mean over seeds of a figure of every step."""
    by_way: dict[str, list[Any]] = {}
    for name, training in found["trainings"].items():
        if "curve" in training and not name.startswith(TRIED):
            by_way.setdefault(name.rpartition("-")[0], []).append(training["curve"])
    return [
        Series(
            f"{way}, mean of {len(runs)} seeds",
            [(rows[0]["step"], sum(row[key] for row in rows) / len(rows)) for rows in zip(*runs, strict=False)],
        )
        for way, runs in by_way.items()
        if len(runs) > 1
    ]


def alike(found: Any, read: Any = None, earlier: Any = None) -> Claim:
    """Claim 5: GRPO makes replies alike, and reweighting prevents it without losing quality.

    `earlier` are figures of the same trainings on another day.
    """
    claim = Claim(found)
    asked = (
        ("plain - sft", "similarity in a group", "more"),
        ("reweighted - plain", "similarity in a group", "less"),
        ("reweighted - sft", "similarity in a group", "no more"),
        ("paper - sft", "similarity in a group", "no more"),
        ("reweighted - plain", "second judge", "no less"),
        ("reweighted - plain", "judge of feedback", "no less"),
    )
    for pair, key, wanted in asked:
        if key in found["differences"].get(pair, {}):
            title = f"{pair.replace(' - ', ' − ')}: {SUPPORTERS[key]}"
            claim.conditions.append(asked_for(key, title, found["differences"][pair][key], wanted))
    if read:
        claim.conditions.append(preferred(read["pairs"]["plain"], "reweighted − plain", "no less"))
    if earlier:
        twice = {
            f"{name}, {day}": one["differences"][f"{name} - sft"]
            for name in ("reweighted", "plain")
            for day, one in (("first", earlier), ("again", found))
        }
        claim.tables["twice"] = by_figure(twice, {key: SUPPORTERS[key] for key in OF_WAYS})
    ways = {name: one for name, one in found["supporters"].items() if name not in ("sft-whole", *TRIED)}
    apart = {f"{name} ({one['seeds']})": found["differences"].get(f"{name} - sft") for name, one in ways.items()}
    columns = {name: one for name, one in apart.items() if one}
    claim.tables["figures"] = by_figure(columns, {key: SUPPORTERS[key] for key in OF_WAYS})
    rows = [plots.dot(name, *one["similarity in a group"]) for name, one in ways.items()]
    claim.plots["alike"] = plots.dots("alike", "Similarity of a history's replies", rows, digits=2)
    if curves := curves_of(found, "redundancy/s_in"):
        title = "Similarity of a history's replies in training"
        claim.plots["alike-curve"] = plots.lines("alike-curve", title, curves, "similarity")
    return claim


def supporter_table(supporters: Mapping[str, Any], names: Mapping[str, str] = SUPPORTERS) -> str:
    """Some supporters' figures; of diversity, which may be one figure a seed, the mean."""
    columns = {
        name: {
            key: sum(value) / len(value) if key.startswith("distinct") and isinstance(value, list) else value
            for key, value in one.items()
        }
        for name, one in supporters.items()
    }
    return by_figure(columns, names)


def best_of(found: Any, read: Any = None) -> Claim:
    """Claim 6: choosing the best of n improves on one, history by history; `read` is what a blind reader preferred."""
    claim, rows = Claim(found), sorted(found["rows"], key=lambda row: row["n"])
    names = [key for key, value in rows[0].items() if isinstance(value, list) and len(value) == 3]
    first, last = rows[0], rows[-1]
    for key in names:
        gain = found["differences"][str(last["n"])][key]
        title = f"{key}, n = {last['n']} against {first['n']}"
        claim.conditions.append(asked_for(key, title, gain, "less" if "rejected" in key else "more"))
    chosen = {"best": f"the best of {last['n']}", "ranked": "the first of 4, ranked as in use"}
    if pairs := {title: read[name] for name, title in chosen.items() if name in (read or {})}:
        for title, one in pairs.items():
            claim.conditions.append(preferred(one, f"{title}, against another of them", "more"))
        claim.tables["read"] = reading_table(pairs)
        claim.words["pairs"] = str(max(len(one["response"]) for one in pairs.values()))
    cells = [[str(row["n"]), *(cell(row[key], SCALES.get(key, IN_PERCENT)) for key in names)] for row in rows]
    claim.tables["figures"] = table(["n", *names], cells)
    for key in ("chosen", "other judges", "judge of feedback"):
        if key not in names:
            continue
        factor, digits = SCALES.get(key, IN_PERCENT)
        drawn = [plots.dot(f"n = {row['n']}", *(factor * one for one in row[key])) for row in rows]
        name = f"best-of-{key.replace(' ', '-').replace('_', '-')}"
        claim.plots[name] = plots.dots(name, f"{key} by n", drawn, digits=digits)
    return claim


CORPORA = {"failed": "FailedESConv", "sample": "the sample corpus"}


def transfer(found: Any, judge_at_home: Any, supporter_at_home: Any) -> Claim:
    """Claim 7: judge and supporter hold on what they were not trained on, which is: they do better than guessing there.

    At home is on held-out dialogues of ESConv, to be seen beside.
    """
    claim = Claim(found)
    verdicts = {CORPORA[name]: _right_or_wrong(comparison) for name, comparison in found["judge"].items()}
    for corpus, parts in verdicts.items():
        for name, estimate in parts.items():
            beyond = [None if one is None else one - 0.5 for one in estimate]
            title = f"judge on {corpus}, {name}: balanced accuracy over chance, points"
            claim.conditions.append(condition(title, beyond, "more", IN_PERCENT))
    answers = {CORPORA[name]: figures for name, figures in found["supporter"].items()}
    for corpus, figures in answers.items():
        for key, majority in figures["majority"].items():
            beyond = [None if one is None else one - majority for one in figures[key]]
            title = f"supporter on {corpus}, {key}: accuracy over the largest class, points"
            claim.conditions.append(condition(title, beyond, "more", IN_PERCENT))
    verdicts = {"ESConv": _right_or_wrong(judge_at_home["judge"]["esconv"]), **verdicts}
    claim.tables["judge"] = by_figure(verdicts, _SAME_NAMES)
    home = supporter_at_home["supporters"]["sft"]
    not_there = ("second judge", "judge of feedback", "distinct_2_by_history")
    shown = {key: name for key, name in SUPPORTERS.items() if key not in not_there}
    claim.tables["supporter"] = supporter_table({"ESConv": home, **answers}, shown)
    rows = {f"{corpus}, {name}": one for corpus, parts in verdicts.items() for name, one in parts.items()}
    drawn = [
        plots.dot(name, *(None if one is None else 100 * one for one in estimate)) for name, estimate in rows.items()
    ]
    claim.plots["transfer"] = plots.dots(
        "transfer", "Balanced accuracy of the judge in per cent", drawn, ("chance", 50.0)
    )
    return claim


_SAME_NAMES = {name: name for name in PARTS.values()}


def _right_or_wrong(comparison: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """By part, the balanced accuracy of the one judge that was compared."""
    parts = next(row["parts"] for row in comparison["rows"] if row["judge"] != "always True")
    return {
        name: estimate_of(parts[part].get("balanced_accuracy") or parts[part]["acceptable_balanced_accuracy"])
        for part, name in PARTS.items()
    }
