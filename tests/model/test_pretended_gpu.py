"""A GPU's paths, run on a pretended one: the CPU's answers, one wait a pass, and faults that only a GPU shows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding import engine
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.sampler import Choice, View
from mdlm_lm_eval.decoding.samplers.schedule import Schedule
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model import compiled, devices
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.registry import register
from tests.pretended_gpu import GPU, PretendedGpu, PretendedGpuError, Report
from tests.pretended_gpu.settings import (
    DECODING,
    LIKELIHOOD,
    VOCABULARY,
    Setting,
    decoded,
    denoiser_of,
    model_of,
    over_two,
    scored,
)
from tests.support.canvases import canvas, model

pytestmark = pytest.mark.slow

FEW: dict[str, int] = {"n_rows": 5, "n_masks": 5}  # a whole block and a part of one


@pytest.fixture(autouse=True)
def _small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows meet several shapes, each of which becomes a graph when it comes a second time."""
    monkeypatch.setattr(devices, "KEYS", 16)
    monkeypatch.setattr(devices, "POSITIONS", 16)
    monkeypatch.setattr(compiled, "PASSES_BEFORE", 1)


def on_gpu(
    run: Callable[..., Any], setting: Setting, batch_size: int, *, with_graphs: bool = False, **named: Any
) -> tuple[Any, Report, Denoiser]:
    """What a run on a pretended GPU gives, and what that GPU saw of it."""
    with PretendedGpu() as gpu:
        denoiser = denoiser_of(gpu.move(model_of(setting)), setting, cuda_graphs=with_graphs)
        return run(denoiser, setting, batch_size, **named), gpu.report, denoiser


@pytest.mark.parametrize("name", [name for name, setting in DECODING.items() if setting.kernels])
def test_decoding_gives_the_answers_of_a_cpu_and_waits_once_a_pass(name: str) -> None:
    setting = DECODING[name]
    assert setting.kernels
    answers = decoded(denoiser_of(model_of(setting), setting), setting, 3, **FEW)
    # In three slots, rows follow each other; of six, one stays empty.
    found, report, denoiser = on_gpu(decoded, setting, 3, **FEW)
    assert found == answers
    assert report.waits.total() <= denoiser.forward_passes
    assert not report.blocking_copies
    assert len(report.attention_shapes) <= 10
    assert report.kernels["outside"] <= setting.kernels * denoiser.forward_passes
    found, report, denoiser = on_gpu(decoded, setting, 8, with_graphs=True, **FEW)
    assert found == answers
    assert report.waits.total() <= denoiser.forward_passes


@pytest.mark.parametrize(
    "name",
    [
        *("mc", "mc, shifted", "mc, guided", "mc, no greedy flag", "chain", "duel", "duel, threshold", "confidence"),
        *("blocks, mc", "blocks, no greedy flag", "blocks, chain", "blocks, duel", "from the prompt, shifted"),
    ],
)
def test_likelihoods_are_those_of_a_cpu_and_wait_once_a_pass(name: str) -> None:
    setting = LIKELIHOOD[name]
    few = {"n_contexts": 2, "mc_num": 4}
    expected = scored(denoiser_of(model_of(setting), setting), setting, 8, **few)
    for batch_size, with_graphs in ((3, True), (8, False)):
        found, report, denoiser = on_gpu(scored, setting, batch_size, with_graphs=with_graphs, **few)
        assert [one[0] for one in found] == pytest.approx([one[0] for one in expected], abs=1e-4)
        assert [one[1] for one in found] == [one[1] for one in expected]
        assert report.waits.total() <= denoiser.forward_passes
        assert not report.blocking_copies


@pytest.mark.parametrize(("name", "waits", "copies"), [("speculation", 2.5, 0.0), ("insertion", 4.3, 0.4)])
def test_row_decoders_wait_no_more_often_than_they_did(name: str, waits: float, copies: float) -> None:
    setting = DECODING[name]
    answers = decoded(denoiser_of(model_of(setting), setting), setting, 3, n_rows=5)
    found, report, denoiser = on_gpu(decoded, setting, 3, n_rows=5)
    assert found == answers
    assert report.waits.total() <= waits * denoiser.forward_passes
    assert report.blocking_copies.total() <= copies * denoiser.forward_passes


