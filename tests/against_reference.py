"""The engine beside the reference loop: the canvas after every pass, and the number of passes."""

import random
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.checks import check_decoding
from mdlm_lm_eval.decoding.decode import decode_canvases
from mdlm_lm_eval.decoding.reference import decode_one
from mdlm_lm_eval.decoding.trace import as_recorded
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import SCHEDULES, DecodingOptions, OptionError
from mdlm_lm_eval.registry import UNMASKING
from tests.canvases import EOS, FROM_PROMPT, FROM_START, VOCABULARY, model, neighbours
from tests.logged_traces import canvases_of

WHOLE_PROMPT = AttentionPattern(4, "prompt_end", whole_prompt=True)
LIKE_NEMOTRON = AttentionPattern(4, "prompt_end", whole_prompt=True, causal_context=True)
PATTERNS: list[tuple[AttentionPattern, dict[str, Any]]] = [
    (FULL_ATTENTION, {}),
    (FULL_ATTENTION, {"shift": True}),
    *[
        (attention, {"shift": shift})
        for attention in (FROM_START, FROM_PROMPT, WHOLE_PROMPT)
        for shift in (False, True)
    ],
    (LIKE_NEMOTRON, {}),
]
FREQUENCIES = torch.rand(VOCABULARY, generator=torch.Generator().manual_seed(1))


class Compared(NamedTuple):
    """Rows and passes that were compared, and the numbers of the rows that differ."""

    n_rows: int
    n_passes: int
    differing: list[int]


def compared(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any], *, n: int, most: int = 17
) -> Compared:
    """`n` rows of up to `most` masks or one more, in three lanes, with these options and a model of these facts."""
    denoiser = model(attention, **facts)
    cache = {} if "block_length" in changes and not attention.is_block_causal else {"cache": "none"}
    options = DecodingOptions().override({**changes, **cache, "early_exit": False, "trace": True})
    frequencies = FREQUENCIES if options.unmasking == "position_calibrated" else None
    rows = neighbours(denoiser, options, n, most=most)
    found = decode_canvases(
        denoiser,
        rows,
        options,
        eos_ids=[EOS],
        token_frequencies=frequencies,
        batch_size=3,
    )
    differing, n_passes = [], 0
    for number, (row, one) in enumerate(zip(rows, found, strict=True)):
        banned = [EOS] if options.suppress_eos else []
        passes = decode_one(denoiser, row, options, banned_ids=banned, end_ids={EOS}, token_frequencies=frequencies)
        first = row.slots[0]
        _, logged = canvases_of(as_recorded(row.token_ids, first, one.events))  # what a result keeps
        canvases = [[*row.token_ids[:first], *canvas] for canvas in logged]
        n_passes += len(passes)
        if canvases != _without_repeats(row, passes) or len(passes) != one.cost.forward_passes:
            differing.append(number)
    return Compared(len(rows), n_passes, differing)


def _without_repeats(canvas: Canvas, canvases: list[list[int]]) -> list[list[int]]:
    """Only those that differ from the one before."""
    before = [list(canvas.token_ids), *canvases]
    return [now for then, now in pairwise(before) if now != then]


def random_setting(draw: random.Random) -> tuple[AttentionPattern, dict[str, Any], dict[str, Any]]:
    """A pattern, other facts of a model, and options that it can be decoded with, of any sampler."""
    while True:
        attention, facts = draw.choice(PATTERNS)
        changes = {
            **_of_a_sampler(draw),
            "unmasking": draw.choice([*UNMASKING.names()]),
            "schedule": draw.choice(SCHEDULES),
            "temperature": draw.choice([0.0, 0.0, 0.7]),
            "cfg_scale": draw.choice([0.0, 0.0, 0.5]),
            "block_length": draw.choice([2, 3, 4, 5, 8]),
            **draw.choice([{}, {"suppress_eos": True}, {"eos_last": True}, {"top_k": 9, "temperature": 0.7}]),
        }
        facts = {**facts, **({"edits": True} if "editing_threshold" in changes else {})}
        options = DecodingOptions().override(changes)
        try:
            check_decoding(options, attention, edits=bool(facts.get("edits")))
        except OptionError:
            continue
        needs = options.way.needs(options)
        # The engine refuses these, and no family has a causal context and edits.
        is_refused = facts.get("shift") and (needs.hindsight or needs.proposals_for_filled)
        if not is_refused and not (attention.causal_context and facts.get("edits")):
            return attention, facts, changes


def _of_a_sampler(draw: random.Random) -> dict[str, Any]:
    """Options of one sampler, drawn, and a pace."""
    threshold = round(draw.uniform(0.05, 0.6), 2)
    paces: list[dict[str, Any]] = [
        {},
        {"steps_per_block": draw.randint(1, 4)},
        {"steps": draw.randint(1, 9)},
        {"confidence_threshold": threshold},
        {"parallel_factor": round(draw.uniform(0.2, 2.0), 2)},
        {"entropy_bound": round(draw.uniform(0.1, 3.0), 2)},
    ]
    sure = {"confidence_threshold": threshold}
    samplers: list[dict[str, Any]] = [
        draw.choice(paces),
        draw.choice(paces),
        {"sampler": "remdm", "remask_tokens": draw.randint(1, 3)},
        {"sampler": "rcr", **draw.choice(paces[:3])},
        {"sampler": "wino", **sure, "remask_threshold": round(draw.uniform(0.2, 0.95), 2)},
        {
            **sure,
            "kl_threshold": round(draw.uniform(0.05, 2.0), 2),
            "kl_history": draw.randint(1, 3),
            "unmask_strategy": draw.choice(["all", "max_conf"]),
        },
        {**sure, "editing_threshold": threshold, "max_post_steps": draw.randint(0, 4)},
        {
            **sure,
            "sampler": "multi_block",
            "block_add_threshold": round(draw.uniform(0.0, 1.0), 2),
            "active_threshold": draw.choice([None, 0.3, 0.8]),
            "surest_anywhere": draw.random() < 0.3,
            "block_causal": draw.random() < 0.3,
        },
        {"sigma": round(draw.uniform(0.5, 5.0), 1), **draw.choice(paces)},
    ]
    return draw.choice(samplers)
