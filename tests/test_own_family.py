"""docs/examples/family.py: a family from outside the package, in one file."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.families import (
    Family,
    all_families,
    end_of_turn_ids,
    family_of,
    load_config,
    register_family,
    registry,
)
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import tiny_tokenizer

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "family.py"
PUBLISHED = {
    "model_type": "acme-diffusion",
    "vocabulary": 40,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mask_token_id": 39,
}


@pytest.fixture(autouse=True)
def _registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", all_families())


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The family, installed as a package that names it in its entry points."""
    shutil.copy(EXAMPLE, tmp_path / "acme_family.py")
    information = tmp_path / "acme-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[mdlm_lm_eval.families]\nacme = acme_family\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_family", raising=False)
    registry._discover.__wrapped__()


@pytest.mark.usefixtures("acme")
def test_it_loads_and_decodes(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    config = load_config(str(folder))
    assert (family_of(config).name, config.is_causal) == ("acme", False)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    weights = {
        name.replace("lm_head.", "head.") if name.startswith("lm_head") else name.replace("model.", "trunk.", 1): tensor
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    denoiser, options = load_denoiser(str(folder)), DecodingOptions(n_masks=6)
    expected = decode(Denoiser(model, mask_token_id=39, pad_token_id=39), [[1, 2, 3]], options)
    assert decode(denoiser, [[1, 2, 3]], options) == expected


@pytest.mark.usefixtures("acme")
def test_its_end_of_turn_ends_a_text() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|acme_end|>"]})
    assert end_of_turn_ids(tokenizer) == {tokenizer.convert_tokens_to_ids("<|acme_end|>")}


@pytest.mark.parametrize("name", ["acme", "llada"])
def test_a_model_type_belongs_to_one_family(name: str) -> None:
    with pytest.raises(ValueError, match="belongs to the family llada"):
        register_family(Family(name=name, model_types=("llada",)))


def test_what_it_cannot_do_is_said_in_its_words() -> None:
    family = Family(name="acme", refusals={"likelihood": "its noise is uniform; use generation tasks"})
    with pytest.raises(OptionError, match="likelihood=mc does not work with the family acme: its noise is uniform"):
        family.refuse("likelihood", "mc")
    family.refuse("cfg_scale", 1.0)


def test_a_config_that_names_an_unknown_family_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "llama", "is_causal": False, "diffusion_family": "acme"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(OptionError, match=r"diffusion_family='acme' in config\.json must be one of .*llada"):
        load_config(str(tmp_path))
