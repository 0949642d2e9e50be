"""Every way of decoding and scoring on a pretended GPU (tests/pretended_gpu), beside the CPU, as a record.

    OMP_NUM_THREADS=1 python -m benchmarks.pretended_gpu --json pretended_gpu.json
    OMP_NUM_THREADS=1 python -m benchmarks.pretended_gpu --only dual --places

Tiny random models in float32 at batch sizes 3 and 8, without graphs and with simulated ones, in small buckets of
shapes; the families' golden checkpoints with their own options; and models over two GPUs. A row says whether answers
are the CPU's (likelihoods within 1e-4 nats), and counts waits, blocking copies, kernels a pass, and distinct attention
problems; mixed devices, races and captures that CUDA refuses make it fail. Rows of memory hold the peak of models of
7 to 16 billion parameters and three layers, without weights, beside the budget of `batch_size=auto`; beyond 15% of it,
at most 1.2 GB of its fixed part may be used. `--places` adds the lines that wait or copy. Ends with 1 where answers
differ or anything fails.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers

from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.model import compiled, devices
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.pretended_gpu import PretendedGpu, PretendedGpuError
from tests.pretended_gpu.peaks import PEAKS, ROWS, peak_of
from tests.pretended_gpu.settings import DECODING, LIKELIHOOD, decoded, denoiser_of, model_of, over_two, scored
from tests.support.reference import load

# Golden checkpoints, with what their configs do not say.
FAMILIES: dict[str, dict[str, Any]] = {
    "a2d_bd3lm": {"mask_token_id": 5},
    "dream": {},
    "fast_dllm_v2": {"mask_token_id": 150},
    "illada": {},
    "llada": {},
    "llada2": {"mask_token_id": 159},
    "llada21": {"mask_token_id": 159, "diffusion_family": "llada21"},
    "llada22": {"mask_token_id": 159},
    "llada_moe": {},
    "nemotron_labs_diffusion": {},
    "sdar": {},
}
# Every cache, two samplers with a memory of their own, and row decoders.
OVER_TWO = ["whole", "prefix, guided", "dual, threshold", "blocks", "blocks, edits", "from the prompt, shifted"]
OVER_TWO += ["causal context", "wino", "klass", "speculation", "insertion"]
Case = tuple[str, str, int, Callable[[], Denoiser], Callable[[Denoiser], Any]]


def cases() -> Iterator[Case]:
    """Kind, name, batch size, a fresh denoiser, and what is run with it."""
    for kind, settings, run in (("decoding", DECODING, decoded), ("likelihood", LIKELIHOOD, scored)):
        for name, setting in settings.items():
            for size in (3, 8):
                yield (
                    kind,
                    name,
                    size,
                    lambda setting=setting: denoiser_of(model_of(setting), setting),  # type: ignore[misc]
                    lambda denoiser, run=run, setting=setting, size=size: run(denoiser, setting, size),  # type: ignore[misc]
                )
    for name, facts in FAMILIES.items():
        yield "family", name, 6, lambda name=name, facts=facts: load(name, **facts), of_family  # type: ignore[misc]
    for name in OVER_TWO:
        yield (
            "two GPUs",
            name,
            3,
            lambda setting=DECODING[name]: denoiser_of(model_of(setting), setting),  # type: ignore[misc]
            lambda denoiser, setting=DECODING[name]: decoded(denoiser, setting, 3),  # type: ignore[misc]
        )


def of_family(denoiser: Denoiser) -> list[Any]:
    """Answers to six prompts with the family's own options."""
    family = family_of(denoiser.model.config)
    defaults = {name: value for name, value in family.decoding_defaults.items() if name != "likelihood"}
    options = DecodingOptions(**{"n_masks": 16, **defaults})
    return decode(denoiser, [[7, 9, 11, 8] * n for n in (2, 5, 1, 4, 3, 6)], options)


