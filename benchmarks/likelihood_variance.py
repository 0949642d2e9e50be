"""Standard error of `likelihood=mc` against LLaDA's scheme of masks, per forward pass, on one model.

    python -m benchmarks.likelihood_variance --pretrained path/to/llada --device cuda --dtype bfloat16

Without --pretrained it measures the built-in model. Texts are few-shot documents of the suite's kind, the last n tokens
of each the continuation. Every estimate is repeated with different seeds; the table gives the standard deviation over
seeds (root mean square over texts, in nats), which is the standard error of one estimate.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from transformers import PreTrainedTokenizerBase

import mdlm_lm_eval
from mdlm_lm_eval.checkpoints import load_config, load_tokenizer
from mdlm_lm_eval.likelihood.corruptions import Corruption, monte_carlo_corruptions
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.options import LikelihoodOptions
from training.corpus import draw_rule, few_shot

BUILT_IN_MODEL = Path(mdlm_lm_eval.__file__).parent / "default_model"
REFERENCE_SAMPLES, REFERENCE_BATCH = 128, 8


def llada_corruptions(n: int, samples: int, generator: torch.Generator) -> list[Corruption]:
    """LLaDA's scheme (its `get_log_likelihood`): per batch one random k, the others spread evenly from it, modulo n;
    the k masked positions of each sample drawn independently."""
    corruptions = []
    for _ in range(samples // REFERENCE_BATCH):
        first = int(torch.randint(1, n + 1, (), generator=generator))
        spread = torch.linspace(first, first + (REFERENCE_BATCH - 1) * (n / REFERENCE_BATCH), REFERENCE_BATCH)
        for k in (((spread.round().long() - 1) % n) + 1).tolist():
            masked = tuple(sorted(torch.randperm(n, generator=generator)[:k].tolist()))
            corruptions.append(Corruption(masked, masked, n / k / samples))
    return corruptions


def texts(
    tokenizer: PreTrainedTokenizerBase, n: int, count: int, context_length: int
) -> list[tuple[list[int], list[int]]]:
    """(context, continuation of n tokens) of `count` documents."""
    rng = Random(0)
    pairs = []
    for _ in range(count):
        document = few_shot(draw_rule(rng, 0.0), 20, 20, rng)
        ids = tokenizer.encode("".join(document.pieces), add_special_tokens=False)[: context_length + n]
        if len(ids) < n + 8:
            raise SystemExit(f"a document of {len(ids)} tokens is too short for a continuation of {n}")
        pairs.append((ids[:-n], ids[-n:]))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pretrained", default=str(BUILT_IN_MODEL), help="hub id or folder (default: the built-in model)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[8, 16, 32, 64], help="continuation lengths n, in tokens"
    )
    parser.add_argument("--context", type=int, default=200, help="tokens of context at most")
    parser.add_argument("--texts", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=24, help="estimates of each text by each scheme")
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    denoiser = mdlm_lm_eval.load_denoiser(args.pretrained, dtype=args.dtype, device=args.device)
    tokenizer = load_tokenizer(args.pretrained, config=load_config(args.pretrained))

    def measure(
        n: int, samples: int, scheme: Callable[[int, int, torch.Generator], list[Corruption]]
    ) -> tuple[float, float, float]:
        """(mean estimate, standard error, mean forward passes an estimate would take by itself)."""
        passes: list[int] = []

        def corruptions_of(request: LikelihoodRequest, options: LikelihoodOptions) -> list[Corruption]:
            corruptions = scheme(n, samples, torch.Generator().manual_seed(request.seed))
            passes.append(len(corruptions))
            return corruptions

        requests = [
            LikelihoodRequest(context, continuation, seed)
            for context, continuation in texts(tokenizer, n, args.texts, args.context)
            for seed in range(args.seeds)
        ]
        results = score(
            denoiser,
            requests,
            LikelihoodOptions(likelihood="mc", mc_num=samples, check_greedy=False),
            batch_size=args.batch_size,
            max_length=args.context + n + 1,
            corruptions_of=corruptions_of,
        )
        values = [value for value, _ in results]
        per_text = [values[start : start + args.seeds] for start in range(0, len(values), args.seeds)]
        standard_error = math.sqrt(statistics.fmean(statistics.variance(estimates) for estimates in per_text))
        return statistics.fmean(values), standard_error, statistics.fmean(passes)

    quarter = REFERENCE_SAMPLES // 4
    print(f"{args.pretrained}: {args.texts} texts, {args.seeds} seeds\n")
    print(
        f"| n | LLaDA's scheme, {REFERENCE_SAMPLES} samples | mc, mc_num={quarter} | mc, mc_num={REFERENCE_SAMPLES} |"
    )
    print("|---|---|---|---|")
    for n in args.lengths:
        cells = [
            f"{mean:.2f} ± {error:.3f} ({passes:.0f} passes)"
            for mean, error, passes in (
                measure(n, REFERENCE_SAMPLES, llada_corruptions),
                measure(n, quarter, monte_carlo_corruptions),
                measure(n, REFERENCE_SAMPLES, monte_carlo_corruptions),
            )
        ]
        print(f"| {n} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
