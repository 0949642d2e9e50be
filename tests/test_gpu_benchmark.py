"""benchmarks/gpu.py on a tiny shape on the CPU: every row is there, and exact decoding equals the plain loop."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
SMALL = {
    "model": "tiny",
    "vocab_size": 300,
    "questions": 2,
    "prompt_tokens": 44,
    "n_masks": 16,
    "block_length": 8,
    "context_tokens": 8,
    "mc_num": 8,
}


def test_the_table_of_a_tiny_shape(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- gpu -->\nnot run\n<!-- end -->\nafter\n")
    options = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, str(SCRIPT), *options, "--readme", str(readme)], check=True, capture_output=True)
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "not run" not in lines
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    assert [row[:2] for row in rows] == [
        ["few-shot suite, 1 step", "plain loop"],
        ["few-shot suite, 1 step", "exact"],
        ["1-token choices", "plain loop"],
        ["1-token choices", "ours"],
        ["16-token choices", "plain loop"],
        ["16-token choices", "ours"],
        ["generation, 1 token a step", "plain loop"],
        ["generation, 1 token a step", "exact"],
        ["generation, 1 token a step", "cache=dual"],
        ["generation, 1 token a step", "cache=dual, confidence_threshold=0.9"],
        ["batch effects of float32", "one by one"],
        ["batch effects of float32", "one batch"],
    ]
    answers = {(workload, name): cells[-1] for workload, name, *cells in rows}
    assert answers["few-shot suite, 1 step", "exact"] == "1 of 1, 100% of tokens"
    assert answers["generation, 1 token a step", "exact"] == "1 of 1, 100% of tokens"
    assert answers["batch effects of float32", "one batch"] == "2 of 2, 100% of tokens"
    assert all(float(row[2]) > 0 for row in rows)
