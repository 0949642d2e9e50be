"""What the tasks of a result file were asked for."""

from typing import Any

from mdlm_lm_eval import options as declared
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.precedence import over
from mdlm_lm_eval.requests import SAMPLING_NAMES, sampling
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult

_ONLY_WHERE_SILENT = {*SAMPLING_NAMES, "max_gen_toks"}
# An option's value may be another package's, which is not here.
_BOUNDED_NAMES = {each.name for each in declared.options_of(DecodingOptions) if declared.about(each).choices is None}


def options_of(file: ResultFile, result: TaskResult) -> dict[str, Any]:
    """The decoding options of a task: a request's own win, sampling keys of its YAML only over what nobody set.

    Raises OptionError for a sampling key that cannot be used.
    """
    assert file.mdlm is not None
    defaults = declared.defaults_of(DecodingOptions)
    options = {**defaults, **file.mdlm["decoding"]}
    explicit = set(file.mdlm.get("explicit_options", ()))
    generation = result.generation
    own = {name: generation[name] for name in (options.keys() & generation.keys()) - _ONLY_WHERE_SILENT}
    silent = sampling(generation, explicit)
    if generation.get("max_gen_toks") is not None and "max_gen_toks" not in explicit:
        silent["max_gen_toks"] = generation["max_gen_toks"]
    dropped: set[str] = set()
    if own:  # what holds only where the user was silent excludes nothing, and nearly every task has some
        lower, higher = ({name: of[name] for name in of.keys() & _BOUNDED_NAMES} for of in (options, own | silent))
        dropped = lower.keys() - over(lower, higher, full_attention=not is_block_diffusion(result)).keys()
    options |= {name: defaults[name] for name in dropped} | own | silent
    return options


def is_block_diffusion(result: TaskResult) -> bool:
    """Whether the model saw its answers block by block."""
    return "masks_in_block" in result.effective


def asked_masks(file: ResultFile, result: TaskResult) -> tuple[int, int]:
    """The fewest and the most masks that were asked for; what fills a block diffusion model's last block is no part."""
    if not is_block_diffusion(result):
        return result.effective["masks"]
    n_masks = options_of(file, result)["n_masks"]
    return result.effective["returned_tokens"] if n_masks == "auto" else (int(n_masks), int(n_masks))
