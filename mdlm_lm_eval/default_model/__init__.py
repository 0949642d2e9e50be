"""The models that come with the package: ordinary checkpoint folders, with the training that made them beside them."""

from pathlib import Path

BUILT_IN = "built-in"  # the one that is taken where none is named
MODEL_FOLDERS = {BUILT_IN: Path(__file__).parent, "built-in-block": Path(__file__).parents[1] / "default_model_block"}


def model_path(name: str) -> str:
    """The folder of a model that comes with the package; any other name as it is."""
    return str(MODEL_FOLDERS.get(name, name))
