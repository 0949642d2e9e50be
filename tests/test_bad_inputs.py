"""Every bad input ends in one sentence that names the option, its value and what is possible, before anything loads.

A new bad input is a row of one of these tables.
"""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from lm_eval._cli.utils import key_val_to_dict

from mdlm_lm_eval import __version__
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.families import load_adapter_config, load_config
from mdlm_lm_eval.families.loading import hub
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.requests import parse_gen_kwargs

# `lm_eval --model mdlm --model_args ...`
MODEL_ARGUMENTS = [
    ("n_masks=-1", "n_masks must be auto or a whole number from 1, not -1"),
    ("n_masks=abc", "n_masks must be auto or a whole number from 1, not abc"),
    ("n_masks=1e300", "n_masks must be auto or a whole number from 1, not 1e+300"),
    ("n_masks=100000", "n_masks=100000 does not fit into the model's context of 256 tokens"),
    ("n_masks=none", "n_masks must be auto or a whole number from 1, not none"),
    ("steps=0", "steps must be auto or a whole number from 1, not 0"),
    ("unmasking=foo", "unmasking must be one of confidence, entropy, left_to_right, margin, random, not foo"),
    ("mask_ratio=0.2,n_masks=4", "mask_ratio=0.2 and n_masks=4 exclude each other"),
    ("mask_ratio=1e308", "mask_ratio must be none or a number above 0 up to 1000, not 1e+308"),
    ("block_length=9,n_masks=8", "block_length must be at most n_masks=8, not 9"),
    ("pretrained=None", "pretrained must be a text (a hub id, a folder or built-in) or a model object, not none"),
    ("temperature=1e308", "temperature must be 0 or a number from 1e-06 up to 1000, not 1e+308"),
    ("temperature=1e-320", "temperature must be 0 or a number from 1e-06 up to 1000, not 1e-320"),
    ("temperature=nan", "temperature must be 0 or a number from 1e-06 up to 1000, not nan"),
    ("cfg_scale=inf", "cfg_scale must be a number from 0 up to 1000, not inf"),
    (
        "seed=99999999999999999999",
        "seed must be a whole number from 0 up to 9223372036854775807, not 9999999999999999999",
    ),
    ("n_fillers=10000000", "n_fillers must be a whole number from 0 up to 1000000, not 10000000"),
    ("early_exit=maybe", "early_exit must be true or false, not maybe"),
    ("cache_audit=2", "cache_audit=2 needs cache=prefix or cache=dual; with cache=auto everything is decoded exactly"),
    ("cache=dual,cache_audit=2.5", "cache_audit must be a share up to 1 or a whole number, not 2.5"),
    ("cache=dual,cache_audit=0", "cache_audit must be none or a number above 0, not 0"),
    ("nmask=5", "unknown model argument nmask=5; did you mean n_masks?"),
    ("gen_length=5", "unknown model argument gen_length=5; did you mean n_masks?"),
    ("alg=entropy", "unknown model argument alg=entropy; did you mean unmasking?"),
    ("qqqqqqq=5", "unknown model argument qqqqqqq=5; the options are block_length, "),
    ("mc_num=0", "mc_num must be a whole number from 1 up to 1000000, not 0"),
    ("mask_token_id=x", "mask_token_id must be none or a whole number from 0, not x"),
    ("mask_token_id=100000", "mask_token_id=100000 is no token of the vocabulary"),
    ("shift_logits=maybe", "shift_logits must be true or false, not maybe"),
    ("compile=maybe", "compile must be true or false, not maybe"),
    ("trust_remote_code=no", "trust_remote_code must be true or false, not no"),
    ("trust_remote_code=off", "trust_remote_code must be true or false, not off"),
    ("trust_remote_code=maybe", "trust_remote_code must be true or false, not maybe"),
    ("trust_remote_code=1", "trust_remote_code must be true or false, not 1"),
    ("parallelize=maybe", "parallelize must be true or false, not maybe"),
    ("load_in_4bit=maybe", "load_in_4bit must be true or false, not maybe"),
    ("add_bos_token=maybe", "add_bos_token must be true or false, not maybe"),
    ("backend=seq2seq", "backend must be one of default, causal, not seq2seq"),
    ("delta=other", "delta is not for masked diffusion models: merge the weights into the base model first"),
    ("dtype=float33", "dtype must be one of auto, float32, bfloat16, float16, not float33"),
    (
        "mixed_precision_dtype=bfloat1",
        "mixed_precision_dtype must be one of auto, float32, bfloat16, float16, not bfloat1",
    ),
    ("max_length=long", "max_length must be a whole number from 2, not long"),
    ("max_length=1", "max_length must be a whole number from 2, not 1"),
    ("max_length=1000000000", "max_length must be a whole number from 2 up to 256, not 1000000000"),
    ("prefix_token_id=abc", "prefix_token_id must be a whole number from 0, not abc"),
    ("prefix_token_id=999999", "prefix_token_id must be a whole number from 0 up to "),
    ("batch_size=0", "batch_size must be auto or a whole number from 1 up to 999999999, not 0"),
    ("batch_size=-1", "batch_size must be auto or a whole number from 1 up to 999999999, not -1"),
    ("batch_size=abc", "batch_size must be auto or a whole number from 1 up to 999999999, not abc"),
    ("batch_size=1e9", "batch_size must be auto or a whole number from 1 up to 999999999, not 1000000000"),
    ("batch_size=auto:abc", "batch_size must be auto or a whole number from 1 up to 999999999, not auto:abc"),
    ("max_batch_size=0", "max_batch_size must be a whole number from 1, not 0"),
    ("device=foo", "device=foo is not on this machine; it must be "),
    ("device=", "device= is not on this machine; it must be "),
    ("device=meta", "device=meta is not on this machine; it must be "),
    ("device=cpu:99", "device=cpu:99 is not on this machine; it must be "),
    ("device=cuda:77", "device=cuda:77 is not on this machine; it must be "),
    ("tp_plan=foo", "tp_plan must be one of auto, not foo"),
    ("quantization_config=foo", "quantization_config must be names with a value each, in JSON, not foo"),
    ("bnb_4bit_compute_dtype=bfloat16", "bnb_4bit_compute_dtype=bfloat16 needs load_in_4bit=true or load_in_8bit=true"),
    (
        "load_in_4bit=false,bnb_4bit_quant_type=nf4",
        "bnb_4bit_quant_type=nf4 needs load_in_4bit=true or load_in_8bit=true",
    ),
    ("load_in_4bit=true,load_in_8bit=true", "load_in_4bit=true and load_in_8bit=true exclude each other"),
    (
        '{"load_in_4bit": true, "quantization_config": {"quant_method": "hqq"}}',
        "load_in_4bit=true and quantization_config={'quant_method': 'hqq'} exclude each other",
    ),
    ("peft=", "peft must be a text of at least one character, not ''"),
    ("revision=", "revision must be a text of at least one character, not ''"),
    ("chat_template_args=foo", "chat_template_args must be names with a value each, in JSON, not foo"),
    ("device_mesh=foo", "device_mesh must be a DeviceMesh of torch, from Python, not foo"),
    ("enable_thinking=True", "enable_thinking=true needs think_end_token, where a thinking part ends, such as </thi"),
    ("preset=5", "unknown preset='5'"),
    ("tokenizer=", "tokenizer must be a text of at least one character, not ''"),
    ("pretrained=/etc/passwd", "pretrained=/etc/passwd: must be a folder, and is a file"),
    ("pretrained=built-in/", "pretrained=built-in/: there is no such folder"),
    ("tokenizer=built-in-block/", "tokenizer=built-in-block/: there is no such folder"),
    ("tokenizer=/nowhere", "tokenizer=/nowhere: there is no such folder"),
    ("tokenizer=5", "tokenizer of 5 cannot be loaded: "),
    ("self=5", "unknown model argument self=5; did you mean seed?"),
    ('{"tokenizer": {}}', "tokenizer must be a text, not {}"),
    ('{"peft": ["a"]}', "peft must be a text, not ['a']"),
    (
        '{"pretrained": ["a"]}',
        "pretrained must be a text (a hub id, a folder or built-in) or a model object, not ['a']",
    ),
    ('{"device": ["cpu"]}', "device=['cpu'] is not on this machine; it must be "),
    ('{"filler": ["a"]}', "filler must be a text of at least one character, not ['a']"),
]

