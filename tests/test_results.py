"""The room for results: statistics, names, whole-file writes, claims, and what may not be published."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scipy.stats
from lm_eval import loggers
from mdlm_lm_eval.tasks.questions import N_TEST_QUESTIONS
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results import suite
from mdlm_lm_eval.results.files import UnusableFile, check_writable, read_json, whole_folder, write_whole
from mdlm_lm_eval.results.locks import Claimed, claim
from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.results.names import adapter_name, model_name, recorded_name
from mdlm_lm_eval.results.privacy import published, published_command
from mdlm_lm_eval.results.samples import samples_path
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.results.statistics import McNemar, mcnemar, paired_bootstrap, paired_drop, paired_interval, t_interval
from mdlm_lm_eval.results.tracker import check_saved, save_whole, saved_files, send_cleaned


def test_nothing_heavy_is_imported() -> None:
    modules = ", ".join(
        f"mdlm_lm_eval.results.{path.stem}"
        for path in (Path(suite.__file__).parent).glob("*.py")
        if path.stem[0] != "_"
    )
    code = f"import sys, {modules}; print([m for m in ('torch', 'transformers', 'lm_eval') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# Statistics


def test_the_t_interval_is_scipys() -> None:
    values = [0.5, 0.7, 0.65, 0.9]
    found = t_interval(values)
    low, high = scipy.stats.t.interval(0.95, 3, loc=found.mean, scale=scipy.stats.sem(values))
    assert (found.low, found.high, found.n) == (pytest.approx(low), pytest.approx(high), 4)
    assert t_interval([0.5]).half_width is None


def test_what_all_tasks_share_does_not_widen_a_paired_interval() -> None:
    first = {"a": 0.2, "b": 0.5, "c": 0.9}
    shifted = paired_interval(first, {task: value + 0.05 for task, value in first.items()})
    assert (shifted.mean, shifted.low, shifted.high) == pytest.approx((0.05, 0.05, 0.05))
    with pytest.raises(KeyError):
        paired_interval(first, {"a": 0.5})


def test_a_drop_is_between_the_best_and_the_worst_setting() -> None:
    best, middle, worst = {"a": 0.7, "b": 0.9}, {"a": 0.5, "b": 0.9}, {"a": 0.4, "b": 0.8}
    found = paired_drop([middle, best, worst])
    assert found == paired_interval(worst, best)
    assert found.scaled(100).in_words == "20.0 ± 127.1"


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (3, 12), (40, 60), (7, 7)])
def test_mcnemar_is_the_exact_binomial_test(only_first: int, only_second: int) -> None:
    pairs = [(1.0, 0.0)] * only_first + [(0.0, 1.0)] * only_second + [(1.0, 1.0)] * 20
    n = only_first + only_second
    p = scipy.stats.binomtest(only_first, n, 0.5).pvalue if n else 1.0
    assert mcnemar(pairs) == McNemar(only_first, only_second, pytest.approx(p))


def test_the_bootstrap_agrees_with_the_normal_interval_of_many_questions() -> None:
    pairs = [(0.0, 1.0)] * 300 + [(1.0, 0.0)] * 100 + [(1.0, 1.0)] * 1600
    found = paired_bootstrap({"one": pairs, "two": pairs})
    error = ((0.2 - 0.1**2) / 2000 / 2) ** 0.5
    assert found.mean == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1 - 1.96 * error, 0.1 + 1.96 * error), abs=0.001)
    assert paired_bootstrap({"one": pairs}) == paired_bootstrap({"one": pairs})


# Names


def test_a_model_has_a_name_and_no_path(tmp_path: Path) -> None:
    folder = tmp_path / "my-llada"
    folder.mkdir()
    assert model_name(None) == model_name(str(default_model_path())) == "built-in"
    assert model_name(str(folder)) == "my-llada"
    assert model_name("GSAI-ML/LLaDA-8B-Base") == "GSAI-ML/LLaDA-8B-Base"
    assert (
        recorded_name("/home/somebody/out/ce") == recorded_name("C:\\out\\ce") == recorded_name("../../out/ce") == "ce"
    )
    assert recorded_name("/venv/site-packages/mdlm_lm_eval/default_model") == "built-in"


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("---\nmodel_name: MA (CE + TV), seed 0\n---\n# Adapter\n", "MA (CE + TV), seed 0"),
        ("---\nmodel-index:\n- name: MA, seed 1\n  results: []\n---\n", "MA, seed 1"),
        ("---\nlibrary_name: peft\n---\n# Adapter\n", "adapter"),
        ("# No front matter\n", "adapter"),
        ("---\n[: yaml\n---\n", "adapter"),
        ("---\n- a list\n---\n", "adapter"),
    ],
)
def test_an_adapter_is_called_what_its_card_says(tmp_path: Path, card: str, name: str) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "README.md").write_text(card)
    assert adapter_name(str(folder)) == name
    assert adapter_name("organisation/adapter") == "organisation/adapter"


# Privacy


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"token": "hf_abc", "mask_token_id": 5, "add_bos_token": True}, {"mask_token_id": 5, "add_bos_token": True}),
        ("</think>", "</think>"),
        ({"proxies": {"https": "http://me:pw@host"}, "hub_token": "x", "use_auth_token": True}, {}),
        ("pretrained=/home/me/models/llada,token=secret,dtype=bfloat16", "pretrained=llada,dtype=bfloat16"),
        ("see hf_abcdefghijklmnopqrstuvwxyz", "see (removed)"),
        ("http://me:pw@host/path", "http://host/path"),
        ("https://huggingface.co/org/model", "https://huggingface.co/org/model"),
        (["/home/me/my models/a b", "~/x", "C:\\Users\\me\\x", "file:///home/me/x"], ["a b", "x", "x", "x"]),
        ("GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Base"),
        ("cannot open /home/me/file.txt", "cannot open file.txt"),
        ({"steps": 4, "share": 0.5, "none": None}, {"steps": 4, "share": 0.5, "none": None}),
        ("n_masks=1,2,10", "n_masks=1,2,10"),
        ({"filler": "/", "until": ["//", " / "]}, {"filler": "/", "until": ["//", " / "]}),
        ("a // b", "a // b"),
        ({"system_instruction": "/no_think"}, {"system_instruction": "/no_think"}),
        ({"system_instruction": "Be brief. /no_think."}, {"system_instruction": "Be brief. /no_think."}),
        ({"system_instruction": "See /home/me/x /no_think"}, {"system_instruction": "See x /no_think"}),
        ({"system_instruction": "/tmp"}, {"system_instruction": "tmp"}),
        ({"pretrained": "/model"}, {"pretrained": "model"}),
    ],
)  # fmt: skip
def test_secrets_and_folders_are_not_published(given: Any, left: Any) -> None:
    assert published(given) == left


@pytest.mark.parametrize(
    ("command", "left"),
    [
        (
            "lm_eval --model_args 'pretrained=/home/me/my models/x,token=hf_a,n_masks=5' --tasks mdlm_context",
            "lm_eval --model_args pretrained=x,n_masks=5 --tasks mdlm_context",
        ),
        (
            'lm_eval --model_args \'{"pretrained": "/home/me/x", "token": "y", "max_memory": {"0": "1GB"}}\'',
            'lm_eval --model_args \'{"pretrained": "x", "max_memory": {"0": "1GB"}}\'',
        ),
        ("mdlm-sweep --output_path=/home/me/out --config e09", "mdlm-sweep --output_path=out --config e09"),
        ("mdlm-sweep 'unfinished /home/me/out", "mdlm-sweep 'unfinished out"),
        (
            "lm_eval --system_instruction /no_think --output_path /out",
            "lm_eval --system_instruction /no_think --output_path out",
        ),
        ("lm_eval --system_instruction=/no_think", "lm_eval --system_instruction=/no_think"),
        ("lm_eval --model_args token=abc pretrained=x", "lm_eval --model_args pretrained=x"),
        ("lm_eval --system_instruction ''", "lm_eval --system_instruction ''"),
        ("mdlm-sweep --peft=/home/me/a,~you/b", "mdlm-sweep --peft=a,b"),
        ("mdlm-sweep --peft '/home/Smith, John/a,C:\\b'", "mdlm-sweep --peft a,b"),
    ],
)
def test_a_recorded_command_names_neither(command: str, left: str) -> None:
    assert published_command(command) == left


# Files


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "file.json"
    write_whole(path, "one")
    assert path.read_text() == "one"

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OptionError, match=r"file.json cannot be written: No space left on device"):
        write_whole(path, "two")
    assert path.read_text() == "one"
    assert [one.name for one in path.parent.iterdir()] == ["file.json"]


def test_processes_of_one_id_write_the_same_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers every process may have the id 1; threads have the same id everywhere."""
    both = threading.Barrier(2, timeout=60)
    # Neither has moved its file when the other opens one.
    monkeypatch.setattr(os, "fsync", lambda descriptor: both.wait())
    path = tmp_path / "file.json"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write_whole, [path, path], ["one", "two"]))
    assert path.read_text() in ("one", "two")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_and_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / ".cell.unfinished").mkdir()
    (tmp_path / ".cell.unfinished" / "old").touch()
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "cell") as folder:
        (folder / "new" / "newer").write_text("")
    assert list(tmp_path.iterdir()) == []
    with whole_folder(tmp_path / "cell") as folder:
        (folder / "new").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["cell", "cell/new"]


