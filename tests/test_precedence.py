"""What a user types against what presets and families' authors say and nobody typed."""

from typing import Any

import pytest
from lm_eval.api.instance import Instance
from transformers import PretrainedConfig

from mdlm_lm_eval.decoding.requirements import check_decoding
from mdlm_lm_eval.fitting import Fitted, fit
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model_arguments import split_model_arguments
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.precedence import over
from mdlm_lm_eval.requests import parse_gen_kwargs
from tests.conftest import tiny_model, tiny_tokenizer

BLOCKS = "llada-8b-instruct/gsm8k-blocks"
# Family, preset, what is typed, and what stands then of the options that it touches.
TYPED: list[tuple[str | None, str | None, dict[str, Any], dict[str, Any]]] = [
    ("llada2", None, {"steps": 64}, {"steps_per_block": None, "confidence_threshold": 0.95}),
    ("llada2", None, {"entropy_bound": 0.5}, {"confidence_threshold": None, "steps_per_block": 32}),
    ("llada2", None, {"parallel_factor": 1.0}, {"confidence_threshold": None, "steps_per_block": 32}),
    ("llada2", None, {"parallel_factor": None}, {"confidence_threshold": 0.95}),
    ("llada2", "llada2.0-mini/gsm8k", {"steps": 64}, {"steps_per_block": None, "confidence_threshold": 0.95}),
    ("llada2", "llada2.0-mini/gsm8k", {"entropy_bound": 0.2}, {"confidence_threshold": None, "steps_per_block": 32}),
    ("llada21", None, {"editing_threshold": None}, {"max_post_steps": None, "confidence_threshold": 0.95}),
    ("llada21", "llada2.1-mini/gpqa-speed", {"editing_threshold": None}, {"max_post_steps": None}),
    ("fast_dllm_v2", None, {"block_length": 4}, {"small_block_length": None}),
    ("fast_dllm_v2", None, {"block_length": 16}, {"small_block_length": 8}),
    ("sdar", "sdar-8b-chat/gsm8k", {"n_masks": 2}, {"block_length": 4}),
    (None, BLOCKS, {"n_masks": 4}, {"block_length": None, "steps": 256}),
    (None, BLOCKS, {"mask_ratio": 2.0}, {"n_masks": "auto", "block_length": 8}),
    (None, BLOCKS, {"steps_per_block": 4}, {"steps": "auto", "block_length": 8}),
]


def config_of(family: str | None) -> PretrainedConfig:
    config = tiny_model().config
    config.max_position_embeddings = 8192
    if family is not None:
        config.diffusion_family, config.block_length = family, 32
    return config


def fitted(family: str | None, preset: str | None, typed: dict[str, Any]) -> Fitted:
    arguments = {**typed, **({} if preset is None else {"preset": preset})}
    return fit(split_model_arguments(arguments, default_seed=0), config_of(family), tiny_tokenizer())


@pytest.mark.parametrize(("family", "preset", "typed", "stands"), TYPED)
def test_what_is_typed_drops_what_it_excludes(
    family: str | None, preset: str | None, typed: dict[str, Any], stands: dict[str, Any]
) -> None:
    arguments = fitted(family, preset, typed).arguments
    assert (typed | stands).items() <= vars(arguments.decoding).items()
    assert arguments.typed == typed.keys()
    dropped = {name for name, value in stands.items() if value in (None, "auto")}
    assert not dropped & (arguments.from_family | arguments.explicit - {"n_masks", "confidence_threshold"})


@pytest.mark.parametrize(("family", "preset", "typed", "stands"), TYPED)
def test_so_does_a_request(
    family: str | None, preset: str | None, typed: dict[str, Any], stands: dict[str, Any]
) -> None:
    model = fitted(family, preset, {})
    options = parse_gen_kwargs(typed, model.arguments.decoding, model.arguments.explicit).options
    check_decoding(options, model.attention, edits=family in ("llada2", "llada21"))
    if family == "sdar":  # its blocks are the loaded model's, whatever a request names
        assert model.attention.block_length == 4
    else:
        assert (typed | stands).items() <= vars(options).items()


@pytest.mark.parametrize("block_length", [4, 12])
def test_parts_of_blocks_are_for_blocks_that_they_divide(block_length: int) -> None:
    config = config_of("fast_dllm_v2")
    config.block_length = block_length
    arguments = fit(split_model_arguments({}, default_seed=0), config, tiny_tokenizer()).arguments
    assert (arguments.decoding.small_block_length, arguments.from_family) == (None, {"confidence_threshold"})
    typed = split_model_arguments({"small_block_length": 8}, default_seed=0)
    with pytest.raises(OptionError, match=f"divisor of the model's block length {block_length}, not 8"):
        fit(typed, config, tiny_tokenizer())


def test_what_is_typed_twice_and_excludes_each_other_stays_an_error() -> None:
    typed = {"steps_per_block": 4, "preset": "llada2.0-mini/gsm8k"}
    model = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), **typed)
    request = Instance("generate_until", {}, ("question", {"steps": 3}), 0, metadata=("task", 0, 1))
    for ask in (
        lambda: split_model_arguments(typed | {"steps": 3}, default_seed=0),
        lambda: model.generate_until([request], disable_tqdm=True),
    ):
        with pytest.raises(OptionError, match="steps_per_block=4 and steps=3 exclude each other"):
            ask()


def test_a_family_of_somebodys_own() -> None:
    """docs/extending.md publishes steps."""
    arguments = split_model_arguments({"steps_per_block": "4"}, default_seed=0)
    merged = arguments.with_family_defaults({"steps": 32}, full_attention=True)
    assert (merged.decoding.steps, merged.decoding.steps_per_block, merged.from_family) == ("auto", 4, frozenset())
    cached = {"cache": "dual", "block_length": 32}
    assert over(cached, {"cfg_scale": 1.0}, full_attention=True) == {"block_length": 32, "cfg_scale": 1.0}
    assert over(cached, {"n_masks": 4}, full_attention=True) == {"n_masks": 4}
    assert over({"unmasking": "random"}, {"cache": "dual"}, full_attention=True) == {"cache": "dual"}
