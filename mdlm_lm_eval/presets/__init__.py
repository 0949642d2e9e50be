"""Settings of published scores: `--model_args pretrained=...,preset=llada-8b-instruct/gsm8k`.

Each YAML file has models, and their presets:

MODEL:
  pretrained, family, dtype (bfloat16 by default), model_args
  repeats: the model whose presets' scores these authors measured, too, under the same names
  source, dated: who published the settings, in which version, and its date
  differs: how the authors' prompts, answer extraction or estimator differ from ours
  texts: how the authors' answers are cut where ours are cut otherwise
  presets:
    NAME:
      score: as published, "" if only the settings are
      where: the place in the source
      is_target: whether prompts, extraction and estimator are the task's, in lm-eval 0.4.8 as now (not so in bbh,
        minerva_math and gpqa_main_n_shot, which lm-eval changed)
      why: a known cause why the score parts from the repeated one
      run: the rest of the `lm_eval` command
      options: decoding or likelihood options

`python docs/write_options.py` writes the tables of the documentation.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mdlm_lm_eval.options import OptionError, did_you_mean


@dataclass(frozen=True)
class Published:
    """A published score and its run, as the YAML files have them.

    flags: flags and values for `lm_eval`.
    """

    family: str
    repeats: str
    score: str
    where: str
    source: str
    dated: str
    is_target: bool
    differs: str
    texts: str
    why: str
    flags: tuple[str, ...]
    options: dict[str, object]

    def value(self, flag: str) -> str | None:
        """The value after a flag, None if the flag is not there."""
        return self.flags[self.flags.index(flag) + 1] if flag in self.flags else None


@cache
def published() -> dict[str, Published]:
    """The published score and run of each preset."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("*.yaml")):
        models: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
        for model, facts in models.items():
            for name, run in facts["presets"].items():
                preset = f"{model}/{name}"
                arguments = [f"pretrained={facts['pretrained']}", f"preset={preset}"]
                arguments.append(f"dtype={facts.get('dtype', 'bfloat16')}")
                arguments += [level["model_args"] for level in (facts, run) if "model_args" in level]
                flags = ("--model_args", ",".join(arguments), *shlex.split(run["run"]), "--batch_size", "auto")
                found[preset] = Published(
                    family=facts["family"],
                    repeats=f"{facts['repeats']}/{name}" if "repeats" in facts else "",
                    score=run["score"],
                    where=run["where"],
                    source=facts["source"],
                    dated=facts["dated"],
                    is_target=run["is_target"],
                    differs=facts.get("differs", ""),
                    texts=facts.get("texts", ""),
                    why=run.get("why", ""),
                    flags=flags,
                    options=run["options"],
                )
    return dict(sorted(found.items()))


def preset_names() -> tuple[str, ...]:
    """The names of all presets, for `preset=`."""
    return tuple(published())


def run_of(name: str) -> Published:
    """The published score and run of a preset. Raises OptionError for an unknown name, with the nearest one."""
    if name not in published():
        hint = f"{did_you_mean(name, preset_names()) or ''} `python -m mdlm_lm_eval.presets` lists them all".strip()
        raise OptionError(f"unknown preset={name!r}; {hint}")
    return published()[name]


def load_preset(name: str) -> dict[str, object]:
    """The options of a preset. Raises OptionError as `run_of` does."""
    return dict(run_of(name).options)


def repeated_by(name: str) -> dict[str, Published]:
    """Scores of the same benchmark that others measured, by their presets' names."""
    return {other: run for other, run in published().items() if run.repeats == name and run.score}


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
