"""The costs of rows that a GPU's host sees late, and samplers that do not keep to a plan, on a pretended GPU."""

from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding import engine
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.sampler import Choice, View
from mdlm_lm_eval.decoding.samplers.schedule import Schedule
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import register
from tests.canvases import APPROXIMATE, canvas, model, neighbours
from tests.pretended_gpu import PretendedGpu


@pytest.fixture(autouse=True)
def _small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows leave buckets of several sizes partly empty."""
    monkeypatch.setattr(devices, "KEYS", 16)
    monkeypatch.setattr(devices, "POSITIONS", 16)


@pytest.mark.parametrize(("attention", "facts", "changes"), APPROXIMATE)
def test_a_row_is_charged_for_the_passes_that_ran_it_and_no_others(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Though the host sees a pass late, and rows in refilled slots wait for passes over whole canvases."""
    ours, options = model(attention, **facts), DecodingOptions().override(changes)
    rows = neighbours(ours, options, 5, most=9)
    alone = [decode_canvases(ours, [row], options)[0] for row in rows]
    with PretendedGpu() as gpu:
        gpu.move(ours.model)
        for n_slots in (2, len(rows)):
            assert decode_canvases(ours, rows, options, batch_size=n_slots) == alone


class OneAtMost(Schedule):
    """Slower than its plan, as an option of somebody's own could make it."""

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        return Choice(fill=view.masks & (view.masks.cumsum(1) == 1))


class Nothing(Schedule):
    """Fills nothing."""

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        return Choice(fill=torch.zeros_like(view.masks))


@pytest.mark.parametrize("changes", [{}, {"cache": "dual"}, {"temperature": 1.0}])
def test_a_sampler_that_would_never_end_is_an_error_and_a_slow_one_is_not(
    changes: dict[str, Any], own_samplers: None
) -> None:
    """On a GPU passes are planned ahead by the schedule: a sampler that does not keep to it runs out of them."""
    register(name="one_at_most", sampler=OneAtMost)
    register(name="nothing", sampler=Nothing)
    ours, options = model(), DecodingOptions(steps=4, block_length=8, n_masks=32).override(changes)
    rows = [canvas(ours, options, 1 + 3 * k, 5, k) for k in range(5)]
    slow, stuck = (options.override({"sampler": name}) for name in ("one_at_most", "nothing"))
    assert all(len(row.token_ids) == 5 for row in decode_canvases(ours, rows, slow, batch_size=2))
    whole = slow.override({"early_exit": False})
    assert [row.n_written for row in decode_canvases(ours, rows, whole, batch_size=2)] == [5] * 5
    with pytest.raises(engine.NoProgressError, match=r"the sampler Nothing .*steps=4, block_length=8"):
        decode_canvases(ours, rows, stuck, batch_size=2)
    with PretendedGpu() as gpu:
        gpu.move(ours.model)
        for each in (stuck, slow):
            before = ours.forward_passes
            with pytest.raises(engine.NoProgressError, match="steps=4"):
                decode_canvases(ours, rows, each, batch_size=2)
            assert ours.forward_passes - before <= 8
