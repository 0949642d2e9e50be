"""The host's time a pass, of two versions of this package in turns, as a share of an H200's passes.

    OMP_NUM_THREADS=1 python benchmarks/host_share.py --old OTHER_CHECKOUT --json benchmarks/host_share.json

Measured are the decoding rows of `benchmarks/gpu.json`, and others of 8 to 256 rows, with the prompts and options of
`benchmarks/gpu.py`. A model of 16 tokens of vocabulary answers at once (`benchmarks/host_time.py`), and a pass takes
the CPU time of its process outside the model, as there in the second half of a run of many passes; the least of all
runs counts. Stop strings are looked for as often as on a GPU. The share is that of the new version in the milliseconds
of the row's pass on the GPU, as if the host's work never overlapped with the device's. Ends with 1 where it exceeds 9%.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_gate import ROOT, Version, name_as_today, only_replies, plain_denoiser

MOST, RUNS = 0.09, 5
ROWS = (8, 32, 128, 256)
NARROW = {  # workloads of many short passes
    "llada-8b": "cache=dual, blocks of 32",
    "sdar-8b": "block diffusion, blocks of 4",
    "llada2-mini": "block diffusion, blocks of 32",
}


def serve() -> None:
    """Measures the cells that standard input names, a line each."""
    replies = only_replies()
    import torch

    import mdlm_lm_eval

    name_as_today()
    from gpu import MANY, SHAPES, Seen, canvases_for, counted, decodings, prompts_of
    from host_time import AtOnce

    from mdlm_lm_eval.decoding.engine import decode_canvases
    from mdlm_lm_eval.model.text import Ending
    from mdlm_lm_eval.options import DecodingOptions

    torch.set_num_threads(1)
    tokenizer = mdlm_lm_eval.load_tokenizer()
    ending = Ending(tokenizer, (), ("\n\n", "Q:"), None)

    def is_decided(ids: list[int]) -> bool:
        return len(ids) % 4 == 0 and ending.is_decided(ids)  # on a GPU it is asked after every fourth step

    for line in sys.stdin:
        shape, workload, rows = json.loads(line)["cell"]
        denoiser = plain_denoiser(AtOnce(16, 2**18), SHAPES[shape])
        changes, n_returned = decodings(SHAPES[shape], 64)[workload]
        options = DecodingOptions(**changes)
        canvases = canvases_for(denoiser, prompts_of(rows, 512), options, n_returned)
        least = float("inf")
        for _ in range(RUNS):
            starts: list[float] = []
            ends: list[float] = []
            hook = denoiser.model.register_forward_hook(lambda *_, ends=ends: ends.append(time.process_time()))
            began = time.process_time()
            with counted(denoiser, Seen(), lambda _, starts=starts: starts.append(time.process_time())):
                decode_canvases(denoiser, canvases, options, is_decided=is_decided)
            outside = [start - end for start, end in zip([*starts, time.process_time()], [began, *ends], strict=True)]
            counts = outside[len(starts) // 2 + 1 :] if len(starts) >= MANY else outside
            least = min(least, sum(counts) / min(len(counts), len(starts)) * 1e3)
            hook.remove()
        print(json.dumps(least), file=replies, flush=True)


def cells() -> Iterator[tuple[str, str, int, float | None]]:
    """Shape, workload, rows, and the milliseconds of a pass on the GPU, if they are known."""
    rows = json.loads((ROOT / "benchmarks" / "gpu.json").read_text())["rows"]
    known = {(one["shape"], one["workload"], one["batch"]): one["ms a pass"] for one in rows if one["way"] == "plain"}
    known = {cell: ms for cell, ms in known.items() if "choices" not in cell[1]}
    more = [(shape, workload, n) for shape, workload in NARROW.items() for n in ROWS]
    for cell in sorted({*known, *more}):
        yield *cell, known.get(cell)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="the folder that holds the other version's mdlm_lm_eval")
    parser.add_argument("--new", type=Path, default=ROOT)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("--as_version", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_version:
        serve()
        return
    versions = {name: Version(vars(arguments)[name], __file__) for name in ("old", "new")}
    found: list[dict[str, Any]] = []
    for shape, workload, rows, on_gpu in cells():
        least = dict.fromkeys(versions, float("inf"))
        for turn in range(arguments.turns):
            for name in list(versions)[:: -1 if turn % 2 else 1]:
                least[name] = min(least[name], versions[name].does(cell=(shape, workload, rows)))
        row = {"shape": shape, "workload": workload, "rows": rows}
        row |= {f"{name}, ms": round(ms, 3) for name, ms in least.items()} | {"pass on the GPU, ms": on_gpu}
        found.append(row | {"share": None if on_gpu is None else round(least["new"] / on_gpu, 4)})
        print(found[-1], flush=True)
    if arguments.json:
        arguments.json.write_text("[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n")
    sys.exit(any((row["share"] or 0.0) > MOST for row in found))


if __name__ == "__main__":
    main()
