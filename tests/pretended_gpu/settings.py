"""Ways of decoding and of scoring that differ in what a device is asked to do, on tiny random models."""

import zlib
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.decode import decode_canvases
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions

VOCABULARY, MASK, PAD, EOS, END_OF_THINKING = 50, 49, 48, 47, 9
BLOCKS, FROM_PROMPT = AttentionPattern(4), AttentionPattern(4, "prompt_end")
WHOLE_PROMPT = AttentionPattern(4, "prompt_end", whole_prompt=True)
CAUSAL = AttentionPattern(4, "prompt_end", whole_prompt=True, causal_context=True)  # Nemotron-Labs-Diffusion


@dataclass(frozen=True)
class Setting:
    """Options, and what the model is: `facts` are arguments of the denoiser, and `config` of the model's config.

    returned: tokens that a request asks for.
    """

    options: dict[str, Any] = field(default_factory=dict)
    attention: AttentionPattern = FULL_ATTENTION
    facts: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    returned: int | None = None


SHIFT = {"shift": True}
EDITS = {"edits": True}
SURE = {"confidence_threshold": 0.3}
IN_BLOCKS = {"block_length": 4}
EDITING = {"confidence_threshold": 0.3, "editing_threshold": 0.3}

DECODING: dict[str, Setting] = {
    "whole": Setting(),
    "whole, shifted": Setting(facts=SHIFT),
    "one step": Setting({"steps": 1}),
    "one step, one token of twenty": Setting({"steps": 1, "n_masks": 20}, returned=1),
    "temperature": Setting({"temperature": 1.0}),
    "top_p, guided": Setting({"temperature": 1.0, "top_p": 0.9, "cfg_scale": 1.0}),
    "top_k": Setting({"temperature": 0.7, "top_k": 5}),
    "suppress_eos": Setting({"suppress_eos": True}),
    "eos_last": Setting({"eos_last": True, **IN_BLOCKS}),
    "threshold": Setting({**SURE, **IN_BLOCKS}),
    "factor": Setting({"parallel_factor": 1.0, **IN_BLOCKS}),
    "entropy bound": Setting({"entropy_bound": 1.0, "unmasking": "entropy", **IN_BLOCKS}),
    "dream": Setting({"schedule": "dream", "steps": 4}, facts=SHIFT),
    "random": Setting({"unmasking": "random"}),
    "margin": Setting({"unmasking": "margin"}),
    "left to right": Setting({"unmasking": "left_to_right"}),
    "position_calibrated": Setting({"unmasking": "position_calibrated"}),
    "trace": Setting({"trace": True, **IN_BLOCKS}),
    "append_blocks": Setting({"append_blocks": True, **IN_BLOCKS}),
    "fillers": Setting({"n_fillers": 2}),
    "remdm": Setting({"sampler": "remdm", "block_length": 8}),
    "rcr": Setting({"sampler": "rcr", "steps": 4, "block_length": 8}),
    "wino": Setting({"sampler": "wino", "confidence_threshold": 0.2, "remask_threshold": 0.5, "block_length": 8}),
    "klass": Setting({"kl_threshold": 0.5, "confidence_threshold": 0.2, "block_length": 8}),
    "klass, max_conf": Setting(
        {"kl_threshold": 0.5, "confidence_threshold": 0.2, "unmask_strategy": "max_conf", "temperature": 0.5}
    ),
    "certainty prior": Setting({"sigma": 2.0, **IN_BLOCKS, **SURE}),
    "certainty prior, factor": Setting({"sigma": 2.0, "parallel_factor": 1.0, "stop_at_eos": True}),
    "several blocks": Setting(
        {"sampler": "multi_block", "entropy_threshold": 1.5, "stop_at_eos": True, "trace": True, **IN_BLOCKS}
    ),
    "several blocks, shifted": Setting(
        {"sampler": "multi_block", **SURE, "surest_anywhere": True, **IN_BLOCKS}, facts=SHIFT
    ),
    "several blocks, remembered": Setting({"sampler": "multi_block", **SURE, "block_causal": True, **IN_BLOCKS}),
    "several blocks, remembered, shifted": Setting(
        {"sampler": "multi_block", **SURE, "block_causal": True, "active_threshold": 0.5, **IN_BLOCKS}, facts=SHIFT
    ),
    "several blocks, no cache": Setting(
        {"sampler": "multi_block", **SURE, "block_causal": True, "cache": "none", **IN_BLOCKS}, facts=SHIFT
    ),
    "end_think_boost": Setting({"end_think_boost": 2.0, **IN_BLOCKS}),
    "thinking budget": Setting({"max_thinking_tokens": 5, **IN_BLOCKS}),
    # The end of thinking fills a mask that no schedule counts.
    "thinking budget, short last steps": Setting(
        {"block_length": 3, "n_masks": 33, "steps": 22, "max_thinking_tokens": 10}
    ),
    "prefix": Setting({"cache": "prefix", **IN_BLOCKS}),
    "prefix, threshold": Setting({"cache": "prefix", **IN_BLOCKS, **SURE}),
    "prefix, shifted": Setting({"cache": "prefix", **IN_BLOCKS}, facts=SHIFT),
    "prefix, guided": Setting({"cache": "prefix", **IN_BLOCKS, "cfg_scale": 0.5}, facts=SHIFT),
    "dual": Setting({"cache": "dual", **IN_BLOCKS}),
    "dual, shifted": Setting({"cache": "dual", **IN_BLOCKS}, facts=SHIFT),
    "dual, threshold": Setting({"cache": "dual", **IN_BLOCKS, **SURE}),
    "dual, factor": Setting({"cache": "dual", **IN_BLOCKS, "parallel_factor": 1.0}),
    "dual, entropy bound": Setting({"cache": "dual", **IN_BLOCKS, "entropy_bound": 1.0}),
    "dual, shifted, threshold": Setting({"cache": "dual", **IN_BLOCKS, **SURE}, facts=SHIFT),
    "dual, temperature": Setting({"cache": "dual", **IN_BLOCKS, "temperature": 1.0}),
    "blocks": Setting(attention=BLOCKS),
    "blocks, threshold": Setting(SURE, BLOCKS),
    "blocks, no cache": Setting({"cache": "none"}, BLOCKS),
    "blocks, two steps": Setting({"steps_per_block": 2}, BLOCKS),
    "blocks, edits": Setting(EDITING, BLOCKS, EDITS),
    "blocks, edits, temperature": Setting({**EDITING, "temperature": 0.5}, BLOCKS, EDITS),
    "blocks, edits, no cache": Setting({**EDITING, "cache": "none"}, BLOCKS, EDITS),
    "blocks, shifted, small blocks": Setting({**SURE, "small_block_length": 2}, BLOCKS, SHIFT),
    "blocks, shifted, no cache": Setting({"cache": "none"}, BLOCKS, SHIFT),
    "blocks, shifted": Setting({}, BLOCKS, SHIFT),
    "blocks, guided": Setting({"cfg_scale": 1.0}, BLOCKS),
    "blocks, temperature": Setting({"temperature": 1.0, "top_k": 9}, BLOCKS),
    "blocks, trace": Setting({"trace": True}, BLOCKS),
    "from the prompt": Setting({}, FROM_PROMPT),
    "from the prompt, shifted": Setting({}, FROM_PROMPT, SHIFT),
    "from the prompt, guided, random": Setting({"cfg_scale": 1.0, "unmasking": "random"}, FROM_PROMPT),
    "from the prompt, shifted, guided": Setting({"cfg_scale": 1.0}, FROM_PROMPT, SHIFT),
    "from the prompt, shifted, threshold": Setting(SURE, FROM_PROMPT, SHIFT),
    "whole prompt": Setting({}, WHOLE_PROMPT),
    "whole prompt, threshold": Setting(SURE, WHOLE_PROMPT),
    "causal context": Setting({}, CAUSAL),
    "causal context, threshold": Setting(SURE, CAUSAL),
    "causal context, no cache": Setting({"cache": "none"}, CAUSAL),
    "causal context, left to right": Setting({"mode": "ar"}, CAUSAL),
    "causal context, budget": Setting({"max_thinking_tokens": 5}, CAUSAL),
    "causal context, not causal": Setting({"causal_context": False}, CAUSAL),
    "speculation": Setting({"mode": "linear_spec"}, CAUSAL),
    "insertion": Setting(
        {"steps_per_block": 2, "max_post_steps": 2, "confidence_threshold": 0.5, "editing_threshold": 0.0},
        AttentionPattern(4, whole_blocks=True), EDITS, {"delete_token_id": 45, "split_token_id": 44},
    ),
}  # fmt: skip

