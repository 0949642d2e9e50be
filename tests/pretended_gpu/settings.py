"""Ways of decoding and of scoring that differ in what a device is asked to do, on tiny random models."""

import re
import zlib
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.compiled import CACHE
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from tests.conftest import data, random_llama
from tests.pretended_gpu.device import GPU, PretendedGpu

VOCABULARY, MASK, PAD, EOS, END_OF_THINKING = 50, 49, 48, 47, 9
BLOCKS = AttentionPattern(4)
PATTERNS = {
    "full": FULL_ATTENTION,
    "blocks": BLOCKS,
    "from prompt": AttentionPattern(4, "prompt_end"),
    "whole prompt": AttentionPattern(4, "prompt_end", whole_prompt=True),
    "causal": AttentionPattern(4, "prompt_end", whole_prompt=True, causal_context=True),  # Nemotron-Labs-Diffusion
    "whole blocks": AttentionPattern(4, whole_blocks=True),
}


@dataclass(frozen=True)
class Setting:
    """Options, and what the model is: `facts` are arguments of the denoiser, and `config` of the model's config.

    returned: tokens that a request asks for. kernels: the most that a pass may launch outside the model, if it is
    looked at.
    """

    options: dict[str, Any] = field(default_factory=dict)
    attention: AttentionPattern = FULL_ATTENTION
    facts: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    returned: int | None = None
    kernels: int | None = None


DECODING, LIKELIHOOD = (
    {
        name: Setting(**{**fields, "attention": PATTERNS[fields.get("attention", "full")]})
        for name, fields in data("gpu_settings.json")[kind].items()
    }
    for kind in ("decoding", "likelihood")
)


def model_of(setting: Setting) -> Any:
    """Two layers, float32, seeded; logits spread enough that decoding depends on the context."""
    sizes = {"num_key_value_heads": 2, "max_position_embeddings": 512}
    return random_llama(VOCABULARY, eos_token_id=EOS, **sizes, **setting.config)


def over_two(gpu: PretendedGpu, model: Any) -> Any:
    """The model with its second layer and its head on the second GPU, as `device_map="auto"` leaves it."""

    def device_of(path: str) -> torch.device:
        return torch.device("cuda", 1) if re.match(r"model\.layers\.1|model\.norm|lm_head", path) else GPU

    gpu.move(model, device_of=device_of)
    parts = ["model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]
    for path in parts:
        hook = AlignDevicesHook(execution_device=device_of(path), skip_keys=CACHE)
        add_hook_to_module(model.get_submodule(path), hook)
    outermost = AlignDevicesHook(execution_device=GPU, io_same_device=True, skip_keys=CACHE)
    add_hook_to_module(model, outermost)
    return model


def denoiser_of(model: Any, setting: Setting, *, cuda_graphs: bool = False) -> Denoiser:
    """The model as the setting says."""
    return Denoiser(
        model,
        mask_token_id=MASK,
        pad_token_id=PAD,
        attention=setting.attention,
        cuda_graphs=cuda_graphs,
        **setting.facts,
    )


def prompts(n: int) -> list[list[int]]:
    """Of up to 60 tokens, in no order."""
    draw = Random(0)
    return [draw.choices(range(40), k=draw.randint(1, 60)) for _ in range(n)]


def is_decided(ids: list[int]) -> bool:
    """Ends some answers early, wherever it is asked: only their first tokens are compared."""
    return len(answer(ids)) < len(ids)


def answer(ids: list[int]) -> list[int]:
    """The tokens up to the first prefix that ends an answer, without the one that follows it."""
    ends = (n for n in range(3, len(ids)) if zlib.crc32(bytes(ids[:n])) % 5 == 0)
    return ids[: next(ends, len(ids))]


def decoded(denoiser: Denoiser, setting: Setting, batch_size: int, *, n_rows: int = 11, n_masks: int = 8) -> list[Any]:
    """Answers, and traces where there are any, of all prompts in slots that are refilled."""
    options = DecodingOptions(**{"n_masks": n_masks, **setting.options})
    way = way_of(options, denoiser.attention)
    canvases = [
        build_canvas(
            prompt,
            way,
            mask_token_id=MASK,
            max_length=512,
            request_gen_toks=setting.returned,
            filler_ids=[7] * options.n_fillers,
            seed=seed,
        )[0]
        for seed, prompt in enumerate(prompts(n_rows))
    ]
    frequencies = torch.rand(VOCABULARY, generator=torch.Generator().manual_seed(1))
    completions = decode_canvases(
        denoiser,
        canvases,
        options,
        # A trace goes on until its row ends, on a GPU a pass later.
        eos_ids=[] if options.trace else [EOS],
        end_think_ids=[END_OF_THINKING],
        token_frequencies=frequencies if options.unmasking == "position_calibrated" else None,
        is_decided=None if options.trace else is_decided,
        batch_size=batch_size,
    )
    return [(answer(completion.token_ids), rounded(completion.events)) for completion in completions]


def rounded(nest: Any) -> Any:
    """Its numbers to three places."""
    if isinstance(nest, (list, tuple)):
        return [rounded(each) for each in nest]
    return round(nest, 3) if isinstance(nest, float) else nest


def scored(
    denoiser: Denoiser, setting: Setting, batch_size: int, *, n_contexts: int = 5, mc_num: int = 8
) -> list[tuple[float, bool]]:
    """Log-likelihoods and greedy flags of continuations of one to seven tokens, three for each context."""
    draw = Random(3)
    requests = [
        LikelihoodRequest(context, draw.choices(range(40), k=draw.randint(1, 7)), seed)
        for seed, context in enumerate(prompts(n_contexts))
        for _ in range(3)
    ]
    options = LikelihoodOptions(**{"mc_num": mc_num, **setting.options})
    found = score(denoiser, requests, options, batch_size=batch_size, max_length=300)
    return [(one[0], one[1]) for one in found]
