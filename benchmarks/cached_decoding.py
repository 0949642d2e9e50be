"""What approximate caches and parallel rules cost in accuracy and bring in speed: the table `cached_decoding.csv`.

    OMP_NUM_THREADS=1 python -m benchmarks.cached_decoding --documents 64 --batch_size 4 --write

Few-shot documents of the built-in model's own corpus, one rule each, with the answers of their last questions masked:
the model fills in one word an answer, in blocks. Every way of decoding runs on the same documents.
"""

import argparse
import csv
import time
from pathlib import Path
from random import Random

from mdlm_lm_eval.decoding.canvas import Completion, build_infill_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.text import SLOT_MARKER, encode_infill
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.results.statistics import t_interval
from training.corpus import draw_rule, few_shot

TABLE = Path(__file__).with_suffix(".csv")
CACHES = ("none", "prefix", "dual")
RULES: dict[str, dict[str, float]] = {
    "one token per step": {},
    "threshold 0.9": {"confidence_threshold": 0.9},
}
HEADER = ("cache", "rule", "accuracy (%)", "same answers as cache=none", "tokens per pass", "layer tokens", "CPU s")


def documents(lm: MDLM, count: int, shown: int, asked: int) -> list[tuple[list[list[int]], list[int]]]:
    """Segments of text between the masked answers, and the tokens that belong there."""
    rng = Random(0)
    found: list[tuple[list[list[int]], list[int]]] = []
    while len(found) < count:
        document = few_shot(draw_rule(rng, 0.0), shown + asked, 0, rng)
        pieces = list(document.pieces)
        for n in document.answers[shown:]:
            pieces[n] = SLOT_MARKER
        segments = encode_infill(
            lm.tokenizer,
            "".join(pieces),
            lm.mask_token_id,
            lambda text, first: lm.tokenizer.encode(text, add_special_tokens=first),
        )
        whole = lm.tok_encode("".join(document.pieces))
        if sum(map(len, segments)) + asked != len(whole):
            continue  # an answer of several tokens
        slots = [sum(map(len, segments[: n + 1])) + n for n in range(asked)]
        found.append((segments, [whole[slot] for slot in slots]))
    return found


def decode(
    lm: MDLM, segments: list[list[list[int]]], options: DecodingOptions, batch_size: int
) -> tuple[list[Completion], float]:
    """The answers to all documents, and the CPU seconds that they took."""
    canvases = [
        build_infill_canvas(of, way_of(options), mask_token_id=lm.mask_token_id, max_length=lm.max_length)[0]
        for of in segments
    ]
    started = time.process_time()
    completions = decode_canvases(lm.denoiser, canvases, options, batch_size=batch_size)
    return completions, time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="another model than the built-in one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--shown", type=int, default=8, help="answered questions before the masked answers")
    parser.add_argument("--asked", type=int, default=16, help="masked answers of a document")
    parser.add_argument("--block_length", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="write the table beside this file")
    arguments = parser.parse_args()

    model = {"pretrained": arguments.pretrained} if arguments.pretrained else {}
    lm = MDLM(**model, device=arguments.device, batch_size=arguments.batch_size)
    asked = documents(lm, arguments.documents, arguments.shown, arguments.asked)
    segments = [one for one, _ in asked]
    rows = []
    for rule, settings in RULES.items():
        exact: list[list[int]] = []
        for cache in CACHES:
            options = DecodingOptions(**{"block_length": arguments.block_length, "cache": cache, **settings})
            completions, seconds = decode(lm, segments, options, arguments.batch_size)
            answers = [completion.token_ids for completion in completions]
            exact = exact or answers
            right = [
                sum(one == other for one, other in zip(answer, truth, strict=True)) / len(truth)
                for answer, (_, truth) in zip(answers, asked, strict=True)
            ]
            accuracy = t_interval(right).scaled(100)
            same = sum(one == other for one, other in zip(answers, exact, strict=True))
            passes = sum(completion.cost.forward_passes for completion in completions)
            row = [cache, rule, f"{accuracy.mean:.1f} ± {accuracy.half_width or 0:.1f}", f"{same} of {len(answers)}"]
            row += [f"{sum(map(len, answers)) / passes:.2f}", f"{sum(c.cost.tokens for c in completions):,}"]
            rows.append([*row, f"{seconds:.1f}"])
            print(" | ".join(rows[-1]), flush=True)
    if arguments.write:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
