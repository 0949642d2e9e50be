"""Runs of the engine that are frozen in tests/data/frozen_runs.json.xz: what they are, and how they are run.

They run in float64, on a model whose numbers no CPU rounds in float32, so that tokens are the same on every machine.
"""

import functools
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import nn

from mdlm_lm_eval.decoding.canvas import Completion
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.conftest import random_llama
from tests.support.canvases import EOS, MASK, PAD, VOCABULARY, neighbours

PATH = Path(__file__).parents[1] / "data" / "frozen_runs.json.xz"
LABELS, END_OF_THINKING, STOPS = [3, 11, 20], 45, set(range(0, 46, 5))


class Run(NamedTuple):
    """Options, the model's attention pattern and other facts, and how many rows run in how many lanes.

    most: masks of a row. stops: whether stop strings end answers. labels: whether the first token is compared.
    """

    options: dict[str, Any]
    attention: dict[str, Any]
    facts: dict[str, Any]
    rows: int
    most: int
    lanes: int
    stops: bool
    labels: bool


class Record(NamedTuple):
    """What a run gave, of each row but for the model's passes, and for changes and their confidences.

    changes: a checksum of the pass, place, and tokens of all changes, in their order.
    confidence: the sum of their confidences, each times a number from 1 to 2.
    """

    passes: int
    token_ids: list[list[int]]
    costs: list[list[int]]
    first: list[list[float]]
    changes: int
    confidence: float


@functools.cache
def _llama() -> nn.Module:
    """Peaked logits, as in tests/support/canvases.py; weights are drawn as integers, which are the same everywhere."""
    model = random_llama(VOCABULARY, num_key_value_heads=2).double()
    draw = np.random.default_rng(0)
    with torch.no_grad():
        for weight in model.parameters():
            numbers = torch.from_numpy(draw.integers(-(2**20), 2**20, tuple(weight.shape)))
            weight.copy_(numbers * 0.5 * 2.0**-20)
        model.lm_head.weight[MASK] *= 50
    for module in list(model.modules()):
        for name, child in module.named_children():
            if "Norm" in type(child).__name__:  # transformers' own compute in float32
                setattr(module, name, nn.RMSNorm(32, eps=1e-6, dtype=torch.float64))
    rotary = model.model.rotary_emb
    rotary.inv_freq = 10_000.0 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    return model


@contextmanager
def in_float64() -> Iterator[None]:
    """Inside the block, whatever is computed in float32 is computed in float64."""
    before, softmax = torch.get_default_dtype(), torch.Tensor.softmax
    torch.set_default_dtype(torch.float64)
    in_double = {"float": torch.Tensor.double, "softmax": lambda logits, dim, dtype=None: softmax(logits, dim)}
    try:
        with mock.patch.multiple(torch.Tensor, **in_double):
            yield
    finally:
        torch.set_default_dtype(before)


def denoiser_of(attention: AttentionPattern, **facts: Any) -> Denoiser:
    """The model with these facts, to be run in float64."""
    return Denoiser(_llama(), mask_token_id=MASK, pad_token_id=PAD, attention=attention, **facts)


def recorded(run: Run) -> Record:
    """Runs a run."""
    with in_float64():
        denoiser = denoiser_of(AttentionPattern(**run.attention), **run.facts)
        options = DecodingOptions(**run.options)
        frequencies = torch.arange(1, VOCABULARY + 1) / 2000
        found = decode_canvases(
            denoiser,
            neighbours(denoiser, options, run.rows, most=run.most),
            options,
            eos_ids=[EOS],
            end_think_ids=[END_OF_THINKING],
            token_frequencies=frequencies if options.unmasking == "position_calibrated" else None,
            label_ids=LABELS if run.labels else (),
            is_decided=(lambda answer: not STOPS.isdisjoint(answer)) if run.stops else None,
            batch_size=run.lanes,
        )
    return _record(denoiser.forward_passes, found)


def _record(passes: int, found: list[Completion]) -> Record:
    changes = [tuple(event[:4]) for one in found for event in (*one.events, (0, 0, 0, 0))]
    confidences = [event.confidence for one in found for event in one.events]
    return Record(
        passes,
        [one.token_ids for one in found],
        [[*vars(one.cost).values(), one.n_written] for one in found],
        [list(one.first) for one in found if one.first is not None],
        zlib.crc32(repr(changes).encode()),
        sum(each * (1 + n / len(confidences)) for n, each in enumerate(confidences)),
    )


def frozen() -> list[tuple[Run, Record]]:
    """All frozen runs."""
    rows = json.loads(lzma.decompress(PATH.read_bytes()))
    return [(Run(*run), Record(*record)) for run, record in rows]


def difference(frozen: Record, found: Record) -> list[str]:
    """The names of what differs."""
    exact = [
        name for name in ("passes", "token_ids", "costs", "changes") if getattr(frozen, name) != getattr(found, name)
    ]
    firsts = [one for record in (frozen, found) for row in record.first for one in row]
    half = len(firsts) // 2
    is_far = len(frozen.first) != len(found.first) or not np.allclose(firsts[:half], firsts[half:], rtol=0, atol=1e-9)
    exact += ["first"] * is_far
    return exact + ["confidence"] * (abs(frozen.confidence - found.confidence) > 1e-9)
