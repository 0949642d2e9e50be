"""The documentation as a site: `sphinx-build -W -c docs . site/docs`.

The source folder is the repository, so that a link works alike on GitHub and on the site.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils.nodes import document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

from mdlm_lm_eval import __version__

project = "mdlm-lm-eval"
author = "mdlm-lm-eval contributors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_external_toc"]
external_toc_path = "docs/_toc.yml"
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/*.ipynb",
    "*/README.md",
    "tasks/DATASHEET.md",
    "training/REGISTERED.md",
    "leaderboard/*/README.md",
    "mdlm_lm_eval/models/*/README.md",
    "studies/*/README.md",
]
exclude_patterns = ["mdlm_lm_eval/tasks"]  # a link to tasks/
suppress_warnings = ["myst.header"]  # the model card begins below its front matter
myst_heading_anchors = 4
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
smartquotes = False  # --seed is no dash
html_theme = "furo"
html_show_copyright = False
html_title = "mdlm-lm-eval"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]


class NotebookParser(MystParser):
    """Reads a Jupyter notebook as Markdown, with its recorded outputs."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: document) -> None:
        """Parses the cells of the notebook."""
        cells = json.loads(inputstring)["cells"]
        super().parse("\n\n".join(part for cell in cells for part in _as_markdown(cell)), document)


def _as_markdown(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```{'sh' if source.startswith('!') else 'python'}\n{source}\n```"
    for output in cell["outputs"]:
        shown = output.get("data", {"text/plain": output.get("text", [])})
        if image := shown.get("image/png"):
            yield f"![Figure of the cell above](data:image/png;base64,{''.join(''.join(image).split())})"
        elif table := shown.get("text/markdown"):
            yield "".join(table)
        else:
            yield f"```text\n{''.join(shown['text/plain']).replace(chr(13), '')}\n```"


def setup(app: Sphinx) -> None:
    """Reads notebooks, and docstrings' bars as bars; adds README's figures, whose HTML Sphinx does not read."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("autodoc-process-docstring", _bars)
    app.connect("build-finished", _finish)


def _bars(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = [line.replace("|", r"\|") for line in lines]


def _finish(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        out = Path(app.outdir)
        shutil.copytree(Path(app.confdir) / "figures", out / "docs" / "figures", dirs_exist_ok=True)
        (out / "index.html").write_text('<meta http-equiv="refresh" content="0; url=docs/index.html">\n')
