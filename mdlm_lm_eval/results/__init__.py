"""Reads results as a table, and computes the statistics of their scores.

This room imports neither torch nor transformers, so that commands that only read results start at once.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mdlm_lm_eval.results import plot
    from mdlm_lm_eval.results.frame import load

__all__ = ["load", "plot"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    # Both import pandas, which would slow down `--help`.
    return import_module(f"{__name__}.plot") if name == "plot" else import_module(f"{__name__}.frame").load
