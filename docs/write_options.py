"""Writes the tables of options, presets and checks into the documentation: `python docs/write_options.py`."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mdlm_lm_eval.command_line import typed
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, ModelOptions, Option, defaults_of
from mdlm_lm_eval.presets import load_preset, preset_names, run_of
from mdlm_lm_eval.registry import KINDS
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
    """Fills the marked place of verified.md from the record of benchmarks/check_against_authors.py."""
    record = Path(__file__).parents[1] / "benchmarks" / "check_against_authors.json"
    rows = [row for row in json.loads(record.read_text(encoding="utf-8")) if not row["is_planted"]]
    by_sampler: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_sampler.setdefault(_sampler(row), []).append(row)
    header = ("their sampler", "checkpoints", "settings", "other choices", "same answers")
    table = markdown_table(header, [(name, *_compared(found)) for name, found in by_sampler.items()])
    most = max(row["logits_differ_by"] for row in rows if row["network"] != "ours")
    logits = f"Logits of their networks and ours {f'differ by at most {most:.1g}' if most else 'are equal'}."
    replace_table(folder / "verified.md", "authors", f"{table}\n\n{logits}")


def _sampler(row: dict[str, Any]) -> str:
    repository, (_, function) = row["function"].split("/")[1], row["function"].rsplit(":", 1)
    return f"{repository} `{function.rpartition('.')[2]}`"


def _compared(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Of one sampler: checkpoints, number of settings, and sums over them."""
    models = [row["model"] if row["network"] == "ours" else f"tiny {row['family']}" for row in rows]
    same, asked = (
        sum(counts) for counts in zip(*(map(int, row["same_answers"].split(" of ")) for row in rows), strict=True)
    )
    others, passes = (sum(row[key] for row in rows) for key in ("other_choices", "passes"))
    causes = ", all by cause" if any(row["causes"] for row in rows) else ""
    return (
        ", ".join(dict.fromkeys(models)),
        str(len(rows)),
        f"{others} of {passes} passes{causes}",
        f"{same} of {asked}",
    )


def _preset(name: str) -> tuple[str, ...]:
    run, options = run_of(name), {k: v for k, v in load_preset(name).items() if v != _DEFAULTS[k]}
    score = run.score and run.score + "†" * (not run.is_target)
    task, shots, tokens = map(run.value, ("--tasks", "--num_fewshot", "--gen_kwargs"))
    options |= dict([tokens.split("=")]) if tokens else {}
    return f"`{name}`", score, f"`{task}`", shots or "", f"`{typed(options)}`"


def _option(declared: Option) -> tuple[str, ...]:
    default = str(declared.default).lower().removesuffix(".0")
    added = {f"{kind}={name}" for kind, registry in KINDS.items() for name in registry.guests}
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
        .removesuffix(" of at least one character")
        .replace("true or false", "true, false"),
        declared.help.replace("|", ", ") + (f" ({elsewhere})" if elsewhere else ""),  # a bar would begin a cell
    )


if __name__ == "__main__":
    write(Path(__file__).parent)
    write_checks(Path(__file__).parent)
