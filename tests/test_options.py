"""Options: parsing from the command line, and refusals that name option, value and what is allowed."""

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
        ({"n_masks": "-1"}, "n_masks=-1 is not allowed; allowed are auto and whole numbers from 1"),
        ({"n_masks": "abc"}, "n_masks='abc' is not allowed; allowed are auto and whole numbers from 1"),
        ({"n_masks": True}, "n_masks=True is not allowed; allowed are auto and whole numbers from 1"),
        ({"steps": "0"}, "steps=0 is not allowed; allowed are auto and whole numbers from 1"),
        ({"steps": "2.5"}, "steps=2.5 is not allowed; allowed are auto and whole numbers from 1"),
        (
            {"unmasking": "foo"},
            "unmasking='foo' is not allowed; allowed are confidence, margin, entropy, random, left_to_right",
        ),
        ({"schedule": "foo"}, "schedule='foo' is not allowed; allowed are linear, dream, cosine"),
        (
            {"mask_ratio": "0.2", "n_masks": "5"},
            "mask_ratio=0.2 together with n_masks=5 is not allowed; allowed is one of them",
        ),
        (
            {"block_length": "32", "n_masks": "8"},
            "block_length=32 is not allowed with n_masks=8; allowed are whole numbers from 1 to 8",
        ),
        ({"temperature": "nan"}, "temperature=nan is not allowed; allowed are numbers from 0"),
        ({"top_p": "1.5"}, "top_p=1.5 is not allowed; allowed are numbers above 0 up to 1"),
        ({"suppress_eos": "maybe"}, "suppress_eos='maybe' is not allowed; allowed are true and false"),
        ({"nmask": "5"}, "unknown option nmask='5'; did you mean n_masks?"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(OptionError) as refusal:
        DecodingOptions().override(changes)
    assert str(refusal.value) == sentence


def test_a_name_far_from_all_options_lists_them() -> None:
    with pytest.raises(OptionError, match="unknown option zzz=1; the options are block_length, cfg_scale, "):
        DecodingOptions().override({"zzz": 1})


def test_a_block_longer_than_an_automatic_canvas_is_allowed() -> None:
    assert DecodingOptions().override({"block_length": "32"}).block_length == 32


def test_likelihood_options_are_checked_too() -> None:
    assert LikelihoodOptions().override({"check_greedy": "false"}).check_greedy is False
    with pytest.raises(OptionError, match="mc_num=0 is not allowed; allowed are whole numbers from 1"):
        LikelihoodOptions(mc_num=0)
