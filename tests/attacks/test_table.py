"""The table of attacks names tests that exist, for each of the attacks that were tried."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROW = re.compile(r"^\| (\d+) \| (.+) \| ((?:`test_\w+` ?)+) \|$")


def test_each_attack_is_covered_by_tests_that_exist() -> None:
    known = {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    lines = (TESTS / "attacks" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [ROW.match(line) for line in lines if re.match(r"\| \d", line)]
    assert all(rows), "each row has a number, an attack and tests"
    assert [int(row[1]) for row in rows if row] == list(range(1, len(rows) + 1))
    assert len(rows) >= 61
    named = {name for row in rows if row for name in re.findall(r"`(\w+)`", row[3])}
    assert named - known == set()
