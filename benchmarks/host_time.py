"""The host's time a pass of likelihoods outside the model, which is added to a GPU's.

    OMP_NUM_THREADS=1 python benchmarks/host_time.py

It holds the kernels' arithmetic over [N, V], which a GPU's host does not do, for 512 tokens of vocabulary. That of
decoding is measured by `benchmarks/host_share.py`.
"""

import time
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import LikelihoodOptions

MASK, PAD = 2, 0


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
    print("| ms a pass outside the model | | passes |")
    print("|---|---|---|")
    for n_tokens, n_requests, options in (
        (1, 64, LikelihoodOptions()),
        (16, 4, LikelihoodOptions(mc_num=128, check_greedy=False)),
    ):
        ms, passes = choices(n_tokens, n_requests, options)
        print(f"| {n_tokens}-token choices, contexts of 710, 64 canvases a pass | {ms:.2f} | {passes} |", flush=True)


if __name__ == "__main__":
    main()
