"""Model arguments of `--model mdlm`: config, tokenizer and settings that they name, before weights are read."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.decoding.way import Way, check_decoding
from mdlm_lm_eval.model.attention import FULL_ATTENTION
from mdlm_lm_eval.models import BUILT_IN, model_path
from mdlm_lm_eval.options import OptionError, parse_flag
from mdlm_lm_eval.resolve import Settings, resolve


def source_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model arguments that say which files of a checkpoint are read, and whether its own code may run."""
    return {
        "revision": str(arguments.get("revision") or "main"),
        "subfolder": str(arguments.get("subfolder") or ""),
        "trust_remote_code": parse_flag("trust_remote_code", arguments.get("trust_remote_code") or False),
    }


def config_of(pretrained: str | None, arguments: Mapping[str, Any]) -> PretrainedConfig:
    """Loads a checkpoint's config as model arguments say. Raises OptionError, as `checkpoints.load_config` does."""
    path, family = model_path(str(pretrained or BUILT_IN)), arguments.get("diffusion_family")
    return checkpoints.load_config(path, diffusion_family=family, **source_of(arguments))


def tokenizer_of(name: str, config: PretrainedConfig, arguments: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """Loads the tokenizer for a config as model arguments say."""
    return checkpoints.load_tokenizer(
        name,
        config=config,
        use_fast_tokenizer=arguments.get("use_fast_tokenizer", True),
        add_bos_token=arguments.get("add_bos_token"),
        **source_of(arguments),
    )


def settings_of(config: PretrainedConfig, arguments: Mapping[str, Any]) -> Settings:
    """Merges model arguments for the model of a config.

    Raises OptionError for options that it does not support, and for an adapter that is not there.
    """
    family, implementation = checkpoints.family_of(config), arguments.get("attn_implementation")

    def check(way: Way, in_slots: bool | None) -> None:
        options = way.options
        check_family(way, config, in_slots=in_slots)
        if options.guest is None:
            checkpoints.refuse_other_decoders(config.name_or_path or "")
        check_decoding(way, edits=family.edits)
        if options.unfinished_thinking == "empty" and arguments.get("think_end_token") is None:
            raise OptionError("unfinished_thinking=empty needs think_end_token, such as think_end_token=</think>")
        if in_slots:
            if options.guest is not None:
                raise OptionError(f"infill=true does not work with sampler={options.guest}, which continues texts")
            family.refuse("infill", "true")

    settings = resolve(
        arguments,
        family=family.decoding_defaults,
        attention_of=lambda length: checkpoints.attention_of(config, length, implementation),
        check=check,
        default_seed=torch.initial_seed() % 2**63,  # lm-eval seeds torch with --seed before it builds the model
    )
    if peft := arguments.get("peft"):
        checkpoints.adapter_config(str(peft), revision=source_of(arguments)["revision"])
    return settings


def check_family(way: Way, config: PretrainedConfig, *, in_slots: bool | None) -> None:
    """Raises OptionError for options that the model's family does not support; `in_slots` as in `Family.refuse`."""
    checkpoints.check_options(config, way.options, in_slots=in_slots)
    if way.options.guest is not None:
        return
    has_own_attention = way.sampler.attention(FULL_ATTENTION, way.options).is_block_causal
    if has_own_attention:
        checkpoints.check_sees_all(config, f"sampler={way.name} with blocks that see nothing after them")
    if way.needs.hindsight or has_own_attention:
        family = checkpoints.family_of(config)
        family.refuse("sampler", way.name, needs="hindsight", in_slots=in_slots)
