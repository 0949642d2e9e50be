"""Generation with remembered keys and values against the families' own loops, on the same random weights, in one run.

    OMP_NUM_THREADS=1 python benchmarks/block_decoding.py
    OMP_NUM_THREADS=1 python benchmarks/block_decoding.py --plain_blocks 1

One prompt, one token a pass, blocks decoded one after the other. Two models of equal weights: one attends
block-causally, and its reference runs the canvas up to the block's end in every pass (LLaDA2's published `generate`);
the other has full attention, and its reference runs the whole canvas in every pass (LLaDA's published `generate`).

The references, and ours without a cache, are slow. With `--plain_blocks` they decode only the first blocks, and their
time is scaled to all of them by the number of passes; a later block of a block-causal model takes longer than an early
one, so that its scaled time is too short. CPU time is that of this process, and on a busy machine says more than the
clock; it is the time of one core where OMP_NUM_THREADS=1.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval import DecodingOptions, Denoiser, decode
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern, block_causal_mask
from mdlm_lm_eval.results.text import markdown_table

MASK_TOKEN_ID = 0
# config.json of LLaDA2.0-mini
MINI_LAYERS, MINI_KEY_VALUE_HEADS, MINI_HEAD_WIDTH = 20, 4, 128


@dataclass(frozen=True)
class Timing:
    """What one way of decoding took for all passes, measured on `passes` of them."""

    token_ids: list[int]
    wall: float
    cpu: float
    passes: int


Score = Callable[[Tensor, int], Tensor]  # canvas [1, T] and the end of the current block -> logits [1, stop, V]


def plain_loop(
    score: Score,
    prompt: list[int],
    n_masks: int,
    block_length: int,
    n_blocks: int | None = None,
    *,
    from_prompt_end: bool = False,
    device: torch.device | str = "cpu",
) -> list[int]:
    """All blocks or the first `n_blocks`, one token a pass, the surest first (the published `generate`s, greedy).

    Blocks are counted from the prompt's end (LLaDA), or from its first token (LLaDA2): then it may end inside one.
    """
    canvas = torch.tensor([prompt + [MASK_TOKEN_ID] * n_masks], device=device)  # [1, T]
    begin = 0 if not from_prompt_end else len(prompt) % block_length
    starts = range(begin + (len(prompt) - begin) // block_length * block_length, canvas.shape[1], block_length)
    for start in starts[:n_blocks]:
        stop = min(start + block_length, canvas.shape[1])
        while (masked := canvas[:, start:stop] == MASK_TOKEN_ID).any():
            logits = score(canvas, stop)  # [1, at least stop, V]
            logits[..., MASK_TOKEN_ID] = -torch.inf
            tokens = logits.argmax(-1)
            confidence = logits.softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
            chosen = start + int(confidence[:, start:stop].masked_fill(~masked, -torch.inf).argmax())
            canvas[0, chosen] = tokens[0, chosen]
    return canvas[0, len(prompt) :].tolist()


def timed(run: Callable[[], list[int]], passes: int, of: int) -> Timing:
    """The time of `run`, which takes `passes` passes, scaled to `of`."""
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        token_ids = run()
    scale = of / passes
    return Timing(token_ids, (time.perf_counter() - wall) * scale, (time.process_time() - cpu) * scale, passes)


def random_model(arguments: argparse.Namespace) -> LlamaForCausalLM:
    """A Llama whose masks are bidirectional, float32, of seeded random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=arguments.vocab_size,
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 64,
        initializer_range=0.05,  # logits spread enough that decoding depends on the canvas
        max_position_embeddings=4096,
        is_causal=False,
    )
    return LlamaForCausalLM(config).eval()


