"""docs/extending.md: its package installs and its commands run; its diffs apply and do what the page says."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lm_eval.utils import make_table, simple_parse_args_string
from safetensors.torch import save_file

from mdlm_leaderboard.build import read_board
from mdlm_lm_eval import DecodingOptions, decode, load_denoiser, loader, tasks_path
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.trace import replay
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.resolve import resolve
from mdlm_lm_eval.results import load
from mdlm_lm_eval.sweep.__main__ import settings_of
from mdlm_lm_eval.sweep.claims import Claims
from mdlm_lm_eval.sweep.plan import plan
from tests.conftest import evaluate, random_llama, tiny_tokenizer
from tests.pretended_gpu import PretendedGpu
from tests.support.canvases import MASK, canvas, model
from tests.support.commands import python, run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A folder with the page's package, as an installation leaves it."""
    shutil.copytree(EXAMPLES, tmp_path / "acme", ignore=shutil.ignore_patterns("__pycache__"))
    information = tmp_path / "acme-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    groups = re.findall(r'^\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"$', PAGE, re.MULTILINE)
    entries = "".join(f"[{group}]\n{name} = {module}\n" for group, name, module in groups)
    (information / "entry_points.txt").write_text(entries)
    return tmp_path


# All in one process, as its imports take most of the time.
PROGRAM = """
import json, os, runpy, sys
os.chdir(sys.path[0])
from mdlm_lm_eval import DecodingOptions, decode, load_denoiser, load_tokenizer
from mdlm_lm_eval.checkpoints import end_of_turn_ids
from mdlm_lm_eval.families import family_of

folder, options, flags = map(json.loads, sys.argv[1:])
print(len(decode(load_denoiser(), [[5, 6]], DecodingOptions(**options))[0]))
planned = DecodingOptions(n_masks=8, steps=4, eta=0.5, sampler="path_planning")
print(json.dumps(decode(load_denoiser(), [[5, 6]], planned)))
denoiser, tokenizer = load_denoiser(folder), load_tokenizer(folder)
answers = decode(denoiser, [[5, 6, 7]], DecodingOptions(n_masks=6))
print(json.dumps([family_of(denoiser.model.config).name, answers, sorted(end_of_turn_ids(tokenizer))]))
sys.argv[1:] = flags
runpy.run_module("mdlm_finetune", run_name="__main__")
"""


def test_an_installed_sampler_rule_family_and_objective(acme: Path) -> None:
    (arguments,) = re.findall("--model_args (.*unmasking=right_to_left)", PAGE)
    options = {name: int(value) if value.isdigit() else value for name, value in re.findall(r"(\w+)=(\w+)", arguments)}
    (flags,) = re.findall("mdlm-finetune (.* whole_answer .*)", PAGE)
    (acme / "answers.jsonl").write_text('{"prompt": "red is", "response": "colour"}\n' * 4)
    words = [*flags.split(), "--model_name_or_path", "built-in", "--max_steps", "1", "--evaluation_limit", "0"]
    # A checkpoint of the family, under its names.
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|acme_end|>"]})
    tokenizer.save_pretrained(acme / "model")
    sizes = {"vocabulary": 300, "width": 16, "depth": 2, "heads": 2, "mask_token_id": 299}
    (acme / "model" / "config.json").write_text(json.dumps(sizes | {"model_type": "acme-diffusion"}))
    model = random_llama(300, hidden_size=16, num_attention_heads=2)
    weights = {
        name.replace("lm_head.", "head.") if name.startswith("lm_head") else name.replace("model.", "trunk.", 1): tensor
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, acme / "model" / "model.safetensors", {"format": "pt"})
    given = map(json.dumps, (str(acme / "model"), options, words))
    done = python(PROGRAM, *given, path=[acme])
    n_filled, planned, of_family, *_ = done.stdout.splitlines()
    assert n_filled == str(options["n_masks"])
    ours = load_denoiser()
    assert json.loads(planned) == [path_planning(ours, [5, 6, *[ours.mask_token_id] * 8], 4, eta=0.5)[-1][2:]]
    expected = decode(Denoiser(model, mask_token_id=299, pad_token_id=299), [[5, 6, 7]], DecodingOptions(n_masks=6))
    assert json.loads(of_family) == ["acme", expected, [tokenizer.convert_tokens_to_ids("<|acme_end|>")]]


# A sampler by file


