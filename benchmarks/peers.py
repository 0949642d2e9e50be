"""Our decoding and likelihoods beside other tools', on equal weights: dLLM, Fast-dLLM and LLaDA's own loops.

    OMP_NUM_THREADS=1 python -m benchmarks.peers --dllm dllm --fast_dllm Fast-dLLM --llada LLaDA --json peers.json
    benchmarks/peers_gpu.sh

The folders are checkouts of ZHZisZZ/dllm, NVlabs/Fast-dLLM and ML-GSAI/LLaDA, which run unchanged: dLLM's batched
samplers and its port of Fast-dLLM on its own network (block diffusion on transformers' Llama), Fast-dLLM's functions on
theirs, LLaDA's on dLLM's network. The last two run one request at a time. Each tool is a process with the same random
weights; they take turns, so that each ratio is of neighbours in time. Nothing ends early.

Times are those of the process's core on a CPU, and wall time on a GPU. Memory is the peak of a process
beside its weights. `equal` is the share of our tokens that the other tool has, too; of likelihoods it is the
largest difference in nats. Rows are written as they come.
"""

import argparse
import ctypes
import gc
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import MASK, PAD, SHAPES, Shape, random_model
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions

EOS = 2
SPECIAL = SimpleNamespace(mask_token_id=MASK, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=EOS)
SHAPES_HERE = SHAPES | {"cpu": Shape(384, 1536, 4, 6, 6, 8192)}
# Llama's names of weights -> LLaDA's.
NAMES = {
    r"^model\.embed_tokens\.": "model.transformer.wte.",
    r"^model\.norm\.": "model.transformer.ln_f.",
    r"^lm_head\.": "model.transformer.ff_out.",
    r"^model\.layers\.(\d+)\.input_layernorm\.": r"model.transformer.blocks.\1.attn_norm.",
    r"^model\.layers\.(\d+)\.post_attention_layernorm\.": r"model.transformer.blocks.\1.ff_norm.",
    r"^model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.": r"model.transformer.blocks.\1.\2_proj.",
    r"^model\.layers\.(\d+)\.self_attn\.o_proj\.": r"model.transformer.blocks.\1.attn_out.",
    r"^model\.layers\.(\d+)\.mlp\.gate_proj\.": r"model.transformer.blocks.\1.ff_proj.",
    r"^model\.layers\.(\d+)\.mlp\.up_proj\.": r"model.transformer.blocks.\1.up_proj.",
    r"^model\.layers\.(\d+)\.mlp\.down_proj\.": r"model.transformer.blocks.\1.ff_out.",
}
# Settings of LLaDA-8B's config.json.
LLADA: dict[str, Any] = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "weight_tying": False,
    "rms_norm_eps": 1e-6,
    "max_sequence_length": 8192,
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}


# What a row asks for: the prompts' lengths; `kind` (generation or likelihood); masks, steps and blocks; the cache.
Row = dict[str, Any]


