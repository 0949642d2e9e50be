"""Examples that are read once: time with and without shared prefixes, and with the prefix taken away, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.shared_prefix --csv benchmarks/shared_prefix.csv
    OMP_NUM_THREADS=1 python -m benchmarks.shared_prefix --settings 2000 --json benchmarks/shared_prefix.json

A random Llama (width 512, 6 layers, 8 heads of which 2 for keys and values, vocabulary 8192, float32) with block-causal
attention. Times are CPU seconds of one question, medians of turns that alternate; a hundredth of the prefix's own time
is in them, as if a hundred questions shared it. The ceiling is the same with the shared tokens taken away.

With `--settings`, tiny models decode and score random requests under random options, sharing and not sharing, and the
record counts the strings that differ and the largest difference of log-likelihoods; in bfloat16 it counts strings that
differ beside those that differ between two batch sizes.
"""

import argparse
import csv
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import LlamaForCausalLM

from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases, with_prefixes
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score, with_shared_contexts
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import Prefix, begin_rows, sort_key_of
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.results.text import markdown_table
from tests.conftest import random_llama

MASK, PAD = 0, 1
QUESTIONS = 100  # that share a prefix
HEADER = ("requests", "block", "off, s", "on, s", "ceiling, s", "speed-up", "share of the possible speed-up (%)")


# Time


@cache
def large_model() -> LlamaForCausalLM:
    """The model whose times are measured."""
    return random_llama(
        8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.02,
    )


def denoiser_with(block: int) -> Denoiser:
    """The same weights in blocks of this length."""
    return Denoiser(large_model(), mask_token_id=MASK, pad_token_id=PAD, attention=AttentionPattern(block))


# Answers prompts, in blocks, sharing or not: CPU seconds of the prefix, and of all else.
Run = Callable[[list[list[int]], int, bool], tuple[float, float]]


def timed(prepare: Callable[[], tuple[Sequence[Prefix | None], Callable[[], object]]]) -> tuple[float, float]:
    """CPU seconds of running the first prefix, and of the rest: of grouping the rows and of answering them."""
    begin = time.process_time()
    prefixes, run = prepare()
    ready = time.process_time()
    if (prefix := next(iter(prefixes), None)) is not None:
        begin_rows(CanvasCache(large_model().config.num_hidden_layers, len(prefix), 1), [prefix])
    stored = time.process_time()
    run()
    return stored - ready, time.process_time() - stored + ready - begin


@dataclass(frozen=True)
class Workload:
    """Questions of `own` tokens after `shared` ones: `run(prompts, block, whether to share)` answers them."""

    name: str
    block: int
    shared: int
    own: int
    run: "Run"

    def prompts(self, n: int, seed: int, shared: int) -> list[list[int]]:
        """Questions that begin with the first so many tokens, and differ after these."""
        draw = Random(seed)
        begin = draw.choices(range(2, 8192), k=self.shared)[:shared]
        return [
            begin + draw.choices(range(2, 8192), k=self.shared - len(begin) * (shared > 0) + self.own) for _ in range(n)
        ]


def generates(n_tokens: int) -> Run:
    """Answers of so many tokens, 8 rows at a time."""

    def run(prompts: list[list[int]], block: int, shares: bool) -> tuple[float, float]:
        denoiser, options = denoiser_with(block), DecodingOptions(n_masks=n_tokens)
        where: dict[str, Any] = {"mask_token_id": MASK, "max_length": 4096}
        way = way_of(options, denoiser.attention)
        canvases = [build_canvas(prompt, way, **where)[0] for prompt in prompts]

        def prepare() -> tuple[Sequence[Prefix | None], Callable[[], object]]:
            shared = in_order(with_prefixes(denoiser, canvases, way)[0]) if shares else canvases
            answer = lambda: decode_canvases(denoiser, shared, options, batch_size=8)  # noqa: E731
            return [canvas.prefix for canvas in shared], answer

        return timed(prepare)

    return run


