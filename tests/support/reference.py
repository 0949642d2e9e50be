"""Checkpoints and outputs of families' reference code, in tests/golden, and how far ours may be from them."""

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as read_tensors
from torch import Tensor
from torch.nn.functional import pad

from mdlm_lm_eval.checkpoints import load_denoiser
from mdlm_lm_eval.model.denoiser import Denoiser

GOLDEN = Path(__file__).parents[1] / "golden"


@cache
def tensors_of(name: str) -> dict[str, Tensor]:
    """What its reference code read and gave. Samplers ran on checkpoints of families, and share a file."""
    is_family = (GOLDEN / name).is_dir()
    file = GOLDEN / (f"{name}/golden.safetensors.gz" if is_family else "samplers.safetensors.gz")
    prefix = "" if is_family else f"{name}."
    found = read_tensors(gzip.decompress(file.read_bytes())).items()
    return {key.removeprefix(prefix): tensor for key, tensor in found if key.startswith(prefix)}


@cache
def facts_of(name: str) -> dict[str, Any]:
    """The settings under which its reference code ran, and more than tensors can say."""
    return dict(json.loads((GOLDEN / "facts.json").read_text())[name])


def load(folder: str | Path, **arguments: Any) -> Denoiser:
    return load_denoiser(str(GOLDEN / folder), dtype="float32", **arguments)


def named(setting: dict[str, Any], **names: str) -> dict[str, Any]:
    """Our options for arguments of reference code, where they are given: `ours="theirs"`."""
    return {ours: setting[theirs] for ours, theirs in names.items() if theirs in setting}


def generated(name: str, number: int) -> tuple[list[int], list[int]]:
    """The prompt of a setting, and what the reference put behind it."""
    prompt = tensors_of(name)[f"generate.{number}.prompt_ids"].flatten().tolist()
    return prompt, tensors_of(name)[f"generate.{number}.output"].flatten().tolist()[len(prompt) :]


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Equal but for rounding in float32, which grows with the logits and differs between makes of CPU."""
    torch.testing.assert_close(found, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)


def padded(rows: Sequence[Tensor], side: str) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of token ids [T], padded on a side, as [B, T]; 1 where they are real, and these places in flat order."""
    widths = [max(map(len, rows)) - len(row) for row in rows]
    widths = [(n, 0) if side == "left" else (0, n) for n in widths]
    ids, real = (
        torch.stack([pad(row, width) for row, width in zip(some, widths, strict=True)])
        for some in (rows, [torch.ones_like(row) for row in rows])
    )
    return ids, real, real.flatten().nonzero().squeeze(1)
