"""Bad input that decides a score ends in one sentence that names the option, its value and what is possible.

What only lm-eval, transformers or the file system has an opinion on is theirs to say. Most cases are rows of
data/refused.json.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from lm_eval._cli.utils import key_val_to_dict
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM

from mdlm_lm_eval.checkpoints import load_denoiser
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.commands import run
from tests.conftest import generation, refused, tiny_model, tiny_tokenizer


@pytest.mark.parametrize(("typed", "sentence"), refused("lm_eval --model_args"))
def test_model_arguments(checkpoint: Path, typed: str, sentence: str) -> None:
    given = json.loads(typed) if typed.startswith("{") else key_val_to_dict(typed)
    with pytest.raises(OptionError) as error:
        MDLM.create_from_arg_obj({"pretrained": str(checkpoint), **given}, {"device": "cpu", "batch_size": 1})
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("gen_kwargs", "sentence"), refused("lm_eval --gen_kwargs"))
def test_requests(gen_kwargs: dict[str, Any], sentence: str) -> None:
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer())
    with pytest.raises(OptionError) as error:
        lm.generate_until([generation("good", max_gen_toks=2), generation("bad", **gen_kwargs)], disable_tqdm=True)
    assert str(error.value).startswith(sentence)
    assert lm.denoiser.forward_passes == 0


# What `--model hf` takes.
ACCEPTED = [
    "max_batch_size=None,cache=None,steps=None,temperature=None,n_masks=None,tokenizer=None",
    "trust_remote_code=1,torch_dtype=float32,use_cache=False,batch_size=auto:4,top_k=-1,max_length=512",
    'revision=main, n_masks=4, subfolder=""',
    "load_in_4bit=False,load_in_8bit=False,bnb_4bit_use_double_quant=False,parallelize=False,peft=",
]


@pytest.mark.parametrize("typed", ACCEPTED)
def test_what_other_models_of_lm_eval_take(checkpoint: Path, typed: str) -> None:
    lm = MDLM.create_from_arg_obj({"pretrained": str(checkpoint), **key_val_to_dict(typed)}, {"device": "cuda:0"})
    assert (lm.device.type, lm.settings.decoding.steps, lm.settings.decoding.top_k) == ("cpu", "auto", None)
    assert lm.settings.decoding.n_masks == (4 if " n_masks=4" in typed else "auto")


@pytest.mark.parametrize("dtype", ["bf16", "torch.bfloat16", "bfloat16"])
def test_what_scripts_type(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    lm = MDLM.create_from_arg_obj({"model_path": f"~/{checkpoint.name}", "dtype": dtype}, {"device": "cpu"})
    assert lm.get_model_info()["mdlm"]["dtype"] == "bfloat16"
    assert lm.name == checkpoint.name
    with pytest.raises(OptionError, match="pretrained=a and model_path=b are the same option"):
        MDLM.create_from_arg_obj({"pretrained": "a", "model_path": "b"})


def test_batch_size_and_device_may_be_among_the_model_arguments(checkpoint: Path) -> None:
    arguments = {"pretrained": str(checkpoint), "batch_size": 4, "device": "cpu"}
    lm = MDLM.create_from_arg_obj(arguments, {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"})
    assert (lm.batches.size, lm.device.type) == (4, "cpu")


# Files of strangers, and folders of results


@pytest.mark.parametrize("model", ["mdlm", "mdlm-server"])
def test_an_output_path_that_cannot_be_written_is_found_first(tmp_path: Path, task_folder: Path, model: str) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "results"
    words = f"--model {model} --model_args pretrained=nosuch/model --tasks tiny_choice --include_path {task_folder}"
    done = run("lm_eval", *words.split(), "--output_path", str(path), code=1)
    assert f"mdlm: --output_path {path}: no results could be written there (Not a directory)\n" in done.stderr


# What in a checkpoint's files would give another score


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
