"""`mdlm-check` on tiny checkpoints beside the authors' own files, as a record that docs/verified.md shows.

    OMP_NUM_THREADS=1 python -m benchmarks.check_against_authors AUTHORS REFERENCE_PYTHON
    OMP_NUM_THREADS=1 python -m benchmarks.check_against_authors AUTHORS REFERENCE_PYTHON --only dream

AUTHORS is a folder with checkouts of github.com/ML-GSAI/LLaDA, NVlabs/Fast-dLLM and JetAstra/SDAR under these names.
REFERENCE_PYTHON belongs to an environment with torch, transformers 4.52.4, safetensors and einops. The tiny checkpoints
have the published keys and vocabularies (tests/published) and random weights, of which those of the output layer are
enlarged, so that some tokens are sure. SDAR's network asks for flash-attn and triton, which need a GPU: stand-ins are
put before them. Every row is written as soon as it is done. Ends with 1 where a row is not as expected.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file

from tests.support.published_shapes import build

RECORD = Path(__file__).with_suffix(".json")
SHAPES = {"llada": "LLaDA-8B-Instruct", "dream": "Dream-v0-Instruct-7B", "sdar": "SDAR-8B-Chat"}
_LLADA, _FAST_LLADA = "ML-GSAI/LLaDA/generate.py", "NVlabs/Fast-dLLM/llada/generate.py"
_DREAM = "NVlabs/Fast-dLLM/dream/model/generation_utils.py"
_SDAR = "JetAstra/SDAR/generate.py"
_NETWORKS = {
    "llada": ("NVlabs/Fast-dLLM/llada/model/modeling_llada.py", "LLaDAModelLM"),
    "dream": ("NVlabs/Fast-dLLM/dream/model/modeling_dream.py", "DreamModel"),
    "sdar": ("JetAstra/SDAR/training/model/SDAR-4B-Chat/modeling_sdar.py", "SDARForCausalLM"),
}


class Case(NamedTuple):
    """A checkpoint, the authors' function, our options, their own arguments, and the cause that must be named."""

    model: str
    file: str
    function: str
    options: str = ""
    arguments: str = ""
    cause: str = ""
    has_network: bool = True
    has_template: bool = True


_BLOCKS = "n_masks=8 block_length=4"
CASES = [
    Case("llada", _LLADA, "generate", _BLOCKS),
    Case("llada", _LLADA, "generate", f"{_BLOCKS} steps=4 cfg_scale=1.5"),
    Case("llada", _FAST_LLADA, "generate", f"{_BLOCKS} confidence_threshold=0.01"),
    Case("llada", _FAST_LLADA, "generate_with_dual_cache", f"{_BLOCKS} cache=dual", "", "their code reuses cached"),
    Case(
        "llada", _FAST_LLADA, "generate", f"{_BLOCKS} confidence_threshold=0.01", "threshold=0.001", "threshold=0.001"
    ),
    Case("llada", _LLADA, "generate", _BLOCKS, "mask_id=126335", "mask id 126335"),
    Case("llada", _LLADA, "generate", _BLOCKS, "", "their prompts have the chat template", has_template=False),
    Case("dream", _DREAM, "DreamGenerationMixin.diffusion_generate", "n_masks=8 schedule=dream unmasking=entropy"),
    Case("dream", _DREAM, "DreamGenerationMixin.diffusion_generate", "n_masks=8 schedule=dream unmasking=margin"),
    Case("dream", _DREAM, "DreamGenerationMixin.diffusion_generate", "n_masks=8 steps=4 schedule=dream"),
    Case(
        "dream",
        _DREAM,
        "DreamGenerationMixin.diffusion_generate",
        "n_masks=8 schedule=dream",
        "top_k=50 alg=entropy",
        "alg=entropy",
    ),
    Case("sdar", _SDAR, "block_diffusion_generate", "n_masks=8"),
    Case("sdar", _SDAR, "block_diffusion_generate", "n_masks=8 confidence_threshold=0.5"),
    Case(
        "sdar",
        _SDAR,
        "block_diffusion_generate",
        "n_masks=8 confidence_threshold=0.5",
        "confidence_threshold=0.05",
        "confidence_threshold=0.05",
    ),
    *(Case(name, _LLADA, "generate", _BLOCKS, has_network=False) for name in ("built-in", "built-in-lists")),
    Case("built-in-block", _SDAR, "block_diffusion_generate", "n_masks=8", has_network=False),
]
# In place of what only runs on a GPU: flash attention without a mask, a norm, and names that are never called.
_ANYTHING = "from unittest.mock import MagicMock\ndef __getattr__(name):\n    return MagicMock()\n"
STAND_INS = {
    "flash_attn/__init__.py": """
import torch.nn.functional as F
def flash_attn_func(q, k, v, causal, softmax_scale):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=softmax_scale, enable_gqa=True).transpose(1, 2)
def flash_attn_varlen_func(): ...
""",
    "flash_attn/bert_padding.py": "def index_first_axis(): ...\ndef pad_input(): ...\ndef unpad_input(): ...\n",
    "flash_attn/ops/__init__.py": "",
    "flash_attn/ops/triton/__init__.py": "",
    "flash_attn/ops/triton/layer_norm.py": """
import torch.nn.functional as F
def rms_norm_fn(x, weight, bias, eps):
    return F.rms_norm(x, weight.shape, weight, eps)
""",
    # torch looks for triton when it is imported, and must not find this one.
    "sitecustomize.py": """
import sys
from pathlib import Path
import torch._dynamo
import torch._inductor.compile_fx
sys.path.append(str(Path(__file__).parent / "later"))
""",
    "later/triton/__init__.py": _ANYTHING,
    "later/triton/language/__init__.py": _ANYTHING,
}


