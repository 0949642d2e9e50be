"""Asks the built-in models the paper's questions, and writes the committed report about them.

    python -m benchmarks.paper_reports --hours 1 --processes 2
    python -m benchmarks.paper_reports --limit 6 --models built-in-instruct
    python -m benchmarks.paper_reports --limit 6 --models built-in --recipes e04 e06

Each model is asked by `mdlm-sweep --config paper`, or by some recipes, in as many processes as the hours are for. The
same command continues a killed run. The Markdown, numbers and figures of the report on all models so far go to
`leaderboard/paper`; docs/paper.md shows the figures of the verdicts.
"""

import argparse
import gzip
import shutil
import subprocess
import sys
from pathlib import Path

MODELS = ("built-in", "built-in-instruct")
COMMITTED = Path(__file__).parents[1] / "leaderboard" / "paper"


def asked(model: str, recipe: str, size: str, processes: int, results: Path) -> None:
    """Asks a model. Raises an error if a process fails."""
    command = [sys.executable, "-m", "mdlm_lm_eval.sweep", f"--config={recipe}", f"--model_args=pretrained={model}"]
    command += [size, f"--output_path={results}"]
    started = [subprocess.Popen([*command, f"--shard={n}/{processes}"]) for n in range(processes)]
    if failed := [one.args for one in started if one.wait()]:
        raise RuntimeError(f"failed: {failed}")


def write_committed(results: Path) -> None:
    """Writes the report of all models, and what of it is committed: no page, no PNG and no dark figures."""
    report = results / "report"
    command = [sys.executable, "-m", "mdlm_leaderboard", "report", str(results), f"--output_path={report}"]
    subprocess.run(command, check=True)
    shutil.rmtree(COMMITTED, ignore_errors=True)
    shutil.copytree(report / "figures", COMMITTED / "figures", ignore=shutil.ignore_patterns("*.png", "dark"))
    shutil.copy(report / "report.md", COMMITTED / "README.md")
    packed = gzip.compress((report / "report.json").read_bytes(), mtime=0)
    (COMMITTED / "report.json.gz").write_bytes(packed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--hours", type=float, help="of each model")
    size.add_argument("--limit", type=int, help="questions of each task instead")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--recipes", nargs="+", default=["paper"])
    parser.add_argument("--results", type=Path, default=Path("results/paper"))
    given = parser.parse_args()
    flag = f"--hours={given.hours}" if given.hours else f"--limit={given.limit}"
    for model in given.models:
        for recipe in given.recipes:
            asked(model, recipe, flag, given.processes, given.results)
    write_committed(given.results)
