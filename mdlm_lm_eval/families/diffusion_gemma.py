"""DiffusionGemma (`model_type` diffusion_gemma): generation is transformers' own.

It denoises whole canvases of random tokens, has no mask token, and draws from the random numbers of the process. So
requests are answered one by one, each from a seed of its own, and only options that it has a counterpart for are taken.
"""

from typing import Any

import torch
from transformers import PretrainedConfig

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.registry import register_family
from mdlm_lm_eval.options import DecodingOptions


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
                input_ids,
                max_new_tokens=n_tokens,
                eos_token_id=end_ids or None,
                pad_token_id=pad_token_id,
                **settings,
            )
    finally:
        counter.remove()
    n_written = round(float(generated.tokens_per_forward) * passes)  # EOS and what is behind n_tokens too
    return generated.sequences[0, len(prompt_ids) :][:n_tokens].tolist(), passes, n_written


register_family(
    Family(
        name="diffusion_gemma",
        model_types=("diffusion_gemma",),
        model_class=model_class,
        generate=generate,
        supports=frozenset({"steps_per_block", "entropy_bound", "max_gen_toks", "early_exit", "seed"}),
        instead="transformers' own loop generates, by mdlm_lm_eval.MDLM and in generation tasks without slots alone; "
        "its options are steps_per_block and entropy_bound",
    )
)
