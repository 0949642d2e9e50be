"""A model object as `pretrained`, from Python."""

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import generation, tiny_model, tiny_tokenizer


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
