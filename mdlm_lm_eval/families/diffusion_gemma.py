"""DiffusionGemma (`model_type` diffusion_gemma): generation is transformers' own.

It denoises canvases of random tokens, without a mask token, and uses the random numbers of the process. So requests
are answered one by one, each with its own seed, and only options with an equivalent in transformers are supported.
Slots and choices are answered by one denoising step, as in vLLM's structured reads.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor

from mdlm_lm_eval.families import Family, register_family
from mdlm_lm_eval.model.compiled import CACHE
from mdlm_lm_eval.options import DecodingOptions

# noise_num only affects reads. Generation ignores it, so that one set of model arguments serves both.
IN_ANY_REQUEST = frozenset({"likelihood", "infill", "max_gen_toks", "early_exit", "seed", "noise_num"})


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
    """Returns the first `n_tokens` of the completion, the number of denoising passes, and of the tokens they wrote.

    `steps_per_block` limits the denoising steps of a canvas, and `entropy_bound` is that of transformers' sampler. The
    checkpoint's generation config has the values of options that are not set.
    """
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

    settings: dict[str, Any] = {}
    if options.steps_per_block is not None:
        settings["max_denoising_steps"] = options.steps_per_block
    if options.entropy_bound is not None:
        settings["sampler_config"] = EntropyBoundSamplerConfig(entropy_bound=float(options.entropy_bound))
    passes: list[None] = []  # one entry a pass
    input_ids = torch.tensor([prompt_ids], device=model.device)
    counter = model.model.decoder.register_forward_pre_hook(lambda *_: passes.append(None))
    with counter, torch.random.fork_rng():
        torch.manual_seed(seed)
        generated = model.generate(
            input_ids, max_new_tokens=n_tokens, eos_token_id=end_ids or None, pad_token_id=pad_token_id, **settings
        )
    n_written = round(float(generated.tokens_per_forward) * len(passes))  # also EOS and tokens after n_tokens
    return generated.sequences[0, len(prompt_ids) :][:n_tokens].tolist(), len(passes), n_written


def read(model: Any, prompt_ids: list[int], batches: Iterable[Tensor], positions: Tensor) -> Iterator[Tensor]:
    """Logits [K, N, V] float32 at `positions` [N] of each batch of canvases [K, T], after one denoising step.

    The encoder reads the prompt once. As in the first step of a canvas, there is no self-conditioning.
    """

    def keep_positions(_module: Any, hidden: tuple[Tensor]) -> tuple[Tensor]:
        return (hidden[0][:, positions.to(hidden[0].device)],)

    with torch.no_grad():
        prompt = model.model.encoder(input_ids=torch.tensor([prompt_ids], device=model.device)).past_key_values
        for canvases in batches:
            cache = copy.deepcopy(prompt)
            cache.batch_repeat_interleave(len(canvases))
            with model.lm_head.register_forward_pre_hook(keep_positions):
                yield model(**{CACHE: cache}, decoder_input_ids=canvases.to(model.device)).logits


register_family(
    Family(
        name="diffusion_gemma",
        model_types=("diffusion_gemma",),
        # There is no auto class for text alone. transformers imports this one when it is asked for.
        model_class=lambda _config: transformers.DiffusionGemmaForBlockDiffusion,
        draws=True,
        generate=generate,
        read=read,
        decoding_defaults={"likelihood": "read"},
        supports=IN_ANY_REQUEST | {"steps_per_block", "entropy_bound"},
        supports_in_slots=IN_ANY_REQUEST | {"n_masks", "filler", "n_fillers"},
        instead="transformers' own loop generates, by mdlm_lm_eval.MDLM alone; its options are steps_per_block and "
        "entropy_bound; slots are read in one step, with noise_num, n_masks and n_fillers",
    )
)
