"""What in a checkpoint's files would give another score is refused in one sentence; a new case is a row."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM

from mdlm_lm_eval.families import load_denoiser
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError

# What stands in config.json in place of the right value.
CONFIG_VALUES = [
    ("model_type", "foo", "model_type='foo' is not known"),
    ("model_type", None, "model_type=None is not known"),
    ("model_type", "gpt2", "with is_causal=false must be one of"),
    ("is_causal", True, "is_causal"),
    ("mask_token_id", "x", "mask_token_id='x' is no token of the vocabulary"),
    ("mask_token_id", 10**6, "mask_token_id=1000000 is no token of the vocabulary"),
    ("mask_token_id", -1, "mask_token_id=-1 is no token of the vocabulary"),
    ("diffusion_family", "foo", "diffusion_family='foo' must be one of"),
    ("shift_logits", "maybe", "shift_logits in config.json must be true or false, not 'maybe'"),
]


@pytest.mark.parametrize(("name", "value", "said"), CONFIG_VALUES)
def test_values_in_config_json(checkpoint: Path, tmp_path: Path, name: str, value: Any, said: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "broken")
    path = tmp_path / "broken" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(OptionError) as error:
        load_denoiser(str(path.parent))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_adapter_that_adds_tokens_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    get_peft_model(model, config).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="prompt learning adds tokens"):
        load_denoiser(str(checkpoint), peft=str(tmp_path))


def test_an_adapter_around_a_tied_output_head(tmp_path: Path) -> None:
    model = load_denoiser().model
    get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"])).save_pretrained(tmp_path)
    lm = MDLM(peft=str(tmp_path), device="cpu", batch_size=1)
    assert lm.model.get_output_embeddings().weight.data_ptr() == lm.model.get_input_embeddings().weight.data_ptr()
