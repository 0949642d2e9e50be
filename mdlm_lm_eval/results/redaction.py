"""Removes secrets from a result file: passwords and tokens among recorded arguments, and names of home directories."""

import re
from functools import lru_cache
from typing import Any

REMOVED = "(removed)"

_ALWAYS_SECRET = frozenset(
    "apikey auth authentication authorization bearer cookie cookies credential credentials passphrase passwd password "  # noqa: SIM905
    "passwords pwd secret secrets".split()
)
_KEYS = frozenset(("access", "account", "api", "auth", "encryption", "license", "private", "signing", "subscription"))
# Words before `token` in names of tokens of a vocabulary, and of counts of tokens.
_OF_VOCABULARY = frozenset(
    "audio begin bos cls differing end eos first image last mask new next pad per prefix sep special start stop "  # noqa: SIM905
    "suffix unk video".split()
)
# Answers of a model, which are scored and never shown.
_ANSWERS = frozenset(("exact_answers", "trace", "trace_tokens"))

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# `name=value`, `"name": value` and `--name value`, up to the value; a quoted value ends at its quote. A key that does
# not match is not tried again from its later letters, since a text may be one long word.
_NAME = re.compile(r"""--(?P<flag>[A-Za-z][\w-]*)\s+|(?<![A-Za-z])(?P<key>[A-Za-z][\w.-]*+)\\?["']?\s*[=:]\s*""")
# Values of headers are secret under any name. One without quotes or brackets ends at a comma or at a flag.
_HEADERS = frozenset(("header", "headers"))
_HEADER = re.compile(
    r"""\{(?:\\?"(?:[^"\\]|\\[^"])*+\\?"|'[^']*'|\{[^{}]*\}|[^{}"'\\])*+\}|(?![\[{"'\\])[^,"'\n]*?(?=\s--|[,"'\n]|$)"""
)
_VALUE = re.compile(
    r"""\\?"[^"]*"|\\?'[^']*'|\[[^\]]*\]|\{[^}]*\}|(?:(?:Basic|Bearer|Digest|Token)\s+)?[^\s,;&"'{}\[\]()]+""",
)
_SHAPES = re.compile(
    r"\bhf_(?:(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{8,}|[a-z]{20,})"
    r"|\bsk-(?:(?=[\w-]*[A-Z0-9])[\w-]{8,}|[\w-]{20,})"
    r"|\bBearer\s+[\w.~+/=-]{8,}"
    r"|\b(?:gh[opsur]|github_pat|glpat|gsk|nvapi|pypi|xox[abprs])[_-][\w-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # JSON web token
)
_CREDENTIALS = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#\"'@]*(?:@[^\s/?#\"'@]*)*@")
# A comma ends the query if another argument follows.
_QUERY = re.compile(r"(?P<url>\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?#\"',]*)[?#](?:[^\s\"',]|,(?!\s*[\w.-]+=))+")
_HOME = re.compile(
    r"(?<![\w.~-])(?:/(?:home|Users)/[^/\s,;:=\"']+|/root|[A-Za-z]:[\\/]+Users[\\/]+[^\\/\s,;\"']+)(?![\w.-])"
)


def redacted(content: Any) -> Any:
    """The same JSON with "(removed)" for every secret, and `~` for home directories.

    Secrets are the values of keys such as `token`, `api_key`, `password` or `headers`, in mappings and inside strings
    (`name=value`, `--name value`, JSON), strings that look like a token (`hf_...`, `sk-...`, `Bearer ...`), and the
    credentials and queries of URLs. Keys of vocabularies (`mask_token_id`, `think_end_token`) and answers stay.
    """
    if isinstance(content, str):
        return _of_text(content)
    if isinstance(content, list):
        return [redacted(one) for one in content]
    if isinstance(content, dict):
        return {_of_text(key): redacted_value(key, value) for key, value in content.items()}
    return content


def redacted_value(key: str, value: Any) -> Any:
    """The value that a mapping has under this key, as `redacted` would return it."""
    if key in _ANSWERS and isinstance(value, list | dict):  # `trace` is also an option
        return value
    is_empty = value is None or isinstance(value, bool) or value == ""  # the presence of a token is no secret
    return REMOVED if _is_secret(key) and not is_empty else redacted(value)


@lru_cache(maxsize=4096)
def _is_secret(key: str) -> bool:
    words = [word.lower() for word in _WORD.findall(key)]
    if not words:
        return False
    before = words[-2] if len(words) > 1 else ""
    return (
        not _ALWAYS_SECRET.isdisjoint(words)
        or words[-1] in _HEADERS
        or (words[-1] == "token" and before not in _OF_VOCABULARY)
        or (words[-1] == "key" and before in _KEYS)
    )


@lru_cache(maxsize=4096)  # the files of a folder repeat most of theirs
def _of_text(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold half a character, which a file cannot
    text = _CREDENTIALS.sub(rf"\g<scheme>{REMOVED}@", text)
    text = _QUERY.sub(rf"\g<url>?{REMOVED}", text)
    text = _SHAPES.sub(REMOVED, _without_named(text))
    return _HOME.sub("~", text)


def _without_named(text: str) -> str:
    parts, end = [], 0
    for found in _NAME.finditer(text):
        name = found["flag"] or found["key"]
        if found.start() < end or not _is_secret(name):
            continue
        is_header = name.lower().endswith((*_HEADERS,))
        if value := (is_header and _HEADER.match(text, found.end())) or _VALUE.match(text, found.end()):
            parts += [text[end : found.end()], REMOVED]
            end = value.end()
    return "".join([*parts, text[end:]])
