"""The architecture: imports go down the house only, and the package's files are all there."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "compeer"
FLOORS = [
    ["errors", "progress"],
    ["io"],
    ["dialogue", "pipeline", "statistics"],
    ["reasoning"],
    ["corpora"],
    ["engine"],
    ["models"],
    ["safety"],
    ["simulate"],
    ["ser"],
    ["reward"],
    ["policy"],
    ["evaluate"],
    ["report"],
    ["web"],
    ["annotate"],
    ["chat"],
    ["recipe", "doctor", "integrations"],
    ["cli"],
]
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}


def imported_rooms(path: Path) -> set[str]:
    """The rooms of the package that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            if node.module == "compeer":
                found |= {alias.name for alias in node.names if alias.name in FLOOR_OF}
            elif (node.module or "").startswith("compeer."):
                found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("compeer.")}
    return found


def test_imports_go_down_the_house_only() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 30
    for path in modules:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        assert room in FLOOR_OF, f"{path} has no floor in the house"
        for other in imported_rooms(path):
            assert other in FLOOR_OF, f"{path} imports {other}, which has no floor"
            assert other == room or FLOOR_OF[other] < FLOOR_OF[room], f"{path} imports {other} from above"


def test_an_import_from_above_would_be_seen(tmp_path: Path) -> None:
    module = tmp_path / "dialogue.py"
    module.write_text("def late():\n    from compeer.recipe import Recipe\n", encoding="utf-8")
    assert imported_rooms(module) == {"recipe"}
    assert FLOOR_OF["recipe"] > FLOOR_OF["dialogue"]


def test_every_module_says_what_it_is_for() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"


def test_rooms_are_small_and_nothing_is_implemented_in_an_init() -> None:
    for room in [path for path in PACKAGE.iterdir() if path.is_dir() and list(path.glob("*.py"))]:
        modules = [path for path in room.rglob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= 15, f"{room.name} has {len(modules)} files"
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").count("\n")
        most = 40 if path.name == "__init__.py" and path.parent.name != "cli" else 400
        assert lines <= most, f"{path} has {lines} lines"


def test_no_class_name_stands_twice() -> None:
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                assert node.name not in found, f"{node.name}: {found[node.name]} and {path}"
                found[node.name] = path


def test_prose_fits_a_screen_and_the_readme_a_sitting() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 150
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            code ^= line.lstrip().startswith("```")
            table_or_source = line.startswith("|") or "<!--" in line
            assert code or table_or_source or len(line) <= 120, f"{path.name}:{number} has {len(line)} characters"


def test_the_command_starts_without_the_heavy_libraries() -> None:
    code = "import sys, compeer.cli; print(sorted({'torch', 'transformers', 'trl', 'datasets'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("compeer-*.whl"))


def test_the_wheel_holds_what_the_package_reads(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {f"compeer/{path.relative_to(PACKAGE).as_posix()}" for path in files} | {"compeer/recipes/demo.toml"}
    assert {"compeer/corpora/sample.jsonl", "compeer/safety/resources.toml", "compeer/py.typed"} <= wanted
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]


def test_the_wheel_runs_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import compeer, json; from compeer.recipe import load_recipe; from compeer.corpora import read_corpus;"
        "print(json.dumps([compeer.__file__, load_recipe('demo').name, sum(1 for _ in read_corpus('sample'))]))"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    assert str(tmp_path) in done.stdout
    assert '"demo", 96]' in done.stdout
