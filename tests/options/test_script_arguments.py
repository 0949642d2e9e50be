"""What the families' own evaluation scripts take means the same here, or is refused with what to type instead.

`data/script_arguments.json` lists the arguments of the scripts' signatures: a typed one, its meaning there, our options
that it sets or a part of the sentence that refuses it, and the numbers of the scripts that have it.
"""

import re
from typing import Any

import pytest
from lm_eval._cli.utils import key_val_to_dict

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.resolve import loading_names, resolve
from tests.conftest import choice, data, generation, refused, tiny_model, tiny_tokenizer

TABLE = data("script_arguments.json")
ROWS = [pytest.param(typed, here, id=typed) for typed, _, here, _ in TABLE["arguments"]]


@pytest.mark.parametrize(("typed", "here"), ROWS)
def test_an_argument_means_what_it_means_there_or_is_refused(typed: str, here: dict[str, Any] | str) -> None:
    given = loading_names(key_val_to_dict(typed))
    if isinstance(here, str):
        with pytest.raises(OptionError) as error:
            resolve(given)
        assert here in str(error.value)
        assert str(error.value).startswith(
            (typed.partition("=")[0], "unknown model argument", "unmasking", "threshold")
        )
        return
    settings = resolve(given)
    in_effect = (
        settings.loading | settings.likelihood.as_dict() | settings.model.as_dict() | settings.decoding.as_dict()
    )
    assert {name: in_effect[name] for name in here} == here
    others = settings.decoding.changes() | settings.likelihood.changes() | settings.model.changes() | settings.loading
    assert others.keys() <= here.keys()


@pytest.mark.parametrize(
    ("typed", "n_masks"), [("gen_length=8", "auto"), ("max_new_tokens=8", "auto"), ("n_masks=8", 8)]
)
def test_the_length_of_answers_adds_no_masks_to_likelihoods(typed: str, n_masks: int | str) -> None:
    """In the scripts; an explicit `n_masks` does."""
    settings = resolve(key_val_to_dict(typed))
    assert (settings.decoding.n_masks, settings.likelihood.n_masks) == (8, n_masks)


@pytest.mark.parametrize(("typed", "said"), refused("arguments of scripts"))
def test_what_is_said_twice_or_unclear(typed: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        resolve(key_val_to_dict(typed))


COMMANDS = [(script, *row) for script, rows in data("script_commands.json").items() for row in rows]


@pytest.mark.parametrize(("script", "family", "typed", "here"), COMMANDS)
def test_a_scripts_whole_arguments_decode_as_meant_or_are_refused_by_the_right_name(
    script: str, family: str, typed: str, here: dict[str, Any] | str
) -> None:
    """On a tiny model of the family; numbers of tokens and steps above 32 become 8, and blocks of 32 blocks of 4."""
    given = loading_names(key_val_to_dict(typed.replace("'", "")))
    model = tiny_model()
    model.config.diffusion_family, model.config.block_length = family, 4
    small = {name: _smaller(name, value) for name, value in given.items() if name not in _OF_CHECKPOINT}
    if isinstance(here, str):
        with pytest.raises(OptionError, match=re.escape(here)):
            MDLM(model, tokenizer=tiny_tokenizer(), **small)
        return
    lm = MDLM(model, tokenizer=tiny_tokenizer(), **small)
    recorded = lm.settings.likelihood.as_dict() | lm.settings.decoding.as_dict()
    if "mc_num" in here:
        recorded |= lm.settings.likelihood.as_dict()
        [(logprob, _)] = lm.loglikelihood([choice("question", " yes")], disable_tqdm=True)
        assert logprob < 0.0
    else:
        assert len(lm.generate_until([generation("question", until=[])], disable_tqdm=True)) == 1
    assert {name: recorded[name] for name in here} == {name: _smaller(name, value) for name, value in here.items()}


_OF_CHECKPOINT = ("pretrained", "mask_id", "trust_remote_code", "dtype")


def _smaller(name: str, value: Any) -> Any:
    lengths = ("n_masks", "gen_length", "max_new_tokens", "steps", "diffusion_steps", "block_length", "block_size")
    if name not in lengths or value <= 8:
        return value
    return 4 if "block" in name and value <= 32 else 8
