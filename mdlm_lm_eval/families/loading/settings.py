"""JSON files of settings beside a checkpoint's weights, checked for the types that their keys have."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from huggingface_hub.dataclasses import type_validator
from transformers.utils import cached_file

from mdlm_lm_eval.results.files import UnusableFile, read_json
from mdlm_lm_eval.values import must_be, shown

# What JSON can hold.
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "names with a value each",
    NoneType: "null",
}


def read_settings(
    source: str, file: str, types: Mapping[str, Any], *, revision: str = "main", subfolder: str = ""
) -> dict[str, Any] | None:
    """The settings in `file` of a folder or hub id, None where there is no such file.

    `types` are annotations of keys; one that holds more than JSON can is not checked. Raises UnusableFile where a key's
    value is of another type.
    """
    local = Path(source) / subfolder / file
    if os.path.lexists(local) and not local.is_file():
        raise UnusableFile(f"{file} is no regular file")  # transformers would go on without
    path = cached_file(
        source, file, revision=revision, subfolder=subfolder, _raise_exceptions_for_missing_entries=False
    )
    if path is None:
        return None
    try:
        settings = read_json(Path(path))
    except UnusableFile as error:
        raise UnusableFile(f"{file} {error}") from error
    if not isinstance(settings, dict):
        raise UnusableFile(f"{file} must hold names with a value each, not {shown(settings)}")
    for name, annotation in types.items():
        if name in settings and (what := _in_words(annotation)) is not None:
            try:
                type_validator(name, settings[name], annotation)
            except TypeError as error:
                raise UnusableFile(str(must_be(f"{name} in {file}", what, json.dumps(settings[name])))) from error
    return settings


def _in_words(annotation: Any) -> str | None:
    """What JSON values an annotation stands for; None where it holds more."""
    kind = get_origin(annotation) or annotation
    if kind is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    if kind in _WORDS:
        return _WORDS[kind]
    parts = [_in_words(part) for part in get_args(annotation) if not (part is int and float in get_args(annotation))]
    return None if None in parts or not parts else " or ".join(sorted(part for part in parts if part))
