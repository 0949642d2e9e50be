"""The package from Python: its public names as README shows them, and model objects."""

import json
import logging
import os
import pickle
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, get_type_hints

import nbformat
import pytest
import torch
from lm_eval.loggers import EvaluationTracker
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import hash_string
from mypy import api
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mdlm_lm_eval import (
    DecodingOptions,
    Denoiser,
    LikelihoodOptions,
    decode,
    fill,
    from_python,
    load,
    load_denoiser,
    load_tokenizer,
    log_likelihood,
)
from mdlm_lm_eval.decoding.trace import replay
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.__main__ import main as sweep
from tests.conftest import choice, data, evaluate, generation, random_llama, tiny_model, tiny_tokenizer
from tests.support.commands import python

README = Path(__file__).parents[2] / "README.md"
# For mypy, which needs half a minute for the types of torch and others.
OUR_TYPES_ALONE = """
[mypy]
follow_imports = skip
[mypy-mdlm_lm_eval.*]
follow_imports = silent
[mypy-lm_eval.*]
ignore_missing_imports = True
[mypy-numpy.*,torch.*]
follow_imports = skip
follow_imports_for_stubs = True
"""


def test_readmes_example_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(example, {})
    assert f"  # {capsys.readouterr().out}" in example


@pytest.mark.usefixtures("without_tasks_of_lm_eval")
def test_the_examples_of_the_api_run_and_are_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(
        r"```python\n(.*?)```", (README.parent / "docs/api.md").read_text(encoding="utf-8"), re.DOTALL
    )
    exec("".join(examples), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "['C']"
    assert printed[1:3] == ["'C' step 1, confidence 1.00", "'C' step 2, confidence 1.00"]
    assert [line.endswith(" None") for line in printed[-5:-1]] == [True, True, True, False]
    assert f'exact_match,none"])  # {printed[-1]}\n' in examples[-1]
    code = (
        "".join(examples)
        + """
texts: list[str] = fill(denoiser, ["a <|mask|>"], tokenizer=tokenizer)
completion: Completion = completions[0]
facts: tuple[str | None, list[int], int, str] = (
    completion.text, completion.token_ids, completion.passes, completion.finish_reason
)
scored: list[LogLikelihood] = log_likelihood(denoiser, [[1]], [[2, 3]])
error: float | None = scored[0].standard_error
"""
    )
    names = "Completion, LogLikelihood"
    (tmp_path / "good.py").write_text(f"from mdlm_lm_eval import {names}\n{code}")
    wrong = ("decode(denoiser, 3)", "decode(denoiser, [1], batch_size='a')", "fill(denoiser, 'a')", "completion.steps")
    (tmp_path / "wrong.py").write_text(f"from mdlm_lm_eval import {names}\n{code}" + "\n".join(wrong))
    (tmp_path / "mypy.ini").write_text(OUR_TYPES_ALONE)
    settings = ("--config-file", str(tmp_path / "mypy.ini"), f"--cache-dir={os.devnull}")
    paths = [str(tmp_path / name) for name in ("good.py", "wrong.py")]
    found, _, _ = api.run([*settings, *paths])
    errors = [line.partition("error: ")[0] for line in found.splitlines() if ": error:" in line]
    # As mypy is told to skip transformers, it sees no tokenizer.
    assert get_type_hints(load)["return"] == tuple[Denoiser, PreTrainedTokenizerBase]
    n_good = len((tmp_path / "good.py").read_text().splitlines())
    assert [error.split(":")[1] for error in errors] == [str(n_good + n) for n in range(1, len(wrong) + 1)], found
    assert all("wrong.py" in error for error in errors)


# A kernel of Jupyter runs cells in the same shell, and needs seconds for its imports.
CELLS = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
os.chdir(sys.argv[1])
shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
for cell in json.loads(sys.argv[2]):
    done = shell.run_cell(cell)
    done.raise_error()
    shown = {} if done.result is None else shell.display_formatter.format(done.result)[0]
    print("\\nshown as", json.dumps([*shown]))
"""


def test_the_notebook_runs_and_shows_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands run here, on one question each; a shell of IPython executes its other cells."""
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(README.parent / "docs" / "notebook.ipynb", as_version=4)
    commands = [cell for cell in notebook.cells if cell.source.startswith("!")]
    for cell in commands:
        words, _, file = cell.source.removeprefix("!").replace("\\\n", "").partition(" > ")
        monkeypatch.setattr(sys, "argv", [*shlex.split(words), "--limit=1"])
        capsys.readouterr()
        with pytest.raises(SystemExit, match="0"):
            sweep()
        Path(file).write_text(found := capsys.readouterr().out)
        (shown,) = notebook.cells[notebook.cells.index(cell) + 1].outputs
        assert shown.data["text/markdown"].splitlines()[0] == found.splitlines()[0], "execute it again"
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell not in commands]
    committed = [{kind for output in cell.outputs for kind in output.get("data", ())} for cell in notebook.cells]
    done = python(CELLS, str(tmp_path), json.dumps([cell.source for cell in notebook.cells]))
    shown = re.findall("^shown as (.*)$", done.stdout, re.MULTILINE)
    assert [{*json.loads(kinds)} for kinds in shown] == committed
    assert sum("image/png" in kinds for kinds in committed) == 2


