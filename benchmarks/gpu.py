"""Decoding and likelihoods at full speed on one GPU: random weights of published shapes, ours beside the plain loop.

    benchmarks/gpu.sh
    python benchmarks/gpu.py --shapes tiny tiny-blocks tiny-moe --batches 1 2 --tokens 8 --prompt_tokens 12

Needs torch and transformers alone. A row is one workload at one batch: warmed up by a run, then the median of
`--repeats`; one more run goes through torch's profiler (on a GPU), which counts waits, launches and the share of the
time in which the device is busy. The floor is what the work needs at least: of passes over whole canvases the
floating-point operations at the rate of a large matrix multiplication, of passes over blocks the bytes of weights and
of remembered keys and values at the rate of a large copy. The plain loop is that of the families' scripts: one request
at a time, and with a cache where these have one (block diffusion). Random weights are never sure of a token, so that
thresholds save nothing here. Rows are written as they come; after `--seconds` no new one is begun.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, Glm4MoeConfig, Glm4MoeForCausalLM, LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.likelihood import LikelihoodRequest, score
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions

MASK, PAD = 0, 1
HEADER = (
    "shape", "workload", "batch", "compiled", "ms a pass", "tokens a second", "of the floor", "busy", "waits a pass",
    "launches a pass", "peak GiB", "plain loop, tokens a second",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; with `experts` a mixture of which 8 are used."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    block: int | None = None
    shift: bool = False
    experts: int = 0


SHAPES = {
    "llada-8b": Shape(4096, 12288, 32, 32, 32, 126_464),
    "dream-7b": Shape(3584, 18944, 28, 28, 4, 152_064, shift=True),
    "sdar-8b": Shape(4096, 12288, 36, 32, 8, 151_936, block=4),
    "llada2-mini": Shape(2048, 512, 20, 16, 4, 157_184, block=32, experts=256),
    "tiny": Shape(64, 128, 2, 4, 4, 300),
    "tiny-blocks": Shape(64, 128, 2, 4, 2, 300, block=4),
    "tiny-moe": Shape(64, 32, 2, 4, 2, 300, block=8, experts=16),
}


def random_denoiser(shape: Shape, device: str, dtype: torch.dtype, compiled: bool) -> Denoiser:
    """Random weights, made on the device."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 8192,
        "is_causal": False,
    }
    with torch.device(device):
        if shape.experts:
            sizes |= {"n_routed_experts": shape.experts, "num_experts_per_tok": 8, "moe_intermediate_size": shape.inner}
            sizes |= {"n_group": 8, "topk_group": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
            sizes |= {"intermediate_size": 10 * shape.inner, "head_dim": shape.hidden // shape.heads}
            model: Any = Glm4MoeForCausalLM._from_config(Glm4MoeConfig(**sizes), dtype=dtype).eval()
        else:
            config = LlamaConfig(intermediate_size=shape.inner, **sizes)
            model = LlamaForCausalLM._from_config(config, dtype=dtype).eval()
    if compiled:
        for layer in model.model.layers:
            layer.compile()
    attention = FULL_ATTENTION if shape.block is None else AttentionPattern(shape.block)
    return Denoiser(model, mask_token_id=MASK, pad_token_id=PAD, shift=shape.shift, attention=attention)


def fill_surest(canvas: Tensor, logits: Tensor, start: int) -> None:
    """Fills the mask of canvas [1, T] behind `start` that `logits` [1, W, V] are surest of."""
    logits[..., MASK] = -torch.inf
    tokens = logits.argmax(-1)
    confidence = logits.float().softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    masked = canvas[:, start : start + tokens.shape[1]] == MASK
    chosen = int(confidence.masked_fill(~masked, -torch.inf).argmax())
    canvas[0, start + chosen] = tokens[0, chosen]


@torch.no_grad()
def plain_whole(denoiser: Denoiser, prompt: list[int], n_masks: int, steps: int) -> None:
    """`steps` tokens, one a pass over the whole canvas (LLaDA's and Dream's `generate`)."""
    canvas = torch.tensor([prompt + [MASK] * n_masks], device=denoiser.device)
    for _ in range(steps):
        logits = denoiser.model(input_ids=canvas).logits
        fill_surest(canvas, logits[:, len(prompt) :], len(prompt))


@torch.no_grad()
def plain_blocks(denoiser: Denoiser, prompt: list[int], n_masks: int, block: int) -> None:
    """One token a pass over a block, against the remembered blocks before it (SDAR's `generate`)."""
    prompt = prompt[: len(prompt) // block * block]
    cache = DynamicCache()
    canvas = torch.tensor([prompt + [MASK] * n_masks], device=denoiser.device)
    positions = torch.arange(canvas.shape[1], device=denoiser.device)[None]
    numbers = torch.arange(len(prompt), device=denoiser.device) // block
    sees: Tensor | None = (numbers[:, None] >= numbers)[None, None]
    for start, stop in [(0, len(prompt)), *((n, n + block) for n in range(len(prompt), canvas.shape[1], block))]:
        while True:
            done = not bool((canvas[:, start:stop] == MASK).any())
            window = {"input_ids": canvas[:, start:stop], "position_ids": positions[:, start:stop]}
            mask = sees
            if mask is None:
                mask = torch.ones(1, 1, stop - start, stop, dtype=torch.bool, device=canvas.device)
            logits = denoiser.model(**window, attention_mask=mask, past_key_values=cache, use_cache=True).logits
            if done:
                break
            cache.crop(start - stop)
            fill_surest(canvas, logits, start)
        sees = None


class Benchmark:
    """The rows of the table, measured one after the other."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.on_gpu = arguments.device == "cuda"
        self.stop = time.perf_counter() + arguments.seconds
        self.rows: list[dict[str, Any]] = []
        size = 8192 if self.on_gpu else 256
        matrix = torch.randn(size, size, device=arguments.device, dtype=arguments.dtype)
        self.flops = 2 * size**3 / self.timed(lambda: matrix @ matrix)
        self.bytes = 2 * matrix.nbytes / self.timed(matrix.clone)

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def timed(self, run: Callable[[], object]) -> float:
        """Median seconds, after a run that warms up."""
        times = []
        for _ in range(self.arguments.repeats + 1):
            self.wait()
            began = time.perf_counter()
            run()
            self.wait()
            times.append(time.perf_counter() - began)
        return median(times[1:])

    def prompts(self, n: int) -> list[list[int]]:
        draw = Random(0)
        return [draw.choices(range(2, 300), k=self.arguments.prompt_tokens) for _ in range(n)]

    def run(self) -> None:
        for name in self.arguments.shapes:
            for compiled in (False, True)[: 1 + self.arguments.compile]:
                denoiser = random_denoiser(SHAPES[name], self.arguments.device, self.arguments.dtype, compiled)
                self.shape(name, denoiser, compiled)
                del denoiser
                if self.on_gpu:
                    torch.cuda.empty_cache()

    def shape(self, name: str, denoiser: Denoiser, compiled: bool) -> None:
        """All workloads of one model."""
        shape, n = SHAPES[name], self.arguments.tokens
        block = shape.block or min(32, n)
        prompt = self.prompts(1)[0]
        decodings: dict[str, tuple[dict[str, Any], int | None, Callable[[], object] | None, int]] = {}
        if shape.block is None:
            few = min(4, n)
            decodings["suite: 200 masks, 1 step"] = (
                {"n_masks": 200, "steps": 1}, 1, lambda: plain_whole(denoiser, prompt, 200, 1), 1,
            )  # fmt: skip
            decodings["exact"] = ({"n_masks": n}, None, lambda: plain_whole(denoiser, prompt, n, few), few)
            for cache in ("prefix", "dual"):
                decodings[f"cache={cache}"] = ({"n_masks": n, "block_length": block, "cache": cache}, None, None, 1)
        else:
            plain = (lambda: plain_blocks(denoiser, prompt, n, block), n)
            decodings[f"blocks of {block}"] = ({"n_masks": n, "steps_per_block": block}, None, *plain)
        for workload, (changes, returned, plain_run, plain_tokens) in decodings.items():
            options = DecodingOptions().override(changes)
            plain_rate = None
            for batch in self.arguments.batches:
                if time.perf_counter() > self.stop:
                    return
                canvases = [
                    build_canvas(ids, options, mask_token_id=MASK, max_length=8192, request_gen_toks=returned,
                                 attention=denoiser.attention)[0]
                    for ids in self.prompts(batch)
                ]  # fmt: skip
                if plain_rate is None and plain_run is not None:
                    plain_rate = plain_tokens / self.timed(plain_run)
                tokens = batch * (returned or n)
                run = lambda c=canvases, o=options: decode_canvases(denoiser, c, o)  # noqa: E731
                self.add(name, workload, batch, compiled, denoiser, run, tokens, plain_rate)
        for length in (1, 8):
            for batch in self.arguments.batches:
                if time.perf_counter() > self.stop:
                    return
                choices = [[2 + n, *range(3, 2 + length)] for n in range(4)]
                requests = [
                    LikelihoodRequest(ids, choice, n) for ids in self.prompts(batch) for n, choice in enumerate(choices)
                ]
                likelihood = LikelihoodOptions(mc_num=8, check_greedy=False)
                run = lambda r=requests, o=likelihood, b=batch: score(denoiser, r, o, batch_size=b, max_length=8192)  # noqa: E731
                self.add(name, f"{length}-token choices", batch, compiled, denoiser, run, 4 * batch * length, None)

    def add(
        self, name: str, workload: str, batch: int, compiled: bool, denoiser: Denoiser, run: Callable[[], object],
        tokens: int, plain_rate: float | None,
    ) -> None:  # fmt: skip
        """Measures one row and writes the table."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        try:
            seconds = self.timed(run)
        except torch.OutOfMemoryError:
            return
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.on_gpu else 0.0
        seen = {"tokens": 0, "passes": 0, "remembered": 0}

        def count(_module: object, _arguments: object, inputs: dict[str, Any]) -> None:
            seen["tokens"] += inputs["input_ids"].numel()
            seen["passes"] += 1
            mask, ids = inputs.get("attention_mask"), inputs["input_ids"]
            seen["remembered"] += len(ids) * (ids.shape[1] if mask is None else mask.shape[-1])

        hook = denoiser.model.register_forward_pre_hook(count, with_kwargs=True)
        profile: dict[str, float] = {}
        try:
            if self.on_gpu:
                profile = self.profiled(run, seconds)
            else:
                run()
        finally:
            hook.remove()
        shape, passes = SHAPES[name], seen["passes"]
        weights = sum(p.numel() for p in denoiser.model.parameters())
        share = 1.0 if not shape.experts else min(1.0, 8 * seen["tokens"] / passes / shape.experts)
        size = torch.empty(0, dtype=self.arguments.dtype).itemsize
        cached = 2 * seen["remembered"] * shape.layers * shape.kv_heads * shape.hidden // shape.heads * size
        used = weights if not shape.experts else weights * 8 / shape.experts
        floor = max(2 * used * seen["tokens"] / self.flops, (passes * weights * share * size + cached) / self.bytes)
        self.rows.append(
            {
                "shape": name,
                "workload": workload,
                "batch": batch,
                "compiled": compiled,
                "ms a pass": seconds / passes * 1e3,
                "tokens a second": tokens / seconds,
                "of the floor": floor / seconds,
                "busy": profile.get("busy"),
                "waits a pass": profile["waits"] / passes if profile else None,
                "launches a pass": profile["launches"] / passes if profile else None,
                "peak GiB": peak,
                "plain loop, tokens a second": plain_rate,
            }
        )
        self.write()

    def profiled(self, run: Callable[[], object], seconds: float) -> dict[str, float]:
        """Waits of the host, launches and the device's busy share of one run."""
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            run()
            self.wait()
        found = {"waits": 0.0, "launches": 0.0, "busy": 0.0}
        for event in profiler.key_averages():
            found["waits"] += event.count * (event.key in ("cudaStreamSynchronize", "cudaDeviceSynchronize"))
            found["launches"] += event.count * event.key.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch"))
            found["busy"] += event.self_device_time_total * 1e-6 / seconds
        return found

    def write(self) -> None:
        """Writes what is there so far, as JSON and into the README."""
        row = self.rows[-1]
        print(" | ".join(shown(row[key]) for key in HEADER), flush=True)
        what = torch.cuda.get_device_name() if self.on_gpu else f"CPU, {torch.get_num_threads()} threads"
        machine = (
            f"{what}, {self.arguments.dtype}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; matrix "
            f"multiplication {self.flops / 1e12:.3g} TFLOP/s, copy {self.bytes / 1e9:.3g} GB/s."
        )
        if self.arguments.json:
            Path(self.arguments.json).write_text(json.dumps({"machine": machine, "rows": self.rows}, indent=1))
        if self.arguments.readme:
            path = Path(self.arguments.readme)
            before, _, rest = path.read_text().partition("<!-- gpu -->")
            lines = [HEADER, ["---"] * len(HEADER), *([shown(row[key]) for key in HEADER] for row in self.rows)]
            table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
            _, _, after = rest.partition("<!-- end -->")
            path.write_text(f"{before}<!-- gpu -->\n{machine}\n\n{table}\n<!-- end -->{after}")


def shown(value: object) -> str:
    """A cell of the table."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES)[:4])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64, 256])
    parser.add_argument("--tokens", type=int, default=64, help="generated tokens")
    parser.add_argument("--prompt_tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=torch.float32, type=lambda name: getattr(torch, name))
    parser.add_argument("--compile", action="store_true", help="each shape once more with compiled layers")
    parser.add_argument("--readme", help="a file with the marks <!-- gpu --> and <!-- end -->, for the table")
    parser.add_argument("--json", help="a file for the rows")
    Benchmark(parser.parse_args(argv)).run()


if __name__ == "__main__":
    main()
