"""LLaDA-8B at full speed on one GPU: random weights of its shape, ours beside the plain loop, in one run.

    benchmarks/gpu.sh
    python benchmarks/gpu.py --model tiny --vocab_size 500 --questions 2 --prompt_tokens 40 --n_masks 16 \
        --block_length 8 --context_tokens 8 --mc_num 8

Times are seconds of one question: the plain loop (as the families' own scripts: one request at a time, logits of the
whole canvas) answers one question, ours all of them as one batch, and exact generation two. The suite is run twice, the
first time to warm the device up. The share of the device's rate is the work's floating-point operations in the time, by
those that a large matrix multiplication does; with caches, attention to remembered tokens is not counted. Memory comes
on top of the weights.

Random weights are never sure of a token: `confidence_threshold` then fills one token a step, and its row shows what
asking for it costs, not what it saves. The table is written after every row, so that a run that is cut short leaves
those before.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from block_decoding import plain_loop
from speed import (
    LLADA_VOCABULARY,
    MASK_TOKEN_ID,
    SHAPES,
    Turn,
    matmul_rate,
    plain_decode,
    plain_log_likelihood,
    random_model,
    take_turn,
)
from torch import Tensor

from mdlm_lm_eval import DecodingOptions, Denoiser, LikelihoodOptions, decode
from mdlm_lm_eval.likelihood import LikelihoodRequest, score
from mdlm_lm_eval.results.markdown import markdown_table, replace_table

HEADER = (
    "workload",
    "decoding",
    "s a question",
    "faster",
    "of the matmul rate",
    "passes",
    "memory, GiB",
    "same answers",
)
Run = Callable[[], list[Any]]


class Benchmark:
    """The rows of the table, measured one after the other."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.shape = SHAPES[arguments.model]
        self.model = random_model(self.shape, arguments)
        self.denoiser = Denoiser(self.model, mask_token_id=MASK_TOKEN_ID, pad_token_id=1)
        self.rate = matmul_rate(self.model.device, self.model.dtype)
        self.rng = Random(0)
        self.rows: list[list[str]] = []

    def ids(self, length: int) -> list[int]:
        return [self.rng.randrange(2, self.arguments.vocab_size) for _ in range(length)]

    def add(self, workload: str, sides: dict[str, tuple[Run, int]]) -> None:
        """Rows of one workload: way of decoding -> what runs it, and how many questions that answers."""
        plain: Turn | None = None
        for name, (run, n_questions) in sides.items():
            turn = take_turn(self.model, run)
            plain = plain or turn
            n_plain = next(iter(sides.values()))[1]
            seconds = turn.seconds / n_questions
            flops = turn.work.flops(self.shape, self.arguments.vocab_size)
            self.rows.append(
                [
                    workload,
                    name,
                    f"{seconds:.3g}",
                    f"{plain.seconds / n_plain / seconds:.3g}",
                    f"{flops / turn.seconds / self.rate:.0%}",
                    f"{turn.work.passes}",
                    f"{turn.peak_bytes / 2**30:.2f}",
                    "" if turn is plain else agreement(plain.answers, turn.answers),
                ]
            )
            self.report()

    def report(self) -> None:
        """Writes what is there so far."""
        table = markdown_table(HEADER, self.rows)
        if self.arguments.readme:
            replace_table(Path(self.arguments.readme), "gpu", f"{self.machine()}\n\n{table}")
        print(" | ".join(self.rows[-1]), flush=True)

    def machine(self) -> str:
        device = self.model.device
        name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        return (
            f"{self.arguments.model}, V={self.arguments.vocab_size}, {self.arguments.dtype}, {name}, "
            f"torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; matrix multiplication: "
            f"{self.rate / 1e12:.3g} TFLOP/s; {self.arguments.questions} questions a batch."
        )

    def suite(self) -> None:
        """One step over all masks, the first token returned."""
        n_masks = self.arguments.n_masks
        prompts = [self.ids(self.arguments.prompt_tokens) for _ in range(self.arguments.questions)]
        options = DecodingOptions(n_masks=n_masks, steps=1)
        sides: dict[str, tuple[Run, int]] = {
            "plain loop": (lambda: [plain_decode(self.model, prompts[0], n_masks, 1)[:1]], 1),
            "exact": (lambda: decode(self.denoiser, prompts, options, max_gen_toks=1), len(prompts)),
        }
        self.add("few-shot suite, 1 step", sides)

    def generation(self) -> None:
        """GSM8K's shape: a long prompt, one token a step in blocks."""
        n_masks, length = self.arguments.n_masks, self.arguments.block_length
        prompts = [self.ids(self.arguments.prompt_tokens) for _ in range(self.arguments.questions)]

        def score_whole(canvas: Tensor, _stop: int) -> Tensor:
            ones = torch.ones_like(canvas)
            return self.model(input_ids=canvas, attention_mask=ones).logits

        def plain() -> list[Any]:
            prompt = prompts[0]
            return [plain_loop(score_whole, prompt, n_masks, length, from_prompt_end=True, device=self.model.device)]

        sides: dict[str, tuple[Run, int]] = {"plain loop": (plain, 1)}
        for name, changes, count in (
            ("exact", {}, min(2, len(prompts))),  # as slow as the loop, if not for batches
            ("cache=dual", {"cache": "dual"}, len(prompts)),
            ("cache=dual, confidence_threshold=0.9", {"cache": "dual", "confidence_threshold": 0.9}, len(prompts)),
        ):
            options = DecodingOptions(n_masks=n_masks, steps=n_masks, block_length=length).override(changes)
            sides[name] = (lambda o=options, n=count: decode(self.denoiser, prompts[:n], o), count)
        self.add("generation, 1 token a step", sides)

    def choices(self, n_tokens: int) -> None:
        """Four choices of so many tokens a question."""
        context_tokens, mc_num = self.arguments.context_tokens, self.arguments.mc_num
        requests = []
        for _ in range(self.arguments.questions):
            context = self.ids(context_tokens)
            requests += [LikelihoodRequest(context, self.ids(n_tokens), seed) for seed in range(4)]
        options = LikelihoodOptions(mc_num=mc_num, check_greedy=False)

        def plain() -> list[Any]:
            asked = [(each.context_ids, each.continuation_ids) for each in requests[:4]]
            return [plain_log_likelihood(self.model, context, choice, mc_num) for context, choice in asked]

        def ours() -> list[Any]:
            length = context_tokens + n_tokens
            return [ll for ll, _ in score(self.denoiser, requests, options, batch_size=64, max_length=length)]

        sides: dict[str, tuple[Run, int]] = {"plain loop": (plain, 1), "ours": (ours, self.arguments.questions)}
        self.add(f"{n_tokens}-token choices", sides)

    def batch_effects(self) -> None:
        """The same requests one by one and as one batch: how many answers the arithmetic of the batch moves."""
        prompts = [self.ids(self.arguments.prompt_tokens // 4 + 7 * n) for n in range(self.arguments.questions)]
        options = DecodingOptions(n_masks=16, steps=16)

        def one_by_one() -> list[Any]:
            return [answer for prompt in prompts for answer in decode(self.denoiser, [prompt], options)]

        sides: dict[str, tuple[Run, int]] = {
            "one by one": (one_by_one, len(prompts)),
            "one batch": (lambda: decode(self.denoiser, prompts, options), len(prompts)),
        }
        self.add(f"batch effects of {self.arguments.dtype}", sides)


def agreement(plain: list[Any], ours: list[Any]) -> str:
    """Of the answers that both sides gave: equal ones, and equal tokens; or the largest difference in nats."""
    pairs = list(zip(plain, ours, strict=False))
    if isinstance(plain[0], float):
        return f"at most {max(abs(a - b) for a, b in pairs):.2g} nats of {abs(plain[0]):.0f} apart"
    tokens = [(a, b) for row, other in pairs for a, b in zip(row, other, strict=False)]
    return (
        f"{sum(a == b for a, b in pairs)} of {len(pairs)}, {sum(a == b for a, b in tokens) / len(tokens):.0%} of tokens"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="llada-8b", help="shape of the random model")
    parser.add_argument("--vocab_size", type=int, default=LLADA_VOCABULARY)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--questions", type=int, default=8, help="of a batch of ours")
    parser.add_argument("--prompt_tokens", type=int, default=1000)
    parser.add_argument("--n_masks", type=int, default=256)
    parser.add_argument("--block_length", type=int, default=32)
    parser.add_argument("--context_tokens", type=int, default=128, help="of multiple choice")
    parser.add_argument("--mc_num", type=int, default=128)
    parser.add_argument("--readme", help="a file with the marks <!-- gpu --> and <!-- end -->, for the table")
    benchmark = Benchmark(parser.parse_args())
    benchmark.suite()  # warms the device up
    benchmark.rows.clear()
    benchmark.suite()
    benchmark.choices(1)
    benchmark.choices(16)
    benchmark.generation()
    benchmark.batch_effects()


if __name__ == "__main__":
    main()
