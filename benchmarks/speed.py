"""Time and peak memory against the plain loop, on the same random weights, in one run.

    python benchmarks/speed.py
    python benchmarks/speed.py --model llada-8b --device cuda --dtype bfloat16 --questions 32
    python benchmarks/speed.py --model llada-8b --layers 1 --dtype bfloat16 --only suite

The last one gives the memory of LLaDA-8B's widths where the whole model does not fit: without gradients, activations of
one layer exist at a time.

The plain loop works as the families' own scripts do: one request at a time, logits and probabilities of the whole
canvas, and mc_num samples for every continuation, whatever its length. Plain and ours take turns; times are medians
over the turns, speed-ups medians over the pairs. On a CPU they are CPU seconds; set OMP_NUM_THREADS=1.

Memory is what a turn takes on top of the weights at its peak, divided by the sequences of a forward pass (resident
memory on a CPU, PyTorch's own count on a GPU).

The floor is what our side's work needs at least on this machine: its floating-point operations at the rate of a large
matrix multiplication, or the bytes of the weights, read once a forward pass, at the rate of a large copy, whichever
takes longer. Operations are counted from the tokens that went through the layers and the positions that went through
the output projection; the last column but one prices the counts of both sides at LLaDA-8B's sizes.
"""

import argparse
import ctypes
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval import DecodingOptions, Denoiser, LikelihoodOptions, decode
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score

LLADA_VOCABULARY = 126_464
MASK_TOKEN_ID = 0
PLAIN_MC_BATCH = 8


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama with untied embeddings."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int


@dataclass
class Work:
    """What went through the model."""

    tokens: int = 0  # through the layers
    pairs: int = 0  # query-key pairs of one layer's attention
    positions: int = 0  # through the output projection
    sequences: int = 0  # in the largest forward pass
    passes: int = 0

    def flops(self, shape: Shape, vocab_size: int) -> float:
        layer = 4 * shape.hidden_size**2 + 3 * shape.hidden_size * shape.intermediate_size
        body = 2 * self.tokens * layer * shape.layers + 4 * self.pairs * shape.hidden_size * shape.layers
        return body + 2 * self.positions * shape.hidden_size * vocab_size

    def weight_bytes(self, shape: Shape, vocab_size: int, itemsize: int) -> int:
        """Of all layers and the output projection, once a forward pass."""
        layer = 4 * shape.hidden_size**2 + 3 * shape.hidden_size * shape.intermediate_size
        return self.passes * itemsize * (layer * shape.layers + shape.hidden_size * vocab_size)


@dataclass(frozen=True)
class Turn:
    """One run of one side of a workload."""

    answers: list[Any]
    seconds: float
    peak_bytes: int
    work: Work


SHAPES = {"tiny": Shape(64, 128, 2, 2), "llada-8b": Shape(4096, 12288, 32, 32)}


def random_model(shape: Shape, arguments: argparse.Namespace) -> LlamaForCausalLM:
    """A Llama with random weights, made on the device, whose masks are bidirectional."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=arguments.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=4096,
        is_causal=False,
        use_cache=False,
    )
    with torch.device(arguments.device):
        return LlamaForCausalLM._from_config(config, dtype=getattr(torch, arguments.dtype)).eval()


# The plain loop


def plain_decode(model: nn.Module, prompt: list[int], n_masks: int, steps: int) -> list[int]:
    """Low-confidence remasking, tokens shared evenly over the steps (LLaDA's `generate`, one block, greedy)."""
    canvas = torch.tensor([prompt + [MASK_TOKEN_ID] * n_masks], device=next(model.parameters()).device)  # [1, T]
    for step in range(steps):
        count = n_masks // steps + (step < n_masks % steps)
        masked = canvas == MASK_TOKEN_ID
        logits = model(input_ids=canvas, attention_mask=torch.ones_like(canvas)).logits  # [1, T, V]
        tokens = logits.argmax(-1)
        confidence = logits.softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)  # [1, T]
        chosen = confidence.masked_fill(~masked, -torch.inf).topk(count).indices
        canvas.scatter_(1, chosen, tokens.gather(1, chosen))
    return canvas[0, len(prompt) :].tolist()