def scores(n_tokens: int, **changes: Any) -> Run:
    """Four choices of so many tokens for each question, 16 rows at a time."""

    def run(prompts: list[list[int]], block: int, shares: bool) -> tuple[float, float]:
        denoiser, options = denoiser_with(block), LikelihoodOptions(mc_num=16, **changes)
        draw = Random(0)
        requests = [
            LikelihoodRequest(prompt, draw.choices(range(2, 8192), k=n_tokens), 4 * n + k)
            for n, prompt in enumerate(prompts)
            for k in range(4)
        ]

        def prepare() -> tuple[Sequence[Prefix | None], Callable[[], object]]:
            shared = with_shared_contexts(denoiser, requests, options, 4096)[0] if shares else requests
            answer = lambda: score(denoiser, shared, options, batch_size=16, max_length=4096)  # noqa: E731
            return [request.prefix for request in shared], answer

        return timed(prepare)

    return run


def workloads() -> list[Workload]:
    """Those of the table."""
    found = [
        Workload("few-shot suite, one token", 4, 1200, 40, generates(1)),
        Workload("few-shot suite, one token", 32, 1200, 40, generates(1)),
        Workload("64 tokens", 4, 1200, 40, generates(64)),
        Workload("64 tokens", 32, 1200, 40, generates(64)),
        Workload("4 choices of one token", 4, 500, 60, scores(1)),
    ]
    for n_tokens in (4, 12):
        for name in ("mc", "duel"):
            found += [
                Workload(f"4 choices of {n_tokens} tokens, {name}", block, 500, 60, scores(n_tokens, likelihood=name))
                for block in (4, 32)
            ]
    return found


def measure(work: Workload, n_questions: int, n_without: int, turns: int) -> tuple[float, float, float]:
    """CPU seconds of a question without sharing, with it, and without the shared tokens."""
    ours = work.prompts(n_questions, 0, work.shared)
    bare = replace(work, shared=0).prompts(n_questions, 0, 0)
    found: list[tuple[float, float, float]] = []
    for _ in range(turns):
        _, off = work.run(ours[:n_without], work.block, False)
        of_prefix, on = work.run(ours, work.block, True)
        _, ceiling = work.run(bare, work.block, True)
        found.append((off / n_without, on / n_questions + of_prefix / QUESTIONS, ceiling / n_questions))
    off, on, ceiling = (statistics.median(times) for times in zip(*found, strict=True))
    return off, on, ceiling


def table(arguments: argparse.Namespace) -> list[Sequence[str]]:
    """A row for each workload, and one for requests that share nothing."""
    rows: list[Sequence[str]] = []
    for work in workloads():
        if arguments.only and arguments.only not in f"{work.name} {work.block}":
            continue
        off, on, ceiling = measure(work, arguments.questions, arguments.without, arguments.turns)
        times = [f"{value:.3g}" for value in (off, on, ceiling)]
        name = f"{work.name}, {work.shared} + {work.own}"
        rows.append((name, str(work.block), *times, f"{off / on:.1f}", f"{100 * ceiling / on:.0f}"))
        print(*rows[-1], flush=True)
    work = Workload("one token, nothing shared", 4, 0, 200, generates(1))
    prompts = work.prompts(arguments.questions, 0, 0)
    ratios: list[float] = []
    for _ in range(4 * arguments.turns):
        off, on = (sum(work.run(prompts, 4, shares)) for shares in (False, True))
        ratios.append(off / on)
    rows.append((f"{work.name}, 200", "4", "", "", "", f"{statistics.median(ratios):.3f}", ""))
    print(*rows[-1], flush=True)
    return rows


def in_order(canvases: Sequence[Canvas]) -> list[Canvas]:
    """As jobs run them."""
    return sorted(canvases, key=lambda canvas: sort_key_of(canvas.prefix, len(canvas.token_ids)))