def test_options_are_keywords_too(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    expected = decode(denoiser, "red is", DecodingOptions(n_masks=4, steps=2), tokenizer=tokenizer)
    assert decode(denoiser, "red is", tokenizer=tokenizer, n_masks=4, steps=2) == expected
    assert decode(denoiser, "red is", DecodingOptions(n_masks=8, steps=2), tokenizer=tokenizer, n_masks=4) == expected
    with pytest.raises(OptionError, match="unknown option n_mask=4"):
        decode(denoiser, "red is", tokenizer=tokenizer, n_mask=4)
    (exact,) = log_likelihood(denoiser, "red", " is", tokenizer=tokenizer, likelihood="chain")
    assert exact.standard_error is None


def test_what_decode_cannot_take_is_one_sentence(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    for prompts in ("red is", ["red is"]):
        with pytest.raises(OptionError, match="a text cannot be decoded without a tokenizer"):
            decode(denoiser, prompts, DecodingOptions(n_masks=4))
    with pytest.raises(OptionError, match="trace=true is not allowed"):
        decode(denoiser, ["red is"], DecodingOptions(n_masks=4, trace=True), tokenizer=tokenizer)
    options, texts = DecodingOptions(n_masks=4), {"tokenizer": tokenizer}
    for arguments, more, words in (
        ((3,), {}, "a prompt must be a text or a list of token ids, not int"),
        (([1.5],), {}, "a list of token ids, not float"),
        ((["a", None],), texts, "a list of token ids, not NoneType"),
        (("a", LikelihoodOptions()), texts, r"options must be DecodingOptions\(...\), not LikelihoodOptions"),
        (("a", options), {**texts, "batch_size": 0}, "batch_size must be a whole number from 1 or None, not 0"),
        (("a", DecodingOptions(unfinished_thinking="empty")), texts, "needs lm_eval's think_end_token"),
        (("a" * 253, options), texts, "a prompt is 1 tokens too long for the model's context of 256 tokens"),
        (("<t></t>", options), {**texts, "max_thinking_tokens": 1, "end_think": "</t>"}, "that end thinking"),
        (("a", options), {**texts, "seeds": [1, 2]}, "seeds must be 1 whole numbers, one for each prompt"),
    ):
        with pytest.raises(OptionError, match=words):
            decode(denoiser, *arguments, **more)
    with pytest.raises(OptionError, match=r"denoiser must be what load\(\)"):
        decode("built-in", "a", tokenizer=tokenizer)
    with pytest.raises(OptionError, match="takes texts with"):
        fill(denoiser, [[1, 2]], tokenizer=tokenizer)
    with pytest.raises(OptionError, match="without a slot"):
        fill(denoiser, "a", tokenizer=tokenizer)
    for pair, more, words in (
        ((["a", "b"], ["c"]), texts, "as many contexts as continuations, not 2 and 1"),
        (("a", "b"), {}, "a text cannot be scored without a tokenizer"),
        (("a" * 256, "b"), texts, "a context is 1 tokens too long"),
        ((["a"], [[1, 2]]), texts, "must both be texts or lists of token ids, not str"),
        (("a", "b", options), texts, r"options must be LikelihoodOptions\(...\), not DecodingOptions"),
    ):
        with pytest.raises(OptionError, match=words):
            log_likelihood(denoiser, *pair, **more)
    assert denoiser.forward_passes == 0


def test_a_completion_says_how_each_token_came_to_be(checkpoint: Path) -> None:
    denoiser, tokenizer = load(str(checkpoint))
    options, done = DecodingOptions(n_masks=6, steps=3), []
    prompts = ["red is", tokenizer.encode("blue")]
    found = decode(
        denoiser,
        prompts,
        options,
        tokenizer=tokenizer,
        return_completions=True,
        batch_size=1,
        progress=lambda n, total: done.append((n, total)),
    )
    assert [one.text for one in found] == decode(denoiser, prompts, options, tokenizer=tokenizer)
    assert done == [(1, 2), (2, 2)]
    for one in found:
        assert one.text == tokenizer.decode(one.token_ids, skip_special_tokens=True)
        assert one.finish_reason == ("ended_by_eos" if one.token_ids[-1] == tokenizer.eos_token_id else "cut")
        assert [each.step for each in one.filled if each.step not in (1, 2, 3)] == []
        assert {(each.step, each.confidence) for each in one.filled} <= {(e.step, e.confidence) for e in one.events}
        start = [2] * 6
        *_, (last, canvas) = replay([0] * min(e.position for e in one.events) + start, one.events)
        assert (last, canvas[-6:][: len(one.token_ids)]) == (one.passes, one.token_ids)


def test_seeds_are_those_of_prompts(checkpoint: Path) -> None:
    denoiser, tokenizer = load(str(checkpoint))
    options = DecodingOptions(n_masks=6, temperature=1.0)
    first, again, other = decode(denoiser, ["red"] * 3, options, tokenizer=tokenizer, seeds=[1, 1, 2])
    assert first == again != other
    assert decode(denoiser, ["red"], options, tokenizer=tokenizer, seeds=[1]) == [first]
    assert len({*decode(denoiser, ["red"] * 3, options, tokenizer=tokenizer)}) > 1


def test_slots_are_filled_as_by_lm_eval(checkpoint: Path) -> None:
    denoiser, tokenizer = load(str(checkpoint))
    texts = ["red <|mask|> is <|mask:3|>.", "a<|mask|>"]
    lm = MDLM(str(checkpoint), device="cpu", batch_size=2)
    expected = lm.generate_until([generation(text, infill=True) for text in texts], disable_tqdm=True)
    assert fill(denoiser, texts, tokenizer=tokenizer) == expected
    assert fill(denoiser, texts[1], DecodingOptions(), tokenizer=tokenizer) == expected[1:]


ESTIMATORS: list[dict[str, Any]] = data("cases.json")["estimators"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_log_likelihoods_are_those_of_lm_eval(checkpoint: Path, estimator: dict[str, Any]) -> None:
    denoiser, tokenizer = load(str(checkpoint))
    pairs = [("red is", " a colour"), ("red is ", "b"), ("", "alone"), ("<|eos|>x", "<|mask|>"), ("red is", " a ball")]
    lm = MDLM(str(checkpoint), device="cpu", batch_size=4, **{"seed": 0} | estimator)  # as `LikelihoodOptions`
    expected = lm.loglikelihood([choice(*pair, doc=n) for n, pair in enumerate(pairs)], disable_tqdm=True)
    options = LikelihoodOptions(**estimator)
    found = log_likelihood(denoiser, *map(list, zip(*pairs, strict=True)), options, tokenizer=tokenizer)
    assert [(one.total, one.is_greedy) for one in found] == [
        (pytest.approx(ll, abs=1e-4), flag) for ll, flag in expected
    ]
    for (_, text), one in zip(pairs, found, strict=True):
        assert tokenizer.decode(one.token_ids).lstrip() == text.lstrip()
        assert len(one.by_token) == len(one.token_ids)
        assert sum(one.by_token) == pytest.approx(one.total, abs=1e-6)
    is_sampled = [len(one.token_ids) > 2 and "mc_num" in estimator for one in found]
    assert [one.standard_error is not None for one in found] == is_sampled
    (same,) = log_likelihood(denoiser, pairs[0][0], pairs[0][1], options, tokenizer=tokenizer)
    assert same == found[0]
    ids = log_likelihood(denoiser, [[5, 6]], [found[0].token_ids], options)
    assert ids[0].token_ids == found[0].token_ids


def test_a_token_across_the_contexts_end_is_split_as_in_lm_eval(checkpoint: Path) -> None:
    denoiser, tokenizer = load(str(checkpoint))
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    rules["model"]["vocab"][":?"] = rules["model"]["vocab"].pop("~")
    rules["model"]["merges"] = [[":", "?"]]
    merging = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(rules)), eos_token="<|eos|>", mask_token="<|mask|>"
    )
    lm = MDLM(str(checkpoint), tokenizer=merging, device="cpu", likelihood="chain")
    ((expected, _),) = lm.loglikelihood([choice("Right:", "?ab")], disable_tqdm=True)
    (found,) = log_likelihood(denoiser, "Right:", "?ab", tokenizer=merging, likelihood="chain")
    assert found.total == pytest.approx(expected, abs=1e-4)
    assert merging.decode(found.token_ids) == "ab"


def test_answers_end_at_the_tokens_of_the_generation_config_as_in_lm_eval(checkpoint: Path) -> None:
    (denoiser, tokenizer), lm = load(str(checkpoint)), MDLM(str(checkpoint), device="cpu", batch_size=4, n_masks=8)
    ids = decode(denoiser, [tokenizer.encode("red is")], n_masks=8)[0]
    denoiser.model.generation_config.eos_token_id = [1, ids[3]]
    lm.eos_ids |= {ids[3]}
    expected = lm.generate_until([generation("red is")], disable_tqdm=True)
    assert (
        decode(denoiser, "red is", tokenizer=tokenizer, n_masks=8)
        == expected
        == [tokenizer.decode(ids[: ids.index(ids[3])])]
    )


def test_fillers_stand_behind_the_masks(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    seen: list[list[int]] = []
    denoiser.model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: seen.extend(inputs[0].tolist()))
    decode(denoiser, ["ab"], DecodingOptions(n_masks=2, n_fillers=3, filler="!?"), tokenizer=tokenizer)
    assert seen[0] == [*tokenizer.encode("ab"), 2, 2, *tokenizer.encode("!?!?!?")]


def test_suppress_eos_leaves_ends_of_turn_possible_as_in_lm_eval(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    options = DecodingOptions(n_masks=4, suppress_eos=True)
    ((first, *_),) = decode(denoiser, [tokenizer.encode("red is")], options, stop_ids=[tokenizer.eos_token_id])
    monkeypatch.setattr(from_python, "end_of_turn_ids", lambda _: frozenset({first}))
    assert decode(denoiser, ["red is"], options, tokenizer=tokenizer) == [""]


def test_a_model_object_and_a_tokenizer_object(checkpoint: str) -> None:
    defaults = {"dtype": "auto", "revision": "main", "subfolder": "", "max_batch_size": 2}  # of lm-eval's command
    from_objects = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), batch_size="auto", **defaults)
    requests = [generation(text, max_gen_toks=4) for text in ("a", "bb", "ccc", "dddd", "eeeee")]
    expected = MDLM(str(checkpoint), device="cpu", batch_size=4).generate_until(requests, disable_tqdm=True)
    assert from_objects.generate_until(requests, disable_tqdm=True) == expected
    facts = from_objects.get_model_info()["mdlm"]
    with torch.no_grad():
        from_objects.model.lm_head.weight += 1.0
    from_objects.generate_until(requests, disable_tqdm=True)
    assert facts["pretrained"] == "LlamaForCausalLM"
    assert facts["weights"] != from_objects.get_model_info()["mdlm"]["weights"], "it was trained between them"


