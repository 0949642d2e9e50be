"""Samplers that do not keep to a plan, also on a pretended GPU, or that read what they did not ask for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding import engine
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.sampler import Choice, View
from mdlm_lm_eval.decoding.samplers.schedule import Schedule
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import register
from tests.pretended_gpu import PretendedGpu
from tests.support.canvases import canvas, model

pytestmark = pytest.mark.slow


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
    register(name="one_at_most", sampler=OneAtMost)
    register(name="nothing", sampler=Nothing)
    ours, options = model(), replace(DecodingOptions(steps=4, block_length=8, n_masks=32), **changes)
    rows = [canvas(ours, options, 1 + 3 * k, 5, k) for k in range(5)]
    slow, stuck = (replace(options, sampler=name) for name in ("one_at_most", "nothing"))
    with PretendedGpu() as gpu:
        for is_on_gpu in (False, True):
            if is_on_gpu:
                gpu.move(ours.model)
            assert all(len(row.token_ids) == 5 for row in decode_canvases(ours, rows, slow, batch_size=2))
            whole = replace(slow, early_exit=False)
            assert [row.n_written for row in decode_canvases(ours, rows, whole, batch_size=2)] == [5] * 5
            before = ours.forward_passes
            with pytest.raises(engine.NoProgressError, match=r"the sampler Nothing .*steps=4, block_length=8"):
                decode_canvases(ours, rows, stuck, batch_size=2)
            assert ours.forward_passes - before <= 8


NOT_ASKED: list[Callable[[View], Any]] = [
    lambda view: view.filled & view.masks,
    lambda view: view.entropy < 1,
    lambda view: view.masks.where(view.hindsight, view.masks),
    lambda view: view.confidence.max(),
    lambda view: view.priority * view.confidence,
]


@pytest.mark.parametrize("read", NOT_ASKED)
def test_a_sampler_cannot_read_numbers_that_it_does_not_ask_for(
    read: Callable[[View], Any], own_samplers: None
) -> None:
    class Reads(Schedule):
        """Reads something before it chooses."""

        def choose(self, view: View, options: DecodingOptions) -> Choice:
            read(view)
            return super().choose(view, options)

    register(name="reads", sampler=Reads)
    ours, options = model(), DecodingOptions(sampler="reads", n_masks=4)
    with pytest.raises(AttributeError, match=r"needs\(\) do not ask for"):
        decode_canvases(ours, [canvas(ours, options, 3, 4)], options)
