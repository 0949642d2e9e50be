"""Writes the tables of options, presets and checks into the documentation: `python docs/write_options.py`."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mdlm_lm_eval.command_line import typed
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, ModelOptions, Option, defaults_of
from mdlm_lm_eval.presets import load_preset, preset_names, run_of
from mdlm_lm_eval.registry import guests
from mdlm_lm_eval.results.markdown import markdown_table, replace_table

TABLES = {"decoding": DecodingOptions, "likelihood": LikelihoodOptions, "model": ModelOptions}
_HEADER = ("preset", "published", "task", "shots", "options")
_DEFAULTS = defaults_of(LikelihoodOptions) | defaults_of(DecodingOptions)


def write(folder: Path) -> None:
    """Fills the marked places of options.md, and writes presets.csv."""
    for name, kind in TABLES.items():
        own = kind().as_record()  # without the options of plug-ins
        rows = [_option(each) for each in kind.declared().values() if each.name in own]
        replace_table(folder / "options.md", name, markdown_table(("option", "default", "values", "meaning"), rows))
    with (folder / "presets.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([_HEADER, *map(_preset, preset_names())])


def write_checks(folder: Path) -> None:
    """Fills the marked places of verified.md from the record of benchmarks/check_against_authors.py."""
    record = Path(__file__).parents[1] / "benchmarks" / "check_against_authors.json"
    rows = json.loads(record.read_text(encoding="utf-8"))
    as_asked = [row for row in rows if not row["is_planted"]]
    header = ("checkpoint", "their sampler", "options", "logits differ by", "other choices", "same answers")
    replace_table(folder / "verified.md", "authors", markdown_table(header, map(_compared, as_asked)))


def _sampler(row: dict[str, Any]) -> str:
    repository, (_, function) = row["function"].split("/")[1], row["function"].rsplit(":", 1)
    return f"{repository} `{function.rpartition('.')[2]}`"


def _compared(row: dict[str, Any]) -> tuple[str, ...]:
    model = row["model"] if row["network"] == "ours" else f"tiny {row['family']}"
    logits = "our network" if row["network"] == "ours" else f"{row['logits_differ_by']:.1g}"
    choices = f"{row['other_choices']} of {row['passes']} passes" + (", all by cause" if row["causes"] else "")
    return model, _sampler(row), f"`{row['options']}`", logits, choices, row["same_answers"]


def _preset(name: str) -> tuple[str, ...]:
    run, options = run_of(name), {k: v for k, v in load_preset(name).items() if v != _DEFAULTS[k]}
    score = run.score and run.score + "†" * (not run.is_target)
    task, shots, tokens = map(run.value, ("--tasks", "--num_fewshot", "--gen_kwargs"))
    options |= dict([tokens.split("=")]) if tokens else {}
    return f"`{name}`", score, f"`{task}`", shots or "", f"`{typed(options)}`"


def _option(declared: Option) -> tuple[str, ...]:
    default = str(declared.default).lower().removesuffix(".0")
    added = {word for words in guests().values() for word in words}
    found = [each for each in (declared.choices or list)() if f"{declared.name}={each}" not in added]
    values = replace(declared, choices=(lambda: found) if found else None).requirement
    names = {"LLaDA's": declared.llada, "Dream's": declared.dream}
    elsewhere = ", ".join(f"{whose} `{name}`" for whose, name in names.items() if name not in ("", declared.name))
    return (
        f"`{declared.name}`",
        "" if default == "none" else f"`{default}`",
        values.removeprefix("one of ")
        .removeprefix("none or ")
        .removeprefix("a ")
        .removesuffix(" of at least one character"),
        declared.help.replace("|", ", ") + (f" ({elsewhere})" if elsewhere else ""),  # a bar would begin a cell
    )


if __name__ == "__main__":
    write(Path(__file__).parent)
    write_checks(Path(__file__).parent)