def path_planning(denoiser: Denoiser, canvas: Sequence[int], steps: int, eta: float) -> list[list[int]]:
    """The canvas after every pass, as the published loop has it: greedy, without batches, over all logits."""
    ids = torch.tensor(canvas)
    fixed, found = ids != denoiser.mask_token_id, []
    n_masks = int((~fixed).sum())
    for step in range(1, steps + 1):
        with torch.no_grad():
            logits = denoiser.model(input_ids=ids[None]).logits[0].double()
        logits[:, denoiser.mask_token_id] = -torch.inf
        score, proposed = logits.log_softmax(-1).max(-1)
        is_mask = ids == denoiser.mask_token_id
        score = torch.where(is_mask, score, score * eta).masked_fill(fixed, torch.inf)
        left = n_masks * (steps - step) // steps
        ids = torch.where(is_mask, proposed, ids)
        ids[score.argsort(stable=True)[:left]] = denoiser.mask_token_id
        found.append(ids.tolist())
    return found


@pytest.fixture
def by_file(own_samplers: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example, loaded for one test."""
    file, modules = EXAMPLES / "sampler.py", {*sys.modules}
    monkeypatch.setattr(loader, "_named", set())
    loader.load_plugins(str(file))
    loader.load_plugins(str(file))  # once
    yield file
    for name in {*sys.modules} - modules:
        if name.startswith("plugin_"):
            del sys.modules[name]


@pytest.mark.usefixtures("by_file")
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_a_sampler_of_ones_own_does_as_the_published_loop(eta: float) -> None:
    denoiser = model()
    options = DecodingOptions(sampler="path_planning", n_masks=12, steps=6, eta=eta, trace=True)
    rows = [canvas(denoiser, options, 3 + 2 * k, seed=k) for k in range(6)]
    together = decode_canvases(denoiser, rows, options)
    expected = [path_planning(denoiser, row.token_ids, 6, eta) for row in rows]
    assert [one.token_ids for one in together] == [passes[-1][-12:] for passes in expected]
    assert [[ids for _, ids in replay(row.token_ids, one.events)] for row, one in zip(rows, together, strict=True)] == (
        expected
    )
    assert any(event.new == MASK for one in together for event in one.events) == (eta > 0)
    assert {one.cost.forward_passes for one in together} == {6}
    refilled = decode_canvases(denoiser, rows, options, batch_size=2)
    with PretendedGpu() as gpu:
        gpu.move(denoiser.model)
        on_gpu = decode_canvases(denoiser, rows, options, batch_size=2)
    without_confidences = [
        [(one.token_ids, one.cost, [event[:4] for event in one.events]) for one in found]
        for found in (together, refilled, on_gpu)
    ]
    assert without_confidences[0] == without_confidences[1] == without_confidences[2]


@pytest.mark.usefixtures("by_file")
def test_a_sampler_of_ones_own_exits_early_where_its_blocks_are_settled() -> None:
    denoiser = model()
    exits = DecodingOptions(sampler="path_planning", n_masks=12, block_length=4, steps=6)
    row = canvas(denoiser, exits, gen_toks=5)
    stays = replace(exits, early_exit=False)
    early, whole = (decode_canvases(denoiser, [row], options)[0] for options in (exits, stays))
    assert early.token_ids == whole.token_ids
    assert (early.cost.forward_passes, whole.cost.forward_passes) == (4, 6)


def test_options_of_a_file_are_in_help_and_sweeps(by_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plugins", str(by_file), "--tasks=mdlm_verb_smallest", "--sampler=path_planning", "--eta=0.5,1"]
    cells = (planned := plan(settings_of(words))).cells
    assert [cell.arguments["eta"] for cell in cells] == [0.5, 1.0]
    assert {cell.arguments["plugins"] for cell in cells} == {str(by_file)}
    # A finished cell was decoded by the same file, wherever that lies.
    settings = Claims(planned, by_file).settings(cells[0])
    assert settings["plugins"] == {"sampler.py": hashlib.sha256(by_file.read_bytes()).hexdigest()}
    assert "plugins" not in settings["model_args"]
    with pytest.raises(SystemExit):
        settings_of([*words, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"--eta VALUES how readily tokens [^)]* \(sampler=path_planning\)", shown)


def test_what_a_preset_names_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdlm_lm_eval.presets.load_preset", lambda _: {"plugins": "sampler.py"})
    with pytest.raises(OptionError, match="preset=any names plugins, which the user alone can"):
        resolve({"preset": "any"})


def test_a_result_says_which_file_decoded(tmp_path: Path) -> None:
    (command,) = re.findall("lm_eval (.*plugins=.*)", PAGE)
    file, output = shutil.copy(EXAMPLES / "sampler.py", tmp_path), tmp_path / "results"
    words = shlex.split(command.replace("plugins=sampler.py", f"plugins={file}"))
    words += ["--include_path", str(tasks_path())]  # the suite, without lm-eval's own tasks
    words += ["--use_cache", str(tmp_path / "cache"), "--output_path", str(output)]
    run("lm_eval", *words)
    (path,) = (output / "built-in").glob("results_*.json")
    mdlm = json.loads(path.read_text())["config"]["mdlm"]
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    assert {"name": "sampler.py", "sha256": digest, "registers": ["eta", "sampler=path_planning"]} in mdlm["plugins"]
    asked = simple_parse_args_string(words[words.index("--model_args") + 1])
    assert {name: mdlm["decoding"][name] for name in asked.keys() - {"plugins"}}.items() <= asked.items()
    facts = mdlm["tasks"]["mdlm_verb_smallest"]
    assert facts["cost"]["forward_passes"] == asked["steps"] * facts["requests"]
    (setting,) = {*load(output)["setting"]}
    assert setting.count(f"eta=0.5 (sampler.py {digest[:8]})") == 1
    assert f"sampler=path_planning (sampler.py {digest[:8]})" in setting
    (section,) = read_board(output).sections
    assert digest[:8] in f"{section.common} {section.rows[0].label}"
    Path(file).write_text(Path(file).read_text() + "# another one\n")
    assert "plugins was" in run("lm_eval", *words, code=1).stderr


@pytest.mark.parametrize("example", ["sampler.py", "unmasking.py", "family.py", "objective.py"])
def test_what_the_page_shows_of_an_example_is_in_it(example: str) -> None:
    shown = re.findall(r"```python\n(.*?)(?:    \.\.\.\n)?```", PAGE, re.DOTALL)
    assert any(code in (EXAMPLES / example).read_text(encoding="utf-8") for code in shown)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the code with the page's diff applied."""
    if not (ROOT / "mdlm_lm_eval").exists():
        pytest.skip("the package is installed from a wheel")
    quiet = shutil.ignore_patterns("__pycache__", "training")
    for part in ("mdlm_lm_eval", "tasks"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=quiet, symlinks=True)
    for diff in re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL):
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    return tmp_path