def plain_log_likelihood(model: nn.Module, context: list[int], continuation: list[int], mc_num: int) -> float:
    """Monte-Carlo bound from `mc_num` samples, k of n tokens masked in each (LLaDA's `get_log_likelihood`)."""
    device = next(model.parameters()).device
    n = len(continuation)
    ids = torch.tensor([context + continuation] * PLAIN_MC_BATCH, device=device)  # [8, T]
    generator = torch.Generator().manual_seed(0)
    estimates = []
    for _ in range(mc_num // PLAIN_MC_BATCH):
        first = int(torch.randint(1, n + 1, (), generator=generator))
        k = (first - 1 + torch.arange(PLAIN_MC_BATCH) * n // PLAIN_MC_BATCH) % n + 1  # [8]
        rank = torch.rand(PLAIN_MC_BATCH, n, generator=generator).argsort(1).argsort(1)
        masked = torch.zeros(ids.shape, dtype=torch.bool)
        masked[:, len(context) :] = rank < k[:, None]
        masked = masked.to(device)
        canvas = ids.masked_fill(masked, MASK_TOKEN_ID)
        logits = model(input_ids=canvas, attention_mask=torch.ones_like(canvas)).logits  # [8, T, V]
        losses = nn.functional.cross_entropy(logits[masked], ids[masked], reduction="none")
        weights = (n / k.to(device))[:, None].expand(ids.shape)[masked]
        estimates.append(float((losses * weights).sum()) / PLAIN_MC_BATCH)
    return -sum(estimates) / len(estimates)


# Measuring


@contextmanager
def counted(model: LlamaForCausalLM) -> Iterator[Work]:
    """Counts what goes through `model` inside the block."""
    work = Work()

    def count_tokens(_module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows, length = kwargs["input_ids"].shape
        work.passes += 1
        work.tokens += rows * length
        work.pairs += rows * length**2
        work.sequences = max(work.sequences, rows)

    def count_positions(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        work.positions += output.shape[:-1].numel()

    hooks = [
        model.register_forward_pre_hook(count_tokens, with_kwargs=True),
        model.lm_head.register_forward_hook(count_positions),
    ]
    try:
        yield work
    finally:
        for hook in hooks:
            hook.remove()


def resident_bytes(kind: str) -> int:
    """This process's resident memory: `VmRSS` now, `VmHWM` at its peak since `start_peak`."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(rf"{kind}:\s+(\d+) kB", status)[0])


def start_peak(device: torch.device) -> int:
    """Begins a new peak; the bytes in use now."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes("VmRSS")


def peak(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return resident_bytes("VmHWM")


def take_turn(model: LlamaForCausalLM, run: Callable[[], list[Any]]) -> Turn:
    with counted(model) as work, torch.no_grad():
        before = start_peak(model.device)
        clock = time.perf_counter if model.device.type == "cuda" else time.process_time
        start = clock()
        answers = run()
        highest = peak(model.device)  # waits for the device
        return Turn(answers, clock() - start, highest - before, work)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a large square matrix multiplication, the best of five."""
    size = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        start_peak(device)
        start = time.perf_counter()
        a @ b
        peak(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def copy_rate(device: torch.device) -> float:
    """Bytes a second that a copy of 1 GiB reads and writes, the best of five."""
    source = torch.ones(2**28, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        start_peak(device)
        start = time.perf_counter()
        target.copy_(source)
        peak(device)
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


# Workloads: (plain, ours) over the same requests; what both must agree on


class Workloads:
    def __init__(self, model: LlamaForCausalLM, arguments: argparse.Namespace) -> None:
        self.model, self.arguments = model, arguments
        self.denoiser = Denoiser(model, mask_token_id=MASK_TOKEN_ID, pad_token_id=1)
        self.rng = Random(0)

    def ids(self, length: int) -> list[int]:
        return [self.rng.randrange(2, self.arguments.vocab_size) for _ in range(length)]

    def decoding(self, steps: int, returned: int) -> tuple[Callable[[], list[Any]], Callable[[], list[Any]]]:
        prompts = [self.ids(self.arguments.prompt_tokens) for _ in range(self.arguments.questions)]
        options = DecodingOptions(n_masks=self.arguments.n_masks, steps=steps)

        def plain() -> list[Any]:
            return [plain_decode(self.model, p, self.arguments.n_masks, steps)[:returned] for p in prompts]

        return plain, lambda: decode(self.denoiser, prompts, options, max_gen_toks=returned)

    def choices(self, n_tokens: int, our_mc_num: int) -> tuple[Callable[[], list[Any]], Callable[[], list[Any]]]:
        requests = []
        for _ in range(self.arguments.questions):
            context = self.ids(self.arguments.context_tokens)
            requests += [LikelihoodRequest(context, self.ids(n_tokens), seed) for seed in range(4)]
        options = LikelihoodOptions(mc_num=our_mc_num, check_greedy=False)
        max_length = self.arguments.context_tokens + n_tokens

        def plain() -> list[Any]:
            mc_num = self.arguments.mc_num
            return [plain_log_likelihood(self.model, r.context_ids, r.continuation_ids, mc_num) for r in requests]

        def ours() -> list[Any]:
            size = self.arguments.batch_size
            return [
                one.total for one in score(self.denoiser, requests, options, batch_size=size, max_length=max_length)
            ]

        return plain, ours

    def all(self) -> dict[str, Callable[[], tuple[Callable[[], list[Any]], Callable[[], list[Any]]]]]:
        n_masks, mc_num = self.arguments.n_masks, self.arguments.mc_num
        return {
            "few-shot suite, 1 step": lambda: self.decoding(1, returned=1),
            "40-step decoding": lambda: self.decoding(40, returned=n_masks),
            "single-token choices": lambda: self.choices(1, mc_num),
            "16-token choices": lambda: self.choices(16, mc_num),
            f"16-token choices, ours mc_num={mc_num // 4}": lambda: self.choices(16, mc_num // 4),
        }


def agreement(plain: list[Any], ours: list[Any]) -> str:
    """Whether both sides gave the same: tokens exactly, log-likelihoods by their largest difference.

    Where both sides sampled, the difference is their sampling error.
    """
    if isinstance(plain[0], list):
        return f"{sum(a == b for a, b in zip(plain, ours, strict=True))} of {len(plain)} token for token"
    difference = max(abs(a - b) for a, b in zip(plain, ours, strict=True))
    return f"at most {difference:.1e} nats of {abs(median(plain)):.0f} apart"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="tiny", help="shape of the random model")
    parser.add_argument("--layers", type=int, help="instead of the shape's own number")
    parser.add_argument("--vocab_size", type=int, default=LLADA_VOCABULARY)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--questions", type=int, default=2, help="of each workload; ours decodes them as one batch")
    parser.add_argument("--prompt_tokens", type=int, default=1200, help="of the decoding workloads")
    parser.add_argument("--context_tokens", type=int, default=128, help="of the multiple-choice workloads")
    parser.add_argument("--n_masks", type=int, default=200)
    parser.add_argument("--mc_num", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32, help="of our multiple choice")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="only workloads whose name holds this")
    arguments = parser.parse_args()

    shape = SHAPES[arguments.model]
    shape = replace(shape, layers=arguments.layers or shape.layers)
    model = random_model(shape, arguments)
    device, dtype = model.device, model.dtype
    rate, bandwidth = matmul_rate(device, dtype), copy_rate(device)
    print(
        f"{arguments.model}, V={arguments.vocab_size}, {arguments.dtype}, {device}, {torch.get_num_threads()} threads"
    )
    print(f"matrix multiplication: {rate / 1e9:.0f} GFLOP/s; copy: {bandwidth / 1e9:.0f} GB/s\n")
    print(
        "| workload | plain, s | ours, s | speed-up (range) | plain, MiB a sequence | ours | less by "
        "| ours needs, GFLOP | GB | floor, s | ours / floor | FLOP as LLaDA-8B: less by | answers |"
    )
    print("|" + "---|" * 13)
    workloads = Workloads(model, arguments)
    for name, make in workloads.all().items():
        if arguments.only not in name:
            continue
        plain_run, our_run = make()
        pairs = [(take_turn(model, plain_run), take_turn(model, our_run)) for _ in range(arguments.turns)]
        plains, ours = zip(*pairs, strict=True)
        speedups = [plain.seconds / our.seconds for plain, our in pairs]
        memory = [median(turn.peak_bytes / turn.work.sequences for turn in turns) / 2**20 for turns in (plains, ours)]
        needed = ours[0].work.flops(shape, arguments.vocab_size)
        needed_bytes = ours[0].work.weight_bytes(shape, arguments.vocab_size, dtype.itemsize)
        floor = max(needed / rate, needed_bytes / bandwidth)
        priced = [turns[0].work.flops(SHAPES["llada-8b"], LLADA_VOCABULARY) for turns in (plains, ours)]
        seconds = [median(turn.seconds for turn in turns) for turns in (plains, ours)]
        cells = [
            name,
            *(f"{s:.3g}" for s in seconds),
            f"{median(speedups):.3g} ({min(speedups):.3g} to {max(speedups):.3g})",
            *(f"{m:.3g}" for m in memory),
            f"{memory[0] / memory[1]:.3g}",
            f"{needed / 1e9:.3g}",
            f"{needed_bytes / 1e9:.3g}",
            f"{floor:.2g}",
            f"{seconds[1] / floor:.2g}",
            f"{priced[0] / priced[1]:.3g}",
            agreement(plains[0].answers, ours[0].answers),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
