"""Writes the tables of options, presets and checks into the documentation: `python docs/write_options.py`."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from mdlm_lm_eval.command_line import typed
from mdlm_lm_eval.decoding.sampler import Sampler
from mdlm_lm_eval.options import (
    DEFAULT_SAMPLER,
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    Option,
    defaults_of,
    options_of,
    shown,
)
from mdlm_lm_eval.presets import load_preset, preset_names, run_of
from mdlm_lm_eval.registry import KINDS, ROW_DECODERS, SAMPLERS
from mdlm_lm_eval.results.markdown import markdown_table, replace_table

# The tables of options.md about decoding, in the page's order. What samplers and row decoders
# declare is in `samplers`, and what no table names in `other`.
DECODING = {
    "length": "n_masks mask_ratio max_gen_toks steps steps_per_block block_length small_block_length append_blocks",
    "step": "unmasking schedule confidence_threshold parallel_factor entropy_bound position_decay calibration_cap "
    "token_frequencies",
    "token": "temperature top_p top_k cfg_scale suppress_eos eos_last seed",
    "thinking": "end_think end_think_boost end_think_power max_thinking_tokens unfinished_thinking",
    "samplers": "sampler sampler_args",
    "other": "",
}
MOST_VALUES = 4  # of more, the page has a table
_HEADER = ("preset", "published", "task", "shots", "options")
_DEFAULTS = defaults_of(LikelihoodOptions) | defaults_of(DecodingOptions)


def write(folder: Path) -> None:
    """Fills the marked places of options.md, and writes presets.csv."""
    for name, options in _tables().items():
        table = markdown_table(("option", "values", "meaning"), map(_option, options))
        replace_table(folder / "options.md", name, _without_padding(table))
    ways = [_sampler(name, way) for name, way in sorted(SAMPLERS.all().items()) if name not in SAMPLERS.guests]
    table = markdown_table(("`sampler`", "what it does"), ways)
    replace_table(folder / "options.md", "sampler", _without_padding(table))
    with (folder / "presets.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([_HEADER, *map(_preset, preset_names())])


def _without_padding(table: str) -> str:
    """As the tables are that are written by hand there."""
    return table.replace("| ", "|").replace(" |", "|")


def _tables() -> dict[str, list[Option]]:
    """The options of each table of options.md, without those of plug-ins."""
    recorded = DecodingOptions().as_record()
    declared = {name: each for name, each in DecodingOptions.declared().items() if name in recorded}
    tables = {table: [declared.pop(name) for name in names.split()] for table, names in DECODING.items()}
    for each in declared.values():
        tables["samplers" if each.name in options_of(SAMPLERS, ROW_DECODERS) else "other"].append(each)
    for table, kind in (("likelihood", LikelihoodOptions), ("model", ModelOptions)):
        # What is the same in decoding stands there.
        tables[table] = [each for name, each in kind.declared().items() if each != DecodingOptions.declared().get(name)]
    return tables


def _sampler(name: str, kind: type[Sampler]) -> tuple[str, ...]:
    chosen = f", chosen by `{kind.asked_by}`" if kind.asked_by else ", the default" if name == DEFAULT_SAMPLER else ""
    what = (sys.modules[kind.__module__].__doc__ or "").partition("\n")[0]
    return f"`{name}`{chosen}", what.removesuffix(".")


def write_checks(folder: Path) -> None:
    """Fills the marked place of verified.md from the record of benchmarks/check_against_authors.py."""
    record = Path(__file__).parents[1] / "benchmarks" / "check_against_authors.json"
    rows = [row for row in json.loads(record.read_text(encoding="utf-8")) if not row["is_planted"]]
    by_sampler: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_sampler.setdefault(_their_sampler(row), []).append(row)
    header = ("their sampler", "checkpoints", "settings", "passes in which the two chose differently", "same answers")
    table = markdown_table(header, [(name, *_compared(found)) for name, found in by_sampler.items()])
    most = max(row["logits_differ_by"] for row in rows if row["network"] != "ours")
    logits = f"Logits of their networks and ours {f'differ by at most {most:.1g}' if most else 'are exactly equal'}."
    causes = {f"Where the two chose differently, {cause}." for row in rows for cause in row["causes"]}
    replace_table(folder / "verified.md", "authors", "\n\n".join([table, *sorted(causes), logits]))


def _their_sampler(row: dict[str, Any]) -> str:
    repository, (_, function) = row["function"].split("/")[1], row["function"].rsplit(":", 1)
    return f"{repository} `{function.rpartition('.')[2]}`"


def _compared(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Of one sampler: checkpoints, number of settings, and sums over them."""
    models = [row["model"] if row["network"] == "ours" else f"tiny {row['family']}" for row in rows]
    same, asked = (
        sum(counts) for counts in zip(*(map(int, row["same_answers"].split(" of ")) for row in rows), strict=True)
    )
    others, passes = (sum(row[key] for row in rows) for key in ("other_choices", "passes"))
    return (
        ", ".join(dict.fromkeys(models)),
        str(len(rows)),
        f"{others} of {passes}",
        f"{same} of {asked}",
    )


def _preset(name: str) -> tuple[str, ...]:
    run, options = run_of(name), {k: v for k, v in load_preset(name).items() if v != _DEFAULTS[k]}
    score = run.score and run.score + "†" * (not run.is_target)
    task, shots, tokens = map(run.value, ("--tasks", "--num_fewshot", "--gen_kwargs"))
    options |= dict([tokens.split("=")]) if tokens else {}
    return f"`{name}`", score, f"`{task}`", shots or "", f"`{typed(options)}`"


def _option(declared: Option) -> tuple[str, ...]:
    names = {"LLaDA's": declared.llada, "Dream's": declared.dream}
    elsewhere = ", ".join(f"{whose} `{name}`" for whose, name in names.items() if name not in ("", declared.name))
    meaning = declared.help.replace("|", ", ") + (f" ({elsewhere})" if elsewhere else "")  # a bar would begin a cell
    return f"`{declared.name}`", _values(declared), meaning


def _values(declared: Option) -> str:
    """What it takes, the default in bold: "**auto**, integer ≥ 1" or "**0.25**, number ≥ 0"."""
    default = None if declared.default is None else shown(declared.default)
    values = ["true", "false"] if bool in declared.kinds else [*(declared.choices or list)()]
    added = {f"{kind}={name}" for kind, registry in KINDS.items() for name in registry.guests}
    values = [each for each in values if each != default and f"{declared.name}={each}" not in added]
    if len(values) > MOST_VALUES:
        values = ["see table"]
    elif not values:
        values = ["text" if str in declared.kinds else _bounds(declared)]
    bold = f"**`{default}`**" if values == ["text"] else f"**{default}**"
    return ", ".join([bold] * (default is not None) + values)


def _bounds(declared: Option) -> str:
    """Of a number: "integer ≥ 1", or "in (0, 1]"."""
    least, above, most = (
        each if each is None else shown(each) for each in (declared.least, declared.above, declared.most)
    )
    if most is not None:
        return f"in {'(' if least is None else '['}{above or least}, {most}]"
    return f"{'integer' if int in declared.kinds else 'number'} {f'> {above}' if least is None else f'≥ {least}'}"


if __name__ == "__main__":
    write(Path(__file__).parent)
    write_checks(Path(__file__).parent)