# `--gen_kwargs` and what task files hold.
REQUESTS = [
    ({"stop": ["x"]}, "unknown generation option stop=['x']; did you mean until?"),
    ({"stepps": 3}, "unknown generation option stepps=3; did you mean steps?"),
    ({"max_gen_toks": "１２"}, "max_gen_toks must be a whole number from 1, not １２"),
    ({"max_new_tokens": 0}, "max_new_tokens must be a whole number from 1, not 0"),
    ({"until": 5}, "until must be a string or a list of strings, not 5"),
    ({"do_sample": "perhaps"}, "do_sample must be true or false, not perhaps"),
    ({"infill": "perhaps"}, "infill must be true or false, not perhaps"),
    ({"n_masks": "0x10"}, "n_masks must be auto or a whole number from 1, not 0x10"),
    ({"n_masks": "９"}, "n_masks must be auto or a whole number from 1, not ９"),
    ({"n_masks": 10**400}, "n_masks must be auto or a whole number from 1, not 1000000"),
    ({"do_sample": False, "temperature": "abc"}, "temperature must be 0 or a number from 1e-06 up to 1000, not abc"),
    ({"do_sample": False, "top_p": 2}, "top_p must be none or a number above 0 up to 1, not 2"),
    ({"temperature": [0.5]}, "temperature must be 0 or a number from 1e-06 up to 1000, not [0.5]"),
]