def test_what_cannot_be_written_is_said_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_writable(tmp_path / "a" / "b", "--output_path")
    for folder in (tmp_path / "file" / "x", tmp_path / ("x" * 300), Path("a\0b")):
        with pytest.raises(OptionError, match=r"(?s)^--output_path .* cannot be written: "):
            check_writable(folder, "--output_path")


def test_only_regular_files_of_sane_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(2**30)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "broken.json").write_bytes(b"\xff\xfe{")
    reasons = {
        "fifo": "is no regular file",
        "zero": "is no regular file",
        "folder": "cannot be read: Is a directory",
        "large": "has 1024 MiB; at most 64 are read",
        "deep": "is no whole JSON file",
        "broken": "is no whole JSON file",
        "missing": "cannot be read: No such file or directory",
    }
    for name, reason in reasons.items():
        with pytest.raises(UnusableFile) as error:
            read_json(tmp_path / f"{name}.json")
        assert str(error.value).startswith(reason), name


def test_half_characters_do_not_get_through(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text('{"a\\ud800": ["\\udcff", "\\ud83d\\ude00"]}')
    content = read_json(tmp_path / "odd.json")
    assert content == {"a?": ["?", "\N{GRINNING FACE}"]}
    json.dumps(content, ensure_ascii=False).encode("utf-8")


def test_an_error_is_one_line() -> None:
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 9999))) < 600


