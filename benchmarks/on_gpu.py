"""Every way of decoding and scoring on a GPU, beside the CPU, as a record.

    python -m benchmarks.on_gpu --json on_gpu.json
    python -m benchmarks.on_gpu --only dual --processes 1

The settings are those of `benchmarks.pretended_gpu`: tiny random models in float32 at batch sizes 3 and 8, and the
families' golden checkpoints with their own options, each without CUDA graphs, with them, and in bfloat16 with them. A
row says whether answers are the CPU's (likelihoods within 1e-4 nats), and counts the passes, the calls that wait for
the device, and the replayed graphs. In bfloat16 other answers are expected, and only failures count. A few settings run
once more with compiled layers. Ends with 1 where answers in float32 differ or anything fails.
"""

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.pretended_gpu import Case, are_same, cases, with_model

RUNS: list[dict[str, Any]] = [
    {"dtype": torch.float32, "cuda_graphs": False, "compiled": False},
    {"dtype": torch.float32, "cuda_graphs": True, "compiled": False},
    {"dtype": torch.bfloat16, "cuda_graphs": True, "compiled": False},
]
COMPILED = {"whole", "dual", "blocks", "causal context, threshold", "mc"}


@cache
def replays() -> list[int]:
    """The graphs replayed since the first call, in the list's only element."""
    replay, found = torch.cuda.CUDAGraph.replay, [0]

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        found[0] += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counting  # type: ignore[method-assign]
    return found


def rows_of(number: int) -> list[dict[str, Any]]:
    """The rows of a case."""
    case = list(cases())[number]
    kind, name, size, fresh, run = case
    answers, found = run(fresh()), []
    runs = RUNS
    if name in COMPILED and size == 3:
        runs = [*RUNS, {"dtype": torch.float32, "cuda_graphs": True, "compiled": True}]
    for how in runs:
        row = {"kind": kind, "name": name, "batch": size, **how, "dtype": str(how["dtype"])}
        try:
            found.append(row | ran(case, how, answers))
        except Exception as error:  # every setting is tried; one that fails is a row that says so
            found.append(row | {"fails": f"{type(error).__name__}: {error}"[:500]})
    return found


def ran(case: Case, how: dict[str, Any], answers: Any) -> dict[str, Any]:
    """What a run found."""
    theirs = case[3]()
    model = theirs.model.to("cuda", how["dtype"])
    denoiser = with_model(theirs, model, cuda_graphs=how["cuda_graphs"], compiled=how["compiled"])
    before = replays()[0]
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            mine = case[4](denoiser)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    same = are_same(mine, answers)
    waits = [each for each in raised if "synchronizing" in str(each.message)]
    places = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in waits)
    row = {
        "same": same,
        "passes": denoiser.forward_passes,
        "waits": len(waits),
        "most waits": max(places, key=places.__getitem__, default=None),
        "graphs replayed": replays()[0] - before,
        "without graphs": how["cuda_graphs"] and denoiser.graphs is None,
    }
    if not same and how["dtype"] == torch.float32:
        row["rows that differ"] = sum(a != b for a, b in zip(mine, answers, strict=True))
    return row


def is_bad(row: dict[str, Any]) -> bool:
    """Whether a run failed, or answered otherwise in float32."""
    return "fails" in row or (not row["same"] and row["dtype"] == "torch.float32")


def numbers(only: str) -> Iterator[int]:
    for number, (kind, name, *_) in enumerate(cases()):
        if only in f"{kind} {name}" and kind != "two GPUs":
            yield number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose kind and name hold this text")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--json", help="a file for the record")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        for found in pool.map(rows_of, numbers(arguments.only)):
            rows += found
            for row in found:
                if is_bad(row):
                    print(" | ".join(map(str, row.values())), flush=True)
    bad = [row for row in rows if is_bad(row)]
    if arguments.json:
        machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        versions = machine | {"transformers": transformers.__version__}
        lines = ",\n".join(json.dumps(row) for row in rows)
        Path(arguments.json).write_text(f'{{"machine": {json.dumps(versions)}, "rows": [\n{lines}\n]}}\n')
    print(f"{len(rows)} rows, {len(bad)} that fail or differ")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
