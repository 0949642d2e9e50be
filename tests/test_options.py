"""Options: what a command line may say of them, and that they are declared whole."""

import subprocess
import sys

import numpy as np
import pytest

from mdlm_lm_eval.options import (
    SILENT_NAMES,
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    OptionError,
    Options,
)
from tests.commands import ENVIRONMENT
from tests.conftest import data


def test_strings_are_parsed_by_the_type_of_the_option() -> None:
    typed = data("cases.json")["typed options"] | {"n_fillers": np.int64(4), "seed": 2**62 + 1}
    expected = {"n_masks": 200, "temperature": 0.5, "eos_last": True, "filler": "1", "max_gen_toks": 64}
    assert DecodingOptions(top_p=0.5).override(typed) == DecodingOptions(**expected, n_fillers=4, seed=2**62 + 1)


def test_a_bad_value_in_python_is_refused() -> None:
    with pytest.raises(OptionError, match=r"n_masks must be auto or a whole number from 1, not true"):
        DecodingOptions(n_masks=True)
    with pytest.raises(OptionError, match=r"unknown option nmask=5; did you mean n_masks\?"):
        LikelihoodOptions().override({"nmask": 5})


@pytest.mark.parametrize("kind", [DecodingOptions, LikelihoodOptions, ModelOptions])
def test_every_option_is_declared_whole(kind: type[Options]) -> None:
    for name, declared in kind.declared.items():
        assert declared.help
        assert getattr(kind(), name) == declared.default
        assert declared.requirement.split()[0] in ("a", "auto", "none", "one", "true")


def test_only_what_changes_no_score_is_silent() -> None:
    assert {"early_exit", "trace", "compile"} == SILENT_NAMES


def test_nothing_heavy_is_imported_for_options_and_help() -> None:
    code = (
        "import sys; from mdlm_lm_eval.decoding.rules import unmasking_names; unmasking_names(); "
        "assert 'torch' not in sys.modules; "
        "import mdlm_lm_eval.options, mdlm_lm_eval.sweep.__main__, mdlm_lm_eval.analyses.__main__; "
        "from mdlm_lm_eval.resolve import resolve; resolve({'n_masks': 4, 'unmasking': 'margin'}); "
        "print(sorted({'transformers', 'datasets', 'lm_eval.evaluator'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout == "[]\n"
