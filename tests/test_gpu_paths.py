"""What decoding does on a GPU alone, padded keys and positions and paths that are known ahead, run on a CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mdlm_lm_eval.decoding import decode_canvases, engine, passes
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import DecodingOptions
from tests.canvases import APPROXIMATE, canvas, model, neighbours
from tests.test_compile import a_model, denoiser


class _Done:
    def synchronize(self) -> None:
        """Copies on a CPU are done at once."""

    def query(self) -> bool:
        return True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called, it switches to the paths of a GPU, with small buckets, so that short rows leave them unequal."""
    empty = torch.empty

    def switch() -> None:
        monkeypatch.setattr(passes.Passes, "on_gpu", property(lambda _: True, lambda _, __: None), raising=False)
        monkeypatch.setattr(engine, "_event", lambda _: _Done())
        monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **named: empty(*size, **named))
        monkeypatch.setattr(engine, "bucket", lambda n, _, least=1: max(least, 1 << (n - 1).bit_length()))
        for module in (passes, engine):
            monkeypatch.setattr(module, "KEYS", 16)
            monkeypatch.setattr(module, "POSITIONS", 16)

    return switch


@pytest.mark.parametrize(
    ("attention", "shift", "changes"),
    [
        (FULL_ATTENTION, True, {"cache": "dual", "block_length": 4}),
        (FULL_ATTENTION, True, {"cache": "prefix", "block_length": 4, "cfg_scale": 0.5}),
        (AttentionPattern(4), False, {"confidence_threshold": 0.02}),
        # The end of thinking fills a mask that no schedule counts.
        (FULL_ATTENTION, False, {"block_length": 3, "n_masks": 33, "steps": 22, "max_thinking_tokens": 10}),
        (AttentionPattern(4), False, {"max_thinking_tokens": 1}),
    ],
)
def test_answers_are_those_of_a_cpu(
    attention: AttentionPattern, shift: bool, changes: dict[str, Any], gpu: Any
) -> None:
    ours, options = denoiser(a_model(), attention, shift), DecodingOptions().override({"n_masks": 8, **changes})
    facts: dict[str, Any] = {"mask_token_id": 2, "max_length": 512, "attention": attention}
    lengths = [90, 40, 38, 36, 85, 20, 12, 3] * 6
    canvases = [build_canvas([5 + k] * n, options, **facts)[0] for k, n in enumerate(lengths)]
    on_cpu = decode_canvases(ours, canvases, options, end_think_ids=[9])
    gpu()
    for n_slots in (3, len(canvases)):
        on_gpu = decode_canvases(ours, canvases, options, end_think_ids=[9], batch_size=n_slots)
        assert [one.token_ids for one in on_gpu] == [one.token_ids for one in on_cpu]


@pytest.mark.parametrize(("attention", "facts", "changes"), APPROXIMATE)
def test_a_row_is_charged_for_the_passes_that_ran_it_and_no_others(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any], gpu: Any
) -> None:
    """Though the host sees a pass late, and rows in refilled slots wait for passes over whole canvases."""
    ours, options = model(attention, **facts), DecodingOptions().override(changes)
    rows = neighbours(ours, options, 9)
    alone = [decode_canvases(ours, [row], options)[0] for row in rows]
    gpu()
    for n_slots in (2, 3, 4, len(rows)):
        assert decode_canvases(ours, rows, options, batch_size=n_slots) == alone


def select_one_at_most(candidates: Tensor, priority: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """A sampler that is slower than the schedule, as an option of somebody's own could make it."""
    first = candidates & (candidates.cumsum(1) == 1)
    return first, priority.amax(1)


def select_nothing(candidates: Tensor, priority: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(candidates), priority.amax(1)


@pytest.mark.parametrize("changes", [{}, {"cache": "dual"}, {"temperature": 1.0}])
def test_a_sampler_that_would_never_end_is_an_error_and_a_slow_one_is_not(
    changes: dict[str, Any], gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU passes are planned ahead by the schedule: a sampler that does not keep to it runs out of them."""
    ours, options = model(), DecodingOptions(steps=4, block_length=8, n_masks=32).override(changes)
    rows = [canvas(ours, options, 1 + 3 * k, 5, k) for k in range(5)]
    monkeypatch.setattr(passes, "select", select_one_at_most)
    assert all(len(row.token_ids) == 5 for row in decode_canvases(ours, rows, options, batch_size=2))
    whole = options.override({"early_exit": False})
    assert [row.n_written for row in decode_canvases(ours, rows, whole, batch_size=2)] == [5] * 5
    monkeypatch.setattr(passes, "select", select_nothing)
    with pytest.raises(engine.NoProgressError, match="steps=4 block_length=8"):
        decode_canvases(ours, rows, options, batch_size=2)
    gpu()
    for select in (select_nothing, select_one_at_most):
        monkeypatch.setattr(passes, "select", select)
        with pytest.raises(engine.NoProgressError, match="steps=4"):
            decode_canvases(ours, rows, options, batch_size=2)
