"""benchmarks/gpu.sh from a bare checkout, without lm-eval, on a pretended GPU and on the CPU: every row is there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mdlm_lm_eval

ROOT = Path(__file__).parents[1]
# As `python3 benchmarks/gpu.py ...`, with a GPU that is none.
PRETENDED = f"""#!{sys.executable}
import runpy, sys, torch, types
sys.modules["lm_eval"] = None
from transformers import DynamicCache, Glm4MoeForCausalLM, LlamaForCausalLM  # which look at torch.cuda
from tests.pretended_gpu import PretendedGpu
cpu = torch.profiler.ProfilerActivity.CPU  # the only one that a build without CUDA has
torch.profiler.ProfilerActivity = types.SimpleNamespace(CPU=cpu, CUDA=cpu)
del sys.argv[0]
with PretendedGpu():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
TINY = ["--tokens", "4", "--prompt_tokens", "8", "--repeats", "1", "--matrix", "64"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What gpu.sh leaves in $OUT, in float32."""
    folder = tmp_path_factory.mktemp("gpu")
    checkout, out = folder / "checkout", folder / "out"
    places = {part: ROOT / part for part in ("benchmarks", "tests/pretended_gpu")}
    places["mdlm_lm_eval"] = Path(mdlm_lm_eval.__file__).parent  # also where the wheel is tested
    for part, place in places.items():
        ignored = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.jsonl")
        shutil.copytree(place, checkout / part, ignore=ignored)
    (checkout / "tests" / "__init__.py").touch()
    (python := folder / "python").write_text(PRETENDED)
    python.chmod(0o755)
    environment = {**os.environ, "OUT": str(out), "PYTHON": str(python), "SHAPES": "tiny tiny-moe"}
    command = ["sh", str(checkout / "benchmarks" / "gpu.sh"), *TINY, "--batches", "2", "--dtype", "float32"]
    subprocess.run(command, env=environment, check=True, cwd=folder, timeout=600)
    assert (checkout / "benchmarks" / "README.md").read_text() == (ROOT / "benchmarks" / "README.md").read_text()
    return out


def test_every_row_is_there_of_every_part(results: Path) -> None:
    rows = json.loads((results / "gpu.json").read_text())["rows"]
    assert {(row["shape"], row["batch"]) for row in rows} == {("tiny", 2), ("tiny-moe", 2)}
    assert {"cache=dual, blocks of 4", "block diffusion, blocks of 4"} < {row["workload"] for row in rows}
    assert all(row["ms a pass"] > 0 and row["of the floor"] > 0 for row in rows)
    assert all(row["plain loop, tokens a second"] > 0 for row in rows)
    lines = (results / "README.md").read_text().splitlines()
    assert sum(line.startswith("| tiny") for line in lines) == len(rows)
    assert any(line.startswith("pretended, torch.float32") for line in lines)


def test_answers_are_the_models_own_choices(results: Path) -> None:
    rows = json.loads((results / "gpu.json").read_text())["rows"]
    compared: dict[str, Any] = {row["workload"]: row for row in rows if row["same choice"] is not None}
    assert {name.partition(",")[0] for name in compared} == {"suite: 200 masks", "exact", "block diffusion"}
    assert all(row["same choice"] == 1.0 and row["margin"] == 0.0 for row in compared.values())
