"""Options: what a command line and scripts may say of them, and that they are declared whole."""

import pickle
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from lm_eval._cli.utils import key_val_to_dict
from transformers import PretrainedConfig

from mdlm_lm_eval import checkpoints, families
from mdlm_lm_eval.declared import as_record, declarations
from mdlm_lm_eval.decoding.sampler import Sampler
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import (
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    OptionError,
    Options,
    option,
)
from mdlm_lm_eval.registry import SAMPLERS, register
from mdlm_lm_eval.resolve import Settings, loading_names, resolve
from tests.conftest import choice, data, generation, refused, tiny_model, tiny_tokenizer
from tests.support.commands import ENVIRONMENT


def test_strings_are_parsed_by_the_type_of_the_option() -> None:
    typed = data("cases.json")["typed options"] | {"n_fillers": np.int64(4), "seed": 2**62 + 1}
    expected = {"n_masks": 200, "temperature": 0.5, "eos_last": True, "filler": "1", "max_gen_toks": 64}
    assert replace(DecodingOptions(top_p=0.5), **typed) == DecodingOptions(**expected, n_fillers=4, seed=2**62 + 1)


@pytest.mark.parametrize("kind", [DecodingOptions, LikelihoodOptions, ModelOptions])
def test_every_option_is_declared_whole(kind: type[Options]) -> None:
    for name, declared in kind.declared().items():
        assert declared.help
        assert kind().as_dict()[name] == declared.default
        assert declared.requirement.split()[0] in ("a", "auto", "none", "one", "true")


def test_options_of_a_sampler_are_given_and_shown_like_all_others() -> None:
    given = DecodingOptions(n_masks=4, kl_threshold="0.1")
    way, options = way_of(given), way_of(given).options
    assert way == way_of(DecodingOptions(n_masks="4", kl_threshold=0.1, kl_history=2))
    assert hash(options) == hash(replace(DecodingOptions(kl_threshold=0.5), n_masks=4, kl_threshold=0.1))
    assert options != DecodingOptions(n_masks=4) == replace(options, kl_threshold=None)
    assert pickle.loads(pickle.dumps(options)) == options
    shown = as_record(options)
    assert shown.keys() == declarations(DecodingOptions).keys()
    assert way_of(DecodingOptions(**shown)) == way
    assert (shown["sampler"], shown["kl_history"], shown["remask_tokens"]) == ("auto", 2, 1)
    assert way_of(DecodingOptions(sampler="klass", n_masks=4, kl_threshold=0.1)) == way
    assert (way.name, way.sampler) == ("klass", SAMPLERS.get("klass")(kl_threshold=0.1))


def test_what_samplers_take_back_keeps_rows_from_exiting_early() -> None:
    exits = {name: way_of(DecodingOptions(sampler=name)).exits_early for name in ("schedule", "remdm", "rcr")}
    # ReMDM masks tokens of the block alone that it decodes; RCR those of the whole canvas.
    assert exits == {"schedule": True, "remdm": True, "rcr": False}
    assert not way_of(DecodingOptions(early_exit=False)).exits_early


@dataclass(frozen=True)
class Hurried(Sampler):
    """Of a plug-in."""

    asked_by: ClassVar[str | None] = "haste"

    haste: int | None = option(None, "masks that a pass fills", least=1, also="hurry")


@pytest.fixture
def registered(own_samplers: None) -> None:
    register(name="hurried", sampler=Hurried)


@pytest.mark.usefixtures("registered")
def test_a_sampler_that_is_registered_later_has_its_options_everywhere() -> None:
    assert way_of(DecodingOptions(haste=3)).sampler == Hurried(haste=3)
    assert resolve({"hurry": "3"}).decoding.as_dict()["haste"] == 3
    assert resolve({}).request({"haste": 3}).options == resolve({"sampler": "hurried", "haste": 3}).decoding
    # Results are the same on a machine without the plug-in.
    assert "haste" in as_record(DecodingOptions(haste=3)).keys() - as_record(DecodingOptions()).keys()
    declared = declarations(DecodingOptions)["haste"]
    assert (declared.requirement, declared.help) == (
        "none or a whole number from 1",
        "masks that a pass fills (sampler=hurried)",
    )


@pytest.mark.usefixtures("registered")
def test_what_extends_a_sampler_is_asked_for_by_name() -> None:
    register(name="slow", sampler=type("Slow", (Hurried,), {}))
    assert way_of(DecodingOptions(haste=3)).name == "hurried"
    assert way_of(DecodingOptions(haste=3, sampler="slow")).name == "slow"


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["haste", "n_masks", "likelihood"])
def test_an_option_is_one_thing(name: str) -> None:
    other = type("Other", (Sampler,), {"__annotations__": {name: int}, name: option(1, "another"), "__doc__": ""})
    register(name="other", sampler=dataclass(frozen=True)(other))
    with pytest.raises(ValueError, match=f"the sampler other declares {name}, which is another option already"):
        declarations(DecodingOptions)


@pytest.mark.usefixtures("registered")
def test_a_name_is_one_thing() -> None:
    register(name="hurried", sampler=Hurried)  # the same
    with pytest.raises(ValueError, match="a sampler named 'hurried' is registered already"):
        register(name="hurried", sampler=SAMPLERS.get("wino"))


