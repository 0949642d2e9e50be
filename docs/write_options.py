"""Writes the tables of options into README.md and docs/options.md: `python docs/write_options.py`."""

from dataclasses import Field
from pathlib import Path
from typing import Any

from mdlm_lm_eval.options import (
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    about,
    options_of,
    requirement,
)
from mdlm_lm_eval.results.markdown import markdown_table, replace_table
from mdlm_lm_eval.values import shown

MOST_USED = (
    "n_masks",
    "steps",
    "block_length",
    "unmasking",
    "confidence_threshold",
    "temperature",
    "cfg_scale",
    "cache",
    "likelihood",
    "mc_num",
)
TABLES = {"decoding": DecodingOptions, "likelihood": LikelihoodOptions, "model": ModelOptions}


def write(readme: Path, page: Path) -> None:
    """Fills the marked places of both files."""
    options = {name: list(options_of(kind)) for name, kind in TABLES.items()}
    once = {each.name: each for kind in reversed(options.values()) for each in kind}
    header = ("option", "default", "meaning", "LLaDA's scripts", "Dream's")
    replace_table(readme, "options", markdown_table(header, [_short(once[name]) for name in MOST_USED]))
    for name, declared in options.items():
        header = ["option", "default", "must be", "meaning"]
        names = ["in LLaDA's scripts", "in Dream's"] if name != "model" else []
        rows = [_long(each)[: len(header) + len(names)] for each in declared]
        replace_table(page, name, markdown_table([*header, *names], rows))


def _short(declared: Field[Any]) -> list[str]:
    known = about(declared)
    choices = f": {requirement(declared).removeprefix('one of ')}" if known.choices is not None else ""
    return [f"`{declared.name}`", _default(declared), f"{known.help}{choices}", *_elsewhere(declared)]


def _long(declared: Field[Any]) -> list[str]:
    known = about(declared)
    return [f"`{declared.name}`", _default(declared), requirement(declared), known.help, *_elsewhere(declared)]


def _elsewhere(declared: Field[Any]) -> list[str]:
    return [f"`{name}`" if name else "" for name in (about(declared).llada, about(declared).dream)]


def _default(declared: Field[Any]) -> str:
    return "" if declared.default is None else f"`{shown(declared.default)}`"


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    write(root / "README.md", root / "docs" / "options.md")
