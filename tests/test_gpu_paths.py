"""What decoding does on a GPU alone, padded keys and positions and paths that are known ahead, run on a CPU."""

from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding import decode_canvases, engine
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.run import Run
from mdlm_lm_eval.decoding.sampler import Choice, View
from mdlm_lm_eval.decoding.samplers.schedule import Schedule
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import register
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
        monkeypatch.setattr(Run, "on_gpu", property(lambda _: True))
        monkeypatch.setattr(engine, "_event", lambda _: _Done())
        monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **named: empty(*size, **named))
        monkeypatch.setattr(engine, "bucket", lambda n, _, least=1: max(least, 1 << (n - 1).bit_length()))
        monkeypatch.setattr(devices, "KEYS", 16)
        monkeypatch.setattr(devices, "POSITIONS", 16)

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


class OneAtMost(Schedule):
    """Slower than its plan, as an option of somebody's own could make it."""

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        return Choice(fill=view.masks & (view.masks.cumsum(1) == 1))


class Nothing(Schedule):
    """Fills nothing."""

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        return Choice(fill=torch.zeros_like(view.masks))


register(name="one_at_most", sampler=OneAtMost)
register(name="nothing", sampler=Nothing)


@pytest.mark.parametrize("changes", [{}, {"cache": "dual"}, {"temperature": 1.0}])
def test_a_sampler_that_would_never_end_is_an_error_and_a_slow_one_is_not(changes: dict[str, Any], gpu: Any) -> None:
    """On a GPU passes are planned ahead by the schedule: a sampler that does not keep to it runs out of them."""
    ours, options = model(), DecodingOptions(steps=4, block_length=8, n_masks=32).override(changes)
    rows = [canvas(ours, options, 1 + 3 * k, 5, k) for k in range(5)]
    slow, stuck = (options.override({"sampler": name}) for name in ("one_at_most", "nothing"))
    assert all(len(row.token_ids) == 5 for row in decode_canvases(ours, rows, slow, batch_size=2))
    whole = slow.override({"early_exit": False})
    assert [row.n_written for row in decode_canvases(ours, rows, whole, batch_size=2)] == [5] * 5
    with pytest.raises(engine.NoProgressError, match=r"the sampler Nothing .*steps=4, block_length=8"):
        decode_canvases(ours, rows, stuck, batch_size=2)
    gpu()
    for each in (stuck, slow):
        before = ours.forward_passes
        with pytest.raises(engine.NoProgressError, match="steps=4"):
            decode_canvases(ours, rows, each, batch_size=2)
        assert ours.forward_passes - before <= 8
