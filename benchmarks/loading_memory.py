"""Peak memory while a checkpoint is loaded: random weights under a published one's files, names and sizes.

    python -m benchmarks.loading_memory
    python -m benchmarks.loading_memory --names llada --layers 32
    python -m benchmarks.loading_memory --names llada2 --folder FOLDER

Names are those of tests/published. Each checkpoint is written to FOLDER, where it stays, or to a temporary folder; its
values are drawn on the GPU, if there is one. A process of its own loads it. Memory is what the process holds at its
peak on top of what it held before loading, until every weight has been read once: weights that nobody has read need not
be in memory yet. File pages are the part of it that the kernel takes back for nothing when memory is short.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from tests.support import published_shapes


def resident_bytes(kind: str) -> int:
    return 1024 * int(re.findall(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


def load_and_report(folder: str) -> None:
    """In a process of its own: loads, reads every weight, prints the peaks as JSON."""
    from transformers import Glm4MoeForCausalLM, LlamaForCausalLM, Qwen3MoeForCausalLM  # noqa: F401  # code is no part of the checkpoint

    from mdlm_lm_eval import load_denoiser

    highest_anonymous = 0
    done = threading.Event()
    before, anonymous_before = resident_bytes("VmRSS"), resident_bytes("RssAnon")

    def watch() -> None:
        nonlocal highest_anonymous
        while not done.wait(0.002):
            highest_anonymous = max(highest_anonymous, resident_bytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    model = load_denoiser(folder).model
    seconds = time.perf_counter() - start
    for parameter in model.parameters():
        parameter.amax()
    done.set()
    watcher.join()
    figures = {
        "seconds": seconds,
        "peak": resident_bytes("VmHWM") - before,
        "anonymous": highest_anonymous - anonymous_before,
    }
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", choices=published_shapes.NAMES, default=["llada", "llada_moe", "llada2"])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep the checkpoints here, under their published names")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load_and_report(arguments.load)
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print("| checkpoint | size, MiB | peak, MiB | peak / size | without file pages | loading, s |")
    print("|---|---|---|---|---|---|")
    for name in arguments.names:
        known = published_shapes.shape(name)
        config = known["config.json"] | {known["layers"]: arguments.layers}
        with tempfile.TemporaryDirectory() as scratch:
            folder = (arguments.folder or Path(scratch)) / known["checkpoint"]
            published_shapes.build(name, folder, config, scale=0.02, device=device)
            size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            command = [sys.executable, "-m", "benchmarks.loading_memory", "--load", str(folder)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures = json.loads(output.splitlines()[-1])
        print(
            f"| {name} | {size / 2**20:.0f} | {figures['peak'] / 2**20:.0f} | {figures['peak'] / size:.2f} "
            f"| {figures['anonymous'] / size:.2f} | {figures['seconds']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
