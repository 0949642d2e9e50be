"""Time and peak memory of building the leaderboard from many result files.

    lm_eval --model mdlm --model_args n_masks=50 --tasks mdlm_context --limit 2 --output_path out
    python benchmarks/leaderboard_scale.py out/*/results_*.json --files 10000

Writes copies of a real result file of `mdlm_context`, which differ in model, mask count and accuracies as those of
many models would, and builds them in a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

MASKS = (1, 2, 5, 10, 20, 50, 75, 100, 150, 200)


def vary(content: dict[str, Any], n: int, rng: Random) -> None:
    """Makes `content` a full result of model n // len(MASKS) at one of the mask counts."""
    masks, model = MASKS[n % len(MASKS)], f"organisation/model-{n // len(MASKS)}"
    config = content["config"]
    config["limit"] = None
    config["model_args"] = {"pretrained": model, "n_masks": masks}
    config["mdlm"]["pretrained"] = config["mdlm"]["weights"] = model
    config["mdlm"]["decoding"]["n_masks"] = masks
    for task, counts in content["n-samples"].items():
        counts["effective"] = counts["original"]
        content["results"][task]["exact_match,none"] = rng.randint(300, 1000) / counts["original"]
        config["mdlm"]["tasks"][task] |= {"masks": [masks, masks], "asked_masks": [masks, masks]}
    config["mdlm"]["settings"][0]["options"]["n_masks"] = masks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("template", type=Path, help="a result file of --model mdlm on mdlm_context")
    parser.add_argument("--files", type=int, default=10_000)
    options = parser.parse_args()
    content, rng = json.loads(options.template.read_text(encoding="utf-8")), Random(0)
    with tempfile.TemporaryDirectory() as folder:
        results, size = Path(folder, "results"), 0
        results.mkdir()
        for n in range(options.files):
            vary(content, n, rng)
            size += (results / f"results_{n}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "mdlm_leaderboard",
            "build",
            str(results),
            "--output",
            str(Path(folder, "site")),
        ]
        start = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - start
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        site = sum(path.stat().st_size for path in Path(folder, "site").rglob("*") if path.is_file()) / 1e6
    kilobytes, processor = size / options.files / 1000, usage.ru_utime + usage.ru_stime
    print(f"{options.files} files of {kilobytes:.0f} kB: {seconds:.1f} s ({processor:.1f} s of processor time)")
    print(f"{usage.ru_maxrss / 1024:.0f} MiB; the site is {site:.1f} MB")


if __name__ == "__main__":
    main()
