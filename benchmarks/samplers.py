"""What each sampler costs in accuracy and saves in passes: `samplers.csv`.

    python -m benchmarks.samplers --documents 64 --write

The documents are those of cached_decoding.py: few-shot questions of the built-in model's own corpus, with the answers
of the last ones masked. Frequencies for position_calibrated are those of the words in other documents of the corpus.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.cached_decoding import decode, documents
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.results.statistics import t_interval
from training.corpus import draw_rule, few_shot

SAMPLERS: dict[str, dict[str, Any]] = {
    "one token per step": {},
    "two tokens per step": {"steps": 8},
    "threshold": {"confidence_threshold": 0.9},
    "factor": {"parallel_factor": 1.0},
    "entropy bound": {"entropy_bound": 0.1},
    "KLASS": {"confidence_threshold": 0.6, "kl_threshold": 0.015},
    "PC-Sampler": {"unmasking": "position_calibrated"},
    "ReMDM": {"sampler": "remdm"},
    "RCR": {"sampler": "rcr", "schedule": "maskgit_linear", "steps": 8},
    "WINO": {"sampler": "wino", "confidence_threshold": 0.6},
}
HEADER = ("sampler", "options", "accuracy (%)", "tokens per pass", "same tokens as one per step (%)")


def background(lm: MDLM, count: int = 1000) -> torch.Tensor:
    """Each token's share [V] of documents that are drawn with another seed."""
    rng = Random(1)
    texts = ("".join(few_shot(draw_rule(rng, 0.0), 8, 0, rng).pieces) for _ in range(count))
    ids = torch.tensor([id for text in texts for id in lm.tok_encode(text)])
    return torch.bincount(ids, minlength=lm.denoiser.vocab_size) / len(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="another model than the built-in one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="write the table beside this file")
    arguments = parser.parse_args()
    model = {"pretrained": arguments.pretrained} if arguments.pretrained else {}
    lm = MDLM(**model, device=arguments.device, batch_size=arguments.batch_size)
    asked = documents(lm, arguments.documents, shown=8, asked=16)
    truth, rows = torch.tensor([answers for _, answers in asked]), []  # [D, 16]
    one_a_step = torch.empty(0)
    with tempfile.TemporaryDirectory() as folder:
        frequencies = Path(folder, "frequencies.safetensors")
        save_file({"frequencies": background(lm)}, frequencies)
        for name, settings in SAMPLERS.items():
            given = settings | ({"token_frequencies": str(frequencies)} if "unmasking" in settings else {})
            options = DecodingOptions(block_length=8, **given)
            completions, _ = decode(lm, [segments for segments, _ in asked], options, arguments.batch_size)
            answers = torch.tensor([completion.token_ids for completion in completions])
            one_a_step = answers if not settings else one_a_step
            accuracy = t_interval((answers == truth).double().mean(1).tolist()).scaled(100)
            passes = sum(completion.cost.forward_passes for completion in completions)
            row = [name, ", ".join(f"{option}={value}" for option, value in settings.items())]
            row += [f"{accuracy.mean:.1f} ± {accuracy.half_width or 0:.1f}", f"{answers.numel() / passes:.2f}"]
            rows.append([*row, f"{(answers == one_a_step).double().mean() * 100:.1f}"])
            print(" | ".join(rows[-1]), flush=True)
    if arguments.write:
        with Path(__file__).with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
