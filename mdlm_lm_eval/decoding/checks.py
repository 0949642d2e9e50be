"""Checks whether a model can serve decoding options, before anything expensive starts."""

from transformers import PretrainedConfig

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.decoding.guests import signature_of
from mdlm_lm_eval.decoding.way import Way
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError, must_be

# The options that left-to-right decoding takes: with both modes, and with each.
_OF_ANY_MODE = {"mode", "n_masks", "mask_ratio", "max_gen_toks", "early_exit", "seed", "suppress_eos", "end_think"}
_OF_ANY_MODE |= {"escape_until", "unfinished_thinking"}
_OF_MODE = {
    "ar": {"temperature", "top_p", "top_k", "cache", "max_thinking_tokens", "trace"},
    "linear_spec": {"block_length", "confidence_threshold", "trace"},
}


def check_decoding(way: Way, *, edits: bool) -> None:
    """Raises OptionError for an option that does not work with this attention, or with a model that does not edit."""
    options, sampler, attention = way.options, way.sampler, way.attention
    if options.guest is not None:
        signature_of(options).check(options)
        return
    if sampler.edits and not edits:
        asked_by = sampler.asked_by or "sampler"
        raise must_be(asked_by, "none for a model that does not edit", getattr(sampler, asked_by, options.sampler))
    _check_mode(options, attention)
    if sampler.runs_whole_canvases and (attention.is_block_causal or options.is_approximate):
        others = f"block-causal attention or cache={options.cache}"
        raise OptionError(f"sampler={way.name} does not work with {others}")
    for reason in (sampler.refuses(options, attention), way.cache.refuses(options, attention)):
        if reason is not None:
            raise OptionError(reason)
    if options.append_blocks and (attention.is_block_causal or options.is_approximate or options.n_fillers):
        raise must_be("append_blocks", "false with block-causal attention, cache=prefix|dual and fillers", "true")
    _check_blocks(options, attention)


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


def _check_mode(options: DecodingOptions, attention: AttentionPattern) -> None:
    """Raises OptionError unless left-to-right decoding has a causal context and only options that it takes."""
    if options.mode != "diffusion" and not attention.causal_context and options.causal_context:
        raise must_be("mode", "diffusion for a model without a causal context", options.mode)
    if options.mode != "diffusion":
        for name, value in options.changes().items():
            if name not in _OF_ANY_MODE | _OF_MODE[options.mode]:
                raise OptionError(f"{name}={value} does not work with mode={options.mode}")
    if not options.causal_context and (options.mode != "diffusion" or not attention.whole_prompt):
        raise must_be("causal_context", "true, but for mode=diffusion of a model that has one", "false")


def _check_blocks(options: DecodingOptions, attention: AttentionPattern) -> None:
    """Raises OptionError unless small blocks divide the model's, and a block under full attention fits the canvas."""
    length, small = options.block_length, options.small_block_length
    if attention.block_length is not None:
        length = length or attention.block_length
        if small is not None and length % small:
            raise must_be("small_block_length", f"a divisor of the model's block length {length}", small)
        return
    if small is not None:
        raise must_be("small_block_length", "none for a model with full attention", small)
    if isinstance(options.n_masks, int) and length is not None and length > options.n_masks:
        raise must_be("block_length", f"at most n_masks={options.n_masks}", length)
