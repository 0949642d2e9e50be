"""The package's public names, as README shows them."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from mdlm_lm_eval import DecodingOptions, decode, load_denoiser, load_tokenizer
from mdlm_lm_eval.decoding import generate
from mdlm_lm_eval.sweep.__main__ import main as sweep

README = Path(__file__).parent.parent / "README.md"


def test_readmes_example_runs_as_it_stands() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert f"print(answers)  # {names['answers']}\n" in example


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands on one question each; the committed outputs are of as many as it says."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in json.loads((README.parent / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]:
        code = "".join(cell["source"])
        if cell["cell_type"] == "code" and code.startswith("!"):
            assert cell["outputs"][0]["text"][0].startswith("| cell | metric | score |")
            monkeypatch.setattr(sys, "argv", [*shlex.split(code.removeprefix("!")), "--limit=1"])
            with pytest.raises(SystemExit, match="0"):
                sweep()
        elif cell["cell_type"] == "code":
            assert cell["outputs"]
            exec(code, names)


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
    monkeypatch.setattr(generate, "end_of_turn_ids", lambda _: frozenset({first}))
    assert decode(denoiser, ["red is"], options, tokenizer=tokenizer) == [""]