def compare(arguments: argparse.Namespace) -> list[list[str]]:
    """A row of the table for every way of decoding."""
    model = random_model(arguments)
    rng = Random(0)
    prompt = [rng.randrange(1, arguments.vocab_size) for _ in range(arguments.prompt_tokens)]
    n_masks, length = arguments.n_masks, arguments.block_length
    causal = AttentionPattern(length)
    positions = torch.arange(len(prompt) + n_masks + length)[None]  # [1, T]
    mask = block_causal_mask(causal.block_of(positions))  # [1, 1, T, T]

    def score_so_far(canvas: Tensor, stop: int) -> Tensor:
        return model(input_ids=canvas[:, :stop], attention_mask=mask[..., :stop, :stop], use_cache=False).logits

    def score_whole(canvas: Tensor, _stop: int) -> Tensor:
        return model(input_ids=canvas, attention_mask=torch.ones_like(canvas), use_cache=False).logits

    def ours(attention: AttentionPattern, cache: str, n_tokens: int) -> list[int]:
        denoiser = Denoiser(model, mask_token_id=MASK_TOKEN_ID, pad_token_id=1, attention=attention)
        steps: dict[str, int] = {"steps_per_block": length} if attention.is_block_causal else {"steps": n_masks}
        options = DecodingOptions(n_masks=n_masks, block_length=length, cache=cache, **steps)  # type: ignore[arg-type]
        return decode(denoiser, [prompt], options, max_gen_toks=n_tokens)[0]

    rows = []
    for name, attention, score, caches in (
        ("block-causal", causal, score_so_far, ("auto",)),
        ("full", FULL_ATTENTION, score_whole, ("none", "prefix", "dual")),
    ):
        if arguments.only not in name:
            continue
        # A block-causal model's blocks begin with the prompt's last tokens, and its last one is filled to its end.
        known = len(prompt) % length if attention.is_block_causal else 0
        behind = -(len(prompt) + n_masks) % length if attention.is_block_causal else 0
        n_filled = n_masks + behind
        plain_passes = min(n_filled, (arguments.plain_blocks or n_filled) * length - known)

        def plain_run(
            score: Score = score, n_filled: int = n_filled, from_prompt_end: bool = attention is FULL_ATTENTION
        ) -> list[int]:
            return plain_loop(score, prompt, n_filled, length, arguments.plain_blocks, from_prompt_end=from_prompt_end)

        plain = timed(plain_run, plain_passes, n_filled)
        rows.append([name, "published loop", f"{plain.passes} of {n_filled}", f"{plain.wall:.1f}", f"{plain.cpu:.1f}"])
        rows[-1] += ["1", "1", ""]
        for cache in caches:
            n_tokens = plain_passes if cache == "none" else n_masks  # without a cache, ours is as slow
            our = timed(lambda a=attention, c=cache, n=n_tokens: ours(a, c, n), n_tokens, n_masks)
            compared = min(plain_passes, n_masks)
            agree = sum(a == b for a, b in zip(our.token_ids[:compared], plain.token_ids, strict=False))
            times = [f"{our.wall:.1f}", f"{our.cpu:.1f}", f"{plain.wall / our.wall:.1f}", f"{plain.cpu / our.cpu:.1f}"]
            rows.append([name, f"ours, cache={cache}", f"{n_tokens} of {n_masks}", *times, f"{agree} of {compared}"])
            print(rows[-1], flush=True)
    return rows


def cache_bytes(n_tokens: int, *, itemsize: int = 2) -> int:
    """Bytes of one row's keys and values in LLaDA2.0-mini, bfloat16 if `itemsize` is 2."""
    return 2 * MINI_LAYERS * MINI_KEY_VALUE_HEADS * MINI_HEAD_WIDTH * itemsize * n_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt_tokens", type=int, default=1200)
    parser.add_argument("--n_masks", type=int, default=256)
    parser.add_argument("--block_length", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--plain_blocks", type=int, help="blocks that the references decode; all if not given")
    parser.add_argument("--only", default="", help="only the attention whose name holds this: block-causal, full")
    arguments = parser.parse_args()
    header = ["attention", "decoding", "passes timed", "s", "CPU s", "faster (clock)", "faster (CPU)", "same tokens"]
    print(markdown_table(header, compare(arguments)))
    for n_tokens in (arguments.prompt_tokens + arguments.n_masks, 4096, 32768):
        mebibytes = cache_bytes(n_tokens) / 2**20
        print(f"cache of a row of {n_tokens} tokens at LLaDA2.0-mini's sizes, bfloat16: {mebibytes:.0f} MiB")


if __name__ == "__main__":
    main()
