"""A request's options over the model arguments, a preset and what families' authors publish."""

from typing import Any

import pytest
from transformers import PretrainedConfig

from mdlm_lm_eval import checkpoints, families
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.resolve import Settings, resolve
from tests.conftest import data, tiny_model

BLOCKS = "llada-8b-instruct/gsm8k-blocks"


def config_of(family: str | None, block_length: int = 32) -> PretrainedConfig:
    config = tiny_model().config
    if family is not None:
        config.diffusion_family, config.block_length = family, block_length
    return config


def resolved(config: PretrainedConfig, arguments: dict[str, Any], preset: str | None = None) -> Settings:
    return resolve(
        arguments | ({} if preset is None else {"preset": preset}),
        family=families.family_of(config).decoding_defaults,
        attention_of=lambda length: checkpoints.attention_of(config, length),
    )


@pytest.mark.parametrize(("family", "preset", "typed", "effect"), data("precedence.json")["typed"])
def test_what_is_typed_drops_what_it_excludes(
    family: str | None, preset: str | None, typed: dict[str, Any], effect: dict[str, Any]
) -> None:
    """`effect` are the options in effect that what is typed touches."""
    config = config_of(family)
    settings = resolved(config, typed, preset)
    wanted = way_of(DecodingOptions(**(typed | effect))).options.as_dict().items()
    expected = {name: value for name, value in wanted if name in typed | effect}
    assert expected.items() <= settings.decoding.as_dict().items()
    assert typed.keys() <= settings.explicit
    assert not settings.explicit & settings.from_family
    of_request = resolved(config, {}, preset).request(typed).options.as_dict()
    sampling = {"temperature"} if preset else set()  # a request's counts only where nothing else is set
    assert all(of_request[name] == expected[name] for name in expected.keys() - sampling)


@pytest.mark.parametrize("block_length", [4, 12])
def test_parts_of_blocks_are_for_blocks_that_they_divide(block_length: int) -> None:
    settings = resolved(config_of("fast_dllm_v2", block_length), {})
    assert (settings.decoding.small_block_length, settings.from_family) == (None, {"confidence_threshold"})


def test_what_a_family_publishes_is_below_what_the_user_and_the_preset_say() -> None:
    published = {"confidence_threshold": 0.95, "block_length": 32, "temperature": 0.5, "schedule": "bd3lm"}
    merged = resolve({"preset": BLOCKS}, family=published)
    assert (merged.decoding.block_length, merged.decoding.confidence_threshold) == (8, 0.95)
    assert merged.from_family == published.keys() - merged.explicit
    off = resolve({"confidence_threshold": "none", "n_masks": 4}, family=published)
    assert (off.decoding.confidence_threshold, off.from_family) == (None, {"temperature", "schedule", "block_length"})


def test_a_sampler_that_is_asked_for_replaces_a_published_one_with_its_options() -> None:
    published = {"sampler": "wino", "confidence_threshold": 0.9, "remask_threshold": 0.5}
    assert resolve({}, family=published).decoding == DecodingOptions(**published)
    by_its_option = resolve({"kl_threshold": 0.1}, family=published).decoding
    assert by_its_option == DecodingOptions(kl_threshold=0.1, confidence_threshold=0.9)
    assert resolve({"sampler": "auto"}, family=published).decoding == DecodingOptions(confidence_threshold=0.9)


def test_what_is_typed_twice_and_excludes_each_other_is_an_error() -> None:
    with pytest.raises(OptionError, match="steps_per_block=4 and steps=3 exclude each other"):
        resolve({"steps_per_block": 4}).request({"steps": 3})


@pytest.mark.parametrize(("typed", "left"), data("precedence.json")["instead of a published cache"])
def test_a_cache_that_is_published_gives_way(typed: dict[str, Any], left: dict[str, Any]) -> None:
    merged = resolve(typed, family={"cache": "dual", "block_length": 32}).decoding
    assert merged == DecodingOptions(**left)


# Sampling keys of task files


@pytest.mark.parametrize(("request_says", "user_says", "expected"), data("precedence.json")["requests"])
def test_requests(request_says: dict[str, Any], user_says: dict[str, Any], expected: dict[str, Any]) -> None:
    assert resolve(user_says).request(request_says).options == DecodingOptions(**expected)
