"""Training a tiny model: with unequal passes, and stopped at a loss that is not finite."""

from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments

from mdlm_finetune import Collator, DiffusionTrainer, Example
from mdlm_finetune.objective import Objective
from mdlm_finetune.objectives.sft import Sft
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_model

EXAMPLES = [Example(id, [10 + id, 20, 30], [40 + id, 50]) for id in range(10)]


def trainer(output: Path, objective: Objective, **changes: int | float | str) -> DiffusionTrainer:
    settings = {"save_strategy": "no", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    settings |= {"learning_rate": 1e-2, "logging_steps": 1, "disable_tqdm": True, "report_to": "none", "use_cpu": True}
    args = TrainingArguments(output_dir=str(output), **settings | changes)
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0)
    return DiffusionTrainer(denoiser, args, EXAMPLES, Collator(objective, 2, 1, max_length=32))


def test_a_step_of_unequal_passes_is_the_mean_over_its_examples(tmp_path: Path) -> None:
    """Passes of 4, 4 and 2 examples make the step that one pass of 10 makes."""
    gradients, losses = [], []
    for size, passes in ((4, 3), (10, 1)):
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": passes}
        one_step = trainer(tmp_path / str(size), _Whole(), max_steps=1, max_grad_norm=0.0, optim="sgd", **sizes)
        before = {name: weight.clone() for name, weight in one_step.denoiser.model.state_dict().items()}
        one_step.train()
        gradients.append({n: before[n] - weight for n, weight in one_step.denoiser.model.state_dict().items()})
        losses.append(one_step.state.log_history[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))


class _Whole(Sft):
    """Masks the whole answer, so that the pass that an example is in changes nothing."""

    def noise(self, text, maskable, noising):  # type: ignore[no-untyped-def]
        noised = super().noise(text, maskable, noising)
        views = (text.masked_fill(maskable, noising.mask_token_id),)
        return type(noised)(views, maskable, 1.0)


def test_training_lowers_the_loss_and_stops_where_it_is_not_finite(tmp_path: Path) -> None:
    training = trainer(tmp_path, Sft(), max_steps=20, per_device_train_batch_size=5)
    training.train()
    losses = [entry["loss"] for entry in training.state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    with torch.no_grad():
        training.denoiser.model.model.norm.weight.fill_(float("nan"))
    training.state.global_step = 0
    with pytest.raises(OptionError, match=r"the loss is nan in step 1, on the examples \[\d, \d, \d, \d, \d\]"):
        training.train()