@pytest.mark.parametrize("name", ["speculation", "insertion"])
def test_row_decoders_ask_for_no_logits_of_prompts_but_the_last(name: str) -> None:
    setting, asked = DECODING[name], []
    model = model_of(setting)
    model.lm_head.register_forward_hook(lambda _model, _inputs, logits: asked.append(logits.numel() // VOCABULARY))
    with PretendedGpu() as gpu:
        decoded(denoiser_of(gpu.move(model), setting), setting, 3, **FEW)
    assert max(asked) == 3 * 4  # blocks; prompts have up to 60 tokens


@pytest.mark.parametrize("name", ["whole", "prefix, guided", "dual, threshold", "blocks", "from the prompt, shifted"])
def test_every_cache_works_on_a_model_over_two_gpus(name: str) -> None:
    setting = DECODING[name]
    answers = decoded(denoiser_of(model_of(setting), setting), setting, 3, **FEW)
    with PretendedGpu(n_devices=2) as gpu:
        denoiser = denoiser_of(over_two(gpu, model_of(setting)), setting)
        assert decoded(denoiser, setting, 3, **FEW) == answers
        assert gpu.report.copies_between
        if "cfg_scale" not in setting.options:
            likelihood = Setting({}, setting.attention, setting.facts)
            expected = scored(denoiser_of(model_of(setting), setting), likelihood, 3, n_contexts=1)
            found = scored(denoiser, likelihood, 3, n_contexts=1)
            assert [one[0] for one in found] == pytest.approx([one[0] for one in expected], abs=1e-4)


def test_what_no_cpu_shows_is_refused_or_counted() -> None:
    with PretendedGpu() as gpu:
        ours, pinned = torch.ones(4, device=GPU), torch.empty(4, pin_memory=True).copy_(torch.ones(4))
        with pytest.raises(PretendedGpuError, match="same device"):
            ours + torch.ones(4)
        assert ours.sum().item() == gpu.report.waits.total() + 3 == 4
        pinned.to(GPU, non_blocking=True)
        assert not gpu.report.blocking_copies
        assert torch.ones(4).to(GPU).shape == (4,)
        assert gpu.report.blocking_copies.total() == 1
        pinned += 1
        with pytest.raises(PretendedGpuError, match="overwritten before its copy"):
            ours.sum().item()


def test_a_graph_runs_again_on_the_memory_that_it_was_recorded_with() -> None:
    with PretendedGpu() as gpu:
        given = [torch.ones(2, device=GPU), torch.ones(2, device=GPU)]
        replay, result = compiled.capture(lambda: (given[0] + given[1]) * 2)
        assert result.tolist() != [4.0, 4.0]  # nothing has run yet
        given[0].fill_(5.0)
        given[1] = torch.zeros(2, device=GPU)
        replay()
        assert result.tolist() == [12.0, 12.0]
        with pytest.raises(compiled.NotCapturableError, match="not permitted when stream is capturing"):
            compiled.capture(lambda: given[0] * given[0].sum().item())
        assert gpu.stream == "default"


@pytest.mark.parametrize("options", [{"mc_num": 16, "check_greedy": False}, {"likelihood": "duel"}])
def test_likelihoods_run_few_tokens_more_than_on_a_cpu(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # shapes as they are
    run: list[int] = []
    for is_gpu in (False, True):
        with PretendedGpu() as gpu:
            model = gpu.move(model_of(Setting())) if is_gpu else model_of(Setting())
            run.append(0)

            def count(_model: Any, _args: Any, inputs: dict[str, Any]) -> None:
                run[-1] += inputs["input_ids"].numel()

            model.register_forward_pre_hook(count, with_kwargs=True)
            requests = [LikelihoodRequest([3 + n] * (200 + 17 * n), [5, 6, 7, n, 8, 9]) for n in range(12)]
            settings = LikelihoodOptions(**options)
            score(denoiser_of(model, Setting()), requests, settings, batch_size=32, max_length=512)
    assert run[1] < 1.25 * run[0]


# Samplers that do not keep to a plan


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
    lambda view: view.state.get("last", 0),
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
