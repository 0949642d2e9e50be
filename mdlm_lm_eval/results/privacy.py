"""What must not be published, out of what is: secrets, and folders of the user's machine."""

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

# Arguments that grant access, or say how the user's machine reaches the network.
_SECRET = re.compile(
    r"(?i)(?:\w+_)?(?:api_key|password|secret|credentials?)|(?:use_)?(?:auth_|access_|hf_|hub_|_)?token|proxies"
)
# Access tokens by their look, wherever they stand: of the Hugging Face Hub, of OpenAI, of GitHub.
_TOKEN = re.compile(r"\b(?:hf_|sk-|gh[a-z]_|github_pat_)[\w-]{16,}")
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
_FOLDER = re.compile(r"(?=.*\w)(?:file:/+|~[\w.-]*/|/|[A-Za-z]:[\\/]|\\\\)[^\n{}<>]*")
# Between folders such as those of several adapters; a comma in a folder's own name is none.
_NEXT_FOLDER = re.compile(r",(?=file:/|~|/|[A-Za-z]:[\\/]|\\\\)")
_FOLDER_IN_TEXT = re.compile(r"(?:(?<=[\s='\",(\[])|^)(?=\S*\w)(?:file:/+|~[\w.-]*/|/|[A-Za-z]:[\\/])[^\s'\",)\]]+")
# What a model is told: there, a word such as /no_think is no path, unless one lies here.
_INSTRUCTION = "system_instruction"
_SWITCH = re.compile(r"(?<!\S)(/[\w-]+)(?=[.,;:!?]?(?:\s|$))")
_MARK = "(removed)"
# A model's words, which lm-eval's samples hold as they are, too.
_WORD_FOR_WORD = frozenset({"exact_answers"})


def published(value: Any) -> Any:
    """A JSON value without secrets; of an absolute path only the last part is left."""
    if isinstance(value, Mapping):
        return {
            name: inner if name in _WORD_FOR_WORD else _published_argument(name, inner)
            for name, inner in value.items()
            if not is_secret(name)
        }
    if isinstance(value, list | tuple):
        return [published(inner) for inner in value]
    return published_text(value) if isinstance(value, str) else value


def published_text(text: str) -> str:
    """The same for a text: a value, a path, or `name=value,name=value`."""
    if _FOLDER.fullmatch(text):
        return ",".join(map(last_part, _NEXT_FOLDER.split(text)))
    if "=" in text and "\n" not in text:
        pairs = [part.partition("=") for part in text.split(",")]
        kept = [pair for pair in pairs if not (pair[1] and is_secret(pair[0].strip()))]
        return ",".join(name + equals + published_text(value) for name, equals, value in kept)
    text = _USER_IN_URL.sub("", _TOKEN.sub(_MARK, text))
    return _FOLDER_IN_TEXT.sub(lambda match: last_part(match[0]), text)


def published_instruction(text: str) -> str:
    """The same for a system instruction, whose words such as `/no_think` are no paths unless one lies here."""
    parts = _SWITCH.split(text)  # every second one is such a word
    return "".join(part if n % 2 and not Path(part).exists() else published_text(part) for n, part in enumerate(parts))


def published_command(command: str) -> str:
    """The same for a shell command, word by word."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that does not end
        return published_text(command)
    left = (
        published_instruction(word) if before == f"--{_INSTRUCTION}" else _published_word(word)
        for before, word in zip(["", *words], words, strict=False)
    )
    return shlex.join(new for new, word in zip(left, words, strict=True) if new or not word)


def typed_command(name: str) -> str:
    """The command line of this process, whose program is called `name`, as it may be published."""
    return published_command(shlex.join([name, *sys.argv[1:]]))


def is_secret(name: object) -> bool:
    """Whether an argument of this name may not be published; `mask_token_id` and the like may."""
    return _SECRET.fullmatch(str(name)) is not None


def last_part(path: str) -> str:
    """The last part of a path, of Windows too."""
    return PurePosixPath(path.replace("\\", "/")).name or "folder"


def _published_word(word: str) -> str:
    if word.startswith("{"):
        try:
            return json.dumps(published(json.loads(word)))
        except (ValueError, RecursionError):
            pass
    option, equals, value = word.partition("=")
    if equals and option.startswith("--"):
        return f"{option}={_published_argument(option.removeprefix('--'), value)}"
    return published_text(word)


def _published_argument(name: str, value: Any) -> Any:
    return published_instruction(value) if name == _INSTRUCTION and isinstance(value, str) else published(value)
