"""Peak memory while a checkpoint in LLaDA's format is loaded, renamed on the way."""

import ctypes
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdlm_lm_eval.loading import load_denoiser

GOLDEN = Path(__file__).parent / "golden" / "llada"
LARGER = {32: 1024, 80: 2560, 160: 4096}
SHARDS = 3


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The golden checkpoint with larger random weights in bf16, in shards."""
    config = json.loads((GOLDEN / "config.json").read_text())
    sizes = {"d_model": 1024, "mlp_hidden_size": 2560, "embedding_size": 4096, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes))
    shapes = {name: tensor.shape for name, tensor in load_file(GOLDEN / "model.safetensors").items()}
    files = {name: f"model-0000{1 + n % SHARDS}-of-0000{SHARDS}.safetensors" for n, name in enumerate(shapes)}
    for file in set(files.values()):
        weights = {
            name: torch.randn([LARGER[size] for size in shape], dtype=torch.bfloat16)
            for name, shape in shapes.items()
            if files[name] == file
        }
        save_file(weights, tmp_path / file, {"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return tmp_path


def resident_bytes(kind: str) -> int:
    return 1024 * int(re.findall(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is reset by Linux alone")
def test_loading_takes_little_more_than_the_weights(checkpoint: Path) -> None:
    load_denoiser(str(GOLDEN))  # imports what loading imports
    size = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    assert size > 60_000_000
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    model = load_denoiser(str(checkpoint)).model
    for parameter in model.parameters():  # weights that nobody has read may not be in memory yet
        parameter.amax()
    peak = resident_bytes("VmHWM") - before
    assert 0.9 * size < peak < 1.1 * size