# The settings of `mdlm-sweep --config FILE`, as YAML.
SWEEP_FILES = [
    ("tasks: t\ngrids: []", "grids must be a list of settings, not []"),
    ("tasks: 5", "tasks must be names of tasks, not 5"),
    ("tasks: {a: b}", "tasks must be a value or a list of values, not {'a': 'b'}"),
    ("tasks: [[a, b]]", "tasks must be a value or a list of values, not [['a', 'b']]"),
    ("tasks: &a [*a]", "tasks must be a value or a list of values, not [[...]]"),
    ("tasks: t\nn_masks: 0x10", "the number in line 2 must be typed in plain digits, not 0x10"),
    ("tasks: t\nn_masks: [1, 1_0]", "the number in line 2 must be typed in plain digits, not 1_0"),
    ("tasks: t\nn_masks: 12:30", "the number in line 2 must be typed in plain digits, not 12:30"),
    ("tasks: t\ntasks: u", "tasks stands there 2 times; give it once"),
    ("tasks: t\ngrids: [{n_masks: 1, n_masks: 2}]", "n_masks stands there 2 times; give it once"),
    ("tasks: t\nlimit: 010\n1: 2", "unknown option 1=2"),
    ("tasks: t\n1: 2", "unknown option 1=2; the options are"),
    ("tasks: t\n~: 2", "unknown option none=2; the options are"),
    ("tasks: t\ninclude_path: 5", "include_path must be a text, not 5"),
    ("tasks: t\napply_chat_template: 5", "apply_chat_template must be true, false or a template's name, not 5"),
    ("tasks: t\ndevice: [cpu]", "device must be a text, not ['cpu']"),
    ("tasks: t\nmodel_args: 5", "model_args must be names with a value each, not 5"),
    ("tasks: t\nmodel_args: {trust_remote_code: off-ish}", "trust_remote_code must be true or false, not off-ish"),
    (
        "tasks: t\nmodel_args: {batch_size: 1e9.5}",
        "batch_size must be auto or a whole number from 1 up to 999999999, not 1e9.5",
    ),
    ("tasks: t\nbatch_size: many", "batch_size must be auto or a whole number from 1 up to 999999999, not many"),
    (
        "tasks: t\nseed: 99999999999999999999",
        "seed must be a whole number from 0 up to 4294967295, not 99999999999999999999",
    ),
    ("tasks: t\nlimit: -1", "limit must be a whole number from 1, or a share below 1, not -1"),
    ("tasks: t\nlimit: .nan", "limit must be a whole number from 1, or a share below 1, not nan"),
    ("tasks: t\nn_masks: [[1]]", "n_masks must be a value or a list of values, not [[1]]"),
    (
        "tasks: t\nmetadata: {fewshot_seed: [" + "1, " * 1000 + "1], fewshot_relevant: [" + "1, " * 1000 + "1]}",
        "the grid has 1002001 cells; at most 100000 are possible",
    ),
    (f"tasks: {'[' * 3000}", "cannot be read: "),
    (f"tasks: {'x' * 1_000_001}", "too large to be settings"),
    ("status: 5", "status must be the name of a folder, not 5"),
    ("- tasks", "must hold settings, a line each"),
    ("tasks: [", "cannot be read: "),
]

