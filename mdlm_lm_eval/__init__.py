"""Masked diffusion language models in lm-evaluation-harness."""

# Public names are resolved when they are first used, as the start-up hook imports this package in every interpreter.
TYPE_CHECKING = False  # like typing's; importing typing would take longer than the whole start-up hook may
if TYPE_CHECKING:
    from pathlib import Path

    from mdlm_lm_eval.checkpoints import load, load_denoiser, load_tokenizer
    from mdlm_lm_eval.decoding.canvas import Completion
    from mdlm_lm_eval.from_python import LogLikelihood, decode, fill, log_likelihood
    from mdlm_lm_eval.lm import MDLM
    from mdlm_lm_eval.model.denoiser import Denoiser
    from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
    from mdlm_lm_eval.registry import register

__version__ = "0.4.0"

__all__ = [
    "MDLM",
    "Completion",
    "DecodingOptions",
    "Denoiser",
    "LikelihoodOptions",
    "LogLikelihood",
    "__version__",
    "decode",
    "fill",
    "load",
    "load_denoiser",
    "load_tokenizer",
    "log_likelihood",
    "register",
    "tasks_path",
]

_NAMES_OF = {
    "mdlm_lm_eval.checkpoints": ("load", "load_denoiser", "load_tokenizer"),
    "mdlm_lm_eval.decoding.canvas": ("Completion",),
    "mdlm_lm_eval.from_python": ("LogLikelihood", "decode", "fill", "log_likelihood"),
    "mdlm_lm_eval.lm": ("MDLM",),
    "mdlm_lm_eval.model.denoiser": ("Denoiser",),
    "mdlm_lm_eval.options": ("DecodingOptions", "LikelihoodOptions"),
    "mdlm_lm_eval.registry": ("register",),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    for module, names in _NAMES_OF.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def tasks_path() -> "Path":
    """Returns the folder with the YAML files of this package's tasks."""
    from pathlib import Path

    return Path(__file__).parent.resolve() / "tasks"
