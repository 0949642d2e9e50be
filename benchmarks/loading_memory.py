"""Peak memory while a sharded checkpoint with random weights is loaded, in the families' own formats.

    python benchmarks/loading_memory.py
    python benchmarks/loading_memory.py --layers 32 --hidden_size 4096 --intermediate_size 12288 --vocab_size 126464

Each checkpoint is written to a temporary folder and loaded by a process of its own. Memory is what the process holds at
its peak on top of what it held before loading, until every weight has been read once: weights that nobody has read need
not be in memory yet. File pages are the part of it that the kernel takes back for nothing when memory is short.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

SHARDS = 4
COMMON = {"torch_dtype": "bfloat16", "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "eos_token_id": 1, "pad_token_id": 1}
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def llada(arguments: argparse.Namespace) -> tuple[dict[str, object], list[tuple[str, tuple[int, ...]]]]:
    """(config, weight names and shapes) of a dense model."""
    h, i, v = arguments.hidden_size, arguments.intermediate_size, arguments.vocab_size
    config = COMMON | {
        "model_type": "llada",
        "d_model": h,
        "n_heads": h // 128,
        "n_layers": arguments.layers,
        "mlp_hidden_size": i,
        "vocab_size": v,
        "max_sequence_length": 4096,
        "mask_token_id": v - 1,
    }

    def shapes() -> Shapes:
        yield "model.transformer.wte.weight", (v, h)
        for layer in range(arguments.layers):
            block = f"model.transformer.blocks.{layer}"
            for name in ("q_proj", "k_proj", "v_proj", "attn_out"):
                yield f"{block}.{name}.weight", (h, h)
            yield from ((f"{block}.{name}.weight", (i, h)) for name in ("ff_proj", "up_proj"))
            yield f"{block}.ff_out.weight", (h, i)
            yield from ((f"{block}.{name}.weight", (h,)) for name in ("attn_norm", "ff_norm"))
        yield "model.transformer.ln_f.weight", (h,)
        yield "model.transformer.ff_out.weight", (v, h)

    return config, list(shapes())


def llada_moe(arguments: argparse.Namespace) -> tuple[dict[str, object], list[tuple[str, tuple[int, ...]]]]:
    """(config, weight names and shapes) of a mixture of 64 experts, whose weights are fused while loading."""
    h, v, experts = arguments.hidden_size // 2, arguments.vocab_size, 64
    i = arguments.intermediate_size // 16
    config = COMMON | {
        "model_type": "lladamoe",
        "hidden_size": h,
        "num_attention_heads": h // 128,
        "num_key_value_heads": h // 128,
        "num_hidden_layers": arguments.layers,
        "expert_intermediate_size": i,
        "num_experts": experts,
        "num_experts_per_tok": 8,
        "vocab_size": v,
        "max_position_embeddings": 8192,
        "mask_token_id": v - 1,
    }

    def shapes() -> Shapes:
        yield "model.embed_tokens.weight", (v, h)
        for layer in range(arguments.layers):
            block = f"model.layers.{layer}"
            yield from ((f"{block}.self_attn.{name}_proj.weight", (h, h)) for name in "qkvo")
            yield from ((f"{block}.self_attn.{name}_norm.weight", (128,)) for name in "qk")
            yield from ((f"{block}.{name}_layernorm.weight", (h,)) for name in ("input", "post_attention"))
            yield f"{block}.mlp.gate.weight", (experts, h)
            for expert in range(experts):
                name = f"{block}.mlp.experts.{expert}"
                yield from ((f"{name}.{projection}_proj.weight", (i, h)) for projection in ("gate", "up"))
                yield f"{name}.down_proj.weight", (h, i)
        yield "model.norm.weight", (h,)
        yield "lm_head.weight", (v, h)

    return config, list(shapes())


def llada2(arguments: argparse.Namespace) -> tuple[dict[str, object], list[tuple[str, tuple[int, ...]]]]:
    """(config, weight names and shapes) of LLaDA2: queries, keys and values are split, experts fused while loading."""
    h, v, experts, kv = arguments.hidden_size // 2, arguments.vocab_size, 64, 2
    i, dense, heads = arguments.intermediate_size // 16, arguments.intermediate_size, h // 128
    config = COMMON | {
        "model_type": "llada2_moe",
        "diffusion_family": "llada2",
        "hidden_size": h,
        "head_dim": 128,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "num_hidden_layers": arguments.layers,
        "first_k_dense_replace": 1,
        "intermediate_size": dense,
        "moe_intermediate_size": i,
        "num_experts": experts,
        "num_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
        "vocab_size": v,
        "max_position_embeddings": 8192,
        "mask_token_id": v - 1,
    }

    def mlp(name: str, width: int) -> Shapes:
        yield from ((f"{name}.{part}_proj.weight", (width, h)) for part in ("gate", "up"))
        yield f"{name}.down_proj.weight", (h, width)

    def shapes() -> Shapes:
        yield "model.word_embeddings.weight", (v, h)
        for layer in range(arguments.layers):
            block = f"model.layers.{layer}"
            yield f"{block}.attention.query_key_value.weight", ((heads + 2 * kv) * 128, h)
            yield f"{block}.attention.dense.weight", (h, heads * 128)
            yield from ((f"{block}.attention.{name}_layernorm.weight", (128,)) for name in ("query", "key"))
            yield from ((f"{block}.{name}_layernorm.weight", (h,)) for name in ("input", "post_attention"))
            if layer == 0:
                yield from mlp(f"{block}.mlp", dense)
                continue
            yield f"{block}.mlp.gate.weight", (experts, h)
            yield f"{block}.mlp.gate.expert_bias", (experts,)
            yield from mlp(f"{block}.mlp.shared_experts", i)
            for expert in range(experts):
                yield from mlp(f"{block}.mlp.experts.{expert}", i)
        yield "model.norm.weight", (h,)
        yield "lm_head.weight", (v, h)

    return config, list(shapes())


FAMILIES = {"llada": llada, "llada_moe": llada_moe, "llada2": llada2}


def write_checkpoint(folder: Path, family: str, arguments: argparse.Namespace) -> int:
    """Random bf16 weights in shards; their bytes."""
    config, shapes = FAMILIES[family](arguments)
    (folder / "config.json").write_text(json.dumps(config))
    files: dict[str, str] = {}
    size = 0
    for shard in range(SHARDS):
        part = shapes[shard * len(shapes) // SHARDS : (shard + 1) * len(shapes) // SHARDS]
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        weights = {name: torch.zeros(shape, dtype=torch.bfloat16).normal_(std=0.02) for name, shape in part}
        save_file(weights, folder / file, {"format": "pt"})
        files |= dict.fromkeys(weights, file)
        size += sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return size


def resident_bytes(*kinds: str) -> int:
    status = Path("/proc/self/status").read_text()
    return sum(1024 * int(re.findall(rf"{kind}:\s+(\d+) kB", status)[0]) for kind in kinds)


def load_and_report(folder: str) -> None:
    """In a process of its own: loads, reads every weight, prints the peaks as JSON."""
    from transformers import Glm4MoeForCausalLM, LlamaForCausalLM, Qwen3MoeForCausalLM  # noqa: F401  # code is no part of the checkpoint

    from mdlm_lm_eval import load_denoiser

    highest_anonymous = 0
    done = threading.Event()
    before, anonymous_before = resident_bytes("VmRSS"), resident_bytes("RssAnon")

    def watch() -> None:
        nonlocal highest_anonymous
        while not done.wait(0.002):
            highest_anonymous = max(highest_anonymous, resident_bytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    model = load_denoiser(folder).model
    seconds = time.perf_counter() - start
    for parameter in model.parameters():
        parameter.amax()
    done.set()
    watcher.join()
    figures = {
        "seconds": seconds,
        "peak": resident_bytes("VmHWM") - before,
        "anonymous": highest_anonymous - anonymous_before,
    }
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden_size", type=int, default=2048, help="of the dense model; the mixture has half")
    parser.add_argument("--intermediate_size", type=int, default=6144)
    parser.add_argument("--vocab_size", type=int, default=64_000)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load_and_report(arguments.load)
        return
    print("| format | checkpoint, MiB | peak, MiB | peak / checkpoint | without file pages | loading, s |")
    print("|---|---|---|---|---|---|")
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            size = write_checkpoint(Path(folder), family, arguments)
            command = [sys.executable, __file__, "--load", folder]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures = json.loads(output.splitlines()[-1])
        print(
            f"| {family} | {size / 2**20:.0f} | {figures['peak'] / 2**20:.0f} | {figures['peak'] / size:.2f} "
            f"| {figures['anonymous'] / size:.2f} | {figures['seconds']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
