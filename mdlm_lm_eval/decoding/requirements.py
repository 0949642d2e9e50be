"""Which decoding options a model can serve; everything else is refused before anything expensive starts."""

from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError


def check_decoding(options: DecodingOptions, attention: AttentionPattern, *, edits: bool) -> None:
    """Raises OptionError for an option that a model with this attention, which edits or not, has no use for."""
    length, small = options.block_length, options.small_block_length
    if options.editing_threshold is not None and not edits:
        raise _must_be("editing_threshold", "none for a model that does not edit", options.editing_threshold)
    if options.max_post_steps is not None and options.editing_threshold is None:
        raise OptionError(f"max_post_steps={options.max_post_steps} needs editing_threshold")
    if attention.block_length is not None:
        if options.is_approximate:
            what = "auto or none for a block diffusion model, whose remembered blocks are exact"
            raise _must_be("cache", what, options.cache)
        length = length or attention.block_length
        if small is not None and length % small:
            raise _must_be("small_block_length", f"a divisor of the model's block length {length}", small)
        return
    if small is not None:
        raise _must_be("small_block_length", "none for a model with full attention", small)
    if isinstance(options.n_masks, int) and length is not None and length > options.n_masks:
        raise _must_be("block_length", f"at most n_masks={options.n_masks}", length)
    if not options.is_approximate:
        return
    if length is None:
        raise OptionError(f"cache={options.cache} needs block_length: what it remembers is renewed at every block")
    if options.cfg_scale > 0.0:
        raise _must_be("cfg_scale", f"0 with cache={options.cache}", f"{options.cfg_scale:g}")
    if unmasking_rule(options.unmasking).is_random:
        raise _must_be("unmasking", f"an order that asks the model with cache={options.cache}", options.unmasking)


def _must_be(name: str, what: str, value: object) -> OptionError:
    return OptionError(f"{name} must be {what}, not {value}")
