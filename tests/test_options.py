"""Options: parsing from the command line, and refusals that name option, value and what is possible."""

import pytest

from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError


def test_strings_are_parsed_by_the_type_of_the_option() -> None:
    typed = {
        "n_masks": "200",
        "steps": "auto",
        "temperature": "0.5",
        "suppress_eos": "false",
        "early_exit": "False",
        "eos_last": "true",
        "top_p": "none",
        "filler": "1",
        "cfg_scale": "2",
    }
    assert DecodingOptions(top_p=0.5).override(typed) == DecodingOptions(
        n_masks=200,
        steps="auto",
        temperature=0.5,
        suppress_eos=False,
        early_exit=False,
        eos_last=True,
        top_p=None,
        filler="1",
        cfg_scale=2,
    )


def test_override_leaves_the_other_options_and_the_original_alone() -> None:
    original = DecodingOptions(steps=3)
    assert original.override({"n_masks": 5}) == DecodingOptions(steps=3, n_masks=5)
    assert original == DecodingOptions(steps=3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_masks": "-1"}, "n_masks must be auto or a whole number from 1, not -1"),
        ({"n_masks": "abc"}, "n_masks must be auto or a whole number from 1, not abc"),
        ({"n_masks": True}, "n_masks must be auto or a whole number from 1, not true"),
        ({"steps": "0"}, "steps must be auto or a whole number from 1, not 0"),
        ({"steps": "2.5"}, "steps must be auto or a whole number from 1, not 2.5"),
        (
            {"unmasking": "foo"},
            "unmasking must be one of confidence, margin, entropy, random, left_to_right, not foo",
        ),
        ({"schedule": "foo"}, "schedule must be one of linear, dream, cosine, bd3lm, not foo"),
        (
            {"mask_ratio": "0.2", "n_masks": "5"},
            "mask_ratio=0.2 and n_masks=5 exclude each other",
        ),
        (
            {"block_length": "32", "n_masks": "8"},
            "block_length must be at most n_masks=8, not 32",
        ),
        ({"temperature": "nan"}, "temperature must be 0 or a number from 1e-06 up to 1000, not nan"),
        ({"top_p": "1.5"}, "top_p must be none or a number above 0 up to 1, not 1.5"),
        ({"suppress_eos": "maybe"}, "suppress_eos must be true or false, not maybe"),
        ({"nmask": "5"}, "unknown option nmask=5; did you mean n_masks?"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(OptionError) as refusal:
        DecodingOptions().override(changes)
    assert str(refusal.value) == sentence


def test_a_name_far_from_all_options_lists_them() -> None:
    with pytest.raises(OptionError, match="unknown option zzz=1; the options are block_length, cache, cfg_scale, "):
        DecodingOptions().override({"zzz": 1})


def test_a_block_longer_than_an_automatic_canvas_is_allowed() -> None:
    assert DecodingOptions().override({"block_length": "32"}).block_length == 32


def test_likelihood_options_are_checked_too() -> None:
    assert LikelihoodOptions().override({"check_greedy": "false"}).check_greedy is False
    with pytest.raises(OptionError, match="mc_num must be a whole number from 1 up to 1000000, not 0"):
        LikelihoodOptions(mc_num=0)