def test_a_markdown_table_has_a_rule() -> None:
    assert markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


# lm-eval's tracker


@pytest.fixture
def tracker(tmp_path: Path) -> Any:
    """lm-eval's own, in a copy of its module."""
    spec = importlib.util.find_spec("lm_eval.loggers.evaluation_tracker")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    save_whole(module)
    made = module.EvaluationTracker(output_path=str(tmp_path / "out"))
    made.general_config_tracker.model_name = made.general_config_tracker.model_name_sanitized = "random"
    return made


def results_of(**arguments: Any) -> dict[str, Any]:
    mdlm = {"pretrained": "built-in", "adapter": None}
    task = {"dataset_path": "/home/me/data", "metadata": {**arguments, "config_source": "/home/me/t.yaml"}}
    return {"config": {"model_args": arguments, "mdlm": mdlm}, "configs": {"t": task}}


def test_what_lm_eval_writes_is_clean_and_lies_under_the_models_name(tracker: Any, tmp_path: Path) -> None:
    tracker.general_config_tracker.system_instruction = "answer as in /home/me/notes"
    tracker.save_results_aggregated(results=results_of(token="hf_x", pretrained="/home/me/m", n_masks=5))
    saved_files()
    (path,) = (tmp_path / "out" / "built-in").glob("results_*.json")
    content = json.loads(path.read_text())
    assert content["config"]["model_args"] == {"pretrained": "m", "n_masks": 5}
    assert content["configs"]["t"]["dataset_path"] == "data"
    # lm-eval puts the model arguments there, too.
    assert content["configs"]["t"]["metadata"] == {"pretrained": "m", "n_masks": 5, "config_source": "t.yaml"}
    assert content["model_name"] == "built-in"
    assert content["system_instruction"] == "answer as in notes"


