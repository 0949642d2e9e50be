"""Decoding and likelihoods at full speed on one GPU: random weights of published shapes, ours beside the plain loop.

    benchmarks/gpu.sh
    python benchmarks/gpu.py --shapes tiny tiny-blocks tiny-moe --batches 1 2 --tokens 8 --prompt_tokens 12

Needs torch and transformers alone. A row is one workload at one batch: warmed up by the first passes of runs, then the
median of `--repeats`, or of as many as fit into `--row_seconds`. A pass takes what it takes in the second half of a run
of many passes, when CUDA graphs are recorded. In one more run the passes after three quarters of it are profiled (on a
GPU), which counts waits, launches and the share of the time in which the device is busy, and finds the kernels that
take the most time (in the JSON alone). The floor is what the work needs at least: floating-point operations at the rate
of a large matrix multiplication, or the bytes of weights and of remembered keys and values at the rate of a large copy,
whichever takes longer. The plain loop is that of the families' scripts: one request at a time, with a cache where these
have one. Random weights are never sure of a token, so that thresholds save nothing here, and narrow dtypes soon lead to
other texts: answers are compared by teacher forcing. Each pass of ours is repeated on its canvas by the model alone;
`same choice` is the share of our tokens that are its choice, too, and `margin` the most by which another token's logit
is higher, in standard deviations of the logits.

Batches come in the order given, so that large ones are reached; rows for which there is no time are left out, those of
other shapes in the file stay. With `--ways` each shape runs again: with compiled layers, fused (then the choices are
those of the model as it is), or with another of transformers' implementations of experts. `first, s` is the time of the
first run, in which kernels are compiled. Rows are written as they come.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from transformers import DynamicCache, Glm4MoeConfig, Glm4MoeForCausalLM, LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.trace import replay
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.compiled import CACHE
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.grouped_attention import use_grouped_attention
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError

MASK, PAD = 0, 1
SAMPLES = 8  # of a continuation's Monte-Carlo estimate
WARM, WARM_AT_LEAST, PROFILED = 12, 4, 8  # passes: the most of a run that warms up, of all such runs, and profiled ones
MANY = 24  # passes, beside which the one that the host may be ahead of the device counts for little
LARGEST_KERNELS = 12
COMPARED = 2  # rows
WAYS = ("plain", "compiled", "fused", "eager", "batched_mm", "sonicmoe", "deepgemm")  # after the third, of experts
HEADER = (
    "shape", "workload", "batch", "way", "ms a pass", "tokens a second", "of the floor", "busy", "waits a pass",
    "launches a pass", "peak GiB", "first, s", "plain loop, tokens a second", "same choice", "margin",
)  # fmt: skip

Plain = tuple[Callable[[], object], int]
Workload = tuple[Callable[[], object], int, Plain, Callable[[], dict[str, float]] | None]


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
    "tiny-moe": Shape(64, 32, 2, 4, 2, 300, block=4, experts=16),
}


def random_model(shape: Shape, device: str, dtype: torch.dtype) -> Any:
    """Random weights, made on the device; keys are not copied for the queries of a group, as in loaded checkpoints."""
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
            model: Any = Glm4MoeForCausalLM._from_config(Glm4MoeConfig(**sizes), dtype=dtype)
        else:
            config = LlamaConfig(intermediate_size=shape.inner, **sizes)
            model = LlamaForCausalLM._from_config(config, dtype=dtype)
    use_grouped_attention(model.config)
    return model.eval()


def denoiser_of(model: Any, shape: Shape, way: str) -> Denoiser:
    """With what its family says of it; the model as it is before the layers are compiled or fused."""
    as_it_is(model)
    model.config._experts_implementation = way if way in WAYS[3:] else "grouped_mm"
    attention = FULL_ATTENTION if shape.block is None else AttentionPattern(shape.block)
    facts: dict[str, Any] = {"shift": shape.shift, "attention": attention}
    if way in ("compiled", "fused"):
        facts[way] = True
    return Denoiser(model, mask_token_id=MASK, pad_token_id=PAD, **facts)


def as_it_is(model: Any) -> dict[Any, Any]:
    """Takes off what a denoiser put in the place of the modules' code; returns it by the module."""
    taken = {module: module.__dict__.pop("forward", None) for module in model.modules()}
    for module in model.modules():
        module.__dict__.pop("is_fused", None)
    return {module: forward for module, forward in taken.items() if forward is not None}


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
            logits = denoiser.model(**window, attention_mask=mask, use_cache=True, **{CACHE: cache}).logits
            if done:
                break
            cache.crop(start - stop)
            fill_surest(canvas, logits, start)
        sees = None


