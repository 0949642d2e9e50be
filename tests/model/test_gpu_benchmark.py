"""benchmarks/gpu.sh from a bare checkout, without lm-eval, on a pretended GPU and on the CPU: every row is there."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import mdlm_lm_eval
from tests.support.commands import python

ROOT = Path(__file__).parents[2]
# gpu.sh starts this instead of Python: it adds the folders of its modules and its arguments to a file, a line each.
RECORDER = """#!/bin/sh
printf '%s\\n' "$PYTHONPATH" "$@" "" >> "$RECORDED"
"""
# As `python3 benchmarks/gpu.py ...`, with a GPU that is none.
PRETENDED = """
import os, runpy, sys, torch, types
os.chdir(sys.argv[1])
sys.modules["lm_eval"] = None
from transformers import DynamicCache, Glm4MoeForCausalLM, LlamaForCausalLM  # which look at torch.cuda
from tests.pretended_gpu import PretendedGpu
cpu = torch.profiler.ProfilerActivity.CPU  # the only one that a build without CUDA has
torch.profiler.ProfilerActivity = types.SimpleNamespace(CPU=cpu, CUDA=cpu)
del sys.argv[:2]
with PretendedGpu():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
TINY = ["--tokens", "4", "--prompt_tokens", "8", "--repeats", "1", "--matrix", "64"]


def test_every_row_is_there_of_every_part_and_answers_are_the_models_own_choices(tmp_path: Path) -> None:
    """In float32, where caches and blocks choose what the model chooses."""
    checkout, out = tmp_path / "checkout", tmp_path / "out"
    places = {part: ROOT / part for part in ("benchmarks", "tests/pretended_gpu", "tests/support")}
    places["mdlm_lm_eval"] = Path(mdlm_lm_eval.__file__).parent  # also where the wheel is tested
    for part, place in places.items():
        ignored = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.jsonl")
        shutil.copytree(place, checkout / part, ignore=ignored)
    (checkout / "tests" / "__init__.py").touch()
    (recorder := tmp_path / "python").write_text(RECORDER)
    recorder.chmod(0o755)
    recorded = tmp_path / "recorded"
    changes = {"OUT": str(out), "PYTHON": str(recorder), "RECORDED": str(recorded), "SHAPES": "tiny tiny-moe"}
    command = ["sh", str(checkout / "benchmarks" / "gpu.sh"), *TINY, "--batches", "2", "--dtype", "float32"]
    subprocess.run(command, env=os.environ | changes, check=True, cwd=tmp_path, timeout=600)
    for lines in recorded.read_text().split("\n\n")[:-1]:
        folders, *words = lines.splitlines()
        python(PRETENDED, str(checkout), *words, path=[Path(place) for place in folders.split(os.pathsep)])
    assert (checkout / "benchmarks" / "README.md").read_text() == (ROOT / "benchmarks" / "README.md").read_text()
    rows = json.loads((out / "gpu.json").read_text())["rows"]
    assert {(row["shape"], row["batch"]) for row in rows} == {("tiny", 2), ("tiny-moe", 2)}
    assert {"cache=dual, blocks of 4", "block diffusion, blocks of 4"} < {row["workload"] for row in rows}
    assert all(row["ms a pass"] > 0 and row["of the floor"] > 0 for row in rows)
    assert all(row["plain loop, tokens a second"] > 0 for row in rows)
    lines = (out / "README.md").read_text().splitlines()
    assert sum(line.startswith("| tiny") for line in lines) == len(rows)
    assert any(line.startswith("pretended, torch.float32") for line in lines)
    compared: dict[str, Any] = {row["workload"]: row for row in rows if row["same choice"] is not None}
    assert {name.partition(",")[0] for name in compared} == {"suite: 200 masks", "exact", "block diffusion"}
    assert all(row["same choice"] == 1.0 and row["margin"] == 0.0 for row in compared.values())
