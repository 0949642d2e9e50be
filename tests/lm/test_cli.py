"""The command line: result files, two processes, and bad input that decides a score.

Such input ends in one sentence that names the option, its value and what is possible. What only lm-eval, transformers
or the file system has an opinion on is theirs to say. Most cases are rows of data/refused.json.
"""

import errno
import json
import os
import pickle
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from lm_eval._cli.utils import key_val_to_dict
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import distributed
from transformers import AutoModelForCausalLM

from mdlm_leaderboard.__main__ import main as leaderboard
from mdlm_lm_eval.checkpoints import load_denoiser
from mdlm_lm_eval.command_line import ending_well
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.provenance import in_words
from mdlm_lm_eval.results.files import write_whole
from tests.conftest import data, edit_json, generation, refused, tiny_model, tiny_tokenizer
from tests.support.commands import run

ALL_TASKS = "tiny_generate,tiny_choice,tiny_sampled"


def words(checkpoint: Path, task_folder: Path, out: Path) -> list[str]:
    asked = ["--include_path", str(task_folder), "--tasks", ALL_TASKS, "--log_samples", "--output_path", str(out)]
    return ["--model", "mdlm", "--model_args", f"pretrained={checkpoint},n_masks=6", *asked]


def result_file(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("results_*.json")
    return json.loads(path.read_text())


def samples(folder: Path, task: str) -> dict[int, Any]:
    (path,) = folder.rglob(f"samples_{task}_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["doc_id"]: row["resps"] for row in rows}


@pytest.fixture(scope="module")
def one_process(checkpoint: Path, task_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one")
    done = run("lm_eval", *words(checkpoint, task_folder, out))
    (out / "stderr").write_text(done.stderr)
    return out


def test_a_run_ends_with_what_was_in_effect_and_how_to_see_the_scores(one_process: Path) -> None:
    settings, speed, scores = (one_process / "stderr").read_text().splitlines()[-3:]
    expected = (
        "masks 6, steps 4 to 6, cache none, 4 to 6 tokens returned, no chat template, temperature=0, temperature=1"
    )
    assert settings == f"mdlm: settings  {expected}"
    words = r"\d\.\d\d tokens per forward pass, \S+ s per request, \S+ GiB, \d+% of batch slots busy"
    assert re.fullmatch(f"mdlm: speed     {words}", speed)
    assert scores == f"mdlm: scores    mdlm-leaderboard show {one_process}"
    assert leaderboard(["show", str(one_process)]) == 0


def test_results_file_names_the_settings(one_process: Path) -> None:
    info = result_file(one_process)["config"]["mdlm"]
    assert info["processes"] == 1
    assert info["decoding"]["seed"] == 1234  # lm-eval's default --seed
    assert info["tasks"]["tiny_generate"]["masks"] == info["tasks"]["tiny_generate"]["asked_masks"] == [6, 6]
    effective = {kind["request_type"]: kind for kind in info["settings"] if kind["tasks"] != ["tiny_sampled"]}
    assert effective["generate_until"]["tasks"] == ["tiny_generate"]
    assert effective["generate_until"]["options"] == info["decoding"] | {"max_gen_toks": 4}
    assert effective["loglikelihood"] == {
        "request_type": "loglikelihood",
        "options": info["likelihood"],
        "tasks": ["tiny_choice"],
    }
    assert [kind["options"]["temperature"] for kind in info["settings"] if "tiny_sampled" in kind["tasks"]] == [1.0]
    first = samples(one_process, "tiny_sampled")[0][0]
    assert len(set(first)) == 3


def test_two_processes_answer_alike(checkpoint: Path, task_folder: Path, one_process: Path, tmp_path: Path) -> None:
    run("lm_eval", *words(checkpoint, task_folder, tmp_path), processes=2)
    info = result_file(tmp_path)["config"]["mdlm"]
    assert info["processes"] == 2
    for task in ALL_TASKS.split(","):
        alone, shared = samples(one_process, task), samples(tmp_path, task)
        assert alone.keys() == shared.keys()
        for doc in alone:
            for one, two in zip(alone[doc], shared[doc], strict=True):
                if task == "tiny_choice":
                    assert [float(v) for v, _ in one] == pytest.approx([float(v) for v, _ in two], abs=1e-4)
                else:
                    assert two == one
    alone = result_file(one_process)["config"]["mdlm"]
    for task, facts in alone["tasks"].items():
        assert info["tasks"][task]["requests"] == facts["requests"]
        assert info["tasks"][task]["cost"].get("forward_passes") == facts["cost"].get("forward_passes")
    assert info["settings"] == alone["settings"]


# How commands end


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OptionError("n_masks=0 is too small"), 2, "command: n_masks=0 is too small\n"),
        (KeyboardInterrupt(), 130, "\ncommand: stopped; the same command goes on\n"),
    ],
)
def test_how_a_command_ends(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, ending_well("command", after_stop="the same command goes on"):
        raise error
    assert (ended.value.code, capsys.readouterr().err) == (code, said)


def test_a_command_leaves_its_process_group(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    with ending_well("command", after_stop=""):
        assert distributed.is_initialized()
    assert not distributed.is_initialized()


# Model arguments and requests


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
ACCEPTED = data("cases.json")["arguments that --model hf takes"]


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


# Files of strangers, and folders of results


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("pytorch_model.bin", pickle.dumps(os.getpid), "torch refuses a file of weights, since it is a broken pickle"),
        (
            "model.safetensors.index.json",
            b'{"metadata": {}, "weight_map": {"lm_head.weight": "/etc/passwd"}}',
            "model.safetensors.index.json names /etc/passwd, which is outside the folder",
        ),
    ],
)
def test_weights_that_are_more_than_weights(
    checkpoint: Path, tmp_path: Path, file: str, content: bytes, said: str
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "strange")
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(content)
    with pytest.raises(OptionError, match=re.escape(f"pretrained={folder}: {said}")):
        load_denoiser(str(folder))