def rows_of(prompt: int, tools: Sequence[str]) -> dict[str, Row]:
    """The rows by name, with prompts of about `prompt` tokens, and for each the tools that can run it."""
    alike, ragged = [prompt] * 8, [prompt * n // 8 for n in range(4, 12)]
    batching, single = ["dllm"], ["llada"]
    found: dict[str, Row] = {
        "8 prompts, no cache, 64 masks in 4 steps": {
            "lengths": alike,
            "masks": 64,
            "steps": 4,
            "tools": batching + single,
        },
        "suite: 8 prompts, 200 masks, 1 step": {
            "lengths": [2 * prompt] * 8,
            "masks": 200,
            "steps": 1,
            "tools": batching + single,
        },
        "8 prompts, prefix cache, blocks of 32": {
            "lengths": alike,
            "masks": 64,
            "steps": 64,
            "block": 32,
            "cache": "prefix",
            "tools": [*batching, "fast_dllm"],
        },
        "8 prompts, dual cache, blocks of 32": {
            "lengths": alike,
            "masks": 64,
            "steps": 64,
            "block": 32,
            "cache": "dual",
            "tools": [*batching, "fast_dllm"],
        },
        "8 prompts, block diffusion, blocks of 32": {
            "lengths": alike,
            "masks": 64,
            "steps": 64,
            "block": 32,
            "cache": "blocks",
            "tools": batching,
        },
        "8 ragged prompts, no cache, 64 masks in 2 steps": {
            "lengths": ragged,
            "masks": 64,
            "steps": 2,
            "tools": batching,
        },
        "8 ragged prompts, block diffusion, blocks of 32": {
            "lengths": ragged,
            "masks": 64,
            "steps": 64,
            "block": 32,
            "cache": "blocks",
            "tools": batching,
        },
        "4 choices of 4 tokens, 32 samples": {"lengths": [prompt], "choice": 4, "samples": 32, "tools": single},
        "4 choices of 12 tokens, 32 samples": {"lengths": [prompt], "choice": 12, "samples": 32, "tools": single},
        "4 choices of 12 tokens, 128 of ours, 32 samples": {
            "lengths": [prompt],
            "choice": 12,
            "samples": 32,
            "ours": 128,
            "tools": single,
        },
    }
    for row in found.values():
        row["tools"] = ["ours", *(tool for tool in row["tools"] if tool in tools)]
    return {name: row for name, row in found.items() if len(row["tools"]) > 1}


def prompts_of(row: Row) -> list[list[int]]:
    draw = Random(0)
    return [draw.choices(range(3, 300), k=length) for length in row["lengths"]]


def choices_of(row: Row) -> list[list[int]]:
    draw = Random(1)
    return [draw.choices(range(3, 300), k=row["choice"]) for _ in range(4)]


def weights_of(shape: Shape, device: str, dtype: torch.dtype) -> Any:
    """A random Llama, the same in each process, that is never surest of a special token."""
    model = random_model(shape, device, dtype)
    with torch.no_grad():
        model.lm_head.weight[: EOS + 1] = 0
    return model


class Ours:
    """This package, with its defaults."""

    def __init__(self, model: Any) -> None:
        facts: dict[str, Any] = {"mask_token_id": MASK, "pad_token_id": PAD}
        self.full = Denoiser(model, **facts)
        self.blocks = Denoiser(model, attention=AttentionPattern(32, blocks_from="prompt_end"), **facts)

    def generate(self, row: Row) -> list[list[int]]:
        changes = {"n_masks": row["masks"], "steps": row["steps"], "early_exit": False}
        if (cache := row.get("cache")) == "blocks":
            changes = {
                "n_masks": row["masks"],
                "steps_per_block": row["block"],
                "block_length": row["block"],
                "early_exit": False,
            }
        elif cache is not None:
            changes |= {"block_length": row["block"], "cache": cache}
        options, denoiser = DecodingOptions(**changes), self.blocks if cache == "blocks" else self.full
        made = {"mask_token_id": MASK, "max_length": 8192}
        canvases = [
            build_canvas(ids, way_of(options, denoiser.attention), request_gen_toks=None, **made)[0]
            for ids in prompts_of(row)
        ]
        return [completion.token_ids for completion in decode_canvases(denoiser, canvases, options)]

    def likelihoods(self, row: Row) -> list[float]:
        options = LikelihoodOptions(mc_num=row.get("ours", row["samples"]), check_greedy=False)
        requests = [LikelihoodRequest(prompts_of(row)[0], choice, n) for n, choice in enumerate(choices_of(row))]
        return [each.total for each in score(self.full, requests, options, batch_size=8, max_length=8192)]


class Dllm:
    """dLLM's samplers for batches: MDLM on LLaDA's network, its port of Fast-dLLM, and BD3LM."""

    def __init__(self, model: Any, shape: Shape, checkout: Path) -> None:
        self.llama, self.model = model, llada_of(model, shape, of_dllm(checkout, "llada"), "LLaDA")
        self.cached = llada_of(model, shape, of_dllm(checkout, "fastdllm.llada"), "FastdLLMLLaDA")
        self.samplers = importlib.import_module("dllm.core.samplers")
        self.port = importlib.import_module("dllm.pipelines.fastdllm.llada.sampler")

    def generate(self, row: Row) -> list[list[int]]:
        given = {"max_new_tokens": row["masks"], "block_size": row.get("block", row["masks"]), "steps": row["steps"]}
        prompts, cache = prompts_of(row), row.get("cache")
        # LLaDA's network turns these kernels off in its process, but only the other one needs masks.
        torch.backends.cuda.enable_mem_efficient_sdp(cache == "blocks")
        if cache == "blocks":
            sampler = self.samplers.BD3LMSampler(model=self.llama, tokenizer=SPECIAL)
            found = sampler.sample(prompts, self.samplers.BD3LMSamplerConfig(**given, right_shift_logits=False))
            return [row[-given["max_new_tokens"] :] for row in found.tolist()]
        if cache is None:
            sampler = self.samplers.MDLMSampler(model=self.model, tokenizer=SPECIAL)
            found = sampler.sample(prompts, self.samplers.MDLMSamplerConfig(**given))
        else:
            sampler = self.port.FastdLLMLLaDASampler(model=self.cached, tokenizer=SPECIAL)
            found = sampler.sample(prompts, self.port.FastdLLMLLaDASamplerConfig(**given, use_cache=cache))
        return [row[len(ids) :][: given["max_new_tokens"]] for ids, row in zip(prompts, found.tolist(), strict=True)]


class OneAtATime:
    """LLaDA's `generate` and `get_log_likelihood` on dLLM's network, or Fast-dLLM's cached functions on theirs."""

    def __init__(self, model: Any, shape: Shape, files: Path, network: Any, prefix: str) -> None:
        self.model = llada_of(model, shape, network, prefix)
        self.files = files

    def _function(self, file: str, name: str) -> Callable[..., Any]:
        sys.path.insert(0, str(self.files))
        try:
            return getattr(importlib.import_module(file), name)  # type: ignore[no-any-return]
        finally:
            sys.path.pop(0)

    def generate(self, row: Row) -> list[list[int]]:
        cache = row.get("cache")
        function = self._function("generate", "generate" if cache is None else f"generate_with_{cache}_cache")
        given = {"steps": row["steps"], "gen_length": row["masks"], "block_length": row.get("block", row["masks"])}
        found = []
        for ids in prompts_of(row):
            made = function(self.model, torch.tensor([ids], device=self.model.device), mask_id=MASK, **given)
            canvas: Tensor = made[0] if isinstance(made, tuple) else made
            found.append(canvas[0, len(ids) :].tolist())
        return found

    def likelihoods(self, row: Row) -> list[float]:
        function = self._function("get_log_likelihood", "get_log_likelihood")
        given = {"mc_num": row["samples"], "batch_size": 8, "mask_id": MASK}
        device = self.model.device
        context = torch.tensor(prompts_of(row)[0], device=device)
        torch.manual_seed(0)
        return [
            function(self.model, context, torch.tensor(choice, device=device), **given) for choice in choices_of(row)
        ]


def of_dllm(checkout: Path, pipeline: str) -> Any:
    """The modelling code of LLaDA in a pipeline of dLLM, without the packages' own files, which import trainers."""
    names = ("llada", "llada.models", "fastdllm", "fastdllm.llada", "fastdllm.llada.models")
    for name in ("dllm", "dllm.core", "dllm.pipelines", *(f"dllm.pipelines.{name}" for name in names)):
        package = sys.modules.get(name, ModuleType(name))
        package.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = package
    return importlib.import_module(f"dllm.pipelines.{pipeline}.models.modeling_llada")


def llada_of(model: Any, shape: Shape, network: Any, prefix: str) -> Any:
    """LLaDA's network, of a module with classes of this `prefix`, on the weights of a Llama."""
    sizes = {"d_model": shape.hidden, "n_layers": shape.layers, "n_heads": shape.heads, "n_kv_heads": shape.kv_heads}
    sizes |= {"mlp_hidden_size": shape.inner, "vocab_size": shape.vocabulary, "embedding_size": shape.vocabulary}
    config = getattr(network, f"{prefix}Config")(**LLADA, **sizes)
    config.use_cache = False  # which transformers 5 no longer keeps
    settings = network.create_model_config_from_pretrained_config(config)
    settings.init_device = "meta"
    before = torch.get_default_dtype()
    torch.set_default_dtype(model.dtype)
    inner = getattr(network, f"{prefix}Model")(settings, init_params=False)
    torch.set_default_dtype(before)
    found = getattr(network, f"{prefix}ModelLM")(config, model=inner).eval()
    weights = {}
    for name, weight in model.state_dict().items():
        new = next(re.sub(old, new, name) for old, new in NAMES.items() if re.search(old, name))
        weights[new] = weight
    found.load_state_dict(weights, assign=True)
    return found


class Meter:
    """Time and memory of a process."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device.startswith("cuda")
        self.loaded = 0 if self.on_gpu else self._held("VmRSS")

    def _held(self, name: str) -> int:
        said = Path("/proc/self/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", said)[1]) * 1024  # type: ignore[index]

    def measured(self, run: Callable[[], Any]) -> tuple[Any, float, int]:
        """What a run returns, its seconds, and the bytes that it needed beside those of the loaded weights."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, began = torch.cuda.memory_allocated(), time.perf_counter()
            found = run()
            torch.cuda.synchronize()
            return found, time.perf_counter() - began, torch.cuda.max_memory_allocated() - before
        ctypes.CDLL(None).malloc_trim(0)  # gives back what earlier rows took
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        began = time.process_time()
        found = run()
        return found, time.process_time() - began, self._held("VmHWM") - self.loaded


def work(arguments: argparse.Namespace) -> None:
    """A tool's process: reads rows, a line each, and says what they gave and cost."""
    shape, device = SHAPES_HERE[arguments.shape], arguments.device
    model, tool = weights_of(shape, device, arguments.dtype), arguments.tool
    running: Any
    if tool == "ours":
        running = Ours(model)
    elif tool == "dllm":
        running = Dllm(model, shape, arguments.dllm)
    elif tool == "llada":
        running = OneAtATime(model, shape, arguments.llada, of_dllm(arguments.dllm, "llada"), "LLaDA")
    else:
        sys.path.insert(0, str(arguments.fast_dllm / "llada"))
        network = importlib.import_module("model.modeling_llada")
        running = OneAtATime(model, shape, arguments.fast_dllm / "llada", network, "LLaDA")
    meter = Meter(device)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        row = json.loads(line)
        run = running.likelihoods if "choice" in row else running.generate
        try:
            with torch.no_grad():
                found, seconds, memory = meter.measured(lambda run=run, row=row: run(row))  # type: ignore[misc]
            print(json.dumps({"found": found, "seconds": seconds, "bytes": memory}), flush=True)
        except Exception as error:  # of another tool's code
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}), flush=True)


