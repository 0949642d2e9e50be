"""Names for links and files."""

import re


def slug(text: str) -> str:
    """`text` in lower-case letters, digits and hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))
