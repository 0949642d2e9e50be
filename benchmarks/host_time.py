"""The host's time a pass outside the model, which is added to a GPU's.

    OMP_NUM_THREADS=1 python benchmarks/host_time.py

With 512 tokens of vocabulary it holds the kernels' arithmetic over [N, V], which a GPU's host does not do; with 16 that
is next to nothing, and Python and the dispatch of operators remain. After a model that runs on this CPU they find its
caches full of the model's numbers; after one that answers at once they do not.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.decode import decode_canvases
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions

MASK, PAD = 2, 0


@dataclass(frozen=True)
class Mode:
    """A way of decoding so many rows."""

    name: str
    options: dict[str, Any]
    rows: int
    attention: AttentionPattern = field(default=FULL_ATTENTION)


MODES = [
    Mode("cache=dual, block 32, 8 rows", {"steps": 64, "block_length": 32, "cache": "dual"}, 8),
    Mode("cache=dual, block 32, 32 rows", {"steps": 64, "block_length": 32, "cache": "dual"}, 32),
    Mode("blocks of 32, exact, 32 rows", {"steps_per_block": 32}, 32, AttentionPattern(32)),
    Mode("blocks of 4, exact, 64 rows", {"steps_per_block": 4}, 64, AttentionPattern(4)),
    Mode("full attention, 64 steps, 32 rows", {"steps": 64}, 32),
]


def llama(vocabulary: int) -> Any:
    """One random layer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=2048,
        is_causal=False,
        initializer_range=0.05,
    )
    return LlamaForCausalLM(config).eval()


class AtOnce(nn.Module):
    """A model that answers at once, always with the same random logits."""

    def __init__(self, vocabulary: int, positions: int = 8192) -> None:
        super().__init__()
        self.config = llama(vocabulary).config
        self.config.num_hidden_layers = 0  # nothing to remember
        self.table = nn.Parameter(torch.randn(positions, vocabulary), requires_grad=False)
        self.head = nn.Identity()
        self.dtype = self.table.dtype

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def can_generate(self) -> bool:
        return True

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.table[: input_ids.numel()].view(*input_ids.shape, -1)))


def prompts(n: int, low: int, high: int, vocabulary: int = 512) -> list[list[int]]:
    draw = Random(0)
    return [[3 + draw.randrange(vocabulary - 3) for _ in range(draw.randint(low, high))] for _ in range(n)]


def milliseconds(denoiser: Denoiser, run: Callable[[], object]) -> tuple[float, int]:
    """Milliseconds a pass outside the model, the least of five runs after one that warms up, and passes."""
    inside = began = 0.0

    def enter(*_: object) -> None:
        nonlocal began
        began = time.process_time()

    def leave(*_: object) -> None:
        nonlocal inside
        inside += time.process_time() - began

    denoiser.model.register_forward_pre_hook(enter)
    denoiser.model.register_forward_hook(leave)
    run()
    least, passes = float("inf"), 0
    for _ in range(5):
        inside, before, start = 0.0, denoiser.forward_passes, time.process_time()
        run()
        passes = denoiser.forward_passes - before
        least = min(least, (time.process_time() - start - inside) / passes * 1e3)
    return least, passes


def decoding(mode: Mode, model: Any, vocabulary: int) -> tuple[float, int]:
    denoiser = Denoiser(model, mask_token_id=MASK, pad_token_id=PAD, attention=mode.attention)
    options = DecodingOptions().override({"n_masks": 64, **mode.options})
    canvases = [
        build_canvas(ids, options, mask_token_id=MASK, max_length=2048, attention=mode.attention)[0]
        for ids in prompts(mode.rows, 40, 56, vocabulary)
    ]
    return milliseconds(denoiser, lambda: decode_canvases(denoiser, canvases, options))


def choices(n_tokens: int, n_requests: int, options: LikelihoodOptions) -> tuple[float, int]:
    denoiser = Denoiser(llama(512), mask_token_id=MASK, pad_token_id=PAD)
    draw = Random(1)
    requests = [
        LikelihoodRequest(context, [draw.randrange(3, 500) for _ in range(n_tokens)], seed)
        for context in prompts(16, 700, 720)
        for seed in range(4)
    ][:n_requests]
    return milliseconds(denoiser, lambda: score(denoiser, requests, options, batch_size=64, max_length=2048))


def main() -> None:
    torch.set_num_threads(1)
    print("| ms a pass outside the model | 512 tokens of vocabulary | 16 | 16, model at once | passes |")
    print("|---|---|---|---|---|")
    for mode in MODES:
        found = [decoding(mode, llama(512), 512), decoding(mode, llama(16), 16), decoding(mode, AtOnce(16), 16)]
        print(f"| {mode.name} | {' | '.join(f'{ms:.2f}' for ms, _ in found)} | {found[0][1]} |", flush=True)
    for n_tokens, n_requests, options in (
        (1, 64, LikelihoodOptions()),
        (16, 4, LikelihoodOptions(mc_num=128, check_greedy=False)),
    ):
        ms, passes = choices(n_tokens, n_requests, options)
        print(
            f"| {n_tokens}-token choices, contexts of 710, 64 canvases a pass | {ms:.2f} | | | {passes} |", flush=True
        )


if __name__ == "__main__":
    main()
