"""Decoding of prompts that are token ids, for use from Python."""

import hashlib
from collections import Counter
from collections.abc import Collection

from mdlm_lm_eval.canvas import build_canvas
from mdlm_lm_eval.decoding.blocks import attention_in_effect
from mdlm_lm_eval.decoding.loop import decode_canvases
from mdlm_lm_eval.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError


def decode(
    denoiser: Denoiser,
    prompts: list[list[int]],
    options: DecodingOptions,
    *,
    max_gen_toks: int | None = None,
    stop_ids: Collection[int] = (),
) -> list[list[int]]:
    """The returned tokens of every prompt, decoded as one batch: the whole canvas, or its first `max_gen_toks`.

    A row ends with its first token of `stop_ids`. Equal prompts are repetitions and draw different random numbers.
    Raises OptionError for a canvas that does not fit, and for fillers, which need a tokenizer.
    """
    if options.n_fillers:
        raise OptionError(f"n_fillers={options.n_fillers} is not allowed without a tokenizer; allowed is 0")
    attention = attention_in_effect(denoiser.attention, options)
    repetitions: Counter[tuple[int, ...]] = Counter()
    canvases = []
    for prompt in prompts:
        key = f"{options.seed} {repetitions[tuple(prompt)]} {prompt}"
        repetitions[tuple(prompt)] += 1
        canvas, _ = build_canvas(
            prompt,
            options,
            mask_token_id=denoiser.mask_token_id,
            max_length=denoiser.max_length,
            request_gen_toks=max_gen_toks,
            seed=int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1,
            attention=attention,
        )
        canvases.append(canvas)
    completions = decode_canvases(denoiser, canvases, options, eos_ids=stop_ids)
    return [completion.token_ids for completion in completions]