COMMAND_LINES = [
    ("mdlm-sweep", ["--tasks=t", "--status="], "--status is not set; name a sweep's --output_path"),
    ("mdlm-sweep", ["--tasks=t", "--n_masks=0x10"], "n_masks must be auto or a whole number from 1, not 0x10"),
    ("mdlm-sweep", ["--tasks=t", f"--model_args=n_masks={'1' * 400}"], "n_masks must be auto or a whole number from 1"),
    ("mdlm-sweep", ["--tasks=t", "--n_masks=４"], "n_masks must be auto or a whole number from 1, not ４"),
    ("mdlm-sweep", ["--tasks=t", "--n_masks="], "n_masks has no value; give at least one"),
    ("mdlm-sweep", ["--tasks=t", "--early_exit", "--schedule", "drem"], "schedule must be one of linear, dream, "),
    ("mdlm-sweep", ["--tasks=t", "--model_args", '{"trust_remote_code": "no"}'], "trust_remote_code must be true or"),
    ("mdlm-sweep", ["--tasks=t", "--seed=-1"], "seed must be a whole number from 0 up to 4294967295, not -1"),
    (
        "mdlm-sweep",
        ["--tasks=t", "--model_args=trust_remote_code=no"],
        "trust_remote_code must be true or false, not no",
    ),
    ("mdlm-sweep", ["--config", "x" * 300], "cannot be read: "),
    ("mdlm-sweep", ["--tasks=t", "--device="], "device is not set; name one, such as cuda:0"),
    ("mdlm-sweep", ["--tasks=t", "--output_path="], "--output_path is not set; name a folder"),
    ("mdlm-sweep", ["--tasks=t", "--include_path=/nowhere"], "include_path must be a folder with tasks, not /nowhere"),
    ("mdlm-sweep", ["--tasks=t", "--include_path="], "include_path must be a folder with tasks, not ''"),
    ("mdlm-attribution", ["groups", "--n_masks=1", "--output_path=s3://a/b"], "must be a folder on a disk"),
    (
        "mdlm-attribution",
        ["examples", "--reorderings=99999999999"],
        "reorderings must be a whole number from 1 up to 100000, not 99999999999",
    ),
    ("mdlm-attribution", ["groups", "--tasks=,"], "tasks is not set; name at least one"),
    ("mdlm-attribution", ["groups", "--tasks="], "tasks is not set; name at least one"),
    (
        "mdlm-attribution",
        ["examples", "--tasks=mdlm_verb_smallest_slot", "--metadata", "fewshot_relevant=0", "fewshot_distractors=0"],
        "mdlm_verb_smallest_slot has no in-context examples",
    ),
    ("mdlm-attribution", ["groups", "--limit=1_0"], "limit must be a whole number from 1, not 1_0"),
    ("mdlm-attribution", ["groups", "--limit=２"], "limit must be a whole number from 1, not ２"),
    (
        "mdlm-attribution",
        ["groups", "--model_args=trust_remote_code=no"],
        "trust_remote_code must be true or false, not no",
    ),
    ("mdlm-attribution", ["groups", "--model_args", '{"dtype": "float7"}'], "dtype must be one of auto, float32"),
    (
        "mdlm-attribution",
        ["groups", "--tasks=mdlm_verb_smallest", "--device=meta"],
        "device=meta is not on this machine",
    ),
    (
        "mdlm-attribution",
        ["groups", "--tasks=mdlm_verb_smallest", "--metadata", "foo=1"],
        "unknown setting of the few-shot tasks foo=1; the options are fewshot_",
    ),
    (
        "mdlm-attribution",
        ["groups", "--tasks=mdlm_verb_smallest", "--metadata", "fewshot_relevant=-1"],
        "fewshot_relevant must be a whole number from 0 up to 10000, not -1",
    ),
    ("mdlm-attribution", ["groups", "--n_masks=1", f"--output_path={'x' * 300}"], "File name too long"),
    ("mdlm-attribution", ["groups", "--n_masks=1", "--output_path=/proc/x"], "cannot be written: "),
    ("mdlm-attribution", ["groups", "--n_masks=1", "--output_path=/etc/passwd"], "cannot be written: "),
    ("mdlm-attribution", ["shots-against-masks", "/nowhere/results"], "/nowhere/results"),
    ("mdlm-attribution", ["groups", "--model_args", "pretrained=/nowhere"], "there is no such folder"),
]
MODULES = {"mdlm-sweep": "mdlm_lm_eval.sweep.__main__", "mdlm-attribution": "mdlm_lm_eval.analyses.__main__"}


