"""What a result holds: reading it back as a table, and the statistics of its scores.

Neither torch nor transformers is imported here, so that commands which only read results start at once.
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

    # With pandas, which takes longer to import than `--help` may.
    return import_module(f"{__name__}.plot") if name == "plot" else import_module(f"{__name__}.frame").load
