"""A GPU's paths, run on a pretended one: the CPU's answers, one wait a pass, and faults that only a GPU shows."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model import compiled, devices, kv_cache
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import LikelihoodOptions, OptionError
from tests.conftest import data
from tests.pretended_gpu import PretendedGpu, PretendedGpuError, Report
from tests.pretended_gpu.placement import over_two
from tests.pretended_gpu.settings import (
    DECODING,
    LIKELIHOOD,
    VOCABULARY,
    Setting,
    decoded,
    denoiser_of,
    model_of,
    scored,
)

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


@pytest.mark.parametrize(("name", "kernels"), data("kernels.json").items())
def test_decoding_gives_the_answers_of_a_cpu_and_waits_once_a_pass(name: str, kernels: int) -> None:
    setting = DECODING[name]
    answers = decoded(denoiser_of(model_of(setting), setting), setting, 3, **FEW)
    # In three slots, rows follow each other; of six, one stays empty.
    found, report, denoiser = on_gpu(decoded, setting, 3, **FEW)
    assert found == answers
    assert report.waits.total() <= denoiser.forward_passes
    assert not report.blocking_copies
    assert len(report.attention_shapes) <= 10
    assert report.kernels["outside"] <= kernels * denoiser.forward_passes
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


# Faults that no CPU shows


def plant(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], planted: Callable[..., Any]) -> None:
    """Puts `planted` in place of a function wherever the package has imported it."""
    for name in [name for name in sys.modules if name.startswith("mdlm_lm_eval")]:
        for attribute, value in list(vars(sys.modules[name]).items()):
            if value is function:
                monkeypatch.setattr(sys.modules[name], attribute, planted)


def numbers_on_the_host(patch: pytest.MonkeyPatch) -> None:
    plant(patch, devices.iota, lambda n, device: torch.arange(n))


def blocking_copies(patch: pytest.MonkeyPatch) -> None:
    plant(patch, devices.to_device, lambda values, device: values.to(device))


def one_pinned_buffer(patch: pytest.MonkeyPatch) -> None:
    buffers: dict[Any, Tensor] = {}

    def to_device(values: Tensor, device: torch.device) -> Tensor:
        key = values.shape, values.dtype
        if key not in buffers:
            buffers[key] = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return buffers[key].copy_(values).to(device, non_blocking=True)

    plant(patch, devices.to_device, to_device)


def a_wait_after_the_model(patch: pytest.MonkeyPatch) -> None:
    window_logits = Denoiser.window_logits

    def waiting(denoiser: Denoiser, *args: Any, **named: Any) -> Tensor:
        logits = window_logits(denoiser, *args, **named)
        return logits * float(logits.isfinite().any())

    patch.setattr(Denoiser, "window_logits", waiting)


def two_values_at_one_place(patch: pytest.MonkeyPatch) -> None:
    update = kv_cache.CanvasLayer.update

    def doubled(layer: kv_cache.CanvasLayer, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        columns = layer.now.columns
        layer.now.columns = torch.cat([columns[:, :1], columns[:, :-1]], 1)
        made = update(layer, *args, **named)
        layer.now.columns = columns
        return made

    patch.setattr(kv_cache.CanvasLayer, "update", doubled)


def graphs_of_memory_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    take = kv_cache.CanvasCache.take

    def elsewhere(cache: kv_cache.CanvasCache, *args: Any) -> None:
        for layer in cache.canvas_layers:
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
        take(cache, *args)

    patch.setattr(kv_cache.CanvasCache, "take", elsewhere)


def graphs_of_old_inputs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compiled.Graphs, "fill", lambda *_: None)


@pytest.mark.parametrize(
    ("fault", "name", "with_graphs", "finding"),
    [
        (None, "dual", False, None),
        (None, "blocks", True, None),
        (numbers_on_the_host, "dual", False, "same device"),
        (blocking_copies, "dual", False, "blocking copies"),
        (one_pinned_buffer, "dual", False, "overwritten before its copy"),
        (a_wait_after_the_model, "dual", False, "waits"),
        (two_values_at_one_place, "dual", False, "answers"),
        (graphs_of_memory_that_is_gone, "whole prompt", True, "answers"),
        (graphs_of_old_inputs, "dual", True, "answers"),
    ],
)
def test_faults_that_no_cpu_shows_are_found(
    fault: Callable[[pytest.MonkeyPatch], None] | None,
    name: str,
    with_graphs: bool,
    finding: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = DECODING[name]
    answers = decoded(denoiser_of(model_of(setting), setting), setting, 3, n_rows=7)
    if fault is not None:
        fault(monkeypatch)
    findings: list[str] = []
    try:
        found, report, denoiser = on_gpu(decoded, setting, 3, with_graphs=with_graphs, n_rows=7)
    except (PretendedGpuError, OptionError) as error:
        findings.append(str(error))
    else:
        findings += ["answers"] * (found != answers)
        findings += ["waits"] * (report.waits.total() > denoiser.forward_passes)
        findings += ["blocking copies"] * bool(report.blocking_copies)
    if finding is None:
        assert not findings
    else:
        assert any(finding in one for one in findings)


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
