"""Objectives: LLaDA's plain one, and how another is added."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mdlm_finetune import Collator, DiffusionTrainer, Example, register_objective
from mdlm_finetune.arguments import FinetuneArguments, read_arguments
from mdlm_finetune.loss import mask_agnostic_loss
from mdlm_finetune.objectives import _registered, objective_class, objective_names
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from mdlm_finetune.objectives.sft import Sft
from mdlm_finetune.trainer import predictions
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_model

EXAMPLES = [Example(id, [10 + id, 20, 30], [40 + id, *range(50, 80)]) for id in range(8)]
COLLATOR = Collator(Sft(), mask_token_id=2, eos_token_id=1, max_length=60)


def test_sft_masks_the_answer_with_probability_t() -> None:
    masked = torch.zeros(len(EXAMPLES))
    expected = torch.zeros(len(EXAMPLES))
    for n in range(300):
        batch = COLLATOR(EXAMPLES, n)
        assert batch.input_ids.shape == (8, 34)
        assert bool((batch.input_ids.flatten()[batch.positions] == 2).all())
        assert bool((batch.positions % 34 >= 3).all()), "the prompt is not masked"
        masked += batch.example.bincount(minlength=8)
        expected += 31 * batch.mask_ratio
    torch.testing.assert_close(masked / 300, expected / 300, atol=0.3, rtol=0.0)
    torch.testing.assert_close(expected / 300, torch.full((8,), 15.5), atol=2.0, rtol=0.0)


def test_sft_loss_is_llada_s() -> None:
    batch = COLLATOR(EXAMPLES, 0)
    logits = torch.randn(len(batch.targets), 100, generator=torch.Generator().manual_seed(0))
    each = F.cross_entropy(logits, batch.targets, reduction="none")
    expected = sum(
        float(loss) / (float(batch.mask_ratio[row]) * 31) / 8
        for loss, row in zip(each, batch.example.tolist(), strict=True)
    )
    assert float(Sft().loss(logits, batch)["loss"]) == pytest.approx(expected, rel=1e-5)


def test_sft_trains_and_a_batch_without_a_mask_teaches_nothing(tmp_path: Path) -> None:
    args = FinetuneArguments(
        output_dir=str(tmp_path),
        dataset_name="number_questions",
        max_steps=20,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        learning_rate=1e-2,
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
    )
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0)
    trainer = DiffusionTrainer(denoiser, args, EXAMPLES, COLLATOR)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    none = {name: getattr(COLLATOR(EXAMPLES, 0), name)[:0] for name in ("positions", "targets", "example")}
    empty = replace(COLLATOR(EXAMPLES, 0), **none)
    denoiser.model.zero_grad()
    loss = Sft().loss(predictions(denoiser, empty), empty)["loss"]
    loss.backward()
    assert float(loss) == 0.0
    assert all(float(p.grad.abs().sum()) == 0.0 for p in denoiser.model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "changes",
    [{}, {"divergence": "kl"}, {"divergence": "none"}, {"weighting": "none"}, {"alpha": 0.3, "beta": 4.0}],
)
def test_the_mask_agnostic_objective_compares_its_views_by_the_loss_that_it_names(changes: dict[str, Any]) -> None:
    objective = MaskAgnostic(masks_end=8, **changes)
    batch = Collator(objective, mask_token_id=2, eos_token_id=1, max_length=60)(EXAMPLES, 5)
    n = len(batch.targets)
    logits = torch.randn(2 * n, 100, generator=torch.Generator().manual_seed(0))
    expected = mask_agnostic_loss(
        logits[:n],
        logits[n:],
        batch.targets,
        batch.example,
        batch.mask_ratio,
        **{"alpha": 0.1, "beta": 1.0, **changes},
    )
    assert objective.loss(logits, batch) == {
        "loss": expected.total,
        "cross_entropy": expected.cross_entropy,
        "consistency": expected.consistency,
    }


def test_a_block_diffusion_model_sees_its_blocks() -> None:
    attention = AttentionPattern(4, blocks_from="prompt_end")
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0, attention=attention)
    batch = COLLATOR(EXAMPLES, 0)
    changed = replace(batch, input_ids=batch.input_ids.clone())
    changed.input_ids[:, 3 + 4 :] = 9  # behind the answer's first block
    in_first = batch.positions % 34 < 3 + 4
    one, other = predictions(denoiser, batch), predictions(denoiser, changed)
    torch.testing.assert_close(one[in_first], other[in_first])
    assert not torch.allclose(one[~in_first], other[~in_first])


README = Path(__file__).parents[1] / "finetune" / "README.md"


def test_another_objective_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdlm_finetune.objectives._registered", dict(_registered))
    example = README.read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_objective.py").write_text(example)
    package = tmp_path / "mine-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[mdlm_finetune.objectives]\nhalved = my_objective\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert objective_names() == ["halved", "mask_agnostic", "sft"]
    words = ["--objective", "halved", "--by", "4", "--output_dir=out", "--dataset_name=number_questions"]
    objective = read_arguments(words)[1]
    batch = COLLATOR(EXAMPLES, 0)
    logits = torch.randn(len(batch.targets), 100)
    torch.testing.assert_close(4 * objective.loss(logits, batch)["loss"], Sft().loss(logits, batch)["loss"])
    register_objective("mine")(MaskAgnostic)
    assert "mine" in objective_names()


def test_unknown_objectives_and_values_are_refused() -> None:
    with pytest.raises(OptionError, match="objective must be one of mask_agnostic, sft, not dpo"):
        objective_class("dpo")
    with pytest.raises(OptionError, match="divergence must be one of tv, kl, none, not js"):
        MaskAgnostic(divergence="js")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="masked_part must be one of answer, prompt, both, not all"):
        Sft(masked_part="all")  # type: ignore[arg-type]
