"""What a page holds."""

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """The names of its elements and attributes, its links and pictures, its ids, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.names |= {tag, *found}
        self.links += [value for name in ("href", "src", "srcset") if (value := found.get(name))]
        self.ids += [value] if (value := found.get("id")) else []

    def handle_endtag(self, tag: str) -> None:
        self.names.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += "" if self.cdata_elem else data  # of a script or style