@torch.no_grad()
def plain_cached(denoiser: Denoiser, prompt: list[int], n_masks: int, block: int, steps: int, *, dual: bool) -> None:
    """`steps` tokens of the first block, one a pass (Fast-dLLM's `generate_with_prefix_cache` and `..._dual_cache`)."""
    canvas = torch.tensor([prompt + [MASK] * n_masks], device=denoiser.device)
    columns, start = torch.arange(canvas.shape[1], device=denoiser.device)[None], len(prompt)
    cache = CanvasCache(denoiser.model.config.num_hidden_layers, canvas.shape[1], len(canvas))
    for step in range(steps):
        window = slice(None) if step == 0 else slice(start, start + block if dual else None)
        cache.move_to(columns[:, window], canvas.shape[1])
        inputs = {"input_ids": canvas[:, window], "position_ids": columns[:, window], CACHE: cache}
        logits = denoiser.model(**inputs, use_cache=True).logits
        fill_surest(canvas, logits[:, start if step == 0 else 0 :][:, :block], start)


@torch.no_grad()
def plain_choice(denoiser: Denoiser, context: list[int], choice: list[int]) -> None:
    """A continuation's samples in one pass, with logits of all positions (LLaDA's `get_log_likelihood`)."""
    ids = torch.tensor([context + choice] * SAMPLES, device=denoiser.device)
    masked = torch.zeros(ids.shape, dtype=torch.bool, device=denoiser.device)
    masked[:, len(context) :] = torch.rand(SAMPLES, len(choice), device=denoiser.device) < 0.5
    masked[:, -1] = True
    logits = denoiser.model(input_ids=ids.masked_fill(masked, MASK)).logits
    float(torch.nn.functional.cross_entropy(logits[masked], ids[masked]))


def decodings(shape: Shape, n_tokens: int) -> dict[str, tuple[dict[str, Any], int | None]]:
    """The ways of decoding `n_tokens` that are measured, by name: their options, and how many slots are returned."""
    if shape.block is not None:
        changes = {"n_masks": n_tokens, "steps_per_block": shape.block}
        return {f"block diffusion, blocks of {shape.block}": (changes, None)}
    block = min(32, n_tokens)
    found: dict[str, tuple[dict[str, Any], int | None]] = {
        "suite: 200 masks, 1 step": ({"n_masks": 200, "steps": 1}, 1),
        # Every pass runs the same, so that few of them tell as much.
        "exact, one token a pass": ({"n_masks": min(4, n_tokens)}, None),
    }
    for cache in ("prefix", "dual"):
        changes = {"n_masks": n_tokens, "block_length": block, "cache": cache}
        found[f"cache={cache}, blocks of {block}"] = changes, None
    return found


def canvases_for(
    denoiser: Denoiser, prompts: Sequence[list[int]], options: DecodingOptions, n_returned: int | None
) -> list[Canvas]:
    """A canvas after each prompt."""
    facts: dict[str, Any] = {"max_length": 8192, "request_gen_toks": n_returned}
    way = way_of(options, denoiser.attention)
    return [build_canvas(ids, way, mask_token_id=MASK, **facts)[0] for ids in prompts]


def prompts_of(n: int, n_tokens: int) -> list[list[int]]:
    """Random prompts."""
    draw = Random(0)
    return [draw.choices(range(2, 300), k=n_tokens) for _ in range(n)]


class EnoughError(Exception):
    """The passes of interest have run."""


@torch.no_grad()
def teacher_forced(
    denoiser: Denoiser, shape: Shape, canvases: list[Canvas], options: DecodingOptions
) -> dict[str, float]:
    """Our tokens beside the model's own choices on the same canvases: the share of equal ones, the largest margin."""
    completions = decode_canvases(denoiser, canvases, replace(options, trace=True))
    ours = as_it_is(denoiser.model)
    equal = tokens = 0
    margin = 0.0
    for canvas, completion in zip(canvases, completions, strict=True):
        before = list(canvas.token_ids)
        numbers = torch.arange(len(before), device=denoiser.device) // (shape.block or len(before))
        sees = (numbers[:, None] >= numbers)[None, None]
        for _, after in replay(canvas.token_ids, completion.events):
            ids = torch.tensor([before], device=denoiser.device)
            logits = denoiser.model(input_ids=ids, attention_mask=sees if shape.block else None).logits[0].float()
            logits[:, MASK] = -torch.inf
            deviation = float(logits[:, 1:].std())
            for at in (n for n, token in enumerate(before) if token != after[n]):
                of_token = logits[at - shape.shift]
                lost = float(of_token.max() - of_token[after[at]]) / deviation
                margin, equal, tokens = max(margin, lost), equal + (lost == 0), tokens + 1
            before = after
    for module, forward in ours.items():
        module.forward = forward
    return {"same choice": equal / tokens, "margin": margin}