def test_a_few_shot_rule(checkout: Path) -> None:
    code = (
        "import os, runpy, sys; os.chdir(sys.path[0])\n"
        "runpy.run_module('mdlm_lm_eval.tasks.generate', run_name='__main__')\n"
        "from lm_eval.tasks import TaskManager; from mdlm_lm_eval import tasks_path\n"
        "manager = TaskManager(include_path=str(tasks_path()), include_defaults=False)\n"
        "assert 'mdlm_tree_smallest' in manager._index['mdlm_context'].cfg['task']\n"
        "print(len(manager.load(['mdlm_tree_smallest'])['tasks']['mdlm_tree_smallest'].dataset['test']))"
    )
    assert python(code, path=[checkout]).stdout.endswith("1000\n")


@pytest.mark.parametrize("infill", [True, False])
def test_a_task_of_ones_own_has_slots(
    infill: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `infill: true` the marker is text, and one warning says so."""
    part = PAGE.partition("## A task of your own\n")[2]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    text = part.partition("```yaml\n")[2].partition("```")[0]
    assert "infill: true, " in text
    (tmp_path / "own" / "echo.yaml").write_text(text if infill else text.replace("infill: true, ", ""))
    (tmp_path / "own" / "echo.jsonl").write_text(part.partition("```json\n")[2].partition("```")[0])
    (command,) = re.findall(r"```sh\n(lm_eval.*)\n```", part.partition("\n## ")[0])
    words = shlex.split(command)
    lm = MDLM(max_gen_toks=4, trace=True)
    result = evaluate(lm, [words[words.index("--tasks") + 1]], Path(words[words.index("--include_path") + 1]))
    assert len(result["samples"]["echo"]) == 2
    recorded = result["config"]["mdlm"]["tasks"]["echo"]
    assert recorded["masks"] == ([1, 1] if infill else [4, 4])
    warned = [one.getMessage() for one in caplog.records if "<|mask|>" in one.getMessage()]
    sentence = "2 of 2 prompts hold <|mask|> as plain text; a task's infill: true makes it a slot"
    assert warned == ([] if infill else [sentence])


def test_the_page_on_own_questions_shows_what_its_files_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/own_questions.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (questions,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (tmp_path / "own/capitals.jsonl").write_text(questions)
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        name = re.search(r"^task: (\w+)", block)
        assert name
        (tmp_path / "own" / f"{name[1]}.yaml").write_text(block)
    result = evaluate(MDLM(), ["capitals", "capitals_choice"], tmp_path / "own")
    scores = make_table(result).strip().splitlines()[2:]
    assert all(line.partition("|±")[0] in text for line in scores)  # no standard error is computed here
