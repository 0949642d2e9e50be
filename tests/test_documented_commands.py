"""Every command of README and docs is in docs/commands.md, and its program understands it."""

import re
import shlex
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from lm_eval._cli.harness import HarnessCLI

from mdlm_finetune.arguments import read_arguments
from mdlm_leaderboard.__main__ import _parser as leaderboard_parser
from mdlm_lm_eval.analyses.__main__ import _parser as attribution_parser
from mdlm_lm_eval.model_arguments import split_model_arguments
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep import __main__ as sweep
from mdlm_lm_eval.sweep.plan import plan

ROOT = Path(__file__).parents[1]
_spec = spec_from_file_location("run_commands", ROOT / "docs" / "run_commands.py")
assert _spec
assert _spec.loader
run_commands = module_from_spec(_spec)
_spec.loader.exec_module(run_commands)
COMMANDS = sorted(run_commands.all_commands())


def test_every_command_is_in_the_report() -> None:
    table = run_commands.REPORT.read_text(encoding="utf-8").partition("\n## Not run\n")[2]
    not_run = re.findall(r"^\| `(.*)` \| .* \| .* \|$", table, re.MULTILINE)
    assert sorted([*run_commands.read_report(), *not_run]) == COMMANDS, "run `python docs/run_commands.py`"


def lm_eval(words: list[str]) -> None:
    given = HarnessCLI()._parser.parse_args(["run", *words])
    arguments = dict(given.model_args or {})
    if arguments.get("unmasking") == "right_to_left":  # docs/extending.md's own
        del arguments["unmasking"]
    split_model_arguments(arguments, default_seed=0)


def mdlm_sweep(words: list[str]) -> None:
    sys.argv[1:] = words
    settings = sweep._settings()
    if "status" in settings:
        return
    assert settings.pop("output_path")
    sweep._executor(settings)
    plan(settings)


def mdlm_finetune(words: list[str]) -> None:
    if words and "--help-all" not in words and "whole_answer" not in words:  # docs/extending.md's own
        read_arguments(words)


PROGRAMS = {
    "lm_eval": lm_eval,
    "mdlm-sweep": mdlm_sweep,
    "mdlm_lm_eval.sweep": mdlm_sweep,
    "mdlm-attribution": lambda words: attribution_parser().parse_args(words),
    "mdlm-leaderboard": lambda words: leaderboard_parser().parse_args(words),
    "mdlm-finetune": mdlm_finetune,
    "mdlm_finetune": mdlm_finetune,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv[:1])
    program, *words = (word for word in shlex.split(command) if word not in ("python", "-m"))
    if program in PROGRAMS:
        PROGRAMS[program](words)
    elif program.endswith(".py"):
        code = (ROOT / program).read_text(encoding="utf-8")
        assert all(f'"{word}"' in code for word in words if word.startswith("--"))
    else:
        assert find_spec(program)


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(OptionError, match="n_masks"):
        lm_eval(shlex.split("--model mdlm --model_args n_mask=2 --tasks mdlm_context"))
