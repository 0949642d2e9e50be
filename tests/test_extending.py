"""docs/extending.md: its package installs and its commands run; its diffs apply and do what the page says."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from mdlm_lm_eval import DecodingOptions, decode
from mdlm_lm_eval.model.denoiser import Denoiser
from tests.commands import python
from tests.conftest import random_llama, tiny_tokenizer

ROOT = Path(__file__).parents[1]
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
denoiser, tokenizer = load_denoiser(folder), load_tokenizer(folder)
answers = decode(denoiser, [[5, 6, 7]], DecodingOptions(n_masks=6))
print(json.dumps([family_of(denoiser.model.config).name, answers, sorted(end_of_turn_ids(tokenizer))]))
sys.argv[1:] = flags
runpy.run_module("mdlm_finetune", run_name="__main__")
"""


def test_an_unmasking_rule_a_family_and_a_training_objective(acme: Path) -> None:
    (arguments,) = re.findall("--model_args (.*unmasking=right_to_left)", PAGE)
    options = {name: int(value) if value.isdigit() else value for name, value in re.findall(r"(\w+)=(\w+)", arguments)}
    (flags,) = re.findall("mdlm-finetune (.* whole_answer .*)", PAGE)
    (acme / "answers.jsonl").write_text('{"prompt": "red is", "response": "colour"}\n' * 4)
    words = [*flags.split(), "--model_name_or_path", "built-in", "--max_steps", "1", "--evaluation_limit", "0"]
    model, end = save_acme_model(acme / "model")
    given = map(json.dumps, (str(acme / "model"), options, words))
    done = python(PROGRAM, *given, path=[acme])
    n_filled, of_family, *_ = done.stdout.splitlines()
    assert n_filled == str(options["n_masks"])
    expected = decode(Denoiser(model, mask_token_id=299, pad_token_id=299), [[5, 6, 7]], DecodingOptions(n_masks=6))
    assert json.loads(of_family) == ["acme", expected, [end]]


def save_acme_model(folder: Path) -> tuple[LlamaForCausalLM, int]:
    """A checkpoint of the family, under its names; returns the model, and the id that ends a turn."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|acme_end|>"]})
    tokenizer.save_pretrained(folder)
    sizes = {"vocabulary": 300, "width": 16, "depth": 2, "heads": 2, "mask_token_id": 299}
    (folder / "config.json").write_text(json.dumps(sizes | {"model_type": "acme-diffusion"}))
    model = random_llama(300, hidden_size=16, num_attention_heads=2)
    weights = {
        name.replace("lm_head.", "head.") if name.startswith("lm_head") else name.replace("model.", "trunk.", 1): tensor
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return model, tokenizer.convert_tokens_to_ids("<|acme_end|>")


@pytest.mark.parametrize("example", ["unmasking.py", "family.py", "objective.py"])
def test_what_the_page_shows_of_an_example_is_in_it(example: str) -> None:
    shown = re.findall(r"```python\n(.*?)(?:    \.\.\.\n)?```", PAGE, re.DOTALL)
    assert any(code in (EXAMPLES / example).read_text(encoding="utf-8") for code in shown)


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of a copy of the code with every diff of the page applied."""
    quiet = shutil.ignore_patterns("__pycache__", "training")
    for part in ("mdlm_lm_eval", "tasks", "leaderboard/mdlm_leaderboard"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=quiet, symlinks=True)
    for diff in re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL):
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    return tmp_path, tmp_path / "leaderboard"


def test_a_few_shot_rule_and_a_column_of_the_leaderboard(checkout: tuple[Path, Path]) -> None:
    code = (
        "import os, runpy, sys; os.chdir(sys.path[0])\n"
        "runpy.run_module('mdlm_lm_eval.tasks.generate', run_name='__main__')\n"
        "from lm_eval.tasks import TaskManager; from mdlm_lm_eval import tasks_path\n"
        "manager = TaskManager(include_path=str(tasks_path()), include_defaults=False)\n"
        "assert 'mdlm_tree_smallest' in manager.task_index['mdlm_context'].cfg['task']\n"
        "print(len(manager.load(['mdlm_tree_smallest'])['tasks']['mdlm_tree_smallest'].dataset['test']))\n"
        "from mdlm_leaderboard.__main__ import main; main(['build', sys.argv[1], '--output', 'site'])"
    )
    results = ROOT / "leaderboard/suite-2.0/subsets"
    done = python(code, str(results), path=checkout)
    assert "1000\n" in done.stdout
    assert "counts" in (checkout[0] / "site" / "leaderboard.csv").read_text(encoding="utf-8")
