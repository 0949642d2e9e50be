"""Tables in Markdown, and their places in a README: between `<!-- name -->` and `<!-- end -->`."""

import re
from pathlib import Path


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])


def replace_table(readme: Path, name: str, text: str) -> None:
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    old = readme.read_text(encoding="utf-8")
    readme.write_text(marked.sub(lambda match: f"{match[1]}{text}\n{match[2]}", old), encoding="utf-8")
