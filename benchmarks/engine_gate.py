"""Two versions of this package decode on one device, in turns: milliseconds a pass, tokens a second, the same tokens.

    python benchmarks/engine_gate.py --old OTHER_CHECKOUT --device cuda --dtype bfloat16 --json gate.json
    python benchmarks/engine_gate.py --old OTHER_CHECKOUT --cells tiny:2 tiny-blocks:4 --tokens 8 --prompt_tokens 12

Needs torch and transformers alone. Each version has a process, which holds one model of random weights at a time; a
process that waits does nothing. A cell is a shape of `benchmarks/gpu.py` and rows, whose prompts and options are that
file's: block diffusion, or `cache=dual` under full attention. After `--warm` runs of both versions follow `--repeats`
pairs of runs, whose order alternates. A pass takes what it takes in the second half of a run, when CUDA graphs are
recorded; the ratio is the median over pairs. Random weights draw no threshold, so that all runs of a cell have the same
passes. Ends with 1 if the new version takes more passes, or more than `--within` percent longer.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]


class Version:
    """A process that runs the package of `folder`."""

    def __init__(self, folder: Path, script: str, arguments: Sequence[str] = ()) -> None:
        path = [str(folder.resolve()), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, script, "--as_version", *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, **task: Any) -> None:
        """Begins a task."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        """The result of a task, when it is done."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise SystemExit(f"a version ended with {self.process.wait()}")
        return json.loads(line)

    def does(self, **task: Any) -> Any:
        """The result of a task that no other version's task runs beside."""
        self.tell(**task)
        return self.result()


def only_replies() -> TextIO:
    """The standard output, which then has nothing that libraries print."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def name_as_today() -> None:
    """Gives another version's modules the names that benchmarks import."""
    if find_spec("mdlm_lm_eval.decoding.decode") is not None:  # it had `decode_canvases` for a part of 0.4's time
        sys.modules["mdlm_lm_eval.decoding.engine"] = import_module("mdlm_lm_eval.decoding.decode")


def plain_denoiser(model: Any, shape: Any) -> Any:
    """A denoiser of either version, without options that only one of them knows."""
    from gpu import MASK, PAD

    from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
    from mdlm_lm_eval.model.denoiser import Denoiser

    attention = FULL_ATTENTION if shape.block is None else AttentionPattern(shape.block)
    return Denoiser(model, mask_token_id=MASK, pad_token_id=PAD, shift=shape.shift, attention=attention)


def serve(arguments: argparse.Namespace) -> None:
    """Does the tasks that standard input names, a line each."""
    replies = only_replies()
    import torch

    import mdlm_lm_eval

    name_as_today()
    from gpu import SHAPES, Seen, canvases_for, counted, decodings, prompts_of, random_model

    from mdlm_lm_eval.decoding.engine import decode_canvases
    from mdlm_lm_eval.options import DecodingOptions

    on_gpu = arguments.device.startswith("cuda")
    denoiser: Any = None

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    def run(shape: str, rows: int) -> dict[str, Any]:
        *_, (changes, n_returned) = decodings(SHAPES[shape], arguments.tokens).values()
        options = DecodingOptions(**changes)
        canvases = canvases_for(denoiser, prompts_of(rows, arguments.prompt_tokens), options, n_returned)
        seen, begun = Seen(), []
        wait()
        began = time.perf_counter()
        with counted(denoiser, seen, lambda _: begun.append(time.perf_counter())):
            found = decode_canvases(denoiser, canvases, options)
        wait()
        ended, half = time.perf_counter(), seen.passes // 2
        return {
            "ms a pass": (ended - begun[half]) / (seen.passes - half) * 1e3,
            "tokens a second": sum(canvas.n_returned for canvas in canvases) / (ended - began),
            "passes": seen.passes,
            "token_ids": [one.token_ids for one in found],
        }

    for line in sys.stdin:
        task = json.loads(line)
        if (shape := task.pop("load", None)) is not None:
            denoiser = None  # before the next one takes its place
            if on_gpu:
                torch.cuda.empty_cache()
            model = random_model(SHAPES[shape], arguments.device, arguments.dtype)
            denoiser = plain_denoiser(model, SHAPES[shape])
            del model
            wait()
            name = torch.cuda.get_device_name() if on_gpu else "CPU"
            reply = {"package": str(Path(mdlm_lm_eval.__file__).parent), "device": name, "torch": torch.__version__}
        else:
            reply = run(**task)
        print(json.dumps(reply), file=replies, flush=True)


def measured(versions: dict[str, Version], shape: str, rows: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """A row of the table."""
    for _ in range(arguments.warm):
        for version in versions.values():
            version.does(shape=shape, rows=rows)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in versions}
    for number in range(arguments.repeats):
        for name in list(versions)[:: -1 if number % 2 else 1]:
            runs[name].append(versions[name].does(shape=shape, rows=rows))
    pairs = list(zip(runs["old"], runs["new"], strict=True))
    ratios = sorted(new["ms a pass"] / old["ms a pass"] for old, new in pairs)
    found: dict[str, Any] = {"shape": shape, "rows": rows}
    for key in ("passes", "ms a pass", "tokens a second"):
        found |= {f"{key}, {name}": median(run[key] for run in runs[name]) for name in versions}
    same = [a == b for old, new in pairs for a, b in zip(old["token_ids"], new["token_ids"], strict=True)]
    least, most = ratios[0], ratios[-1]
    return {**found, "ratio": median(ratios), "least ratio": least, "most": most, "same": sum(same) / len(same)}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="the folder that holds the other version's mdlm_lm_eval")
    parser.add_argument("--new", type=Path, default=ROOT)
    parser.add_argument("--cells", nargs="+", default=["sdar-8b:8", "sdar-8b:64", "llada-8b:8"], help="SHAPE:ROWS")
    parser.add_argument("--tokens", type=int, default=64, help="generated tokens")
    parser.add_argument("--prompt_tokens", type=int, default=512)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--within", type=float, default=7.0, help="percent")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("--as_version", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.as_version:
        import torch

        arguments.dtype = getattr(torch, arguments.dtype)
        serve(arguments)
        return
    began = time.perf_counter()
    versions = {name: Version(vars(arguments)[name], __file__, argv) for name in ("old", "new")}
    rows: list[dict[str, Any]] = []
    loaded = None
    for shape, _, n_rows in (cell.partition(":") for cell in arguments.cells):
        if shape != loaded:
            loaded = shape
            for version in versions.values():
                version.tell(load=shape)
            facts = {name: version.result() for name, version in versions.items()}
            print(f"{time.perf_counter() - began:.0f} s: {facts}", flush=True)
        rows.append(measured(versions, shape, int(n_rows), arguments))
        print(f"{time.perf_counter() - began:.0f} s: {rows[-1]}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"versions": facts, "rows": rows}, indent=1) + "\n")
    slower = [row for row in rows if row["ratio"] > 1 + arguments.within / 100]
    sys.exit(bool(slower) or any(row["passes, new"] > row["passes, old"] for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])
