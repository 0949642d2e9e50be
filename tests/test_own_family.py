"""What a family from outside the package may be; test_extending.py runs one."""

import pytest

from mdlm_lm_eval.families import Family, register_family
from mdlm_lm_eval.options import OptionError


@pytest.mark.parametrize("name", ["acme", "sdar"])
def test_a_model_type_belongs_to_one_family(name: str) -> None:
    with pytest.raises(ValueError, match="belongs to the family sdar"):
        register_family(Family(name=name, model_types=("sdar",)))


def test_only_what_a_family_says_that_it_supports_works_with_it() -> None:
    family = Family(name="acme", supports=frozenset({"steps"}), instead="use steps alone")
    family.refuse("steps", 4)
    for option in ("likelihood", "an_option_of_next_year"):
        with pytest.raises(OptionError, match=f"{option}=1 does not work with the family acme: use steps alone"):
            family.refuse(option, 1)
    Family(name="all").refuse("an_option_of_next_year", 1)
