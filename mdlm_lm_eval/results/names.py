"""The names of models in results: `built-in`, a hub id, or a short name, never a folder's path."""

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import yaml

from mdlm_lm_eval.default_model import BUILT_IN, MODEL_FOLDERS, model_path

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*\n", re.DOTALL)


def model_name(pretrained: str | None) -> str:
    """The name of a checkpoint on this machine or on the hub; None is the built-in model."""
    pretrained = pretrained or BUILT_IN
    folder = Path(model_path(pretrained))
    packaged = [name for name, path in MODEL_FOLDERS.items() if folder == path]
    if packaged:
        return packaged[0]
    return folder.resolve().name if folder.is_dir() else recorded_name(pretrained)


def adapter_name(peft: str) -> str:
    """The name in an adapter's model card (`model-index` or `model_name`), else its folder's name or its hub id."""
    try:
        front_matter = _FRONT_MATTER.match(Path(peft, "README.md").expanduser().read_text(encoding="utf-8"))
        card = yaml.safe_load(front_matter[1]) if front_matter else {}
        name = " ".join(str(card.get("model_name") or card["model-index"][0]["name"]).split())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        name = ""
    return name or model_name(peft)


def recorded_name(name: str) -> str:
    """The name of a model that a result file names, perhaps by a path of another machine: the path's last part.

    A hub id stays as it is.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if parts[-2:] == ("mdlm_lm_eval", "default_model"):
        return BUILT_IN
    is_public = name.count("/") <= 1 and "\\" not in name and not name.startswith(("/", ".", "~"))
    return name if is_public else PurePosixPath(*parts).name or "folder"


def named(wanted: str, names: Iterable[str]) -> str | None:
    """The name, such as `model/task,steps=8`, that has all wanted words and the fewest others; None if no name has."""
    words = {name: {*re.split(r"[/,]\s*", name)} for name in names}
    found = [name for name, own in words.items() if {*re.split(r"[/,]\s*", wanted)} <= own]
    return min(found, key=lambda name: len(words[name]), default=None)
