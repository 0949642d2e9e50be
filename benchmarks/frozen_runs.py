"""Compares the engine with all frozen runs (tests/support/frozen_runs.py), or freezes runs of today's.

    OMP_NUM_THREADS=1 python -m benchmarks.frozen_runs
    OMP_NUM_THREADS=1 python -m benchmarks.frozen_runs --write --settings 2000

Frozen are the ways of decoding of tests/support/canvases.py and others, with and without `early_exit` and `trace`, and
drawn settings: a pattern, a sampler with its options, an order, a schedule, a pace, a cache, and what ends a row.
Freeze anew only after a change that is meant to change decoding. Ends with 1 where a run differs.
"""

import argparse
import json
import lzma
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mdlm_lm_eval.decoding.way import check_decoding, way_of
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import SCHEDULES, DecodingOptions, OptionError
from mdlm_lm_eval.registry import UNMASKING
from tests.support.canvases import APPROXIMATE, FROM_PROMPT, FROM_START, IN_BLOCKS, WAYS, Way
from tests.support.frozen_runs import PATH, Record, Run, difference, frozen, recorded

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
OTHERS: list[Way] = [
    (FULL_ATTENTION, {}, {"sampler": "remdm", "block_length": 4}),
    (FULL_ATTENTION, {}, {"sampler": "remdm", "block_length": 2, "remask_tokens": 2, "unmasking": "margin"}),
    (FULL_ATTENTION, {}, {"sampler": "rcr", "steps": 4, "block_length": 8}),
    (FULL_ATTENTION, {}, {"sigma": 2.0, "block_length": 8}),
    (FULL_ATTENTION, {}, {"sampler": "wino", "confidence_threshold": 0.2, "remask_threshold": 0.5, "block_length": 8}),
    (FULL_ATTENTION, {}, {"sampler": "wino", "confidence_threshold": 0.4, "block_length": 3, "temperature": 0.7}),
    (FULL_ATTENTION, {}, {"kl_threshold": 0.5, "confidence_threshold": 0.3, "block_length": 4}),
    (FULL_ATTENTION, {}, {"sampler": "multi_block", "confidence_threshold": 0.3, "block_length": 4}),
    (
        FULL_ATTENTION,
        {},
        {"sampler": "multi_block", "confidence_threshold": 0.3, "block_length": 4, "block_causal": True},
    ),
    (LIKE_NEMOTRON, {}, {}),
    (LIKE_NEMOTRON, {}, {"confidence_threshold": 0.3}),
    (LIKE_NEMOTRON, {}, {"cache": "none", "temperature": 0.7}),
    (FULL_ATTENTION, {}, {"end_think_boost": 3.0}),
    (FROM_START, {}, {"end_think_boost": 3.0, "max_thinking_tokens": 6}),
    (LIKE_NEMOTRON, {}, {"max_thinking_tokens": 5}),
    (FULL_ATTENTION, {}, {"max_thinking_tokens": 5, "block_length": 4, "cache": "dual"}),
    (FROM_START, {"shift": True}, {"small_block_length": 2, "temperature": 0.7}),
    (FULL_ATTENTION, {}, {"append_blocks": True, "block_length": 4}),
    (FROM_START, {}, {"batch_invariant": True}),
    (FULL_ATTENTION, {}, {"batch_invariant": True, "block_length": 4, "cache": "dual"}),
]


def named_runs() -> Iterator[Run]:
    """The ways of decoding, in four variants each."""
    for number, (attention, facts, changes) in enumerate([*WAYS, *IN_BLOCKS, *APPROXIMATE, *OTHERS]):
        for early_exit in (True, False):
            for trace in (False, True):
                options = {**changes, "early_exit": early_exit, "trace": trace}
                facts_of = asdict(attention), facts
                yield Run(options, *facts_of, rows=5, most=12, lanes=3, stops=bool(number % 2), labels=trace)


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
        options = DecodingOptions(**changes)
        try:
            way = way_of(options, attention)
            check_decoding(way, edits=bool(facts.get("edits")))
        except OptionError:
            continue
        needs = way.needs
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


def drawn_run(draw: random.Random) -> Run:
    """A drawn run, whose options may not work with its model."""
    attention, facts, changes = random_setting(draw)
    caches = ["auto", "auto", "none"] if attention.is_block_causal else ["auto", "prefix", "dual"]
    ends: list[dict[str, Any]] = [{}, {}, {}, {"max_thinking_tokens": draw.randint(0, 9)}, {"end_think_boost": 3.0}]
    others: list[dict[str, Any]] = [{}, {}, {}, {}, {"n_masks": 12}, {"append_blocks": True}, {"batch_invariant": True}]
    if attention.causal_context:
        others += [{"causal_context": False}, {"mode": "ar"}]
    if attention.is_block_causal:
        others += [{"block_length": 8, "small_block_length": 2}]
    options = {
        **changes,
        "cache": draw.choice(caches),
        "early_exit": draw.random() < 0.7,
        "trace": draw.random() < 0.8,
        **draw.choice(ends),
        **draw.choice(others),
    }
    if options.get("mode") == "ar":
        options = {name: options[name] for name in ("mode", "temperature", "cache", "early_exit", "trace")}
    return Run(
        options,
        asdict(attention),
        facts,
        rows=draw.randint(1, 5),
        most=draw.randint(2, 9),
        lanes=draw.choice([1, 2, 3, 3, 8]),
        stops=draw.random() < 0.5,
        labels=draw.random() < 0.3,
    )


def freeze(n_drawn: int) -> Iterator[tuple[Run, Record]]:
    """Runs the named runs, and so many drawn ones that work."""
    for run in named_runs():
        yield run, recorded(run)
    number = 0
    while n_drawn:
        run = drawn_run(random.Random(f"frozen {number}"))
        number += 1
        try:
            check_decoding(way_of(DecodingOptions(**run.options), AttentionPattern(**run.attention)), edits=True)
            record = recorded(run)
        except OptionError:
            continue
        n_drawn -= 1
        yield run, record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="freeze runs of today's engine")
    parser.add_argument("--settings", type=int, default=2000, help="drawn settings that are frozen")
    arguments = parser.parse_args()
    if arguments.write:
        text = json.dumps(list(freeze(arguments.settings)), separators=(",", ":"))
        PATH.write_bytes(lzma.compress(text.encode()))
        return
    parts: Counter[str] = Counter()
    runs = frozen()
    n_same = 0
    for run, record in runs:
        names = difference(record, recorded(run))
        parts.update(names)
        n_same += not names
        if names:
            print(run, names, flush=True)
    print(f"{n_same} of {len(runs)} runs are as they were; the others differ in: {dict(parts)}")
    sys.exit(n_same < len(runs))


if __name__ == "__main__":
    main()
