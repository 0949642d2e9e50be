"""Tables in Markdown. In a README, they stand between `<!-- name -->` and `<!-- end -->`."""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, without a line end after its last row."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def aligned(values: Iterable[float | None]) -> list[str]:
    """A column of numbers with equally many decimals: as many as the smallest needs for three digits, at most four."""
    known = [value if value is not None and math.isfinite(value) else None for value in values]
    least = min((abs(value) for value in known if value), default=1)
    decimals = min(max(2 - math.floor(math.log10(least)), 0), 4)
    return ["–" if value is None else f"{value:.{decimals}f}" for value in known]


def compact(text: str) -> str:
    """The same Markdown without spaces around the bars of its tables."""
    return "\n".join(line.replace(" | ", "|").replace("| ", "|").replace(" |", "|") for line in text.splitlines())


def replace_table(readme: Path, name: str, text: str) -> None:
    """Replaces the text in the place of a README that is marked with `name`; tables become compact."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    old = readme.read_text(encoding="utf-8")
    readme.write_text(marked.sub(lambda match: f"{match[1]}{compact(text)}\n{match[2]}", old), encoding="utf-8")
