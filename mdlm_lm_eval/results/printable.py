"""Text that anybody may have written, for terminals, HTML and Markdown."""

import re
import unicodedata

_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # control and formatting characters, halves of one, line ends
_ACTIVE = re.compile(r"[\\`*\[\]|~$#>]|(?<!\w)_|_(?!\w)")  # an underscore inside a word has no meaning
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;"})


def printable(text: str, *, keep: str = "") -> str:
    """The text with an escape such as `\\x1b` for each control or formatting character that is not in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in _UNSEEN and one not in keep else one
        for one in text
    )


def in_markdown(text: str) -> str:
    """Markdown, on one line, that shows this text: no cell, heading, picture, link or HTML of its own."""
    return _ACTIVE.sub(r"\\\g<0>", printable(text)).translate(_ENTITIES)