def with_model(denoiser: Denoiser, model: Any, *, cuda_graphs: bool, compiled: bool = False) -> Denoiser:
    """The same denoiser with a model that is elsewhere."""
    return Denoiser(
        model,
        mask_token_id=denoiser.mask_token_id,
        pad_token_id=denoiser.pad_token_id,
        shift=denoiser.shift,
        attention=denoiser.attention,
        edits=denoiser.edits,
        read=denoiser.read,
        cuda_graphs=cuda_graphs,
        compiled=compiled,
    )


def are_same(ours: Any, theirs: Any) -> bool:
    """Equal answers, or likelihoods within 1e-4 nats and equal flags."""
    if not (ours and isinstance(ours[0], tuple) and isinstance(ours[0][0], float)):
        return bool(ours == theirs)
    return all(abs(a - b) <= 1e-4 and flag == other for (a, flag), (b, other) in zip(ours, theirs, strict=True))


def row_of(case: Case, *, with_graphs: bool, answers: Any) -> tuple[dict[str, Any], list[str]]:
    """A row of the record, and the lines that waited or copied."""
    kind, name, size, fresh, run = case
    row: dict[str, Any] = {"kind": kind, "name": name, "batch": size, "graphs": with_graphs}
    with PretendedGpu(n_devices=2 if kind == "two GPUs" else 1) as gpu:
        theirs = fresh()
        model = gpu.move(theirs.model) if gpu.n_devices == 1 else over_two(gpu, theirs.model)
        denoiser = with_model(theirs, model, cuda_graphs=with_graphs)
        try:
            found = run(denoiser)
        except (PretendedGpuError, OptionError) as error:
            return row | {"fails": str(error)}, []
    report, passes = gpu.report, denoiser.forward_passes
    places = [f"{n:6} {place}" for place, n in (report.waits + report.blocking_copies).most_common()]
    return row | {
        "same": are_same(found, answers),
        "passes": passes,
        "waits": report.waits.total(),
        "blocking copies": report.blocking_copies.total(),
        "kernels a pass in the model": round(report.kernels["model"] / passes, 1),
        "kernels a pass outside": round(report.kernels["outside"] / passes, 1),
        "attention problems": len(report.attention_shapes),
        "graphs recorded": report.captured,
        "graphs replayed": report.replayed,
    }, places


def rows_of_memory(only: str) -> Iterator[dict[str, Any]]:
    """The peak beside the budget, in GB."""
    for name, options, sizes in PEAKS:
        if only in f"memory {name}":
            peak, budget = peak_of(name, options, sizes)
            is_near = abs(peak - budget) <= 0.15 * budget + 1.2e9 * (peak > budget)
            row = {"kind": "memory", "name": name, "options": options, "rows": ROWS, "same": is_near}
            yield row | {"peak GB": round(peak / 1e9, 2), "budget GB": round(budget / 1e9, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose kind and name hold this text")
    parser.add_argument("--places", action="store_true", help="print the lines that wait or copy")
    parser.add_argument("--json", help="a file for the record")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with mock.patch.multiple(devices, KEYS=16, POSITIONS=16), mock.patch.object(compiled, "PASSES_BEFORE", 1):
        for case in cases():
            kind, name, _, fresh, run = case
            if arguments.only not in f"{kind} {name}":
                continue
            answers = run(fresh())
            for with_graphs in (False, True) if kind != "two GPUs" else (False,):
                row, places = row_of(case, with_graphs=with_graphs, answers=answers)
                rows.append(row)
                print(" | ".join(map(str, row.values())), flush=True)
                if arguments.places:
                    print("\n".join(places), flush=True)
    for row in rows_of_memory(arguments.only):
        rows.append(row)
        print(" | ".join(map(str, row.values())), flush=True)
    if arguments.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        lines = ",\n".join(json.dumps(row) for row in rows)
        Path(arguments.json).write_text(f'{{"versions": {json.dumps(versions)}, "rows": [\n{lines}\n]}}\n')
    bad = [row for row in rows if not row.get("same")]
    print(f"{len(rows)} rows, {len(bad)} that fail or differ")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
