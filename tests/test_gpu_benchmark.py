"""benchmarks/gpu.py on tiny shapes on the CPU, without lm-eval: every row is there."""

import json
from pathlib import Path

from tests.commands import python

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
WITHOUT_LM_EVAL = (
    f"import runpy, sys; sys.modules['lm_eval'] = None; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
)


def test_the_tables_of_tiny_shapes(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- gpu -->\nnot run\n<!-- end -->\nafter\n")
    options = {"--shapes": "tiny tiny-blocks tiny-moe", "--batches": "3", "--tokens": "8", "--prompt_tokens": "12"}
    arguments = [word for name, values in options.items() for word in (name, *values.split())]
    arguments += ["--repeats", "1", "--readme", str(readme), "--json", str(tmp_path / "j")]
    python(WITHOUT_LM_EVAL, *arguments)
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    rows = json.loads((tmp_path / "j").read_text())["rows"]
    assert sum(line.startswith("| tiny") for line in lines) == len(rows)
    assert {(row["shape"], row["batch"]) for row in rows} == {(shape, 3) for shape in options["--shapes"].split()}
    assert {"cache=dual, blocks of 8", "block diffusion, blocks of 8"} < {row["workload"] for row in rows}
    assert all(row["ms a pass"] > 0 and row["of the floor"] > 0 for row in rows)
    assert all(row["plain loop, tokens a second"] > 0 for row in rows)