# Answers


VOCABULARY, EOS = 50, 47
PATTERNS: list[tuple[AttentionPattern, bool]] = [
    *((AttentionPattern(block), False) for block in (2, 4, 5, 8)),
    *((AttentionPattern(block), True) for block in (4, 8)),
    *((AttentionPattern(block, "prompt_end"), shift) for block in (3, 4) for shift in (False, True)),
    (AttentionPattern(4, "prompt_end", whole_prompt=True, causal_context=True), False),
]


@cache
def tiny_model(dtype: torch.dtype) -> LlamaForCausalLM:
    """Two layers, seeded; logits spread enough that decoding depends on the context."""
    return random_llama(VOCABULARY, num_key_value_heads=2, max_position_embeddings=256).to(dtype)


def random_prompts(draw: Random) -> list[list[int]]:
    """Of up to three tasks: nested examples, some of them alone, and prompts of their own."""
    tree: list[list[int]] = [[]]
    for _ in range(draw.randint(1, 5)):
        tree.append(draw.choice(tree) + draw.choices(range(2, 40), k=draw.randint(1, 30)))
    n_rows = draw.randint(1, 6)
    found = [
        draw.choice(tree[draw.random() < 0.8 :]) + draw.choices(range(2, 40), k=draw.randint(0, 14))
        for _ in range(n_rows)
    ]
    return [prompt or [5] for prompt in found]


def random_options(draw: Random, attention: AttentionPattern, *, shift: bool) -> DecodingOptions:
    """Rules, schedules, guidance and modes that go with such a model."""
    causal = attention.causal_context
    changes: dict[str, Any] = {"n_masks": draw.randint(1, 8), "early_exit": draw.random() < 0.8}
    if causal and draw.random() < 0.5:
        return DecodingOptions(n_masks=changes["n_masks"], mode=draw.choice(["ar", "linear_spec"]))
    rule = draw.choice(["", "", "threshold", "factor", "steps"])
    if rule == "threshold":
        changes["confidence_threshold"] = draw.choice([0.2, 0.5, 0.9])
    elif rule == "factor" and not causal:
        changes["parallel_factor"] = 1.0
    elif rule == "steps":
        changes["steps_per_block"] = draw.randint(1, attention.block_length or 1)
    if not causal:
        changes["unmasking"] = draw.choice(["confidence", "margin", "entropy", "random", "left_to_right"])
        changes["temperature"] = draw.choice([0.0, 0.0, 0.7])
        changes["cfg_scale"] = draw.choice([0.0, 0.0, 0.0, 0.5])
    if shift and attention.blocks_from == "row_start" and changes["cfg_scale"] == 0.0:
        changes["small_block_length"] = 2
    return DecodingOptions(**changes)


@dataclass
class Outcome:
    """What one random setting shows: strings of two ways that differ, of how many, and of two batch sizes.

    shared: tokens that were copied.
    """

    strings: int
    differ: int
    differ_between_batches: int
    log_likelihood: float
    shared: int


