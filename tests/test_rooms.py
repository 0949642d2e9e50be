"""Where the package's code lies: imports point one way, and of the repository only the tasks are in the package."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from mdlm_lm_eval import tasks_path

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "mdlm_lm_eval").exists(), reason="the package is installed from a wheel")
# As in CONTRIBUTING.md, from the bottom: a room imports those before it.
ROOMS = ("options", "model", "families", "checkpoints", "decoding", "likelihood", "jobs", "lm")


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_imports_point_one_way(room: str) -> None:
    above = "|".join(ROOMS[ROOMS.index(room) + 1 :])
    place = ROOT / "mdlm_lm_eval" / room
    paths = [place.with_suffix(".py")] if room == "options" else sorted(place.rglob("*.py"))
    imports = re.compile(
        rf"^ *(?:from|import) mdlm_lm_eval\.(?:{above})\b.*|^ *from mdlm_lm_eval import .*", re.MULTILINE
    )
    for_types = re.compile(r"^if TYPE_CHECKING:\n(?:    .*\n|\n)*", re.MULTILINE)
    texts = {path.name: for_types.sub("", path.read_text(encoding="utf-8")) for path in paths}
    assert {name: found for name, text in texts.items() if (found := imports.findall(text))} == {}


def test_the_package_has_the_tasks_and_nothing_else_of_the_repository() -> None:
    assert tasks_path().samefile(ROOT / "tasks")
    assert find_spec("mdlm_lm_eval.tasks.parallel.lists") is not None
    assert find_spec("mdlm_lm_eval.tests") is None
