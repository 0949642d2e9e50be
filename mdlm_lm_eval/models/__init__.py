"""The models that come with the package: ordinary checkpoint folders."""

import os
from pathlib import Path

from mdlm_lm_eval.options import OptionError, did_you_mean

BUILT_IN = "built-in"  # the one that is taken where none is named
MODEL_FOLDERS = {
    name: Path(__file__).parent / name for name in (BUILT_IN, "built-in-block", "built-in-instruct", "built-in-lists")
}


def model_path(name: str) -> str:
    """The folder of a model that comes with the package; any other name as it is, ~ being the home folder.

    Raises OptionError for the misspelt name of a model that comes with the package.
    """
    if name.startswith(f"{BUILT_IN}-") and name not in MODEL_FOLDERS and not Path(name).exists():
        hint = did_you_mean(name, MODEL_FOLDERS) or f"there are {', '.join(MODEL_FOLDERS)}"
        raise OptionError(f"pretrained={name}: no such model comes with the package; {hint}")
    return str(MODEL_FOLDERS.get(name, os.path.expanduser(name)))