@dataclass
class Seen:
    """What passes ran: their number, tokens through the layers, keys and values that they read, logits."""

    passes: int = 0
    tokens: int = 0
    remembered: int = 0
    logits: int = 0


@contextmanager
def counted(denoiser: Denoiser, seen: Seen, before: Callable[[int], object] = lambda _: None) -> Iterator[None]:
    """Counts what `denoiser` runs inside the block, from graphs too; `before` is told each pass's number.

    The block ends where `before` raises EnoughError.
    """
    forward = denoiser._forward

    def counting(outputs: Tensor | None, inputs: dict[str, Any], **guidance: Any) -> Tensor:
        before(seen.passes)
        ids = inputs["input_ids"]
        seen.passes += 1
        seen.tokens += ids.numel()
        seen.logits += ids.numel() if outputs is None else len(outputs)
        if (cache := inputs.get(CACHE)) is not None:
            seen.remembered += len(ids) * (cache.now.n_seen or 0)
        return forward(outputs, inputs, **guidance)

    denoiser._forward = counting  # type: ignore[method-assign]
    try:
        with suppress(EnoughError):
            yield
    finally:
        del denoiser._forward


def profiled_passes(n_passes: int) -> tuple[int, int]:
    """The first pass that is profiled, and the one after the last."""
    first = n_passes * 3 // 4
    return first, min(first + PROFILED, n_passes)


