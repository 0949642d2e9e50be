"""docs/models.md has one row for every family that comes with the package, and says what its attention is."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mdlm_lm_eval.presets import preset_names

DOC = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip("`"): cells
    for line in DOC.splitlines()
    if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0].startswith("`")
}
# In a process of its own, where no other test has registered a family.
FAMILIES = """
import json
from mdlm_lm_eval.families import all_families
print(json.dumps({name: [sorted(each.refusals), bool(each.generate)] for name, each in all_families().items()}))
"""


@pytest.fixture(scope="module")
def families() -> dict[str, tuple[list[str], bool]]:
    """Name -> what the family refuses, and whether transformers' own `generate` decodes it."""
    answer = subprocess.run([sys.executable, "-c", FAMILIES], capture_output=True, text=True, check=True)
    found: dict[str, tuple[list[str], bool]] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_every_family_has_one_row(families: dict[str, tuple[list[str], bool]]) -> None:
    assert sorted(re.findall(r"^\| `([^`]+)` \|", DOC, re.MULTILINE)) == sorted(families)


def test_what_a_family_refuses_stands_in_its_row(families: dict[str, tuple[list[str], bool]]) -> None:
    for name, (refusals, own_generate) in families.items():
        likelihood, cache = ROWS[name][5], ROWS[name][6]
        assert ("likelihood" in refusals) == (likelihood == "no"), name
        assert ("cache" in refusals) == (cache == "no" or own_generate), name


def test_presets_of_the_table_are_all_there_are() -> None:
    named = [preset for cells in ROWS.values() for preset in re.findall(r"`([^`]+)`", cells[9])]
    assert sorted(named) == sorted({name.split("/")[0] for name in preset_names()})