@pytest.fixture(scope="module")
def weightless(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that cannot be loaded, so that a refusal comes before that."""
    return shutil.copytree(
        checkpoint, tmp_path_factory.mktemp("weightless") / "model", ignore=lambda *_: ["model.safetensors"]
    )


def run_command(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command ends with."""
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit) as ended:
        import_module(MODULES[name]).main()
    return str(ended.value.code)


@pytest.mark.parametrize(("typed", "sentence"), MODEL_ARGUMENTS)
def test_model_arguments(weightless: Path, typed: str, sentence: str) -> None:
    given = json.loads(typed) if typed.startswith("{") else key_val_to_dict(typed)
    with pytest.raises(OptionError) as error:
        MDLM.create_from_arg_obj({"pretrained": str(weightless), **given}, {"device": "cpu", "batch_size": 1})
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("gen_kwargs", "sentence"), REQUESTS)
def test_requests(gen_kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_gen_kwargs(gen_kwargs, DecodingOptions(), frozenset())
    assert str(error.value).startswith(sentence)


def test_fillers_that_do_not_fit() -> None:
    with pytest.raises(OptionError, match=r"1 masks and 100000 filler tokens do not fit .* at most 2047 tokens do"):
        build_canvas([1], DecodingOptions(n_masks=1), mask_token_id=2, max_length=2048, filler_ids=[3] * 100_000)


@pytest.mark.parametrize(("text", "sentence"), SWEEP_FILES)
def test_sweep_files(text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep.yaml").write_text(text)
    words = [f"--config={tmp_path / 'sweep.yaml'}", f"--output_path={tmp_path / 'out'}"]
    ending = run_command("mdlm-sweep", words, monkeypatch)
    assert (
        ending.removeprefix("mdlm-sweep: ").removeprefix(f"--config {tmp_path / 'sweep.yaml'}: ").startswith(sentence)
    )
    assert "\n" not in ending
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("command", "words", "sentence"), COMMAND_LINES)
def test_command_lines(
    command: str, words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = [] if any(word.startswith("--output_path") for word in words) else [f"--output_path={tmp_path / 'out'}"]
    ending = run_command(command, [*words, *output], monkeypatch)
    assert ending.startswith(f"{command}: ")
    assert sentence in ending
    assert "\n" not in ending
    assert not (tmp_path / "out").exists()


WORDS = [["{bad"], ["[" * 5000], ["mc_num=0x10"], ["mc_num=１"], ["revision=1.10"], ['{"mc_num": 8}', "seed=2"]]


@pytest.mark.parametrize("words", [["--n_masks", "--steps"], *(["--model_args", *words] for words in WORDS)])
def test_words_that_the_parser_refuses(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("mdlm-sweep", ["--tasks=t", "--output_path=out", *words], monkeypatch) == "2"
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"mdlm-sweep: error: argument {words[0]}: ")


@pytest.mark.parametrize("words", [["groups"], ["shots-against-masks", "results"]])
def test_an_analysis_wants_a_folder(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("mdlm-attribution", [*words, "--output_path="], monkeypatch) == "2"
    assert "argument --output_path: must be the name of a folder, not empty" in capsys.readouterr().err


def test_batch_size_and_device_may_stand_among_the_model_arguments(checkpoint: Path) -> None:
    from_command_line = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
    arguments = {"pretrained": str(checkpoint), "batch_size": 4, "device": "cpu"}
    of_object = MDLM.create_from_arg_obj(arguments, from_command_line)
    of_string = MDLM.create_from_arg_string(f"pretrained={checkpoint},batch_size=4,device=cpu", from_command_line)
    for lm in (of_object, of_string):
        assert (lm.batches.size, lm.device.type) == (4, "cpu")


# What may lie where `mdlm-attribution groups` writes its result.
IN_THE_WAY = [b"\xff\xfe", b"5", b"[" * 100_000, b'{"settings": 5}', b"", None]


@pytest.mark.parametrize("content", IN_THE_WAY)
def test_what_is_in_the_way_of_an_analysis(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "attribution_groups.json"
    path.mkdir() if content is None else path.write_bytes(content)
    words = ["groups", "--tasks=mdlm_verb_smallest", "--n_masks=1", f"--output_path={tmp_path}"]
    ending = run_command("mdlm-attribution", words, monkeypatch)
    assert ending.startswith(f"mdlm-attribution: {path} is in the way: ")


# Files that `mdlm-attribution shots-against-masks` is given.
RESULT_FILES = [b"\xff\xfe", b"5", b"[" * 100_000, b'{"results": 5}', b"", b"{}"]


@pytest.mark.parametrize("content", RESULT_FILES)
def test_result_files_of_an_analysis(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results_1.json").write_bytes(content)
    words = ["shots-against-masks", str(tmp_path / "results_1.json"), f"--output_path={tmp_path / 'out'}"]
    ending = run_command("mdlm-attribution", words, monkeypatch)
    assert ending.startswith("mdlm-attribution: ")
    assert "\n" not in ending
    assert not (tmp_path / "out").exists()


def test_versions_of_all_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {**MODULES, "mdlm-leaderboard": "mdlm_leaderboard.__main__"}
    for name, module in modules.items():
        monkeypatch.setattr(sys, "argv", [name, "--version"])
        with pytest.raises(SystemExit) as ended:
            import_module(module).main()
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"{name} {__version__}\n"


def test_a_hub_id_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network() -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(hub, "get_session", no_network)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    hub._use_cache_alone_without_network.cache_clear()
    for load, option in ((load_config, "pretrained"), (load_adapter_config, "peft")):
        with pytest.raises(
            OptionError, match=f"^{option}=nobody/nothing: .* the hub cannot be reached .* folders work"
        ):
            load("nobody/nothing")
