"""Training a tiny model with the mask-agnostic loss, stopped and resumed."""

from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments

from mdlm_finetune import Example, MaskAgnosticCollator, MaskAgnosticTrainer
from mdlm_lm_eval.model.denoiser import Denoiser
from tests.conftest import tiny_model

EXAMPLES = [Example(id, [10 + id, 20, 30], [40 + id, 50]) for id in range(8)]


def trainer(output: Path, **kwargs: float) -> MaskAgnosticTrainer:
    args = TrainingArguments(
        output_dir=str(output),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
    )
    collator = MaskAgnosticCollator(mask_token_id=2, eos_token_id=1, max_length=32, masks_end=8, curriculum_passes=6)
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0)
    return MaskAgnosticTrainer(denoiser, args, EXAMPLES, collator, **kwargs)  # type: ignore[arg-type]


def test_resumed_training_ends_with_the_undisturbed_weights(tmp_path: Path) -> None:
    undisturbed = trainer(tmp_path)
    undisturbed.train()
    resumed = trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    before = tiny_model().state_dict()
    for name, weight in undisturbed.denoiser.model.state_dict().items():
        assert torch.equal(weight, resumed.denoiser.model.state_dict()[name]), name
    assert not torch.equal(before["model.norm.weight"], undisturbed.denoiser.model.state_dict()["model.norm.weight"])


def test_nan_loss_stops_with_step_and_examples(tmp_path: Path) -> None:
    broken = trainer(tmp_path)
    with torch.no_grad():
        broken.denoiser.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"nan in step 1, on the examples \[\d, \d\]"):
        broken.train()


def test_an_empty_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="alpha must be a number above 0, not 0"):
        trainer(tmp_path, alpha=0.0, beta=0.0)
