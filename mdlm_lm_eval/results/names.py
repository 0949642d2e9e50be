"""What models are called wherever a result shows one: `built-in`, a hub id, or a short name, never a folder's path."""

import re
from pathlib import Path, PurePosixPath

import yaml

from mdlm_lm_eval.default_model import BUILT_IN, MODEL_FOLDERS, model_path
from mdlm_lm_eval.results.files import UnusableFile, read_bytes
from mdlm_lm_eval.results.privacy import last_part

_LONGEST = 100
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*\n", re.DOTALL)


def model_name(pretrained: str | None) -> str:
    """Of a checkpoint on this machine or on the hub; None is the built-in model."""
    pretrained = pretrained or BUILT_IN
    folder = Path(model_path(pretrained))
    for name, packaged in MODEL_FOLDERS.items():
        if folder == packaged:
            return name
    return folder.resolve().name if folder.is_dir() else recorded_name(pretrained)


def adapter_name(peft: str) -> str:
    """The name that an adapter's model card gives (`model-index` or `model_name`), else its folder's or its hub id."""
    return card_name(Path(peft)) or model_name(peft)


def card_name(folder: Path) -> str | None:
    """What the model card in `folder` calls its model, None where there is none or it says nothing."""
    try:
        front_matter = _FRONT_MATTER.match(read_bytes(folder / "README.md").decode("utf-8"))
        card = yaml.safe_load(front_matter[1]) if front_matter else {}
        name = card.get("model_name") or card["model-index"][0]["name"]
    except (UnusableFile, ValueError, LookupError, TypeError, AttributeError, RecursionError, yaml.YAMLError):
        return None
    return " ".join(str(name).split())[:_LONGEST] or None


def recorded_name(name: str) -> str:
    """A name as a result file has it, which may be of another machine: a path's last part, a hub id as it is."""
    if PurePosixPath(name.replace("\\", "/")).parts[-2:] == ("mdlm_lm_eval", "default_model"):
        return BUILT_IN
    return name if is_public(name) else last_part(name)


def is_public(name: str) -> bool:
    """Whether a name may be a hub id (or the built-in model's) and is no path."""
    return name.count("/") <= 1 and "\\" not in name and not name.startswith(("/", ".", "~"))
