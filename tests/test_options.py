"""Options: parsing from the command line, and refusals that name option, value and what is possible."""

import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from mdlm_lm_eval import families
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model_arguments import bitsandbytes_arguments, split_model_arguments
from mdlm_lm_eval.options import (
    LIKELIHOOD_NAMES,
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    OptionError,
    Options,
    about,
    defaults_of,
    options_of,
    requirement,
    silent_names,
)
from mdlm_lm_eval.values import number_of
from tests.conftest import tiny_model, tiny_tokenizer


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
            "unmasking must be one of confidence, entropy, left_to_right, margin, random, not foo",
        ),
        ({"schedule": "foo"}, "schedule must be one of linear, dream, cosine, bd3lm, not foo"),
        (
            {"mask_ratio": "0.2", "n_masks": "5"},
            "mask_ratio=0.2 and n_masks=5 exclude each other",
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


@pytest.mark.parametrize("kind", [DecodingOptions, LikelihoodOptions, ModelOptions])
def test_every_option_is_declared_whole(kind: type[Options]) -> None:
    for declared in options_of(kind):
        assert about(declared).help
        assert getattr(kind(), declared.name) == declared.default
        assert requirement(declared).split()[0] in ("a", "auto", "none", "0", "one", "true")


def test_only_what_changes_no_score_is_silent() -> None:
    assert silent_names() == {"early_exit", "compile"}
    assert defaults_of(DecodingOptions).keys() & LIKELIHOOD_NAMES == {
        "n_masks",
        "unmasking",
        "confidence_threshold",
        "cfg_scale",
        "seed",
    }


@pytest.mark.parametrize(
    ("typed", "number"),
    [("5", 5), ("-1", -1), ("1e2", 100.0), (".5", 0.5), ("nan", None), ("inf", None), ("0x10", None)],
)
def test_numbers_are_decimal(typed: str, number: float | None) -> None:
    assert number_of(typed) == number


def test_the_documentation_lists_the_options_as_they_are(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    spec = spec_from_file_location("write_options", root / "docs" / "write_options.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    for name in ("README.md", "docs/options.md"):
        shutil.copy(root / name, tmp_path)
    script.write(tmp_path / "README.md", tmp_path / "options.md")
    for name in ("README.md", "docs/options.md"):
        written = (tmp_path / Path(name).name).read_text(encoding="utf-8")
        assert written == (root / name).read_text(encoding="utf-8"), "run `python docs/write_options.py`"


def test_what_a_family_publishes_stands_below_what_the_user_and_the_preset_say() -> None:
    published = {"confidence_threshold": 0.95, "block_length": 32, "temperature": 0.5, "schedule": "bd3lm"}
    arguments = split_model_arguments({"preset": "llada-8b-instruct/gsm8k-blocks"}, default_seed=0)
    merged = arguments.with_family_defaults(published, full_attention=True)
    assert (merged.decoding.block_length, merged.decoding.confidence_threshold, merged.decoding.schedule) == (
        8,
        0.95,
        "bd3lm",
    )
    assert merged.from_family == published.keys() - arguments.explicit
    switched_off = split_model_arguments({"confidence_threshold": "none", "n_masks": 4}, default_seed=0)
    merged = switched_off.with_family_defaults(published, full_attention=True)
    assert (merged.decoding.confidence_threshold, merged.decoding.block_length) == (None, None)
    assert merged.from_family == {"temperature", "schedule"}


def test_lm_evals_arguments_arrive_typed() -> None:
    loading = split_model_arguments(
        {"trust_remote_code": "False", "revision": 1234567, "max_length": "64", "batch_size": 4, "dtype": "bfloat16"},
        default_seed=0,
    ).loading
    assert loading == {
        "trust_remote_code": False,
        "revision": "1234567",
        "max_length": 64,
        "batch_size": 4,
        "dtype": "bfloat16",
    }


def test_a_model_is_quantised_only_where_a_flag_says_so(checkpoint: Path) -> None:
    off = {"load_in_4bit": "false", "load_in_8bit": "false", "bnb_4bit_use_double_quant": "false"}
    loading = split_model_arguments(off, default_seed=0).loading
    assert bitsandbytes_arguments(loading | {"dtype": "auto"}) == {"dtype": "auto"}
    lm = MDLM(str(checkpoint), device="cpu", **off)
    assert "quantization_config" not in lm.model.config.to_dict()
    on = {"load_in_4bit": "true", "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_type": None}
    made = bitsandbytes_arguments(split_model_arguments(on, default_seed=0).loading)["quantization_config"]
    assert (made.load_in_4bit, made.bnb_4bit_compute_dtype) == (True, torch.bfloat16)


def test_nothing_heavy_is_imported_for_options_and_help() -> None:
    code = (
        "import sys, mdlm_lm_eval.options, mdlm_lm_eval.sweep.__main__, mdlm_lm_eval.analyses.__main__; "
        "print(sorted({'torch', 'transformers', 'datasets', 'lm_eval.evaluator', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_model_takes_what_its_family_publishes_and_records_it(monkeypatch: pytest.MonkeyPatch) -> None:
    published = replace(
        families.family_of(tiny_model().config), decoding_defaults={"confidence_threshold": 0.9, "steps": 7}
    )
    monkeypatch.setattr(families, "family_of", lambda config: published)
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), steps=3)
    assert (lm.decoding.confidence_threshold, lm.decoding.steps) == (0.9, 3)
    assert lm.get_model_info()["mdlm"]["family_options"] == ["confidence_threshold"]
    lm.use_options(split_model_arguments({"confidence_threshold": None}, default_seed=0))
    assert (lm.decoding.confidence_threshold, lm.decoding.steps) == (None, 7)
    assert lm.get_model_info()["mdlm"]["family_options"] == ["steps"]
