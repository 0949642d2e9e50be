"""Writes the tables of options, presets and checks into the documentation: `python docs/write_options.py`."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

from mdlm_lm_eval.command_line import typed
from mdlm_lm_eval.declared import as_record, declarations, defaults_of, options_of
from mdlm_lm_eval.decoding.sampler import Sampler
from mdlm_lm_eval.options import (
    DEFAULT_SAMPLER,
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    Option,
    shown,
)
from mdlm_lm_eval.presets import Published, published, repeated_by
from mdlm_lm_eval.registry import KINDS, ROW_DECODERS, SAMPLERS
from mdlm_lm_eval.results.text import markdown_table, replace_table

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
# Questions of the tasks whose published scores others repeated.
QUESTIONS = {
    "arc_challenge": 1172, "arc_challenge_chat": 1172, "arc_easy": 2376, "bbh": 6511, "ceval-valid": 1346,
    "cmmlu": 11582, "gpqa_diamond_generative_n_shot": 198, "gpqa_main_n_shot": 448, "gsm8k": 1319, "gsm8k_cot": 1319,
    "hellaswag": 10042, "humaneval": 164, "ifeval": 541, "mbpp": 500, "mdlm_hellaswag": 10042,
    "mdlm_humaneval_chat": 164, "mdlm_humaneval_instruct": 164, "humaneval_instruct": 164, "mdlm_mbpp_instruct": 500,
    "minerva_math": 5000, "mmlu": 14042, "mmlu_generative": 14042, "mmlu_pro": 12032, "piqa": 1838, "race": 1045,
    "truthfulqa_mc2": 817, "winogrande": 1267,
}  # fmt: skip
_DEFAULTS = defaults_of(LikelihoodOptions) | defaults_of(DecodingOptions)


def write(folder: Path) -> None:
    """Fills the marked places of options.md, and writes the tables of presets."""
    for name, options in _tables().items():
        table = markdown_table(("option", "values", "meaning"), map(_option, options))
        replace_table(folder / "options.md", name, table)
    ways = [_sampler(name, way) for name, way in sorted(SAMPLERS.all().items()) if name not in SAMPLERS.guests]
    table = markdown_table(("`sampler`", "what it does"), ways)
    replace_table(folder / "options.md", "sampler", table)
    runs = published()
    header = ("preset", "published", "by others", "task", "shots", "chat template", "options")
    _write_csv(folder / "presets.csv", header, (_preset(name, run) for name, run in runs.items()))
    models = {name.rpartition("/")[0]: run for name, run in runs.items()}
    header = ("model", "source", "date", "differs")
    of_models = ((f"`{name}`", run.source, run.dated, run.differs) for name, run in models.items())
    _write_csv(folder / "preset_sources.csv", header, of_models)
    header = ("preset", "authors", "others", "difference", "2 standard errors", "settings", "cause")
    _write_csv(
        folder / "repeated.csv",
        header,
        (row for name, run in runs.items() if run.score for row in _repeated(name, run)),
    )


def _write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def _tables() -> dict[str, list[Option]]:
    """The options of each table of options.md, without those of plug-ins."""
    recorded = as_record(DecodingOptions())
    declared = {name: each for name, each in declarations(DecodingOptions).items() if name in recorded}
    tables = {table: [declared.pop(name) for name in names.split()] for table, names in DECODING.items()}
    for each in declared.values():
        tables["samplers" if each.name in options_of(SAMPLERS, ROW_DECODERS) else "other"].append(each)
    for table, kind in (("likelihood", LikelihoodOptions), ("model", ModelOptions)):
        # What is the same in decoding stands there.
        tables[table] = [
            each for name, each in kind.declared().items() if each != declarations(DecodingOptions).get(name)
        ]
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
    header = ("their sampler", "checkpoints", "settings", "passes with different choices", "same answers")
    table = markdown_table(header, [(name, *_compared(found)) for name, found in by_sampler.items()])
    most = max(row["logits_differ_by"] for row in rows if row["network"] != "ours")
    logits = f"differ by at most {most:.1g}" if most else "are exactly equal"
    causes = {f"Where choices differ, {cause}." for row in rows for cause in row["causes"]}
    text = "\n\n".join([table, *sorted(causes), f"The logits of their networks and ours {logits}."])
    replace_table(folder / "verified.md", "authors", text)


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


def _preset(name: str, run: Published) -> tuple[str, ...]:
    options = {option: value for option, value in run.options.items() if value != _DEFAULTS[option]}
    task, shots, tokens = map(run.value, ("--tasks", "--num_fewshot", "--gen_kwargs"))
    options |= dict([tokens.split("=")]) if tokens else {}
    score = run.score and run.score + "†" * (not run.is_target)
    others = ", ".join(other.score for other in repeated_by(name).values())
    template = "yes" if run.value("--apply_chat_template") is not None else ""
    return f"`{name}`", score, others, f"`{task}`", shots or "", template, f"`{typed(options)}`"


def _repeated(name: str, run: Published) -> Iterator[tuple[str, ...]]:
    """Others' scores beside the published one, with two standard errors of the difference of independent runs."""
    for other, theirs in repeated_by(name).items():
        first, second = float(run.score.rpartition("/")[2]), float(theirs.score)
        variance = sum(score * (100 - score) for score in (first, second))
        errors = 2 * sqrt(variance / QUESTIONS[str(run.value("--tasks"))])
        settings = _differing(run, theirs)
        cause = theirs.why or ("unknown" if settings == "the same" else "other settings")
        score = f"**{theirs.score}**" if abs(second - first) > errors else theirs.score
        sizes = f"{second - first:+.1f}", f"{errors:.1f}"
        yield f"`{other}`", run.score, score, *sizes, settings, cause if score != theirs.score else ""


def _differing(run: Published, other: Published) -> str:
    """What the other run has instead: task, shots, template, options."""
    found = {flag: other.value(f"--{flag}") for flag in ("tasks", "num_fewshot", "gen_kwargs")}
    found = {flag: value for flag, value in found.items() if value and value != run.value(f"--{flag}")}
    found |= {name: value for name, value in other.options.items() if run.options.get(name) != value}
    has_template = "--apply_chat_template" in run.flags, "--apply_chat_template" in other.flags
    found |= {"apply_chat_template": has_template[1]} if has_template[0] != has_template[1] else {}
    return f"`{typed(found)}`" if found else "the same"


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
    bounds = (declared.least, declared.above, declared.most)
    least, above, most = (shown(each) if isfinite(each) else None for each in bounds)
    if most is not None:
        return f"in {'(' if least is None else '['}{above or least}, {most}]"
    return f"{'integer' if int in declared.kinds else 'number'} {f'> {above}' if least is None else f'≥ {least}'}"


if __name__ == "__main__":
    write(Path(__file__).parent)
    write_checks(Path(__file__).parent)
