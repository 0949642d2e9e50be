"""Options parse what a command line gives them and say what is wrong with it."""

import pytest

from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError


def test_strings_from_the_command_line() -> None:
    options = DecodingOptions().override(
        {
            "n_masks": "200",
            "steps": "auto",
            "confidence_threshold": "0.9",
            "eos_last": "true",
            "top_k": "None",
            "filler": "7",
        }
    )
    assert options == DecodingOptions(n_masks=200, steps="auto", confidence_threshold=0.9, eos_last=True, filler="7")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_masks": -1}, ["n_masks=-1", "auto", "from 1"]),
        ({"n_masks": "abc"}, ["n_masks='abc'", "auto", "from 1"]),
        ({"n_masks": 2.5}, ["n_masks=2.5"]),
        ({"n_masks": True}, ["n_masks=True"]),
        ({"n_masks": None}, ["n_masks=None", "needs a value"]),
        ({"steps": "0"}, ["steps=0", "from 1"]),
        ({"unmasking": "foo"}, ["unmasking='foo'", "confidence", "left_to_right"]),
        ({"schedule": "foo"}, ["schedule='foo'", "linear"]),
        ({"mask_ratio": 0.2, "n_masks": 5}, ["mask_ratio=0.2", "n_masks=5"]),
        ({"mask_ratio": 0}, ["mask_ratio=0", "above 0"]),
        ({"block_length": 32, "n_masks": 16}, ["block_length=32", "n_masks=16", "1 to 16"]),
        ({"top_p": 1.5}, ["top_p=1.5", "up to 1"]),
        ({"temperature": -1}, ["temperature=-1", "from 0"]),
        ({"temperature": "nan"}, ["temperature=nan"]),
        ({"eos_last": "maybe"}, ["eos_last='maybe'", "true and false"]),
        ({"nmask": 5}, ["nmask=5", "did you mean n_masks?"]),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(OptionError) as error:
        DecodingOptions().override(changes)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("changes", [{"mc_num": 0}, {"likelihood": "exact"}, {"n_masks": 0}, {"cfg_scale": "x"}])
def test_likelihood_options_are_checked_too(changes: dict[str, object]) -> None:
    (name,) = changes
    with pytest.raises(OptionError, match=name):
        LikelihoodOptions().override(changes)
