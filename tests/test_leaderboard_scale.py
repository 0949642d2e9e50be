"""The benchmark that builds a leaderboard from many files, on a few of them."""

from pathlib import Path

from tests.commands import python
from tests.leaderboard_files import suite_file, write

SCRIPT = Path(__file__).parents[1] / "benchmarks/leaderboard_scale.py"


def test_the_scale_benchmark_builds_its_files(tmp_path: Path) -> None:
    template = write(tmp_path, template=suite_file(n_masks=50, limit=5)) / "template.json"
    code = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = python(code, str(template), "--files", "40")
    assert done.stdout.splitlines()[0].startswith("4 rows in ")
    assert done.stdout.splitlines()[1].startswith("40 files of ")
    assert "not used" not in done.stderr
