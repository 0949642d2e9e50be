"""The two views that the mask-agnostic loss compares."""

from typing import Any

import pytest
import torch

from mdlm_finetune import Collator, Example
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic


def collator(seed: int = 0, **options: Any) -> Collator:
    return Collator(MaskAgnostic(**options), mask_token_id=2, eos_token_id=1, max_length=40, seed=seed)


COLLATOR = collator(masks_end=30, curriculum_passes=100)
EXAMPLES = [Example(id, list(range(10, 15 + id)), list(range(50, 53 + 2 * id))) for id in range(4)]


def test_views_differ_only_in_their_tails() -> None:
    views = COLLATOR(EXAMPLES, 100)
    one, two = views.input_ids.chunk(2)
    for row, example in enumerate(EXAMPLES):
        n_text = len(example.prompt_ids) + len(example.answer_ids)
        assert one[row, :n_text].tolist() == two[row, :n_text].tolist()
        assert one[row, : len(example.prompt_ids)].tolist() == example.prompt_ids
        counts = [int((view[row, n_text:] == 2).sum()) for view in (one, two)]
        assert counts[0] != counts[1]
        attended = views.attention_mask[[row, row + 4]].sum(1)
        assert attended.tolist() == [n_text + max(counts)] * 2
    assert views.prompt_lengths.tolist() == [len(example.prompt_ids) for example in EXAMPLES] * 2


def test_targets_are_the_tokens_under_the_masks() -> None:
    views = COLLATOR(EXAMPLES, 100)
    assert bool((views.input_ids.flatten()[views.positions] == 2).all())
    first, second = views.positions.chunk(2)
    assert torch.equal(first + views.input_ids.chunk(2)[0].numel(), second)
    assert views.example.tolist() == (first // views.input_ids.shape[1]).tolist()
    for target, owner in zip(views.targets.tolist(), views.example.tolist(), strict=True):
        assert target in EXAMPLES[owner].answer_ids


def test_at_least_one_answer_token_is_masked() -> None:
    assert collator(p_low=1e-6, p_high=1e-6)(EXAMPLES, 0).example.bincount().tolist() == [1, 1, 1, 1]


def test_the_prompt_can_be_masked_instead() -> None:
    for part, tokens in (("prompt", set(range(10, 20))), ("both", {*range(10, 20), *range(50, 60)})):
        views = collator(masked_part=part, p_low=0.9, p_high=0.9)(EXAMPLES, 0)
        assert set(views.targets.tolist()) <= tokens
        assert any(target < 20 for target in views.targets.tolist())
        assert bool((views.input_ids.flatten()[views.positions] == 2).all())


def test_an_example_is_noised_alike_in_any_batch() -> None:
    whole, alone = COLLATOR(EXAMPLES, 7), COLLATOR(EXAMPLES[2:3], 7)
    n = int(alone.attention_mask[0].sum())
    assert whole.input_ids[2, :n].tolist() == alone.input_ids[0].tolist()
    assert whole.input_ids[6, :n].tolist() == alone.input_ids[1].tolist()
    assert not torch.equal(COLLATOR(EXAMPLES, 8).mask_ratio, whole.mask_ratio)
    assert not torch.equal(collator(seed=1)(EXAMPLES, 7).mask_ratio, whole.mask_ratio)


def test_numbers_of_masks_are_drawn_from_0_to_the_curriculums_maximum() -> None:
    growing = MaskAgnostic(masks_end=30, curriculum_passes=100)
    assert [growing.max_masks(n) for n in (0, 50, 100, 1000)] == [1, 15, 30, 30]
    (example,) = EXAMPLES[:1]
    n_text = len(example.prompt_ids) + len(example.answer_ids)
    small = collator(masks_end=3, curriculum_passes=0)
    drawn = {int((row[n_text:] == 2).sum()) for n in range(40) for row in small([example], n).input_ids}
    assert drawn == {0, 1, 2, 3}


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="divergence=js must be one of tv, kl, none"):
        MaskAgnostic(divergence="js")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="example 5: no answer to mask"):
        COLLATOR([Example(5, [3], [])], 0)
