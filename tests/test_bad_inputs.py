"""Bad input that decides a score ends in one sentence that names the option, its value and what is possible.

What only lm-eval, transformers or the file system has an opinion on is theirs to say.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from lm_eval._cli.utils import key_val_to_dict

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import generation, tiny_model, tiny_tokenizer

# `lm_eval --model mdlm --model_args ...`
MODEL_ARGUMENTS = [
    ("n_masks=-1", "n_masks must be auto or a whole number from 1, not -1"),
    ("n_masks=abc", "n_masks must be auto or a whole number from 1, not abc"),
    ("steps=2.5", "steps must be auto or a whole number from 1, not 2.5"),
    ("temperature=nan", "temperature must be a number from 0, not nan"),
    ("cfg_scale=inf", "cfg_scale must be a number from 0, not inf"),
    ("top_p=1.5", "top_p must be none or a number above 0 up to 1, not 1.5"),
    ("early_exit=maybe", "early_exit must be true or false, not maybe"),
    (
        "schedule=foo",
        "schedule must be one of linear, llada2, dream, cosine, bd3lm, maskgit_linear, maskgit_cosine, ",
    ),
    ("unmasking=foo", "unmasking must be one of confidence, "),
    ("mc_num=0", "mc_num must be a whole number from 1, not 0"),
    ('{"filler": ["a"]}', "filler must be a text of at least one character, not ['a']"),
    ("mask_ratio=0.2,n_masks=4", "mask_ratio=0.2 and n_masks=4 exclude each other"),
    ("gen_length=5,n_masks=4", "n_masks=5 and n_masks=4 are the same option"),
    ("block_length=9,n_masks=8", "block_length must be at most n_masks=8, not 9"),
    ("cache=dual", "cache=dual needs block_length"),
    ("cache=dual,block_length=4,cfg_scale=1", "cfg_scale must be 0 with cache=dual, not 1"),
    ("likelihood=duel,unmasking=random", "unmasking=random has no likelihood=duel"),
    ("tokens_per_step=2", "tokens_per_step=2 is an option of likelihood=duel alone"),
    ("cache_audit=2", "cache_audit=2 needs cache=prefix or cache=dual; with cache=auto everything is decoded exactly"),
    ("nmask=5", "unknown model argument nmask=5; did you mean n_masks?"),
    ("model_path=a", "unknown model argument model_path=a; did you mean pretrained?"),
    ("checkpoint=a", "unknown model argument checkpoint=a; did you mean pretrained?"),
    ("adapter=a", "unknown model argument adapter=a; did you mean peft?"),
    ("dual_cache=True", "unknown model argument dual_cache=true; did you mean cache?"),
    ("factor=1", "unknown model argument factor=1; did you mean parallel_factor?"),
    ("max_tokens=8", "unknown model argument max_tokens=8; did you mean max_gen_toks?"),
    ("do_sample=True", "unknown model argument do_sample=true; did you mean temperature?"),
    ("xyz=5", "unknown model argument xyz=5; nearest is "),
    ("stepz=3,nmask=5", "unknown model argument nmask=5; did you mean n_masks?"),
    ("preset=llada-8b-instruct/gms8k", "unknown preset='llada-8b-instruct/gms8k'; did you mean llada-8b-instruct/gsm"),
    ("mask_token_id=100000", "mask_token_id=100000 is no token of the vocabulary"),
    ("shift_logits=x", "shift_logits must be true or false, not x"),
    ("trust_remote_code=maybe", "trust_remote_code must be true or false, not maybe"),
    ("token=hf_secret", "token does not work with --model mdlm: results would show it; set HF_TOKEN"),
    ("delta=other", "delta does not work with --model mdlm: merge the weights into the base model first"),
]
# `--gen_kwargs` and what task files hold.
REQUESTS = [
    ({"n_masks": 0}, "n_masks must be auto or a whole number from 1, not 0"),
    ({"n_masks": 256}, "256 masks and 0 filler tokens do not fit into the model's context of 256 tokens"),
    ({"stepps": 3, "nmask": 1}, "unknown generation option nmask=1; did you mean n_masks?"),
    ({"stop": ["x"]}, "unknown generation option stop=['x']; did you mean until?"),
    ({"max_new_tokens": 0}, "max_new_tokens must be a whole number from 1, not 0"),
    ({"max_gen_toks": 4, "max_new_tokens": 8}, "max_gen_toks=4 and max_new_tokens=8 exclude each other"),
    ({"do_sample": "perhaps"}, "do_sample must be true or false, not perhaps"),
    ({"infill": True}, "infill=True is not allowed for a text without a slot"),
    ({"temperature": [0.5]}, "temperature must be a number from 0, not [0.5]"),
]


@pytest.mark.parametrize(("typed", "sentence"), MODEL_ARGUMENTS)
def test_model_arguments(checkpoint: Path, typed: str, sentence: str) -> None:
    given = json.loads(typed) if typed.startswith("{") else key_val_to_dict(typed)
    with pytest.raises(OptionError) as error:
        MDLM.create_from_arg_obj({"pretrained": str(checkpoint), **given}, {"device": "cpu", "batch_size": 1})
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("gen_kwargs", "sentence"), REQUESTS)
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


def test_batch_size_and_device_may_be_among_the_model_arguments(checkpoint: Path) -> None:
    arguments = {"pretrained": str(checkpoint), "batch_size": 4, "device": "cpu"}
    lm = MDLM.create_from_arg_obj(arguments, {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"})
    assert (lm.batches.size, lm.device.type) == (4, "cpu")