LIKELIHOOD: dict[str, Setting] = {
    "mc": Setting(),
    "mc, shifted": Setting(facts=SHIFT),
    "mc, guided": Setting({"cfg_scale": 0.5}),
    "mc, no greedy flag": Setting({"check_greedy": False}),
    "chain": Setting({"likelihood": "chain"}),
    "duel": Setting({"likelihood": "duel"}),
    "duel, threshold": Setting({"likelihood": "duel", **SURE}),
    "duel, margin": Setting({"likelihood": "duel", "unmasking": "margin"}),
    "confidence": Setting({"likelihood": "confidence"}),
    "more masks": Setting({"n_masks": 9}),
    "eos_after": Setting({"eos_after": True}),
    "blocks, mc": Setting({}, BLOCKS),
    "blocks, no greedy flag": Setting({"check_greedy": False}, BLOCKS),
    "blocks, mc, shifted": Setting({}, BLOCKS, SHIFT),
    "blocks, mc, guided": Setting({"cfg_scale": 0.5}, BLOCKS),
    "blocks, chain": Setting({"likelihood": "chain"}, BLOCKS),
    "blocks, duel": Setting({"likelihood": "duel"}, BLOCKS),
    "from the prompt, chain": Setting({"likelihood": "chain"}, FROM_PROMPT),
    "from the prompt, shifted": Setting({}, FROM_PROMPT, SHIFT),
    "causal": Setting({"mode": "ar"}, CAUSAL),
}


def model_of(setting: Setting) -> LlamaForCausalLM:
    """Two layers, float32, seeded; logits spread enough that decoding depends on the context."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        is_causal=False,
        eos_token_id=EOS,
        **setting.config,
    )
    return LlamaForCausalLM(config).eval()


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
