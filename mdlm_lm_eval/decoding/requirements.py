"""Which decoding options a model can serve; everything else is refused before anything expensive starts."""

from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError, defaults_of

# What left-to-right decoding takes.
_OF_ANY_MODE = {"mode", "n_masks", "mask_ratio", "max_gen_toks", "early_exit", "seed", "suppress_eos", "end_think"}
_OF_MODE = {
    "ar": {"temperature", "top_p", "top_k", "cache", "max_thinking_tokens", "trace"},
    "linear_spec": {"block_length", "confidence_threshold"},
}


def check_decoding(options: DecodingOptions, attention: AttentionPattern, *, edits: bool) -> None:
    """Raises OptionError for an option that a model with this attention, which edits or not, has no use for."""
    length, small = options.block_length, options.small_block_length
    if options.editing_threshold is not None and not edits:
        raise _must_be("editing_threshold", "none for a model that does not edit", options.editing_threshold)
    if options.max_post_steps is not None and options.editing_threshold is None:
        raise OptionError(f"max_post_steps={options.max_post_steps} needs editing_threshold")
    if options.mode != "diffusion" and not attention.causal_context:
        raise _must_be("mode", "diffusion for a model without a causal context", options.mode)
    for name, default in defaults_of(DecodingOptions).items() if options.mode != "diffusion" else ():
        if getattr(options, name) != default and name not in _OF_ANY_MODE | _OF_MODE[options.mode]:
            raise OptionError(f"{name}={getattr(options, name)} does not work with mode={options.mode}")
    if not options.causal_context and (options.mode != "diffusion" or not attention.whole_prompt):
        raise _must_be("causal_context", "true, but for mode=diffusion of a model that has one", "false")
    takes_back, compares = options.remasking != "none", options.kl_threshold is not None
    if (takes_back or compares) and (attention.is_block_causal or options.is_approximate):
        what = f"remasking={options.remasking}" if takes_back else f"kl_threshold={options.kl_threshold}"
        raise OptionError(f"{what} does not work with block-causal attention or cache={options.cache}")
    is_wino = options.remasking == "wino"
    if is_wino and options.confidence_threshold is None:
        raise OptionError("remasking=wino needs confidence_threshold")
    if takes_back and ((options.is_parallel and not is_wino) or compares or options.append_blocks):
        raise OptionError(f"remasking={options.remasking} does not work with a parallel rule or append_blocks")
    if options.remasking == "remdm" and (options.steps, options.steps_per_block) != ("auto", None):
        raise _must_be("steps", "auto with remasking=remdm, which fills one token a pass", options.steps)
    if is_wino and options.cfg_scale:
        raise _must_be("cfg_scale", "0 with remasking=wino", options.cfg_scale)
    if compares and options.confidence_threshold is None:
        raise OptionError(f"kl_threshold={options.kl_threshold} needs confidence_threshold")
    if options.append_blocks and (attention.is_block_causal or options.is_approximate or options.n_fillers):
        raise _must_be("append_blocks", "false with block-causal attention, cache=prefix|dual and fillers", "true")
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
