"""The benchmark that builds a leaderboard from many files, on a few of them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.leaderboard_files import suite_file, write

ROOT = Path(__file__).parents[1]


def test_the_scale_benchmark_builds_its_files(tmp_path: Path) -> None:
    template = write(tmp_path, template=suite_file(n_masks=50, limit=5)) / "template.json"
    path = os.pathsep.join([str(ROOT / "leaderboard"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/leaderboard_scale.py", template, "--files", "40"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("4 rows in ")
    assert done.stdout.splitlines()[1].startswith("40 files of ")
    assert "not used" not in done.stderr
