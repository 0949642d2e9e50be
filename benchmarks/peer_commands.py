"""Whole `lm_eval` commands, start-up included, of this package and of dLLM, on one random checkpoint.

    OMP_NUM_THREADS=1 python -m benchmarks.peer_commands DLLM PYTHON --json benchmarks/peer_commands.json

DLLM is a checkout of ZHZisZZ/dllm. PYTHON has what its pyproject.toml asks for, trl, and lm-eval 0.4.8 (of newer ones
its class cannot set `device`). On a CPU its network needs `init_device = "cpu"` where it says "cuda", so a copy does;
everything else is as published. The checkpoint has LLaDA's files with small widths and bytes as tokens. The commands
take turns. CPU time and memory are a process's own; generated strings are compared.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from string import ascii_lowercase
from typing import Any

from safetensors.torch import load_file, save_file

from tests.support import published_shapes

SIZES = {"d_model": 384, "n_layers": 4, "n_heads": 6, "n_kv_heads": 6, "mlp_hidden_size": 1536}
VOCABULARY = 8192
PRINTED = 94  # the first tokens, which are bytes that print; others are never the surest
HEAD = "model.transformer.ff_out.weight"
WIDTH = 64  # masks
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
doc_to_text: "{{{{text}}}}"
"""
GENERATE = 'output_type: generate_until\ndoc_to_target: ""\ngeneration_kwargs: {until: []}\n'
CHOOSE = 'output_type: multiple_choice\ndoc_to_choice: "{{choices}}"\ndoc_to_target: 0\n'

# name -> questions, kind of task, and the arguments of ours and of theirs
ROWS: dict[str, tuple[int, str, str, str]] = {
    "1 prompt, 1 mask in 1 step": (
        1,
        GENERATE,
        "n_masks=1,steps=1",
        "max_new_tokens=1,steps=1,block_size=1",
    ),
    "16 prompts, 64 masks in 8 steps": (
        16,
        GENERATE,
        f"n_masks={WIDTH},steps=8",
        f"max_new_tokens={WIDTH},steps=8,block_size={WIDTH}",
    ),
    "4 questions, 4 choices of 12 tokens, 32 samples": (
        4,
        CHOOSE,
        "mc_num=32,check_greedy=false",
        "mc_num=32",
    ),
}


def write_checkpoint(folder: Path) -> None:
    """LLaDA's files, with tokens from id 126,080 on moved down to the end of a small vocabulary."""
    known = published_shapes.shape("llada")
    down = VOCABULARY - 512 - 126080
    moved = {name: id + down for name, id in known["config.json"].items() if name.endswith("token_id")}
    config = known["config.json"] | SIZES | moved | {"vocab_size": VOCABULARY, "embedding_size": VOCABULARY}
    published_shapes.build("llada", folder, config, scale=0.05)
    (folder / "generation_config.json").unlink()  # which has the published ids
    added = {str(int(id) + down): token for id, token in known["added_tokens"].items()}
    published_shapes.write_tokenizer(known | {"added_tokens": added}, folder)
    shard = folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][HEAD]
    weights = load_file(shard)
    weights[HEAD][PRINTED:] = 0
    save_file(weights, shard, {"format": "pt"})


def write_task(folder: Path, name: str, n: int, kind: str, prompt_tokens: int) -> None:
    """Random letters: prompts, and choices that lm-eval puts after a space."""
    draw = Random(0)
    letters = lambda k: "".join(draw.choices(ascii_lowercase, k=k))  # noqa: E731
    documents = [{"text": letters(prompt_tokens), "choices": [letters(11) for _ in range(4)]} for _ in range(n)]
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=file) + kind)


def run(command: Sequence[str], path: Path, log: Path) -> tuple[float, int]:
    """CPU seconds and peak bytes of a command with the modules of this folder."""
    variables = os.environ | {"PYTHONPATH": str(path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(command, env=variables, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{log.read_text()[-3000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def answers(output: Path) -> list[Any]:
    """The responses of a run, by document."""
    (file,) = output.rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    return [sample["resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]


def measured(row: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both commands of a row in turns: medians, the range of the ratios, and the share of equal strings."""
    n, kind, *arguments_of = ROWS[row]
    name = f"peers_{[*ROWS].index(row)}"
    write_task(folder, name, n, kind, arguments.prompt_tokens)
    weights, dllm = f"pretrained={folder / 'checkpoint'},dtype=float32", folder / "dllm"
    shared = ["--tasks", name, "--include_path", str(folder), "--batch_size", "8", "--device", "cpu", "--log_samples"]
    entries = {
        "ours": [sys.executable, "-m", "lm_eval", "--model", "mdlm"],
        "dllm": [arguments.python, str(dllm / "dllm/pipelines/llada/eval.py"), "--model", "llada"],
    }
    commands = {
        tool: [*entry, "--model_args", f"{weights},{own}", *shared]
        for (tool, entry), own in zip(entries.items(), arguments_of, strict=True)
    }
    paths = {"ours": Path(__file__).parents[1], "dllm": dllm}
    turns: list[dict[str, tuple[float, int]]] = []
    found: dict[str, list[Any]] = {}
    for turn in range(arguments.turns):
        costs = {}
        for tool, command in commands.items():
            output = folder / f"{name}-{turn}-{tool}"
            log = folder / f"{name}-{tool}.log"
            costs[tool] = run([*command, "--output_path", str(output)], paths[tool], log)
            found[tool] = answers(output)
        turns.append(costs)
    ratios = [turn["dllm"][0] / turn["ours"][0] for turn in turns]
    result: dict[str, Any] = {
        "seconds": {tool: median(turn[tool][0] for turn in turns) for tool in commands},
        "times ours": median(ratios),
        "range": [min(ratios), max(ratios)],
        "MiB": {tool: median(turn[tool][1] for turn in turns) / 2**20 for tool in commands},
    }
    if kind is GENERATE:
        result["same strings"] = [sum(a == b for a, b in zip(*found.values(), strict=True)), n]
    return result


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dllm", type=Path)
    parser.add_argument("python")
    parser.add_argument("--prompt_tokens", type=int, default=300)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, help="a file for the rows")
    arguments = parser.parse_args()
    record: dict[str, Any] = {"machine": f"CPU, {time.strftime('%Y-%m-%d')}", "rows": {}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_checkpoint(folder / "checkpoint")
        shutil.copytree(arguments.dllm / "dllm", folder / "dllm" / "dllm")
        for network in (folder / "dllm").rglob("modeling_llada.py"):
            network.write_text(network.read_text().replace('init_device = "cuda"', 'init_device = "cpu"'))
        for row in ROWS:
            record["rows"][row] = measured(row, folder, arguments)
            print(row, json.dumps(record["rows"][row]), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