def main() -> None:
    """Runs all cases or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("authors", type=Path)
    parser.add_argument("reference_python", type=Path)
    parser.add_argument("--only", default="", help="models whose name holds this")
    given = parser.parse_args()
    rows = json.loads(RECORD.read_text(encoding="utf-8")) if given.only and RECORD.is_file() else []
    rows = [row for row in rows if given.only not in row["model"]]
    failed = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in STAND_INS.items():
            (folder / "stand_ins" / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / "stand_ins" / file).write_text(text, encoding="utf-8")
        for case in CASES:
            if given.only in case.model:
                rows.append(row_of(case, given.authors.resolve(), given.reference_python.absolute(), folder))
                failed += not rows[-1]["as_expected"]
                print(json.dumps(rows[-1]), flush=True)
                RECORD.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    sys.exit(1 if failed else 0)


def row_of(case: Case, authors: Path, python: Path, folder: Path) -> dict[str, Any]:
    """Runs a case."""
    model = str(_tiny(case.model, folder)) if case.model in SHAPES else case.model
    words = ["--requests", "0", "--against", f"{authors / case.file}:{case.function}"]
    words += ["--model_args", "dtype=float32", "device=cpu", *case.options.split()]
    words += ["--reference_args", *case.arguments.split()] if case.arguments else []
    words += ["--apply_chat_template"] if case.has_template and case.model in SHAPES else []
    files = [case.file]
    if case.has_network:
        file, kind = _NETWORKS[case.model]
        files.append(file)
        with_stand_ins = folder / "python"
        with_stand_ins.write_text(
            f'#!/bin/sh\nPYTHONPATH={folder / "stand_ins"} exec {python} "$@"\n', encoding="utf-8"
        )
        with_stand_ins.chmod(0o755)
        words += ["--modeling", f"{authors / file}:{kind}"]
        words += ["--reference_python", str(with_stand_ins if case.model == "sdar" else python)]
    output = folder / "check.json"
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "mdlm_lm_eval.check", model, *words, "--output_path", str(output)]
    subprocess.run(command, env=environment, check=False)
    found: Mapping[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    output.unlink()
    choices = found["choices"]
    is_named = any(cause.startswith(case.cause) for cause in choices["causes"]) if case.cause else not choices["causes"]
    return {
        "model": case.model,
        "family": found["recognised"]["family"],
        "function": f"{case.file}:{case.function}",
        "options": case.options,
        "arguments": case.arguments,
        "is_planted": bool(case.cause) and "cache" not in case.function,
        "planted": case.arguments or "no --apply_chat_template" * (not case.has_template),
        "network": "theirs" if case.has_network else "ours",
        "versions": found["theirs"],
        "logits_differ_by": found.get("logits", {}).get("largest_difference"),
        "passes": choices["passes"],
        "other_choices": len(choices["other_choices"]),
        "faults": len(choices["faults"]),
        "causes": choices["causes"],
        "same_answers": f"{choices['same_answers']} of {choices['answers']}",
        "our_passes": choices["our_passes"],
        "their_passes": choices["their_passes"],
        "verdict": found["verdict"],
        "as_expected": found["verdict"].startswith("no fault") and is_named,
        "sha256": {file: hashlib.sha256((authors / file).read_bytes()).hexdigest() for file in files},
    }


def _tiny(name: str, folder: Path) -> Path:
    """A checkpoint of a published shape, with an output layer of which some tokens are sure."""
    place = folder / SHAPES[name]
    if not place.is_dir():
        build(name, place)
        for path in place.glob("*.safetensors"):
            weights = load_file(path)
            last = {key for key in weights if key in ("lm_head.weight", "model.transformer.ff_out.weight")}
            enlarged = {key: 12 * each if key in last else each for key, each in weights.items()}
            save_file(enlarged, path, {"format": "pt"})
    return place


if __name__ == "__main__":
    main()
