"""Compares the answers of a real SGLang server with this package's, on a CPU with tiny checkpoints of published shapes.

    python -m benchmarks.sglang_on_cpu PYTHON --json benchmarks/sglang_on_cpu.json

PYTHON belongs to an environment with SGLang and the Python packages that its server imports. Its CUDA kernels are not
needed: an empty `sgl_kernel` takes their place, and SGLang's own torch functions compute. They ignore
`routed_scaling_factor`, so that it is 1 here. For each checkpoint, a server is started, and the points of
`mdlm_lm_eval.serving.conformance` are written to the JSON file.
"""

import argparse
import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import load_file, save_file

from mdlm_lm_eval.checkpoints import end_of_turn_ids, eos_ids, load_tokenizer
from mdlm_lm_eval.server import MDLMServer
from mdlm_lm_eval.serving.conformance import conformance
from tests.support import published_shapes

# Checkpoint -> SGLang's algorithm, and the settings that the published configuration class has beside the config's.
CASES = {
    "sdar": ("LowConfidence", {"rope_theta": 1000000}),
    "llada2": ("LowConfidence", {"rope_theta": 600000, "rope_scaling": None, "partial_rotary_factor": 0.5}),
    "llada21": ("JointThreshold", {"rope_theta": 600000, "rope_scaling": None, "partial_rotary_factor": 0.5}),
}
PORT = 30000
ADDRESS = f"http://127.0.0.1:{PORT}"
SECONDS_TO_START = 600
CONFIG_CLASS = """from transformers import {parent}


class {name}({parent}):
    model_type = "{model_type}"

    def __init__(self, **given):
        super().__init__(**given)
        for key, value in {settings}.items():
            setattr(self, key, given.get(key, value))
"""
NO_KERNELS = """def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_, **__):
        raise RuntimeError(f"the kernel {name} is not here")

    return kernel
"""


def build(name: str, folder: Path) -> None:
    """Writes a random checkpoint that is often sure of its tokens, with the files that SGLang reads."""
    published_shapes.build(name, folder)
    config_file = folder / "config.json"
    config = json.loads(config_file.read_text())
    if "routed_scaling_factor" in config:
        config["routed_scaling_factor"] = 1.0
        config_file.write_text(json.dumps(config))
    module, _, class_name = config["auto_map"]["AutoConfig"].partition(".")
    code = CONFIG_CLASS.format(
        parent="Qwen3Config" if name == "sdar" else "PretrainedConfig",
        name=class_name,
        model_type=config["model_type"],
        settings=CASES[name][1],
    )
    (folder / f"{module}.py").write_text(code)
    tokenizer_file = folder / "tokenizer_config.json"
    tokenizer = json.loads(tokenizer_file.read_text())
    tokenizer.pop("auto_map", None)  # the published tokenizer's code is not here
    tokenizer_file.write_text(json.dumps(tokenizer))
    files = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    weights = load_file(folder / files["lm_head.weight"])
    tokens = load_tokenizer(str(folder), diffusion_family=name)
    ends = eos_ids(tokens, None) | end_of_turn_ids(tokens)
    written = ends | vocabulary_with_text(folder)
    weights["lm_head.weight"] *= 4
    weights["lm_head.weight"][sorted(ends)] *= 2.5  # so that some texts end
    weights["lm_head.weight"][[n for n in range(len(weights["lm_head.weight"])) if n not in written]] = 0
    save_file(weights, folder / files["lm_head.weight"], {"format": "pt"})


def vocabulary_with_text(folder: Path) -> set[int]:
    """Ids of the tokens that are bytes, not names of unused ids."""
    file = folder / "vocab.json"
    if file.is_file():
        vocabulary = json.loads(file.read_text())
    else:
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return {id for token, id in vocabulary.items() if not token.startswith("unused")}


def serve(python: str, checkpoint: Path, algorithm: str, stubs: Path, log: Path) -> subprocess.Popen[bytes]:
    """Starts SGLang, and waits until it answers. Raises RuntimeError if it does not."""
    command = [python, "-m", "sglang.launch_server", "--model-path", str(checkpoint), "--trust-remote-code"]
    command += ["--dllm-algorithm", algorithm, "--port", str(PORT), "--device", "cpu", "--dtype", "float32"]
    command += ["--attention-backend", "torch_native", "--disable-cuda-graph", "--disable-overlap-schedule"]
    command += ["--max-running-requests", "4", "--max-total-tokens", "8192", "--mem-fraction-static", "0.05"]
    environment = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": str(stubs)}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | environment, start_new_session=True
        )
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end and server.poll() is None:
        time.sleep(2)
        if b"fired up" in log.read_bytes():
            return server
    stop(server)
    raise RuntimeError(f"SGLang did not start:\n{log.read_text(errors='replace')[-2000:]}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ends a server with its processes."""
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    arguments = parser.parse_args()
    found = {}
    for name in arguments.cases:
        with TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "stubs" / "sgl_kernel").mkdir(parents=True)
            (folder / "stubs" / "sgl_kernel" / "__init__.py").write_text(NO_KERNELS)
            build(name, folder / name)
            algorithm, _ = CASES[name]
            server = serve(arguments.python, folder / name, algorithm, folder / "stubs", folder / "log")
            try:
                with urllib.request.urlopen(f"{ADDRESS}/server_info") as page:
                    version = json.load(page)["version"]
                model = MDLMServer(
                    base_url=ADDRESS, pretrained=str(folder / name), diffusion_family=name, dtype="float32", audit=1
                )
                points = conformance(model)["points"]
            finally:
                stop(server)
        found[f"{name}, {algorithm}"] = {point: f"{each['result']}: {each['why']}" for point, each in points.items()}
        print(name, algorithm, json.dumps(found[f"{name}, {algorithm}"], indent=1), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"sglang": version, "checkpoints": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
