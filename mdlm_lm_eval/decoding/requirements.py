"""Which decoding options a model can serve; everything else is refused before anything expensive starts."""

from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError, must_be


def check_decoding(options: DecodingOptions, attention: AttentionPattern, *, edits: bool) -> None:
    """Raises OptionError for an option that a model with this attention, which edits or not, has no use for."""
    _check_editing(options, edits)
    if attention.block_length is not None:
        _check_block_causal(options, options.block_length or attention.block_length)
    else:
        _check_full_attention(options)


def _check_editing(options: DecodingOptions, edits: bool) -> None:
    if options.editing_threshold is not None and not edits:
        raise must_be("editing_threshold", "none for a model that does not edit", options.editing_threshold)
    if options.max_post_steps is not None and options.editing_threshold is None:
        raise OptionError(f"max_post_steps={options.max_post_steps} needs editing_threshold")


def _check_block_causal(options: DecodingOptions, block_length: int) -> None:
    if options.is_approximate:
        raise must_be(
            "cache", "auto or none for a block diffusion model, whose remembered blocks are exact", options.cache
        )
    small = options.small_block_length
    if small is not None and block_length % small:
        raise must_be("small_block_length", f"a divisor of the model's block length {block_length}", small)


def _check_full_attention(options: DecodingOptions) -> None:
    if options.small_block_length is not None:
        raise must_be("small_block_length", "none for a model with full attention", options.small_block_length)
    n_masks, length = options.n_masks, options.block_length
    if isinstance(n_masks, int) and length is not None and length > n_masks:
        raise must_be("block_length", f"at most n_masks={n_masks}", length)
    if not options.is_approximate:
        return
    if length is None:
        raise OptionError(f"cache={options.cache} needs block_length: what it remembers is renewed at every block")
    if options.cfg_scale > 0.0:
        raise must_be("cfg_scale", f"0 with cache={options.cache}", options.cfg_scale)
    if unmasking_rule(options.unmasking).is_random:
        raise must_be("unmasking", f"an order that asks the model with cache={options.cache}", options.unmasking)
