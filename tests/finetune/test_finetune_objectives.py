"""Objectives: the views that the mask-agnostic loss compares, its formulas, and LLaDA's plain one."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mdlm_finetune import Collator, Example, mask_agnostic_loss
from mdlm_finetune.objectives.llada_sft import LladaSft
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from mdlm_finetune.objectives.sft import Sft
from mdlm_finetune.run import predictions
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from tests.conftest import tiny_model


def collator(seed: int = 0, **options: Any) -> Collator:
    return Collator(MaskAgnostic(**options), mask_token_id=2, eos_token_id=1, max_length=40, seed=seed)


VIEWS = collator(masks_end=30, curriculum_passes=100)
PAIRS = [Example(id, list(range(10, 15 + id)), list(range(50, 53 + 2 * id))) for id in range(4)]


def test_views_differ_only_in_their_tails() -> None:
    views = VIEWS(PAIRS, 100)
    one, two = views.input_ids.chunk(2)
    for row, example in enumerate(PAIRS):
        n_text = len(example.prompt_ids) + len(example.answer_ids)
        assert one[row, :n_text].tolist() == two[row, :n_text].tolist()
        assert one[row, : len(example.prompt_ids)].tolist() == example.prompt_ids
        counts = [int((view[row, n_text:] == 2).sum()) for view in (one, two)]
        assert counts[0] != counts[1]
        attended = views.attention_mask[[row, row + 4]].sum(1)
        assert attended.tolist() == [n_text + max(counts)] * 2
    assert views.prompt_lengths.tolist() == [len(example.prompt_ids) for example in PAIRS] * 2


def test_targets_are_the_tokens_under_the_masks() -> None:
    views = VIEWS(PAIRS, 100)
    assert bool((views.input_ids.flatten()[views.positions] == 2).all())
    first, second = views.positions.chunk(2)
    assert torch.equal(first + views.input_ids.chunk(2)[0].numel(), second)
    assert views.example.tolist() == (first // views.input_ids.shape[1]).tolist()
    for target, owner in zip(views.targets.tolist(), views.example.tolist(), strict=True):
        assert target in PAIRS[owner].answer_ids


def test_at_least_one_answer_token_is_masked() -> None:
    assert collator(p_low=1e-6, p_high=1e-6)(PAIRS, 0).example.bincount().tolist() == [1, 1, 1, 1]


def test_an_example_is_noised_alike_in_any_batch() -> None:
    whole, alone = VIEWS(PAIRS, 7), VIEWS(PAIRS[2:3], 7)
    n = int(alone.attention_mask[0].sum())
    assert whole.input_ids[2, :n].tolist() == alone.input_ids[0].tolist()
    assert whole.input_ids[6, :n].tolist() == alone.input_ids[1].tolist()
    assert not torch.equal(VIEWS(PAIRS, 8).mask_ratio, whole.mask_ratio)
    assert not torch.equal(collator(seed=1)(PAIRS, 7).mask_ratio, whole.mask_ratio)


def test_numbers_of_masks_are_drawn_from_0_to_the_curriculums_maximum() -> None:
    growing = MaskAgnostic(masks_end=30, curriculum_passes=100)
    assert [growing.max_masks(n) for n in (0, 50, 100, 1000)] == [1, 15, 30, 30]
    (example,) = PAIRS[:1]
    n_text = len(example.prompt_ids) + len(example.answer_ids)
    small = collator(masks_end=3, curriculum_passes=0)
    drawn = {int((row[n_text:] == 2).sum()) for n in range(40) for row in small([example], n).input_ids}
    assert drawn == {0, 1, 2, 3}


# The loss, by finite differences, and at its limits

OWNER = torch.tensor([0, 0, 0, 1, 2, 2])
RATIO = torch.tensor([0.3, 0.8, 0.5], dtype=torch.float64)


def random_views() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 6, 7, generator=generator, dtype=torch.float64)
    return logits[0], logits[1], torch.randint(7, (6,), generator=generator)


def transcribed(logits_1: Tensor, logits_2: Tensor, targets: Tensor, ratio: Tensor) -> tuple[float, float]:
    """L_CE and L_TV by the paper's sums, example by example."""
    ce = tv = 0.0
    for b, p in enumerate(ratio.tolist()):
        own = b == OWNER
        n_m, one, two = int(own.sum()), logits_1[own].softmax(-1), logits_2[own].softmax(-1)
        at_targets = [float(view[k, token]) for view in (one, two) for k, token in enumerate(targets[own].tolist())]
        ce -= sum(map(math.log, at_targets)) / (2 * p * n_m)
        tv += p / n_m * float((one - two).abs().sum())
    return ce / len(ratio), tv / len(ratio)


