"""`mdlm-check`: nothing is wrong with what is right, planted faults are named, and bad input is one sentence."""

import copy
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdlm_lm_eval.check import authors, here
from mdlm_lm_eval.check.__main__ import _parser, check, main
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.text import check_in_words
from tests.conftest import data, refused
from tests.support.leaderboard_files import gsm8k_file, write
from tests.support.local_tasks import local_task

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FILES = ROOT / "tests" / "authors"
SAMPLER, NETWORK = f"{FILES / 'sampler.py'}:generate", f"{FILES / 'network.py'}:Network"
SHORT = ("--gen_toks", "4", "--requests", "0", "--apply_chat_template")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of checks, which is nobody's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mdlm_lm_eval" / "checks"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authors' side runs in this process, where everything is imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    other = subprocess.run  # Python asks for the processor's name with it

    def run(words: Sequence[str], **how: Any) -> Any:
        return authors.main(Path(words[-1])) if authors.__file__ in words else other(words, **how)

    monkeypatch.setattr(subprocess, "run", run)


def checked(checkpoint: Path, *words: str) -> dict[str, Any]:
    return check(_parser().parse_args([str(checkpoint), *SHORT, *words]))


def test_nothing_is_wrong_with_the_same_network_and_sampler(
    checkpoint: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processes of their own, as users run it; the record is found by a run of the same weights and options."""
    found = checked(checkpoint, "--modeling", NETWORK, "--against", SAMPLER, "--reference_python", sys.executable)
    assert found["verdict"] == "no fault, compared logits and choices"
    assert found["logits"]["largest_difference"] < 1e-5
    assert all(row["same_argmax"] == 1.0 for row in found["logits"]["canvases"])
    choices = found["choices"]
    assert (choices["passes"], choices["other_choices"], choices["causes"]) == (16, [], [])
    assert (choices["same_answers"], choices["our_passes"], choices["their_passes"]) == (4, 16, 16)
    assert found["recognised"]["mask_token_id"] == 2
    assert set(found["equal_strings"]["same_strings"].values()) == {8}
    (path,) = cache.iterdir()
    assert json.loads(path.read_text()) == found
    said = capsys.readouterr().out
    assert "all equal" in said
    assert str(path) in said

    applies, other = MDLM(str(checkpoint)), MDLM(str(checkpoint), steps=2)
    record = {"file": path.name, "verdict": found["verdict"], "stale": [], "noise_floor": None}
    assert applies.get_model_info()["mdlm"]["check"] == record
    assert other.get_model_info()["mdlm"]["check"] is None
    other.use_options({"pretrained": str(checkpoint), "steps": 2, "check": str(path)})
    stale = other.get_model_info()["mdlm"]["check"]
    assert stale == record | {"stale": ["options"]}
    assert check_in_words(stale) == "no fault, compared logits and choices; stale: other options"


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("function", ["least_sure", "second_token"])
def test_a_fault_of_a_sampler_is_found(checkpoint: Path, function: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(checkpoint, "--against", f"{FILES / 'sampler.py'}:{function}")
    choices = found["choices"]
    assert len(choices["faults"]) >= 8
    assert found["verdict"] == f"fault: {len(choices['faults'])} of 16 passes choose otherwise"
    assert all(one["margin"] > one["limit"] and not one["follows_logits"] for one in choices["faults"])
    differ = {place["theirs"] == 2 for one in choices["faults"] for place in one["places"]}  # left as a mask or not
    assert differ == {False} if function == "second_token" else True in differ
    assert "places=" in capsys.readouterr().out


@pytest.mark.usefixtures("in_process")
def test_a_fault_of_a_network_is_found(checkpoint: Path) -> None:
    """And is none of the sampler."""
    found = checked(checkpoint, "--modeling", f"{FILES / 'network.py'}:OtherRotary", "--against", SAMPLER)
    assert found["verdict"] == "fault: the networks differ"
    assert found["choices"]["other_choices"]
    assert not found["choices"]["faults"]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("argument", "cause"), data("cases.json")["known causes"])
def test_a_known_cause_is_named_and_is_no_fault(checkpoint: Path, argument: str, cause: str) -> None:
    found = checked(checkpoint, "--against", SAMPLER, "--reference_args", argument)
    assert any(each.startswith(cause) for each in found["choices"]["causes"])
    assert found["verdict"] == f"no fault, compared {'nothing' if 'canvas' in cause else 'choices'}"


@pytest.mark.usefixtures("in_process")
def test_a_known_cause_excuses_what_it_causes_and_nothing_else(checkpoint: Path) -> None:
    """A threshold explains how many masks are filled at a time, and not the second likeliest token."""
    words = ("--against", f"{FILES / 'sampler.py'}:second_token", "--reference_args", "threshold=0.1")
    found = checked(checkpoint, *words)
    assert found["choices"]["causes"] == ["threshold=0.1 in their call and none here"]
    assert found["choices"]["faults"]
    assert found["verdict"].startswith("fault: ")


@pytest.mark.usefixtures("in_process")
def test_a_template_that_is_left_out_and_another_mask_than_their_default_are_named(checkpoint: Path) -> None:
    words = [str(checkpoint), "--against", SAMPLER, "--gen_toks", "4", "--requests", "0"]
    mask, template = check(_parser().parse_args([*words, "--model_args", "mask_token_id=7"]))["choices"]["causes"]
    assert mask == "mask_id=2 by default in their function and 7 here"
    assert "--apply_chat_template" in template


@pytest.mark.usefixtures("without_tasks_of_lm_eval")
def test_the_noise_floor_compares_answers_of_a_task(
    checkpoint: Path, task_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--requests", "3", "--task", "tiny_generate", "--include_path", str(task_folder))
    noise = checked(checkpoint, *words)["noise_floor"]
    assert (noise["answers"], noise["dtypes"]) == (3, ["float32", "bfloat16"])
    assert noise["share"] == noise["flipped"] / 3
    low, high = noise["interval"]
    assert 0 <= low <= noise["share"] <= high <= 1
    assert high > 0.5  # of three answers
    assert "3 answers flip" in capsys.readouterr().out
    same = checked(checkpoint, *words, "--noise", "batch_size=3")["noise_floor"]
    assert (same["flipped"], same["largest_move"]) == (0, 0.0)


@pytest.mark.usefixtures("without_tasks_of_lm_eval")
def test_the_noise_floor_recovers_noise_that_is_added_to_logits(
    checkpoint: Path, task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of known size: the share of answers that it must flip is drawn from the logits without it."""
    n, size = 60, 0.5
    documents = [{"q": f"{k} {k * k} is", "a": "x"} for k in range(n)]
    how = {"task": "tiny_noise", "generation_kwargs": {"until": [], "max_gen_toks": 1}}
    local_task(tmp_path, task_folder / "tiny_generate.yaml", {"test": documents}, name="tiny_noise", **how)
    subject = here.Subject.of(str(checkpoint), {"batch_size": 8}, 1)
    lm = MDLM(**subject.arguments)
    lm.denoiser, clean = copy.copy(lm.denoiser), []
    plain, draws = type(lm.denoiser).logits, torch.Generator().manual_seed(0)
    monkeypatch.setattr(
        lm.denoiser, "logits", lambda *a, **b: clean.append(plain(lm.denoiser, *a, **b)) or clean[-1].clone()
    )
    words = ["--task", "tiny_noise", "--requests", str(n), "--include_path", str(tmp_path), "--noise", "seed=1"]

    def noisy(**arguments: Any) -> MDLM:
        other = MDLM(**arguments)
        own = other.denoiser
        spread = lambda logits: logits + size * torch.randn(logits.shape, generator=draws)  # noqa: E731
        own.logits = lambda *a, **b: spread(plain(own, *a, **b))  # type: ignore[method-assign]
        return other

    monkeypatch.setattr(here, "MDLM", noisy)
    found = here.noise_floor(subject, [lm], _parser().parse_args(words))
    logits = torch.cat(clean)
    logits[:, lm.mask_token_id] = -torch.inf
    strings = np.array([lm.tokenizer.decode([token], skip_special_tokens=True) for token in range(logits.shape[1])])
    drawn = (logits + size * torch.randn(100, *logits.shape, generator=draws)).argmax(-1).numpy()  # [100, n]
    expected = float((strings[drawn] != strings[logits.argmax(-1).numpy()]).mean())
    low, high = found["interval"]
    assert 0.1 < expected < 0.9
    assert low <= expected <= high


@pytest.mark.usefixtures("in_process", "without_tasks_of_lm_eval")
@pytest.mark.parametrize(("words", "sentence"), refused("mdlm-check"))
def test_bad_input_is_one_sentence(
    checkpoint: Path, words: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words.replace("AUTHORS", str(FILES)).split()
    monkeypatch.setattr(sys, "argv", ["mdlm-check", str(checkpoint), *SHORT, *given])
    with pytest.raises(SystemExit, match="2"):
        main()
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("mdlm-check: "))
    assert sentence in said


@pytest.mark.parametrize("content", [gsm8k_file(), {}, {"applies_to": {}, "verdict": None}, "{"])
def test_a_check_that_is_no_record_of_one_is_refused(tmp_path: Path, content: Any) -> None:
    path = write(tmp_path, a=content) / "a.json"
    with pytest.raises(OptionError, match=r"a\.json: the file (differs|cannot be read).*; mdlm-check writes one"):
        MDLM(check=str(path))


def test_the_record_beside_the_authors_files_holds_no_fault() -> None:
    rows = json.loads((ROOT / "benchmarks" / "check_against_authors.json").read_text(encoding="utf-8"))
    assert {row["model"] for row in rows} >= {"llada", "dream", "sdar", "built-in", "built-in-block", "built-in-lists"}
    assert all(row["as_expected"] and not row["faults"] for row in rows)
    assert all(row["logits_differ_by"] < 1e-4 for row in rows if row["network"] == "theirs")
