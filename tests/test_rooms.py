"""Where the package's code lies: imports point one way and make no circle, and only the tasks lie in it, too."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

from mdlm_lm_eval import tasks_path

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "mdlm_lm_eval").exists(), reason="the package is installed from a wheel")
FOLDERS = (ROOT, ROOT / "finetune", ROOT / "leaderboard")
# As in CONTRIBUTING.md, from the bottom: a room imports those before it.
ROOMS = ("options", "model", "families", "checkpoints", "decoding", "likelihood", "jobs", "loaded", "lm")


def modules() -> dict[str, Path]:
    """Every module of the three packages, without the tasks, and its file."""
    found = {}
    for folder, package in zip(FOLDERS, ("mdlm_lm_eval", "mdlm_finetune", "mdlm_leaderboard"), strict=True):
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[1] != "tasks":
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that a file imports anywhere: at its top, in functions, and for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield from [name for name in (module if module in known else node.module,) if name in known]


MODULES = modules()
IMPORTS = {name: {*imported(path, MODULES)} - {name} for name, path in MODULES.items()}


def reached(name: str, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """What a module imports, and what these import; the package's own file imports on first use alone."""
    for one in IMPORTS[name] - {"mdlm_lm_eval"}:
        known = known if one in known else reached(one, known | {one})
    return known


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_imports_point_one_way(room: str) -> None:
    above = ROOMS[ROOMS.index(room) + 1 :]
    own = [name for name in MODULES if name.split(".")[1:2] == [room]]
    up = {(name, one) for name in own for one in reached(name) if one.split(".")[1:2] in [[each] for each in above]}
    assert own
    assert up == set()


def test_imports_make_no_circle() -> None:
    """Not even for types. The package's own file only names what users import from it."""
    inside = {name: found - {"mdlm_lm_eval"} for name, found in IMPORTS.items() if name != "mdlm_lm_eval"}
    TopologicalSorter(inside).prepare()  # raises CycleError, which names the circle


def test_the_package_has_the_tasks_and_nothing_else_of_the_repository() -> None:
    assert tasks_path().samefile(ROOT / "tasks")
    assert find_spec("mdlm_lm_eval.tasks.parallel.lists") is not None
    assert find_spec("mdlm_lm_eval.tests") is None
