"""A model object as `pretrained`, from Python."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from transformers import LlamaForCausalLM, PretrainedConfig

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_model, tiny_tokenizer


def test_a_model_object_and_a_tokenizer_object(checkpoint: str) -> None:
    from_objects = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), batch_size="auto", max_batch_size=2)
    requests = [
        Instance("generate_until", {}, (text, {"max_gen_toks": 4}), 0, metadata=("task", 0, 1))
        for text in ("a", "bb", "ccc", "dddd", "eeeee")
    ]
    expected = MDLM(str(checkpoint), device="cpu", batch_size=4).generate_until(requests, disable_tqdm=True)
    assert from_objects.generate_until(requests, disable_tqdm=True) == expected


@pytest.mark.parametrize(
    "arguments", [{"peft": "folder"}, {"dtype": "float64"}, {"revision": "v1"}, {"load_in_8bit": True}]
)
def test_arguments_of_loading_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(OptionError, match=f"{name}=.* does not work with a model object"):
        MDLM(tiny_model(), tokenizer=tiny_tokenizer(), **arguments)


@pytest.mark.parametrize("wrong", [object(), Path("folder"), 5, True])
def test_what_is_no_model(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"pretrained must be a text .* or a model object, not "):
        MDLM(wrong)


def test_an_autoregressive_model_is_refused() -> None:
    model = tiny_model()
    model.config.is_causal = True
    with pytest.raises(OptionError, match="is an autoregressive model"):
        MDLM(model, tokenizer=tiny_tokenizer())


def test_code_of_its_own_needs_shift_logits() -> None:
    class OwnConfig(PretrainedConfig):
        model_type = "own"

    model: LlamaForCausalLM = tiny_model()
    model.config = OwnConfig(**model.config.to_dict() | {"model_type": "own"})
    with pytest.raises(OptionError, match="shift_logits is not set"):
        MDLM(model, tokenizer=tiny_tokenizer())


def test_without_a_name_it_needs_its_tokenizer() -> None:
    with pytest.raises(OptionError, match="tokenizer is not set"):
        MDLM(tiny_model())
