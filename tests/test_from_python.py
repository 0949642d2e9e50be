"""The package's public names, as README shows them."""

import re
from pathlib import Path
from typing import Any

import pytest

from mdlm_lm_eval import DecodingOptions, decode, load_denoiser, load_tokenizer
from mdlm_lm_eval.decoding import decode_canvases, from_python
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.options import OptionError

README = Path(__file__).parent.parent / "README.md"


def test_readmes_example_runs_as_it_stands() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    answers = names["answers"]
    assert isinstance(answers, list)
    assert answers[0][:1] in ("A", "B", "C")


@pytest.mark.parametrize(
    ("prompts", "has_tokenizer", "sentence"),
    [
        (["text"], False, "prompts must be a list of lists of token ids, or of texts with tokenizer=load_tokenizer"),
        ("text", False, "prompts must be a list of lists of token ids, or a list of texts with a tokenizer"),
        ("text", True, "prompts must be a list of lists of token ids, or a list of texts with a tokenizer"),
        ([[True]], False, "prompts must be a list of lists of token ids"),
        ([[-1]], False, "prompts must be a list of lists of token ids"),
        ([[1], [10**6]], False, "prompts must be token ids from 0 to [0-9]*, not 1000000"),
        ([["a"]], False, "prompts must be a list of lists of token ids"),
        ([[1, 2]], True, "prompts must be a list of texts where a tokenizer is given"),
        (["a \ud800"], True, r"a text must hold whole characters, not half of one: '\\ud800'"),
    ],
)
def test_prompts_of_another_kind(checkpoint: Path, prompts: list[str], has_tokenizer: bool, sentence: str) -> None:
    tokenizer = {"tokenizer": load_tokenizer(str(checkpoint))} if has_tokenizer else {}
    with pytest.raises(OptionError, match=sentence):
        decode(load_denoiser(str(checkpoint)), prompts, DecodingOptions(n_masks=2), **tokenizer)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"max_gen_toks": 0}, "max_gen_toks must be a whole number from 1, not 0"),
        ({"max_gen_toks": 1.5}, "max_gen_toks must be a whole number from 1, not 1.5"),
        ({"stop_ids": ["a"]}, r"stop_ids must be token ids, not \['a'\]"),
        ({"stop_ids": [-1]}, r"stop_ids must be token ids, not \[-1\]"),
        ({"tokenizer": "built-in"}, r"tokenizer must be what load_tokenizer\(...\) returns, not built-in"),
        ({"options": {"n_masks": 2}}, r"options must be DecodingOptions\(...\), not {'n_masks': 2}"),
    ],
)
def test_other_arguments(checkpoint: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        decode(load_denoiser(str(checkpoint)), [[1]], **{"options": DecodingOptions(n_masks=2), **arguments})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"shift_logits": "x"}, "shift_logits must be true or false, not x"),
        ({"trust_remote_code": "maybe"}, "trust_remote_code must be true or false, not maybe"),
        ({"block_length": 0}, "block_length must be a whole number from 1, not 0"),
        ({"device": "meta"}, "device=meta is not on this machine; it must be "),
    ],
)
def test_arguments_of_loading(checkpoint: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        load_denoiser(str(checkpoint), **arguments)


def test_prompts_may_come_one_by_one(checkpoint: Path) -> None:
    denoiser, options = load_denoiser(str(checkpoint)), DecodingOptions(n_masks=2)
    assert decode(denoiser, ([1, id] for id in (3, 4)), options) == decode(denoiser, [[1, 3], [1, 4]], options)


def test_texts_are_decoded_as_their_tokens_are(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    options = DecodingOptions(n_masks=4)
    (ids,) = decode(denoiser, [tokenizer.encode("red is")], options, stop_ids=[tokenizer.eos_token_id])
    (text,) = decode(denoiser, ["red is"], options, tokenizer=tokenizer)
    assert text == tokenizer.decode(ids, skip_special_tokens=True)


def test_fillers_stand_behind_the_masks(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    seen: list[list[int]] = []
    denoiser.model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: seen.extend(inputs[0].tolist()))
    decode(denoiser, ["ab"], DecodingOptions(n_masks=2, n_fillers=3, filler="!?"), tokenizer=tokenizer)
    assert seen[0] == [*tokenizer.encode("ab"), 2, 2, *tokenizer.encode("!?!?!?")]


def test_suppress_eos_leaves_ends_of_turn_possible_as_in_lm_eval(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    options = DecodingOptions(n_masks=4, suppress_eos=True)
    ((first, *_),) = decode(denoiser, [tokenizer.encode("red is")], options, stop_ids=[tokenizer.eos_token_id])
    monkeypatch.setattr(from_python, "end_of_turn_ids", lambda _: frozenset({first}))
    assert decode(denoiser, ["red is"], options, tokenizer=tokenizer) == [""]


def test_the_bar_counts_denoising_steps() -> None:
    from mdlm_lm_eval.step_bar import StepBar

    bar = StepBar([4, 4, 2], disable=False)
    counted = []
    for _ in range(4):
        bar.advance(2)
        counted.append(bar._bar.n)
    bar.finish([0])  # memory ran out, and one row alone was decoded anew
    counted.append(bar._bar.n)
    bar.finish([1, 2])
    assert [*counted, bar._bar.n] == [2, 4, 6, 8, 4, 10]
    bar.close()


def test_the_bar_of_a_resumed_run_tells_the_speed_of_this_run() -> None:
    from mdlm_lm_eval.step_bar import StepBar

    bar = StepBar([4, 4, 2], finished=[0, 2], disable=False)
    assert (bar._bar.initial, bar._bar.n) == (6, 6)
    bar.finish([1])
    assert bar._bar.n == 10
    bar.close()


def test_every_step_is_told(checkpoint: Path) -> None:
    steps: list[int] = []
    denoiser = load_denoiser(str(checkpoint))
    options = DecodingOptions(n_masks=6, steps=3, early_exit=False)
    canvases = [build_canvas([5, 6], options, mask_token_id=2, max_length=64)[0]] * 2
    decode_canvases(denoiser, canvases, options, advance=steps.append)
    assert steps == [2, 2, 2]
