"""A recipe becomes an adapter that loads with its model."""

from pathlib import Path

import pytest

from mdlm_finetune.__main__ import finetune
from mdlm_finetune.options import read_recipe
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import OptionError

RECIPES = Path(__file__).parents[1] / "finetune" / "recipes"


def test_recipe_to_adapter(tmp_path: Path, checkpoint: Path) -> None:
    small = ["steps=1", "batch_size=1", "n_examples=4", "max_length=200", f"pretrained={checkpoint}"]
    options = read_recipe(RECIPES / "built-in-ce-tv.yaml", [*small, f"output={tmp_path / 'adapter'}"])
    adapter = finetune(options)
    assert load_denoiser(str(checkpoint), peft=str(adapter)).mask_token_id == 2
    with pytest.raises(OptionError, match="exists already"):
        finetune(options)


def test_all_recipes_parse() -> None:
    assert {read_recipe(path).alpha for path in RECIPES.glob("*.yaml")} == {0.1}