def outcome(seed: int, dtype: torch.dtype) -> Outcome:
    """Sharing against not sharing with another batch size and order; in bfloat16 with the same."""
    draw = Random(seed)
    attention, shift = draw.choice(PATTERNS)
    facts: dict[str, Any] = {"mask_token_id": MASK, "pad_token_id": PAD, "shift": shift, "attention": attention}
    denoiser = Denoiser(tiny_model(dtype), **facts)
    options = random_options(draw, attention, shift=shift)
    prompts = random_prompts(draw)
    where: dict[str, Any] = {"mask_token_id": MASK, "max_length": draw.choice([256, 48])}
    way = way_of(options, attention)
    canvases = [build_canvas(prompt, way, seed=n, **where)[0] for n, prompt in enumerate(prompts)]
    sizes = [draw.randint(1, 9), draw.randint(1, 9)]

    def strings(rows: Sequence[Canvas], batch_size: int) -> tuple[list[list[int]], int]:
        order = draw.sample(range(len(rows)), len(rows))
        found = decode_canvases(denoiser, [rows[n] for n in order], options, eos_ids=[EOS], batch_size=batch_size)
        of_row = dict(zip(order, found, strict=True))
        return [of_row[n].token_ids for n in range(len(rows))], sum(one.cost.shared for one in found)

    shared, *_ = with_prefixes(denoiser, canvases, way, least=draw.choice([1, 1, 8]))
    is_exact = dtype == torch.float32
    off, _ = strings(canvases, sizes[0])
    on, n_shared = strings(shared, sizes[1] if is_exact else sizes[0])
    other = off if is_exact else strings(canvases, sizes[1])[0]
    return Outcome(
        strings=len(off),
        differ=sum(a != b for a, b in zip(off, on, strict=True)),
        differ_between_batches=sum(a != b for a, b in zip(off, other, strict=True)),
        log_likelihood=largest_difference(denoiser, prompts, draw) if is_exact else 0.0,
        shared=n_shared,
    )


def largest_difference(denoiser: Denoiser, prompts: Sequence[list[int]], draw: Random) -> float:
    """Of log-likelihoods of the same prompts, under a random estimator and other batch sizes."""
    if denoiser.attention.causal_context:
        options = LikelihoodOptions(mode="ar")
    else:
        likelihood, cfg_scale = draw.choice(["mc", "chain", "duel", "auto"]), draw.choice([0.0, 0.0, 0.5])
        options = LikelihoodOptions(likelihood=likelihood, cfg_scale=cfg_scale, mc_num=2)
    requests = [
        LikelihoodRequest(prompt, draw.choices(range(2, 40), k=draw.choice([1, 1, 3, 6])), n)
        for n, prompt in enumerate(prompts)
    ]
    max_length = draw.choice([256, 40])
    shared, _ = with_shared_contexts(denoiser, requests, options, max_length, least=1)
    off, on = (
        score(denoiser, each, options, batch_size=draw.randint(1, 9), max_length=max_length)
        for each in (requests, shared)
    )
    return max(abs(a[0] - b[0]) for a, b in zip(off, on, strict=True))


def record(n_settings: int) -> dict[str, Any]:
    """Sums over settings, in bfloat16 over a tenth of them."""
    found: dict[str, Any] = {}
    for dtype, n in ((torch.float32, n_settings), (torch.bfloat16, max(1, n_settings // 10))):
        outcomes = [outcome(seed, dtype) for seed in range(n)]
        of_type: dict[str, Any] = {
            "settings": n,
            "strings": sum(one.strings for one in outcomes),
            "settings_that_share": sum(one.shared > 0 for one in outcomes),
            "strings_that_differ": sum(one.differ for one in outcomes),
        }
        if dtype == torch.float32:
            of_type["largest_difference_of_log_likelihoods"] = max(one.log_likelihood for one in outcomes)
        else:
            of_type["strings_that_differ_between_batch_sizes"] = sum(one.differ_between_batches for one in outcomes)
        found[str(dtype).removeprefix("torch.")] = of_type
    return found


def main() -> None:
    """Times, or a record of random settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=24, help="that are answered with a prefix")
    parser.add_argument("--without", type=int, default=4, help="questions that are answered without sharing")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", help="workloads with this text in their names")
    parser.add_argument("--csv", type=Path, help="where the table goes")
    parser.add_argument("--settings", type=int, help="compare answers of so many random settings instead")
    parser.add_argument("--json", type=Path, help="where their record goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.settings:
        found = json.dumps(record(arguments.settings), indent=1) + "\n"
        print(found)
        if arguments.json:
            arguments.json.write_text(found, encoding="utf-8")
        return
    rows = table(arguments)
    print(markdown_table(HEADER, rows))
    if arguments.csv:
        with arguments.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