@pytest.mark.parametrize(("weighting", "ratio"), [("1/p", RATIO), ("none", torch.ones(3))])
def test_terms_are_the_papers_formulas(weighting: Any, ratio: Tensor) -> None:
    one, two, targets = random_views()
    loss = mask_agnostic_loss(one, two, targets, OWNER, RATIO, alpha=0.1, beta=10.0, weighting=weighting)
    ce, tv = transcribed(one, two, targets, ratio)
    assert loss.cross_entropy.item() == pytest.approx(ce, rel=1e-12)
    assert loss.consistency.item() == pytest.approx(tv, rel=1e-12)
    assert loss.total.item() == pytest.approx(0.1 * ce + 10.0 * tv, rel=1e-12)
    with pytest.raises(ValueError, match="no masked answer token"):
        mask_agnostic_loss(one, two, targets, OWNER, torch.ones(4), alpha=0.1, beta=1.0)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
@pytest.mark.parametrize("weighting", ["1/p", "none"])
def test_gradient_by_finite_differences(divergence: str, weighting: str) -> None:
    one, two, targets = random_views()

    def total(a: Tensor, b: Tensor) -> Tensor:
        switches = {"divergence": divergence, "weighting": weighting}
        return mask_agnostic_loss(a, b, targets, OWNER, RATIO, alpha=0.4, beta=2.0, **switches).total  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(total, (one.requires_grad_(), two.requires_grad_()))


# SFT, and objectives on models

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


def llada_sft(padding: str) -> Collator:
    objective = LladaSft(padding=padding, max_padding=20)  # type: ignore[arg-type]
    return Collator(objective, mask_token_id=2, eos_token_id=1, max_length=60)


def test_llada_s_padding_is_masked_and_predicted_as_the_answer_is() -> None:
    masked, expected, paddings = 0, 0.0, set()
    for n in range(200):
        batch = llada_sft("predicted")(EXAMPLES, n)
        width = batch.input_ids.shape[1]
        assert bool((batch.input_ids.flatten()[batch.positions] == 2).all())
        assert torch.equal(batch.n_maskable, batch.attention_mask.sum(1) - 3)
        is_padding = batch.positions % width >= 34
        assert bool((batch.targets[is_padding] == 1).all())
        masked += int(is_padding.sum())
        lengths = batch.n_maskable - 31
        paddings |= {*lengths.tolist()}
        expected += float((batch.mask_ratio * lengths).sum())
    assert paddings == {*range(21)}
    assert masked == pytest.approx(expected, rel=0.05)


def test_other_paddings_leave_the_answers_masks_as_they_are() -> None:
    whole = llada_sft("predicted")(EXAMPLES, 3)
    width = whole.input_ids.shape[1]
    in_answer = whole.positions % width < 34
    lengths = whole.n_maskable - 31
    for padding, token in (("shown", 1), ("masks", 2), ("none", None)):
        batch = llada_sft(padding)(EXAMPLES, 3)
        assert torch.equal(batch.targets, whole.targets[in_answer])
        assert torch.equal(batch.input_ids[:, :34], whole.input_ids[:, :34])
        assert set(batch.n_maskable.tolist()) == {31}
        for row, n in enumerate(lengths.tolist()):
            tail = batch.input_ids[row, 34:][batch.attention_mask[row, 34:] == 1].tolist()
            assert tail == ([] if token is None else [token] * n)


def test_a_batch_without_a_mask_teaches_nothing() -> None:
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0)
    none = {name: getattr(COLLATOR(EXAMPLES, 0), name)[:0] for name in ("positions", "targets", "example")}
    empty = replace(COLLATOR(EXAMPLES, 0), **none)
    loss = Sft().loss(predictions(denoiser, empty), empty)["loss"]
    loss.backward()
    assert float(loss) == 0.0
    assert all(float(p.grad.abs().sum()) == 0.0 for p in denoiser.model.parameters() if p.grad is not None)


@pytest.mark.parametrize("changes", [{}, {"divergence": "kl"}, {"weighting": "none"}, {"alpha": 0.3, "beta": 4.0}])
def test_the_mask_agnostic_objective_compares_its_views_by_the_loss_that_it_names(changes: dict[str, Any]) -> None:
    objective = MaskAgnostic(masks_end=8, **changes)
    batch = Collator(objective, mask_token_id=2, eos_token_id=1, max_length=60)(EXAMPLES, 5)
    n = len(batch.targets)
    logits = torch.randn(2 * n, 100, generator=torch.Generator().manual_seed(0))
    weights = {"alpha": 0.1, "beta": 1.0, **changes}
    expected = mask_agnostic_loss(logits[:n], logits[n:], batch.targets, batch.example, batch.mask_ratio, **weights)
    terms = objective.loss(logits, batch)
    assert terms["loss"] == expected.total
    assert (terms["cross_entropy"], terms["consistency"]) == (expected.cross_entropy, expected.consistency)


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
