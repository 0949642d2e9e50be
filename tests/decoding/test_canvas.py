"""Canvas: lengths, steps, blocks, truncation, infill slots."""

import math

import pytest

from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas, build_infill_canvas
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import data

MASK = 99


def build(prompt_length: int = 10, gen_toks: int | None = None, max_length: int = 1000, **changes: object) -> Canvas:
    canvas, _ = build_canvas(
        list(range(prompt_length)),
        way_of(DecodingOptions(**changes)),
        mask_token_id=MASK,
        max_length=max_length,
        request_gen_toks=gen_toks,
    )
    return canvas


@pytest.mark.parametrize(("gen_toks", "changes", "masks", "returned", "steps"), data("cases.json")["canvases"])
def test_masks_returned_tokens_and_steps(
    gen_toks: int | None, changes: dict[str, object], masks: int, returned: int, steps: int
) -> None:
    canvas = build(gen_toks=gen_toks, **changes)
    assert (len(canvas.slots), canvas.n_returned, canvas.steps) == (masks, returned, steps)
    assert list(canvas.token_ids) == [*range(10), *[MASK] * masks]
    assert canvas.slots == tuple(range(10, 10 + masks))


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.2, 1.0, 3.0])
def test_a_ratio_is_of_the_tokens_that_stay(ratio: float) -> None:
    for prompt_length in (0, 1, 79, 80, 83, 84, 95, 1000):
        prompt = list(range(prompt_length))
        way = way_of(DecodingOptions(mask_ratio=ratio))
        canvas, cut = build_canvas(
            prompt, way, mask_token_id=-1, max_length=100, request_gen_toks=1, filler_ids=[-2] * 3
        )
        kept = canvas.prompt_length
        assert kept + cut == prompt_length
        assert list(canvas.token_ids[:kept]) == prompt[cut:]
        assert len(canvas.slots) == max(1, math.ceil(round(ratio * kept, 6)))
        more = kept + 1 + max(1, math.ceil(round(ratio * (kept + 1), 6)))
        assert len(canvas.token_ids) <= 100
        assert cut == 0 or more + 3 > 100


def test_long_prompts_lose_tokens_on_the_left_and_never_the_canvas() -> None:
    canvas, cut = build_canvas(list(range(20)), way_of(DecodingOptions(n_masks=4)), mask_token_id=MASK, max_length=10)
    assert cut == 14
    assert list(canvas.token_ids) == [*range(14, 20), *[MASK] * 4]
    with pytest.raises(OptionError, match=r"10 masks .* context of 10 tokens .* at most 9 tokens do"):
        build(n_masks=10, max_length=10)


def test_infill_slots_stand_in_the_text_and_extra_masks_after_it() -> None:
    canvas, cut = build_infill_canvas(
        [[1, 2], [3], [4, 5]], way_of(DecodingOptions(n_masks=2)), mask_token_id=MASK, max_length=50, filler_ids=[7]
    )
    assert list(canvas.token_ids) == [1, 2, MASK, 3, MASK, 4, 5, 7, MASK, MASK]
    assert canvas.slots == (2, 4, 8, 9)
    assert (canvas.n_returned, canvas.steps, canvas.prompt_length, cut) == (2, 2, 7, 0)
    alone, _ = build_infill_canvas([[1], []], way_of(DecodingOptions()), mask_token_id=MASK, max_length=50)
    assert list(alone.token_ids) == [1, MASK]


def test_infill_cuts_text_but_never_a_slot() -> None:
    segments = [[1, 2, 3], [4, 5]]
    canvas, cut = build_infill_canvas(segments, way_of(DecodingOptions()), mask_token_id=MASK, max_length=4)
    assert (canvas.token_ids, canvas.slots, canvas.prompt_length, cut) == ((3, MASK, 4, 5), (1,), 4, 2)
    canvas, cut = build_infill_canvas(segments, way_of(DecodingOptions()), mask_token_id=MASK, max_length=3)
    assert (canvas.token_ids, canvas.slots, canvas.prompt_length, cut) == ((MASK, 4, 5), (0,), 3, 3)
    with pytest.raises(OptionError, match="would lose a slot"):
        build_infill_canvas(segments, way_of(DecodingOptions()), mask_token_id=MASK, max_length=2)
    with pytest.raises(OptionError, match="without a slot"):
        build_infill_canvas([[1, 2]], way_of(DecodingOptions()), mask_token_id=MASK, max_length=9)
