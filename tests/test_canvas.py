"""What stands on a canvas, what is decoded and what is returned."""

import pytest

from mdlm_lm_eval.canvas import Canvas, build_canvas, build_infill_canvas, share_steps
from mdlm_lm_eval.options import DecodingOptions, OptionError

MASK = 99


def canvas(options: DecodingOptions, prompt_length: int = 10, **kwargs: int) -> Canvas:
    return build_canvas(list(range(prompt_length)), options, mask_token_id=MASK, max_length=1000, **kwargs)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "request_gen_toks", "masks", "returned", "steps"),
    [
        (DecodingOptions(), None, 256, 256, 256),
        (DecodingOptions(), 1, 1, 1, 1),
        (DecodingOptions(n_masks=200), 1, 200, 1, 1),
        (DecodingOptions(n_masks=512), None, 512, 512, 512),
        (DecodingOptions(n_masks=4), 16, 4, 4, 4),
        (DecodingOptions(n_masks=200, steps=40), 1, 200, 1, 40),
        (DecodingOptions(n_masks=2, steps=40), 1, 2, 1, 2),
        (DecodingOptions(max_gen_toks=7), None, 7, 7, 7),
        (DecodingOptions(max_gen_toks=7), 3, 3, 3, 3),
        (DecodingOptions(mask_ratio=0.25), 1, 3, 1, 1),
        (DecodingOptions(mask_ratio=0.001), 5, 1, 1, 1),
        (DecodingOptions(n_masks=16, block_length=4, steps=8), None, 16, 16, 8),
        (DecodingOptions(n_masks=16, block_length=4, steps=1), None, 16, 16, 4),
        (DecodingOptions(block_length=32), 8, 8, 8, 8),
    ],
)
def test_lengths(options: DecodingOptions, request_gen_toks: int | None, masks: int, returned: int, steps: int) -> None:
    built = canvas(options, request_gen_toks=request_gen_toks)
    assert built.token_ids == list(range(10)) + [MASK] * masks
    assert built.slots == list(range(10, 10 + masks))
    assert (built.n_returned, built.steps, sum(built.block_lengths)) == (returned, steps, masks)


def test_steps_are_shared_in_proportion_and_the_remainder_goes_to_the_first_blocks() -> None:
    assert share_steps(8, (4, 4, 4, 4)) == [2, 2, 2, 2]
    assert share_steps(10, (4, 4, 4, 4)) == [3, 3, 2, 2]
    assert share_steps(1, (4, 4)) == [1, 1]
    assert share_steps(9, (8, 8, 2)) == [4, 4, 1]
    assert share_steps(18, (8, 8, 2)) == [8, 8, 2]


def test_prompts_are_cut_on_the_left_and_the_canvas_never() -> None:
    built, cut = build_canvas(list(range(50)), DecodingOptions(n_masks=20), mask_token_id=MASK, max_length=32)
    assert cut == 38
    assert built.token_ids == list(range(38, 50)) + [MASK] * 20
    with pytest.raises(OptionError, match=r"n_masks=32 .* 32 tokens"):
        build_canvas([1], DecodingOptions(n_masks=32), mask_token_id=MASK, max_length=32)


def test_fillers_follow_the_masks() -> None:
    built, _ = build_canvas([1, 2], DecodingOptions(n_masks=1), mask_token_id=MASK, max_length=32, filler_ids=[5, 5])
    assert built.token_ids == [1, 2, MASK, 5, 5]


def test_infill() -> None:
    segments = [[1, 2], [3], [4, 5]]
    built, _ = build_infill_canvas(segments, DecodingOptions(), mask_token_id=MASK, max_length=32, filler_ids=[7])
    assert built.token_ids == [1, 2, MASK, 3, MASK, 4, 5, 7]
    assert (built.slots, built.n_returned, built.steps) == ([2, 4], 2, 2)
    built, _ = build_infill_canvas(segments, DecodingOptions(n_masks=3), mask_token_id=MASK, max_length=32)
    assert built.token_ids == [1, 2, MASK, 3, MASK, 4, 5, MASK, MASK, MASK]
    assert (len(built.slots), built.n_returned) == (5, 2)
    built, cut = build_infill_canvas(segments, DecodingOptions(), mask_token_id=MASK, max_length=5)
    assert (built.token_ids, built.slots, cut) == ([MASK, 3, MASK, 4, 5], [0, 2], 2)
    with pytest.raises(OptionError, match="lose a slot"):
        build_infill_canvas(segments, DecodingOptions(), mask_token_id=MASK, max_length=4)
    with pytest.raises(OptionError, match="without a slot"):
        build_infill_canvas([[1]], DecodingOptions(), mask_token_id=MASK, max_length=4)