def test_a_named_chat_template_is_applied_and_recorded(task_folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {name: name + "{{ messages[0].content }}" for name in ("default", "x")}
    lm, task = MDLM(tiny_model(), tokenizer=tokenizer, batch_size=5), "tiny_generate"
    for asked, name in (("x", "x"), (True, "default")):
        results = evaluate(lm, [task], task_folder, apply_chat_template=asked, evaluation_tracker=EvaluationTracker())
        assert results["samples"][task][0]["arguments"][0][0].startswith(f"{name}red")
        assert results["config"]["mdlm"]["chat_template_sha"] == hash_string(tokenizer.chat_template[name])


def test_a_model_object_and_loggers_are_left_as_they_were(checkpoint: str, tmp_path: Path) -> None:
    names = HFLM.__module__, "transformers.configuration_utils"
    model = random_llama(259, num_key_value_heads=2, pad_token_id=0, eos_token_id=1, mask_token_id=2)
    before, given = pickle.dumps(model.config), {"tokenizer": tiny_tokenizer(), "batch_size": 1}
    for is_disabled in (True, False):
        for name in names:
            logging.getLogger(name).disabled = is_disabled
        assert MDLM(model, **given).denoiser.model is model
        with pytest.raises(AttributeError):
            MDLM(model, mixed_precision_dtype="zz", **given)
        shutil.copy(Path(checkpoint) / "config.json", tmp_path)
        with pytest.raises(Exception, match="tokenizer"):
            load_tokenizer(str(tmp_path))
        assert [logging.getLogger(name).disabled for name in names] == [is_disabled] * 2
    assert pickle.dumps(model.config) == before
    model.save_pretrained(tmp_path)
    assert load_denoiser(str(tmp_path)).model.config._attn_implementation == "sdpa_grouped", "of a model of ours"
