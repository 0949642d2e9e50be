"""Writes the tables of options and presets into the documentation: `python docs/write_options.py`."""

from dataclasses import Field
from pathlib import Path
from typing import Any

import yaml

import mdlm_lm_eval.presets
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, ModelOptions, about, options_of
from mdlm_lm_eval.results.markdown import markdown_table, replace_table

TABLES = {"decoding": DecodingOptions, "likelihood": LikelihoodOptions, "model": ModelOptions}
PUBLISHED = Path(mdlm_lm_eval.presets.__file__).parent / "published.yaml"
UNSAFE = "--confirm_run_unsafe_code"


def write(*pages: Path) -> None:
    """Fills the marked places of these pages."""
    published = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    tables = {
        name: markdown_table(("option", "default", "meaning"), map(_option, options_of(kind)))
        for name, kind in TABLES.items()
    }
    common = {model: _common(facts) for model, facts in published.items()}
    checkpoints = (
        (f"`{model}`", f"`{facts['pretrained']}`", _code(_model_arguments(facts), *common[model]))
        for model, facts in published.items()
    )
    tables["models"] = markdown_table(("model", "checkpoint", "common flags"), checkpoints)
    by_task: dict[str, list[str]] = {}
    for model, facts in published.items():
        for name, preset in facts["presets"].items():
            task = _task([flag for flag in flags(preset["run"]) if flag not in (*common[model], UNSAFE)])
            score = f"`{model}/{name}` {preset['score']}{'†' * preset['settings_only']}"
            by_task.setdefault(task, []).append(score)
    scores = ((task, "<br>".join(by_task[task])) for task in sorted(by_task))
    tables["presets"] = markdown_table(("task, shots, other flags", "preset and published score"), scores)
    for page in pages:
        for name, table in tables.items():
            replace_table(page, name, table)


def flags(run: str) -> list[str]:
    """A command line's flags, each with its values."""
    first, *others = run.split(" --")
    return [first, *(f"--{other}" for other in others)]


def _common(facts: dict[str, Any]) -> list[str]:
    """The flags that all commands of a model have, but for the shots."""
    first, *others = (flags(preset["run"]) for preset in facts["presets"].values())
    return [flag for flag in first if all(flag in other for other in others) and "--num_fewshot" not in flag]


def _task(given: list[str]) -> str:
    """`gsm8k`, 5, `--confirm_run_unsafe_code`: the task, the shots where they are given, and the other flags."""
    values = dict(flag.split(" ", 1) for flag in given if flag.startswith(("--tasks", "--num_fewshot")))
    others = [flag for flag in given if flag.split()[0] not in values]
    return ", ".join(filter(None, (_code(values["--tasks"]), values.get("--num_fewshot"), _code(*others))))


def _model_arguments(facts: dict[str, Any]) -> str:
    return f"--model_args ...,{facts['model_args']}" if "model_args" in facts else ""


def _code(*words: str) -> str:
    text = " ".join(filter(None, words))
    return f"`{text}`" if text else ""


def _option(declared: Field[Any]) -> tuple[str, ...]:
    known = about(declared)
    default = str(declared.default).lower().removesuffix(".0")
    choices = f": {', '.join(known.choices())}" if known.choices else ""
    names = {"LLaDA's": known.llada, "Dream's": known.dream}
    elsewhere = ", ".join(f"{whose} `{name}`" for whose, name in names.items() if name not in ("", declared.name))
    return (
        f"`{declared.name}`",
        "" if default == "none" else f"`{default}`",
        known.help + choices + (f" ({elsewhere})" if elsewhere else ""),
    )


if __name__ == "__main__":
    folder = Path(__file__).parent
    write(folder / "options.md", folder / "benchmarks.md")
