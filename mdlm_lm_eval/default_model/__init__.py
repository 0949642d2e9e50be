"""The built-in model: an ordinary checkpoint folder, with the training that made it beside it."""

from pathlib import Path


def default_model_path() -> Path:
    """The folder that holds the built-in model's config, weights and tokenizer."""
    return Path(__file__).parent
