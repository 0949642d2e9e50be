"""Settings of published scores: `--model_args pretrained=...,preset=llada-8b-instruct/gsm8k`.

A preset is a YAML file <model>/<benchmark>.yaml of decoding or likelihood options. published.yaml has the score and
source of each preset, and the rest of its run: checkpoint, task, shots, chat template.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mdlm_lm_eval.options import OptionError, did_you_mean

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Published:
    """A published score and its run.

    family: the name of the model's family. score: empty if the authors publish only settings. is_target: whether the
    authors' prompts, answer extraction and estimator are those of lm-eval's task. texts: how the authors cut answers,
    empty if they cut them as we do. flags: flags and values for `lm_eval`.
    """

    family: str
    score: str
    source: str
    is_target: bool
    texts: str
    flags: tuple[str, ...]

    def value(self, flag: str) -> str | None:
        """The value after a flag, None if the flag is not there."""
        return self.flags[self.flags.index(flag) + 1] if flag in self.flags else None


@cache
def preset_names() -> tuple[str, ...]:
    """The names of all presets, for `preset=`."""
    return tuple(sorted(path.relative_to(_FOLDER).with_suffix("").as_posix() for path in _FOLDER.glob("*/*.yaml")))


def load_preset(name: str) -> dict[str, object]:
    """The options of a preset. Raises OptionError for an unknown name, with the nearest one."""
    names = preset_names()
    if name not in names:
        hint = f"{did_you_mean(name, names) or ''} `python -m mdlm_lm_eval.presets` lists them all".strip()
        raise OptionError(f"unknown preset={name!r}; {hint}")
    options: dict[str, object] = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return options


@cache
def published() -> dict[str, Published]:
    """The published score and run of each preset, in the order of the file."""
    models: dict[str, Any] = yaml.safe_load((_FOLDER / "published.yaml").read_text(encoding="utf-8"))
    found = {}
    for model, facts in models.items():
        for preset, run in facts["presets"].items():
            arguments = [f"pretrained={facts['pretrained']}", f"preset={model}/{preset}"]
            arguments.append(f"dtype={facts.get('dtype', 'bfloat16')}")
            arguments += [level["model_args"] for level in (facts, run) if "model_args" in level]
            flags = ("--model_args", ",".join(arguments), *shlex.split(run["run"]), "--batch_size", "auto")
            found[f"{model}/{preset}"] = Published(
                family=facts["family"],
                score=run["score"],
                source=run["source"],
                is_target=not run["settings_only"],
                texts=facts.get("texts", ""),
                flags=flags,
            )
    return found


def run_of(name: str) -> Published:
    """The published score and run of a preset. Raises OptionError as `load_preset` does."""
    load_preset(name)
    return published()[name]


def mismatches(name: str, family: str, tasks: Iterable[str | None]) -> list[str]:
    """Warnings if a preset was made for another family than `family`, or for other tasks than `tasks`."""
    run, found = run_of(name), []
    if family != run.family:
        found.append(f"preset={name} is for the family {run.family}, and the model's is {family}")
    # Tasks of a group begin with its name. Those of mmlu_generative are named mmlu_SUBJECT_generative.
    made_for = str(run.value("--tasks"))
    others = [task for task in tasks if not f"{task}_".startswith(f"{made_for.removesuffix('_generative')}_")]
    if others:
        found.append(f"preset={name} is for {made_for}, and the task is {', '.join(map(str, others))}")
    return found
