"""The package from Python: its public names as README shows them, and model objects."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from peft import LoraConfig, get_peft_model

from mdlm_lm_eval import DecodingOptions, decode, load_denoiser, load_tokenizer
from mdlm_lm_eval.decoding import from_python
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.__main__ import main as sweep
from tests.conftest import generation, tiny_model, tiny_tokenizer

README = Path(__file__).parent.parent / "README.md"


def test_readmes_example_runs_as_it_stands() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert f"print(answers)  # {names['answers']}\n" in example


def test_the_notebook_runs_and_shows_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands run here, on one question each; a kernel of Jupyter executes its other cells."""
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(README.parent / "docs" / "notebook.ipynb", as_version=4)
    commands = [cell for cell in notebook.cells if cell.source.startswith("!")]
    for cell in commands:
        assert cell.outputs[0].text.startswith("| cell | ")
        monkeypatch.setattr(sys, "argv", [*shlex.split(cell.source.removeprefix("!")), "--limit=1"])
        with pytest.raises(SystemExit, match="0"):
            sweep()
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell not in commands]
    committed = [_kinds(cell) for cell in notebook.cells]
    NotebookClient(notebook, kernel_name="python3").execute()
    assert [_kinds(cell) for cell in notebook.cells] == committed
    assert sum("image/png" in kinds for kinds in committed) == 2


def _kinds(cell: Any) -> set[str]:
    """In which forms a cell's last line is shown."""
    return {kind for output in cell.outputs for kind in output.get("data", ())}


def test_texts_are_decoded_as_their_tokens_are(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    options = DecodingOptions(n_masks=4)
    (ids,) = decode(denoiser, [tokenizer.encode("red is")], options, stop_ids=[tokenizer.eos_token_id])
    (text,) = decode(denoiser, ["red is"], options, tokenizer=tokenizer)
    assert text == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_text_by_itself_is_one_prompt(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    options = DecodingOptions(n_masks=4)
    expected = decode(denoiser, ["red is"], options, tokenizer=tokenizer)
    assert decode(denoiser, "red is", options, tokenizer=tokenizer) == expected


def test_what_decode_cannot_take_is_one_sentence(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    for prompts in ("red is", ["red is"]):
        with pytest.raises(OptionError, match="a text cannot be decoded without a tokenizer"):
            decode(denoiser, prompts, DecodingOptions(n_masks=4))
    with pytest.raises(OptionError, match="trace=true is not allowed"):
        decode(denoiser, ["red is"], DecodingOptions(n_masks=4, trace=True), tokenizer=tokenizer)
    assert denoiser.forward_passes == 0


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


# A model object as `pretrained`


def test_a_model_object_and_a_tokenizer_object(checkpoint: str) -> None:
    from_objects = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), batch_size="auto", max_batch_size=2)
    requests = [generation(text, max_gen_toks=4) for text in ("a", "bb", "ccc", "dddd", "eeeee")]
    expected = MDLM(str(checkpoint), device="cpu", batch_size=4).generate_until(requests, disable_tqdm=True)
    assert from_objects.generate_until(requests, disable_tqdm=True) == expected


@pytest.mark.parametrize("arguments", [{"dtype": "auto", "revision": "main", "subfolder": ""}, {"pretrained": None}])
def test_defaults_of_lm_eval_say_nothing(arguments: dict[str, Any]) -> None:
    lm = MDLM(**{"pretrained": tiny_model(), "tokenizer": tiny_tokenizer()} | arguments)
    assert lm.mask_token_id is not None


def test_an_adapter_over_a_model_object(tmp_path: Path) -> None:
    get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], r=2)).save_pretrained(tmp_path / "own")
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), peft=str(tmp_path / "own"))
    assert lm.model.peft_config
    assert lm.get_model_info()["mdlm"]["adapter"] == "own"


def test_an_autoregressive_model_is_refused() -> None:
    model = tiny_model()
    model.config.is_causal = True
    with pytest.raises(OptionError, match="is an autoregressive model"):
        MDLM(model, tokenizer=tiny_tokenizer())
