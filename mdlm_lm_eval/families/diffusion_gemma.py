"""DiffusionGemma (`model_type` diffusion_gemma): generation is transformers' own.

It denoises whole canvases of random tokens, has no mask token, and draws from the random numbers of the process. So
requests are answered one by one, each from a seed of its own, and only options that it has a counterpart for are taken.
Slots and choices are read off one denoising step, as in vLLM's structured reads.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from mdlm_lm_eval.families import Family, register_family
from mdlm_lm_eval.model.compiled import CACHE
from mdlm_lm_eval.options import DecodingOptions

# noise_num is of reads: generation beside them, with the same arguments, draws no such noise.
IN_ANY_REQUEST = frozenset({"likelihood", "infill", "max_gen_toks", "early_exit", "seed", "noise_num"})


def model_class(_config: PretrainedConfig) -> Any:
    """transformers' class; it has no auto class for text alone."""
    from transformers import DiffusionGemmaForBlockDiffusion

    return DiffusionGemmaForBlockDiffusion


def generate(
    model: Any,
    prompt_ids: list[int],
    options: DecodingOptions,
    *,
    n_tokens: int,
    end_ids: list[int],
    pad_token_id: int,
    seed: int,
) -> tuple[list[int], int, int]:
    """The first `n_tokens` of the completion, how many denoising passes it took, and how many tokens these wrote.

    `steps_per_block` is the most denoising steps of a canvas, `entropy_bound` its sampler's; the checkpoint's
    generation config says what is not set.
    """
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

    settings: dict[str, Any] = {}
    if options.steps_per_block is not None:
        settings["max_denoising_steps"] = options.steps_per_block
    if options.entropy_bound is not None:
        settings["sampler_config"] = EntropyBoundSamplerConfig(entropy_bound=float(options.entropy_bound))
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    input_ids = torch.tensor([prompt_ids], device=model.device)
    counter = model.model.decoder.register_forward_pre_hook(count)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            generated = model.generate(
                input_ids, max_new_tokens=n_tokens, eos_token_id=end_ids or None, pad_token_id=pad_token_id, **settings
            )
    finally:
        counter.remove()
    n_written = round(float(generated.tokens_per_forward) * passes)  # EOS and what follows n_tokens, too
    return generated.sequences[0, len(prompt_ids) :][:n_tokens].tolist(), passes, n_written


def read(model: Any, prompt_ids: list[int], batches: Iterable[Tensor], positions: Tensor) -> Iterator[Tensor]:
    """Logits [K, N, V] float32 at `positions` [N] of each batch of canvases [K, T], after one denoising step.

    The encoder reads the prompt once. As in a canvas's first step, nothing conditions the decoder on itself.
    """

    def keep_positions(_module: Any, hidden: tuple[Tensor]) -> tuple[Tensor]:
        return (hidden[0][:, positions.to(hidden[0].device)],)

    with torch.no_grad():
        prompt = model.model.encoder(input_ids=torch.tensor([prompt_ids], device=model.device)).past_key_values
        for canvases in batches:
            cache = copy.deepcopy(prompt)
            cache.batch_repeat_interleave(len(canvases))
            hook = model.lm_head.register_forward_pre_hook(keep_positions)
            try:
                yield model(**{CACHE: cache}, decoder_input_ids=canvases.to(model.device)).logits
            finally:
                hook.remove()


register_family(
    Family(
        name="diffusion_gemma",
        model_types=("diffusion_gemma",),
        model_class=model_class,
        generate=generate,
        read=read,
        decoding_defaults={"likelihood": "read"},
        supports=IN_ANY_REQUEST | {"steps_per_block", "entropy_bound"},
        supports_in_slots=IN_ANY_REQUEST | {"n_masks", "filler", "n_fillers"},
        instead="transformers' own loop generates, by mdlm_lm_eval.MDLM alone; its options are steps_per_block and "
        "entropy_bound; slots are read in one step, with noise_num, n_masks and n_fillers",
    )
)
