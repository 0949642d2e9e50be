"""Renders the templates in the folder `page`: pages, Markdown, and sentences."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mdlm_lm_eval.results.text import in_markdown, printable


@cache
def _environment(finalize: Callable[[Any], Any], *, is_html: bool = True) -> Environment:
    """Compiles each template once, which takes most of a second.

    `finalize` takes every value that a template shows. What is no Markup after that is escaped as HTML, in every
    template but plain texts: macros are Markup themselves, so that a template that did not escape would vouch for its
    values.
    """
    environment = Environment(
        loader=PackageLoader("mdlm_leaderboard", "page"),
        autoescape=is_html,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"finalize": finalize, "one_line": printable, "hash": _hash}
    return environment


def _for_html(value: Any) -> Any:
    return printable(value, keep="\n\t") if type(value) is str else value


def _for_markdown(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(in_markdown(str(value)))


def _for_text(value: Any) -> str:
    return printable(str(value))


def render(name: str, path: Path, styles: Sequence[str] = (), **content: Any) -> None:
    """Writes a page from the template, the style and the script of this name.

    The style follows that of all pages and `styles`. A page may have no script.
    """
    page = files("mdlm_leaderboard").joinpath("page")
    style = "".join(page.joinpath(f"{one}.css").read_text("utf-8") for one in ("base", *styles, name))
    script = page.joinpath(f"{name}.js").read_text("utf-8") if page.joinpath(f"{name}.js").is_file() else ""
    ours = {"style": Markup(style), "script": Markup(script)}  # are not escaped, since they are our own files
    html = _environment(_for_html).get_template(f"{name}.html.jinja").render(**ours, **content)
    path.write_text(html, encoding="utf-8")


def render_markdown(name: str, **content: Any) -> str:
    """Markdown from the template of this name."""
    return _environment(_for_markdown).get_template(f"{name}.md.jinja").render(**content)


def sentences(name: str, **content: Any) -> list[str]:
    """The lines of the plain text that the template of this name makes."""
    text = _environment(_for_text, is_html=False).get_template(f"{name}.txt.jinja").render(**content)
    return [line for line in text.split("\n") if line.strip()]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