def test_what_lm_eval_sends_is_clean() -> None:
    class Logger:
        """Stands for lm-eval's, which need packages of their own."""

        def post_init(self, results: dict[str, Any]) -> None:
            self.sent = json.dumps(results)

    module = ModuleType("lm_eval.loggers")
    module.WandbLogger, module.TrackioLogger = type("Wandb", (Logger,), {}), type("Trackio", (Logger,), {})
    send_cleaned(module)
    for kind in (module.WandbLogger, module.TrackioLogger):
        logger = kind()
        logger.post_init(results_of(token="hf_x", pretrained="/home/me/m"))
        assert '"model_args": {"pretrained": "m"}' in logger.sent
        assert "hf_x" not in logger.sent
        assert "/home/me" not in logger.sent


def test_lm_evals_own_loggers_send_what_is_clean() -> None:
    for kind in (loggers.WandbLogger, loggers.TrackioLogger):
        assert kind.post_init.__wrapped__ is not None


def test_a_result_that_was_not_written_ends_in_a_sentence(tracker: Any, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    tracker.save_results_aggregated(results=results_of())
    with pytest.raises(
        OptionError, match=r"out: the results could not be written whole; is the disk full\? \(cannot be read: "
    ):
        saved_files()
    saved_files()


def test_samples_that_are_cut_off_are_said(tracker: Any, tmp_path: Path) -> None:
    tracker.save_results_aggregated(results=results_of())
    tracker.save_results_samples(task_name="t", samples=[])
    saved_files()
    with pytest.raises(OptionError, match="the samples of t are cut off"):
        check_saved(tracker, {"t": 3})


def test_samples_lie_beside_a_file_of_any_name(tracker: Any, tmp_path: Path) -> None:
    tracker.output_path = str(tmp_path / "out" / "my_run.json")
    tracker.save_results_aggregated(results=results_of())
    tracker.save_results_samples(task_name="t", samples=[])
    result, samples = dict.fromkeys(saved_files())  # the hook may have wrapped lm-eval's writer, too
    assert result.name.startswith("my_run_2")
    assert samples_path(result, "t") == samples
    assert samples_path(result, "u") is None


# Claims


def test_the_second_to_claim_a_cell_hears_who_holds_it(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom mdlm_lm_eval.results.locks import claim\n"
        "with claim(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    cell = tmp_path / "cell"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(cell)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(Claimed, match=rf"cell is being written by process {holder.pid} on \S+"), claim(cell):
        pytest.fail("claimed twice")
    with claim(tmp_path / "other"):
        pass
    holder.kill()
    holder.communicate()
    with claim(cell, wait=30):  # a dead process holds nothing
        pass
    assert list(tmp_path.iterdir()) == []


# The suite


def test_the_suite_is_that_of_the_tasks_folder() -> None:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks_path()), include_defaults=False)
    task = manager.load(["mdlm_verb_smallest"])["tasks"]["mdlm_verb_smallest"]
    recorded = task.config.metadata
    assert {name: recorded[name] for name in DEFAULT_SETTINGS} == DEFAULT_SETTINGS
    assert recorded["version"] == suite.current_version()
    assert len(task.test_docs()) == N_TEST_QUESTIONS
    assert len(suite.task_names()) == 16
    for folder in ("context", "slot", "position", "locality"):
        for path in (tasks_path() / folder).glob("mdlm_*_*est*.yaml"):
            found = suite.suite_task(path.stem)
            assert found is not None
            assert found.group.startswith(f"mdlm_{folder}")
    assert suite.suite_task("mdlm_context") is suite.suite_task("mdlm_country_smallest_slot_pos0") is None
