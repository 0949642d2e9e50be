"""What samplers, parallel rules and approximate caches cost in accuracy and save in passes and time: a table.

    OMP_NUM_THREADS=1 python -m benchmarks.ways_of_decoding --documents 64 --batch_size 4 --write

Few-shot documents of the built-in model's own corpus, one rule each, with the answers of their last questions masked:
the model fills in one word an answer, in blocks. Every way of decoding runs on the same documents. Frequencies for
position_calibrated are those of the words in other documents of the corpus.
"""

import argparse
import csv
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file

from mdlm_lm_eval.decoding.canvas import build_infill_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.text import SLOT_MARKER, encode_infill
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.results.statistics import t_interval
from training.corpus import draw_rule, few_shot

SHOWN, ASKED = 8, 16  # answered and masked questions of a document
WAYS: dict[str, dict[str, Any]] = {
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
    "prefix cache": {"cache": "prefix"},
    "dual cache": {"cache": "dual"},
    "prefix cache, threshold": {"cache": "prefix", "confidence_threshold": 0.9},
    "dual cache, threshold": {"cache": "dual", "confidence_threshold": 0.9},
}
HEADER = (
    "way",
    "options",
    "accuracy (%)",
    "same tokens as one per step (%)",
    "tokens per pass",
    "layer tokens",
    "CPU s",
)


def documents(lm: MDLM, count: int) -> list[tuple[list[list[int]], list[int]]]:
    """Segments of text between the masked answers, and the tokens that belong there."""
    rng = Random(0)
    found: list[tuple[list[list[int]], list[int]]] = []
    while len(found) < count:
        document = few_shot(draw_rule(rng, 0.0), SHOWN + ASKED, 0, rng)
        pieces = list(document.pieces)
        for n in document.answers[SHOWN:]:
            pieces[n] = SLOT_MARKER
        segments = encode_infill(
            lm.tokenizer,
            "".join(pieces),
            lm.mask_token_id,
            lambda text, first: lm.tokenizer.encode(text, add_special_tokens=first),
        )
        whole = lm.tok_encode("".join(document.pieces))
        if sum(map(len, segments)) + ASKED != len(whole):
            continue  # an answer of several tokens
        slots = [sum(map(len, segments[: n + 1])) + n for n in range(ASKED)]
        found.append((segments, [whole[slot] for slot in slots]))
    return found


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
    asked = documents(lm, arguments.documents)
    truth, rows = torch.tensor([answers for _, answers in asked]), []  # [D, ASKED]
    where = {"mask_token_id": lm.mask_token_id, "max_length": lm.max_length}
    one_a_step = torch.empty(0)
    with tempfile.TemporaryDirectory() as folder:
        frequencies = Path(folder, "frequencies.safetensors")
        save_file({"frequencies": background(lm)}, frequencies)
        for name, settings in WAYS.items():
            given = settings | ({"token_frequencies": str(frequencies)} if "unmasking" in settings else {})
            options = DecodingOptions(block_length=8, **given)
            canvases = [build_infill_canvas(segments, way_of(options), **where)[0] for segments, _ in asked]
            started = time.process_time()
            completions = decode_canvases(lm.denoiser, canvases, options, batch_size=arguments.batch_size)
            seconds = time.process_time() - started
            answers = torch.tensor([completion.token_ids for completion in completions])
            one_a_step = answers if not settings else one_a_step
            accuracy = t_interval((answers == truth).double().mean(1).tolist()).scaled(100)
            passes = sum(completion.cost.forward_passes for completion in completions)
            tokens = sum(completion.cost.tokens for completion in completions)
            row = [name, ", ".join(f"{option}={value}" for option, value in settings.items())]
            row += [f"{accuracy.mean:.1f} ± {accuracy.half_width or 0:.1f}"]
            row += [f"{(answers == one_a_step).double().mean() * 100:.1f}", f"{answers.numel() / passes:.2f}"]
            rows.append([*row, f"{tokens:,}", f"{seconds:.1f}"])
            print(" | ".join(rows[-1]), flush=True)
    if arguments.write:
        with Path(__file__).with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
