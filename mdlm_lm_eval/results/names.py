"""The names of models in results: `built-in`, a hub id, or a short name, never a folder's path."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from yaml import YAMLError

from mdlm_lm_eval.models import BUILT_IN, MODEL_FOLDERS, model_path

T = TypeVar("T")


def model_name(pretrained: str | None) -> str:
    """The name of a checkpoint on this machine or on the hub; None is the built-in model."""
    pretrained = pretrained or BUILT_IN
    folder = Path(model_path(pretrained))
    packaged = [name for name, path in MODEL_FOLDERS.items() if folder == path]
    if packaged:
        return packaged[0]
    return recorded_name(str(folder.resolve()) if folder.is_dir() else pretrained)


def hub_id(path: str) -> str:
    """The hub id of a folder in the hub's cache (`models--ORG--NAME/snapshots/HASH`); any other path as it is."""
    return re.sub(r"^.*models--([^/]+)/snapshots/[^/]+", lambda found: found[1].replace("--", "/", 1), path)


def adapter_name(peft: str) -> str:
    """The name in an adapter's model card (`model-index` or `model_name`), else its folder's name or its hub id."""
    card = _card(peft)
    try:
        name = " ".join(str(card.get("model_name") or card["model-index"][0]["name"]).split())
    except (LookupError, TypeError):
        name = ""
    return name or model_name(peft)


def other_base(base: str | None, pretrained: str | None) -> str | None:
    """The name of the checkpoint that an adapter says it was trained on, if that is not `pretrained`; else None."""
    trained_on, here = (model_name(name).rpartition("/")[2] for name in (base, pretrained))
    return trained_on if base and pretrained and trained_on != here else None


def adapter_recipe(peft: str) -> str:
    """The digest of the recipe without its seed in an adapter's model card, "" if it has none."""
    return str(_card(peft).get("recipe_digest") or "")


def _card(peft: str) -> Mapping[str, Any]:
    """The metadata of an adapter's model card; empty if there is none."""
    from huggingface_hub import metadata_load  # takes long to import

    try:
        card: Any = metadata_load(Path(peft, "README.md").expanduser())
    except (OSError, ValueError, TypeError, YAMLError):
        return {}
    return card if isinstance(card, dict) else {}


def recorded_name(name: str) -> str:
    """The name of a model that a result file names, perhaps by a path of another machine: the path's last part.

    A hub id stays as it is, and a folder in the hub's cache is named by its id.
    """
    slashed = hub_id(name.replace("\\", "/"))
    parts = PurePosixPath(slashed).parts
    if parts[-2:] == ("mdlm_lm_eval", "default_model"):  # the built-in model's folder in older results
        return BUILT_IN
    is_public = slashed.count("/") <= 1 and "\\" not in name and not slashed.startswith(("/", ".", "~"))
    return slashed if is_public else PurePosixPath(*parts).name or "folder"


def named(wanted: str, names: Iterable[str]) -> str | None:
    """The name, such as `model/task,steps=8`, that has all wanted words and the fewest others; None if no name has."""
    words = {name: {*re.split(r"[/,]\s*", name)} for name in names}
    found = [name for name, own in words.items() if {*re.split(r"[/,]\s*", wanted)} <= own]
    return min(found, key=lambda name: len(words[name]), default=None)


def without_shared(words: Sequence[Sequence[T]]) -> list[list[T]]:
    """Several lists of words or settings, each without those that all of them have."""
    shared = set.intersection(*map(set, words))
    return [[word for word in own if word not in shared] for own in words]
