"""Writes the tables of options and presets into the documentation: `python docs/write_options.py`."""

from dataclasses import Field
from pathlib import Path
from typing import Any

from mdlm_lm_eval.command_line import typed
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, ModelOptions, about, defaults_of, options_of
from mdlm_lm_eval.presets import load_preset, preset_names, run_of
from mdlm_lm_eval.results.markdown import markdown_table, replace_table

TABLES = {"decoding": DecodingOptions, "likelihood": LikelihoodOptions, "model": ModelOptions}
_HEADER = ("preset", "published", "task", "shots", "options")
_DEFAULTS = defaults_of(LikelihoodOptions) | defaults_of(DecodingOptions)


def write(*pages: Path) -> None:
    """Fills the marked places of these pages."""
    tables = {
        name: markdown_table(("option", "default", "meaning"), map(_option, options_of(kind)))
        for name, kind in TABLES.items()
    }
    tables["presets"] = markdown_table(_HEADER, map(_preset, preset_names())).replace("| ", "|").replace(" |", "|")
    for page in pages:
        for name, table in tables.items():
            replace_table(page, name, table)


def _preset(name: str) -> tuple[str, ...]:
    run, options = run_of(name), {k: v for k, v in load_preset(name).items() if v != _DEFAULTS[k]}
    score = run.score + "†" * (not run.is_target)
    task, shots, tokens = map(run.value, ("--tasks", "--num_fewshot", "--gen_kwargs"))
    options |= dict([tokens.split("=")]) if tokens else {}
    return f"`{name}`", score, f"`{task}`", shots or "", f"`{typed(options)}`"


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