def test_an_adapter_that_is_more_than_weights(checkpoint: Path, tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(os.getpid))
    with pytest.raises(OptionError, match=re.escape(f"peft={tmp_path}: torch refuses a file of weights")):
        load_denoiser(str(checkpoint), peft=str(tmp_path))


def test_a_chat_template_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, loops = tiny_tokenizer(), "".join(f"{{% for {name} in range(99999) %}}" for name in "abc")
    tokenizer.chat_template = f"{loops}{'{% endfor %}' * 3}"
    lm, alarm = MDLM(tiny_model(), tokenizer=tokenizer), signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr("mdlm_lm_eval.checkpoints.tokenizers._LONGEST", 0.01)
    with pytest.raises(OptionError, match="its chat template has not ended"):
        lm.apply_chat_template([{"role": "user", "content": "a"}])
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (alarm, (0, 0))


@pytest.mark.parametrize("model", ["mdlm", "mdlm-server"])
def test_an_output_path_that_cannot_be_written_is_found_first(tmp_path: Path, task_folder: Path, model: str) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "results"
    words = f"--model {model} --model_args pretrained=nosuch/model --tasks tiny_choice --include_path {task_folder}"
    done = run("lm_eval", *words.split(), "--output_path", str(path), code=1)
    said = f"mdlm: --output_path {path}: no results could be written there (Not a directory)"
    assert done.stderr.splitlines()[-1] == said
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    (tmp_path / "folder").mkdir()
    for path, why in (("results.json", "No space left on device"), ("folder", "Is a directory")):
        with pytest.raises(SystemExit, match="1"), ending_well("mdlm-x", after_stop="the old one is there"):
            write_whole(tmp_path / path, "")
        assert capsys.readouterr().err == f"mdlm-x: {tmp_path / path}: {why}; the old one is there\n"
        monkeypatch.undo()


# What in a checkpoint's files would give another score


@pytest.mark.parametrize(("name", "value", "said"), refused("config.json"))
def test_values_in_config_json(checkpoint: Path, tmp_path: Path, name: str, value: Any, said: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "broken")
    edit_json(tmp_path / "broken/config.json", **{name: value})
    with pytest.raises(OptionError) as error:
        load_denoiser(str(tmp_path / "broken"))
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
    edit_json(tmp_path / "adapter_config.json", base_model_name_or_path="you/another")
    lm.use_adapter(str(tmp_path))
    assert "an adapter of another" in in_words(lm.get_model_info()["mdlm"])["settings"]
