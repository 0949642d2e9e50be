"""docs/models.md says of a family what the family says of itself."""

import re
from pathlib import Path

import pytest

from mdlm_lm_eval.families import all_families

DOC = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = {
    name: cells
    for line in re.findall(r"^\| `.*", DOC, re.MULTILINE)
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    for name in re.findall(r"`([^`]+)`", cells[0])
}


@pytest.mark.parametrize("name", ROWS)
def test_what_a_family_does_not_support_stands_in_its_row(name: str) -> None:
    family = all_families()[name]
    no_likelihood, no_cache = (
        family.supports is not None and option not in family.supports for option in ("likelihood", "cache")
    )
    likelihood, cache = ROWS[name][4], ROWS[name][5]
    assert no_likelihood == (likelihood == "no")
    assert no_cache == (cache in ("no", "built in") or family.generate is not None)