def test_nothing_heavy_is_imported_for_options_and_help() -> None:
    code = (
        "import sys; from mdlm_lm_eval.registry import SAMPLERS, UNMASKING; UNMASKING.all(); SAMPLERS.all(); "
        "from mdlm_lm_eval.options import DecodingOptions; DecodingOptions().as_dict(); "
        "assert 'torch' not in sys.modules; "
        "import mdlm_lm_eval.options, mdlm_lm_eval.sweep.__main__, mdlm_lm_eval.analyses.__main__; "
        "from mdlm_lm_eval.resolve import resolve; resolve({'n_masks': 4, 'unmasking': 'margin'}); "
        "print(sorted({'transformers', 'datasets', 'lm_eval.evaluator'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout == "[]\n"


# Precedence


BLOCKS = "llada-8b-instruct/gsm8k-blocks"


def config_of(family: str | None, block_length: int = 32) -> PretrainedConfig:
    config = tiny_model().config
    if family is not None:
        config.diffusion_family, config.block_length = family, block_length
    return config


def resolved(config: PretrainedConfig, arguments: dict[str, Any], preset: str | None = None) -> Settings:
    return resolve(
        arguments | ({} if preset is None else {"preset": preset}),
        family=families.family_of(config).decoding_defaults,
        attention_of=lambda length: checkpoints.attention_of(config, length),
    )


@pytest.mark.parametrize(("family", "preset", "typed", "effect"), data("precedence.json")["typed"])
def test_what_is_typed_drops_what_it_excludes(
    family: str | None, preset: str | None, typed: dict[str, Any], effect: dict[str, Any]
) -> None:
    """`effect` are the options in effect that what is typed touches."""
    config = config_of(family)
    settings = resolved(config, typed, preset)
    wanted = way_of(DecodingOptions(**(typed | effect))).options.as_dict().items()
    expected = {name: value for name, value in wanted if name in typed | effect}
    assert expected.items() <= settings.decoding.as_dict().items()
    assert typed.keys() <= settings.explicit
    assert not settings.explicit & settings.from_family
    of_request = resolved(config, {}, preset).request(typed).options.as_dict()
    sampling = {"temperature"} if preset else set()  # a request's counts only where nothing else is set
    assert all(of_request[name] == expected[name] for name in expected.keys() - sampling)


@pytest.mark.parametrize("block_length", [4, 12])
def test_parts_of_blocks_are_for_blocks_that_they_divide(block_length: int) -> None:
    settings = resolved(config_of("fast_dllm_v2", block_length), {})
    assert (settings.decoding.small_block_length, settings.from_family) == (None, {"confidence_threshold"})


def test_what_a_family_publishes_is_below_what_the_user_and_the_preset_say() -> None:
    published = {"confidence_threshold": 0.95, "block_length": 32, "temperature": 0.5, "schedule": "bd3lm"}
    merged = resolve({"preset": BLOCKS}, family=published)
    assert (merged.decoding.block_length, merged.decoding.confidence_threshold) == (8, 0.95)
    assert merged.from_family == published.keys() - merged.explicit
    off = resolve({"confidence_threshold": "none", "n_masks": 4}, family=published)
    assert (off.decoding.confidence_threshold, off.from_family) == (None, {"temperature", "schedule", "block_length"})


def test_a_sampler_that_is_asked_for_replaces_a_published_one_with_its_options() -> None:
    published = {"sampler": "wino", "confidence_threshold": 0.9, "remask_threshold": 0.5}
    assert resolve({}, family=published).decoding == DecodingOptions(**published)
    by_its_option = resolve({"kl_threshold": 0.1}, family=published).decoding
    assert by_its_option == DecodingOptions(kl_threshold=0.1, confidence_threshold=0.9)
    assert resolve({"sampler": "auto"}, family=published).decoding == DecodingOptions(confidence_threshold=0.9)


def test_what_is_typed_twice_and_excludes_each_other_is_an_error() -> None:
    with pytest.raises(OptionError, match="steps_per_block=4 and steps=3 exclude each other"):
        resolve({"steps_per_block": 4}).request({"steps": 3})


@pytest.mark.parametrize(("typed", "left"), data("precedence.json")["instead of a published cache"])
def test_a_cache_that_is_published_gives_way(typed: dict[str, Any], left: dict[str, Any]) -> None:
    merged = resolve(typed, family={"cache": "dual", "block_length": 32}).decoding
    assert merged == DecodingOptions(**left)


# Sampling keys of task files


@pytest.mark.parametrize(("request_says", "user_says", "expected"), data("precedence.json")["requests"])
def test_requests(request_says: dict[str, Any], user_says: dict[str, Any], expected: dict[str, Any]) -> None:
    assert resolve(user_says).request(request_says).options == DecodingOptions(**expected)


# What the families' own evaluation scripts take means the same here, or is refused with what to type instead. In
# data/scripts.json, `arguments` are those of the scripts' signatures: a typed one, its meaning there, our options that
# it sets or a part of the sentence that refuses it, and the numbers of the scripts that have it.

TABLE = data("scripts.json")
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


def test_a_limit_that_lm_eval_fills_in_counts_for_none_that_the_user_set() -> None:
    filled_in = {"temperature": 0.0, "do_sample": False, "max_gen_toks": 256, "until": ["\n\n"]}
    asked = resolve({"max_gen_toks": 12}).request
    assert asked(filled_in).options.max_gen_toks == 12
    assert asked({**filled_in, "max_gen_toks": 16}).options.max_gen_toks == 16
    assert asked({"until": [], "max_gen_toks": 256}).options.max_gen_toks == 256
    assert resolve({"n_masks": 512}).request(filled_in).options.max_gen_toks is None
    assert resolve({}).request(filled_in).options.max_gen_toks == 256
    assert resolve({}).request({**filled_in, "gen_length": 512}).options.max_gen_toks is None


@pytest.mark.parametrize(("typed", "said"), refused("arguments of scripts"))
def test_what_is_said_twice_or_unclear(typed: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        resolve(key_val_to_dict(typed))


COMMANDS = [(script, *row) for script, rows in TABLE["commands"].items() for row in rows]


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
