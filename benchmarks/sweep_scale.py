"""What sharing the cells of a sweep costs: many processes, cells of no work, and some of the processes killed.

    python benchmarks/sweep_scale.py --cells 10000 --processes 100 --kills 20

Every process goes through the same cells by the same locks as `mdlm-sweep`, and writes each as a whole folder with one
small file. A cell that was computed twice shows in the processes' logs, one that was lost in the folder.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from mdlm_lm_eval.sweep.claims import Claims
from mdlm_lm_eval.sweep.plan import RESULT_FILE, Cell, Sweep


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        output, logs = Path(folder) / "results", Path(folder) / "logs"
        output.mkdir()
        logs.mkdir()
        codes: Counter[int] = Counter()
        started = time.monotonic()
        processes = [_start(output, logs, given.cells) for _ in range(given.processes)]
        for process, share in zip(
            rng.sample(processes, given.kills), sorted(rng.random() for _ in range(given.kills)), strict=True
        ):
            while len(list(output.glob("model/*"))) < 0.9 * share * given.cells:
                time.sleep(0.05)
            os.kill(process, signal.SIGKILL)
            codes[os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])] += 1
            processes.remove(process)
        codes.update(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes)
        seconds = time.monotonic() - started
        _report(output, logs, given.cells, codes, seconds)


def _start(output: Path, logs: Path, cells: int) -> int:
    if child := os.fork():
        return child
    begun = time.process_time()
    claims = _claims(output, cells)
    with open(logs / str(os.getpid()), "w", buffering=1) as log:
        while claims.left:
            if (taken := claims.take()) is None:
                time.sleep(0.1)
                continue
            cell, lock = taken
            result = {"config": {"mdlm_sweep": {"settings": claims.settings(cell)}}}
            claims.finish(cell, {RESULT_FILE: json.dumps(result).encode()})
            print(cell.task, file=log)
            lock.release()
        print(f"cpu {time.process_time() - begun}", file=log)
    os._exit(0)


def _claims(output: Path, cells: int) -> Claims:
    return Claims(Sweep(tuple(Cell(task=str(n), model="model") for n in range(cells)), model="model"), output)


def _report(output: Path, logs: Path, cells: int, codes: Counter[int], seconds: float) -> None:
    lines = [line for log in logs.iterdir() for line in log.read_text().splitlines()]
    computed = Counter(int(line) for line in lines if line.isdigit())
    cpu = sum(float(line.split()[1]) for line in lines if line.startswith("cpu"))
    claims = _claims(output, cells)
    lost = [cell for cell in claims.left.values() if not claims.is_finished(cell)]
    left = [path.name for path in (output / "model").glob(".*")]
    print(f"{cells} cells, exit codes {dict(codes)}, {seconds:.1f} s, {1000 * seconds / cells:.2f} ms a cell")
    print(f"CPU of those that ended by themselves: {1000 * cpu / cells:.2f} ms a cell")
    print(f"computed twice: {sum(n > 1 for n in computed.values())}, lost: {len(lost)}, files left behind: {left}")


if __name__ == "__main__":
    main()