class Tool:
    """A tool's process, as the one that measures sees it."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.peers", "--tool", name, *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(self) -> Any:
        """The next thing that it says in JSON, after whatever its code prints."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                return json.loads(line)
            except ValueError:
                continue
        raise RuntimeError(f"a tool ended: {self.process.args}")

    def runs(self, row: Row) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(row) + "\n")
        self.process.stdin.flush()
        return self.said()


def equal(ours: Any, theirs: Any) -> float:
    """The share of equal tokens; of likelihoods the largest difference."""
    if isinstance(ours[0], float):
        return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a, b, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def measured(row: Row, tools: dict[str, Tool], arguments: argparse.Namespace) -> dict[str, Any]:
    """What a row's tools cost, in turns: medians, and the medians and ranges of the ratios to ours."""
    if arguments.device.startswith("cuda"):  # kernels are loaded and chosen
        for name in row["tools"]:
            tools[name].runs(row)
    turns = [{name: tools[name].runs(row) for name in row["tools"]} for _ in range(arguments.turns)]
    found: dict[str, Any] = {}
    for name in row["tools"]:
        if error := next((turn[name]["error"] for turn in turns if "error" in turn[name]), None):
            found[name] = {"error": error}
            continue
        ratios = [turn[name]["seconds"] / turn["ours"]["seconds"] for turn in turns]
        found[name] = {
            "seconds": median(turn[name]["seconds"] for turn in turns),
            "times ours": median(ratios),
            "range": [min(ratios), max(ratios)],
            "MiB beyond weights": median(turn[name]["bytes"] for turn in turns) / 2**20,
            "equal": equal(turns[0]["ours"]["found"], turns[0][name]["found"]),
        }
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dllm", type=Path, help="a checkout of ZHZisZZ/dllm")
    parser.add_argument("--fast_dllm", type=Path, help="a checkout of NVlabs/Fast-dLLM")
    parser.add_argument("--llada", type=Path, help="a checkout of ML-GSAI/LLaDA, which runs on dLLM's network")
    parser.add_argument("--shape", choices=SHAPES_HERE, default="cpu")
    parser.add_argument("--prompt_tokens", type=int, default=600)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no row is begun")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=torch.float32, type=lambda name: getattr(torch, name))
    parser.add_argument("--rows", nargs="+", default=[""], help="parts of names of rows, of which one must fit")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("--tool", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tool:
        work(arguments)
        return
    end = time.perf_counter() + arguments.seconds
    names = [name for name in ("dllm", "fast_dllm", "llada") if getattr(arguments, name)]
    rows = rows_of(arguments.prompt_tokens, names)
    rows = {name: row for name, row in rows.items() if any(part in name for part in arguments.rows)}
    tools = {name: Tool(name, sys.argv[1:]) for name in ["ours", *names]}
    for tool in tools.values():
        tool.said()
    where = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "CPU"
    versions = f"torch {torch.__version__}, transformers {importlib.import_module('transformers').__version__}"
    how = f"{torch.get_num_threads()} threads, {arguments.dtype}, {versions}, {time.strftime('%Y-%m-%d')}"
    record: dict[str, Any] = {
        "machine": f"{where}, {how}",
        "shape": vars(SHAPES_HERE[arguments.shape]),
        "rows": {},
    }
    for name, row in rows.items():
        if time.perf_counter() > end:
            break
        record["rows"][name] = measured(row, tools, arguments)
        print(name, json.dumps(record["rows"][name]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    for tool in tools.values():
        assert tool.process.stdin is not None
        tool.process.stdin.close()
        tool.process.wait()


if __name__ == "__main__":
    main()
