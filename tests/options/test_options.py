"""Options: what a command line may say of them, and that they are declared whole."""

import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from mdlm_lm_eval.declared import as_record, declarations, silent_names
from mdlm_lm_eval.decoding.sampler import Sampler
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.options import (
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    Options,
    option,
)
from mdlm_lm_eval.registry import SAMPLERS, register
from mdlm_lm_eval.resolve import resolve
from tests.conftest import data
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


def test_only_what_changes_no_score_is_silent() -> None:
    silent = {"check", "early_exit", "trace", "compile", "fused", "cuda_graphs", "share_prefix", "log_likelihood_draws"}
    assert silent == silent_names()


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
