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
from tests.conftest import refused


@pytest.mark.parametrize(("name", "value", "said"), refused("config.json"))
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
