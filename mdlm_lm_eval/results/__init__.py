"""What a result holds: reading it back as a table, and the statistics of its scores.

Neither torch nor transformers is imported here, so that commands which only read results start at once.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mdlm_lm_eval.results.frame import load

__all__ = ["load"]


def __getattr__(name: str) -> object:
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mdlm_lm_eval.results.frame import load  # with pandas, which takes longer to import than `--help` may

    return load
