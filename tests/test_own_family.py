"""docs/examples/family.py: a family from outside the package, in one file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.families import Family, register_family
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.commands import ENVIRONMENT
from tests.conftest import tiny_tokenizer

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "family.py"
SIZES = {"vocabulary": 300, "width": 16, "depth": 2, "heads": 2, "mask_token_id": 299}
# In a process of its own, as another test's families would stay in this one.
PROGRAM = """
import json, sys
from mdlm_lm_eval import DecodingOptions, decode, load_denoiser, load_tokenizer
from mdlm_lm_eval.families import end_of_turn_ids, family_of
denoiser, tokenizer = load_denoiser(sys.argv[1]), load_tokenizer(sys.argv[1])
answers = decode(denoiser, [[5, 6, 7]], DecodingOptions(n_masks=6))
print(json.dumps([family_of(denoiser.model.config).name, answers, sorted(end_of_turn_ids(tokenizer))]))
"""


def test_an_installed_family_loads_decodes_and_ends_a_text(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "acme_family.py")
    information = tmp_path / "acme-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[mdlm_lm_eval.families]\nacme = acme_family\n")
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|acme_end|>"]})
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(SIZES | {"model_type": "acme-diffusion"}))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, is_causal=False, initializer_range=0.3, **sizes)).eval()
    weights = {
        name.replace("lm_head.", "head.") if name.startswith("lm_head") else name.replace("model.", "trunk.", 1): tensor
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "model")]
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(command, env=ENVIRONMENT | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    family, answers, ends = json.loads(ran.stdout.splitlines()[-1])
    expected = decode(Denoiser(model, mask_token_id=299, pad_token_id=299), [[5, 6, 7]], DecodingOptions(n_masks=6))
    assert (family, answers) == ("acme", expected)
    assert ends == [tokenizer.convert_tokens_to_ids("<|acme_end|>")]


@pytest.mark.parametrize("name", ["acme", "sdar"])
def test_a_model_type_belongs_to_one_family(name: str) -> None:
    with pytest.raises(ValueError, match="belongs to the family sdar"):
        register_family(Family(name=name, model_types=("sdar",)))


def test_only_what_a_family_says_that_it_supports_works_with_it() -> None:
    family = Family(name="acme", supports=frozenset({"steps"}), instead="use steps alone")
    family.refuse("steps", 4)
    for option in ("likelihood", "an_option_of_next_year"):
        with pytest.raises(OptionError, match=f"{option}=1 does not work with the family acme: use steps alone"):
            family.refuse(option, 1)
    Family(name="all").refuse("an_option_of_next_year", 1)