class Benchmark:
    """The rows of the table, measured one after the other."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.on_gpu = arguments.device.startswith("cuda")
        self.end = time.perf_counter() + arguments.seconds
        self.rows: list[dict[str, Any]] = []
        if arguments.json and Path(arguments.json).exists():
            before = json.loads(Path(arguments.json).read_text())["rows"]
            self.rows = [row for row in before if row["shape"] not in arguments.shapes]
        with self.profiler():  # what it sets up takes seconds, and must be there before CUDA graphs are
            pass
        size = arguments.matrix
        matrix = torch.randn(size, size, device=arguments.device, dtype=arguments.dtype)
        self.flops = 2 * size**3 / self.timed(lambda: matrix @ matrix)
        self.bytes = 2 * matrix.nbytes / self.timed(matrix.clone)

    def profiler(self) -> torch.profiler.profile:
        activities = {torch.profiler.ProfilerActivity.CPU}
        if self.on_gpu:
            activities.add(torch.profiler.ProfilerActivity.CUDA)
        return torch.profiler.profile(activities=activities)

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def timed(self, run: Callable[[], object]) -> float:
        """Median seconds, after a run that warms up."""
        times: list[float] = []
        while len(times) < 2 or (len(times) <= self.arguments.repeats and sum(times) < self.arguments.row_seconds):
            self.wait()
            began = time.perf_counter()
            run()
            self.wait()
            times.append(time.perf_counter() - began)
        return median(times[1:])

    def run(self) -> None:
        turns = [(name, way) for name in self.arguments.shapes for way in self.arguments.ways]
        model: Any = None
        denoiser: Any = None
        plain_rates: dict[tuple[str, str], float] = {}
        compared: dict[tuple[str, str, str], dict[str, float]] = {}
        for n, (name, way) in enumerate(turns):
            now = time.perf_counter()
            stop = now + (self.end - now) / (len(turns) - n)
            if way == self.arguments.ways[0]:
                model = denoiser = None  # before the next one takes its place
                if self.on_gpu:
                    torch.cuda.empty_cache()
                model = random_model(SHAPES[name], self.arguments.device, self.arguments.dtype)
            try:
                denoiser = denoiser_of(model, SHAPES[name], way)
            except OptionError as error:
                print(f"{name}, {way}: {error}", flush=True)
                continue
            for batch in self.arguments.batches:
                for workload, (run, tokens, plain, compare) in self.workloads(SHAPES[name], denoiser, batch).items():
                    if time.perf_counter() > stop:
                        break
                    if not any(part in workload for part in self.arguments.workloads):
                        continue
                    if (name, workload) not in plain_rates and self.arguments.plain_loop:
                        plain_run, plain_tokens = plain
                        plain_rates[name, workload] = plain_tokens / self.timed(plain_run)
                    row = {"shape": name, "workload": workload, "batch": batch, "way": way}
                    try:
                        row |= self.measured(SHAPES[name], denoiser, run, tokens)
                        if (key := (name, workload, way)) not in compared and compare is not None:
                            compared[key] = compare()
                    except (RuntimeError, OSError, OptionError, ImportError, ValueError) as error:
                        print(f"{row}: {type(error).__name__}: {str(error)[:500]}", flush=True)
                        continue
                    row["plain loop, tokens a second"] = plain_rates.get((name, workload))
                    row |= compared.get(key, {"same choice": None, "margin": None})
                    self.rows.append(row)
                    self.write()

    def workloads(self, shape: Shape, denoiser: Denoiser, batch: int) -> dict[str, Workload]:
        """By name: what runs, how many tokens it makes, the plain loop with its tokens, and the comparison."""
        n, prompts = self.arguments.tokens, prompts_of(batch, self.arguments.prompt_tokens)
        block, few, prompt = shape.block or min(32, n), min(4, n), prompts[0]
        loops: dict[str, Plain] = {
            "suite": (lambda: plain_whole(denoiser, prompt, 200, 1), 1),
            "exact": (lambda: plain_whole(denoiser, prompt, few, few), few),
            "cache=prefix": (lambda: plain_cached(denoiser, prompt, n, block, block, dual=False), block),
            "cache=dual": (lambda: plain_cached(denoiser, prompt, n, block, block, dual=True), block),
            "block diffusion": (lambda: plain_blocks(denoiser, prompt, n, block), n),
        }
        found: dict[str, Workload] = {}

        def add(name: str, changes: dict[str, Any], n_returned: int | None) -> None:
            options = DecodingOptions(**changes)
            canvases = canvases_for(denoiser, prompts, options, n_returned)
            compare = None
            if options.cache == "auto":  # the others are approximate
                compare = lambda: teacher_forced(denoiser, shape, canvases[:COMPARED], options)  # noqa: E731
            tokens = sum(canvas.n_returned for canvas in canvases)
            plain = next(loop for start, loop in loops.items() if name.startswith(start))
            found[name] = (lambda: decode_canvases(denoiser, canvases, options), tokens, plain, compare)

        for name, (changes, n_returned) in decodings(shape, n).items():
            add(name, changes, n_returned)
        for length, samples in ((1, 1), (8, SAMPLES)):
            choices = [[2 + number, *range(3, 2 + length)] for number in range(4)]
            contexts = prompts[: max(1, batch // (4 * samples))]  # one batch of rows
            requests = [LikelihoodRequest(ids, choice, s) for ids in contexts for s, choice in enumerate(choices)]
            likelihood = LikelihoodOptions(mc_num=SAMPLES, check_greedy=False)
            found[f"{length}-token choices"] = (
                lambda r=requests, o=likelihood: score(denoiser, r, o, batch_size=batch, max_length=8192),  # type: ignore[misc]
                len(requests) * length,
                (lambda c=choices: [plain_choice(denoiser, prompt, choice) for choice in c], 4 * length),  # type: ignore[misc]
                None,
            )
        return found

    def timed_passes(self, denoiser: Denoiser, run: Callable[[], object]) -> tuple[float, float, float, float, Seen]:
        """Seconds of the first run; the median of a run, of a pass in its second half, and of a pass that is profiled.

        Also what a run ran.
        """

        def warm(n: int) -> None:
            if n == WARM:
                raise EnoughError

        warmed, first = 0, 0.0
        began = time.perf_counter()
        while warmed < WARM_AT_LEAST:
            seen = Seen()
            with counted(denoiser, seen, warm):
                run()
            self.wait()
            first = first or time.perf_counter() - began
            warmed += seen.passes
        if denoiser.compiled:  # what only later passes compile
            run()
        seconds: list[float] = []
        of_pass: list[float] = []
        of_profiled: list[float] = []
        while not seconds or (len(seconds) < self.arguments.repeats and sum(seconds) < self.arguments.row_seconds):
            seen = Seen()
            begun: list[float] = []  # each pass, on the host, which is a pass ahead of the device at most
            self.wait()
            began = time.perf_counter()
            with counted(denoiser, seen, lambda _, begun=begun: begun.append(time.perf_counter())):  # type: ignore[misc]
                run()
            self.wait()
            ended = time.perf_counter()
            seconds.append(ended - began)
            if seen.passes < MANY:
                of_pass.append((ended - began) / seen.passes)
                of_profiled.append(of_pass[-1])
                continue
            half = seen.passes // 2
            of_pass.append((ended - begun[half]) / (seen.passes - half))
            begin, end = profiled_passes(seen.passes)
            of_profiled.append(([*begun, ended][end] - begun[begin]) / (end - begin))
        return first, median(seconds), median(of_pass), median(of_profiled), seen

    def measured(self, shape: Shape, denoiser: Denoiser, run: Callable[[], object], tokens: int) -> dict[str, Any]:
        """A row of the table."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        first, seconds, of_pass, of_profiled, seen = self.timed_passes(denoiser, run)
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.on_gpu else 0.0
        profile = self.profiled(denoiser, run, seen.passes, of_profiled)
        sizes = {name: weight.numel() for name, weight in denoiser.model.named_parameters()}
        weights, outer = sum(sizes.values()), shape.vocabulary * shape.hidden  # of the embeddings, and of the head
        in_experts = sum(size for name, size in sizes.items() if ".experts." in name)
        chosen = min(1.0, 8 * seen.tokens / seen.passes / shape.experts) if shape.experts else 0.0
        size = torch.empty(0, dtype=self.arguments.dtype).itemsize
        read = seen.passes * (weights - outer - in_experts * (1 - chosen))
        read += 2 * seen.remembered * shape.layers * shape.kv_heads * shape.hidden // shape.heads
        used = weights - 2 * outer - in_experts * (1 - 8 / shape.experts if shape.experts else 0)
        operations = 2 * (used * seen.tokens + outer * seen.logits)
        return {
            "ms a pass": of_pass * 1e3,
            "tokens a second": tokens / seconds,
            "of the floor": max(operations / self.flops, read * size / self.bytes) / seconds,
            **(profile if self.on_gpu else dict.fromkeys(profile)),
            "peak GiB": peak,
            "first, s": first,
        }

    def profiled(self, denoiser: Denoiser, run: Callable[[], object], n_passes: int, seconds: float) -> dict[str, Any]:
        """Per pass: the host's waits, launches, the device's busy share of `seconds`, the largest kernels' ms."""
        profiler = self.profiler()
        first, last = profiled_passes(n_passes)

        def at_pass(n: int) -> None:
            if n in (first, last):
                self.wait()
                profiler.start() if n == first else profiler.stop()
            if n == last:
                raise EnoughError

        with counted(denoiser, Seen(), at_pass):
            run()
            at_pass(n_passes)
        waits = launches = 0
        kernels: dict[str, float] = {}
        for event in profiler.key_averages():
            if event.device_type == DeviceType.CUDA:  # kernels; operators repeat the time of theirs
                kernels[event.key] = event.self_device_time_total * 1e-3 / (last - first)
            waits += event.count * (event.key == "cudaStreamSynchronize")
            launches += event.count * event.key.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch"))
        largest = sorted(kernels, key=kernels.__getitem__, reverse=True)[:LARGEST_KERNELS]
        return {
            "busy": sum(kernels.values()) * 1e-3 / seconds,
            "waits a pass": waits / (last - first),
            "launches a pass": launches / (last - first),
            "kernels, ms a pass": {name[:100]: kernels[name] for name in largest},
        }

    def write(self) -> None:
        """Writes what is there so far, as JSON and into the README."""
        row = self.rows[-1]
        print(" | ".join(shown(row.get(key)) for key in HEADER), flush=True)
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
            lines = [HEADER, ["---"] * len(HEADER), *([shown(row.get(key)) for key in HEADER] for row in self.rows)]
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
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 64, 256, 1, 32])
    parser.add_argument("--tokens", type=int, default=64, help="generated tokens")
    parser.add_argument("--prompt_tokens", type=int, default=512)
    parser.add_argument("--matrix", type=int, default=8192, help="rows of the matrix whose product and copy are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--row_seconds", type=float, default=3.0, help="after which a row is not repeated")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no row is begun")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=torch.float32, type=lambda name: getattr(torch, name))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["plain"], help="how each shape runs, in turn")
    parser.add_argument(
        "--workloads", nargs="+", default=[""], help="parts of names of workloads, of which one must fit"
    )
    parser.add_argument("--no_plain_loop", action="store_false", dest="plain_loop", help="leave out the plain loop")
    parser.add_argument("--readme", help="a file with the marks <!-- gpu --> and <!-- end -->, for the table")
    parser.add_argument("--json", help="a file for the rows")
    Benchmark(parser.parse_args(argv)).run()


if __name__ == "__main__":
    main()
