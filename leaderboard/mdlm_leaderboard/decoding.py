"""How a result file decoded: what tells two rows of one checkpoint apart."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mdlm_leaderboard.rows import AUTOREGRESSIVE
from mdlm_lm_eval.options import (
    LM_EVAL_SEEDS,
    PARALLEL_RULES,
    DecodingOptions,
    LikelihoodOptions,
    defaults_of,
    silent_names,
)
from mdlm_lm_eval.results.asked import is_block_diffusion, options_of
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult
from mdlm_lm_eval.results.suite import SuiteTask

DECODING_DEFAULTS, LIKELIHOOD_DEFAULTS = defaults_of(DecodingOptions), defaults_of(LikelihoodOptions)

# Options that tell no rows apart by themselves: they change no score, or are columns, axes or facts of their own. Every
# other option that a file records does, whether this version knows it or not.
_SILENT = silent_names() | {"max_gen_toks", "n_masks", "mask_ratio", "n_fillers", "filler", "seed"}
_COLUMNS = frozenset({"steps", "unmasking"})
_SILENT_IN_LIKELIHOOD = silent_names() | {"n_masks", "mc_num", "seed"}
# What sets the pace of a way of decoding: the points of one curve of accuracy against speed.
_PACE_NAMES = ("steps", "steps_per_block", *PARALLEL_RULES)
DEFAULT_SEED = str(LM_EVAL_SEEDS[-1])
_NOT_STATED = "mask count not stated"


@dataclass(frozen=True)
class Decoding:
    """How answers were decoded; `other` names whatever is not the default."""

    steps: str
    unmasking: str
    other: str


def suite_decoding(file: ResultFile, result: TaskResult, task: SuiteTask) -> Decoding:
    """How a task of the suite was decoded. In one step no order is left to choose, so `unmasking` is then "none"."""
    if file.mdlm is None:
        return Decoding(AUTOREGRESSIVE, "", ", ".join(_sampling_of_others(file, result)))
    options = options_of(file, result)
    steps = _suite_steps(options, result, task)
    if steps == "1":
        options["unmasking"] = "none"
    if is_block_diffusion(result):
        options["block_length"] = result.effective["block_length"][1]
    facts = [*_deviations(options), *_typed(file, DECODING_DEFAULTS.keys() - {"max_gen_toks"})]
    masks = result.effective["masks"][1]
    if not task.is_open_ended and masks > 1:
        facts.append(f"{masks - 1} mask{'s' if masks > 2 else ''} after the text")
    if int(options["n_fillers"]) and not task.is_slot:
        facts.append(f"{options['n_fillers']} fillers")
    if int(options["n_fillers"]) and options["filler"] != DECODING_DEFAULTS["filler"]:
        facts.append(f"filler={options['filler']!r}")
    return Decoding(steps, str(options["unmasking"]), ", ".join(facts))


def _suite_steps(options: Mapping[str, Any], result: TaskResult, task: SuiteTask) -> str:
    """The number asked for; where none was, or where it may not count, the number taken."""
    if any(options.get(name) is not None for name in PARALLEL_RULES):
        return "by confidence"
    if is_block_diffusion(result):
        return _steps_of_a_block(options, result)
    taken = result.effective["steps"][1]
    is_one = taken == 1 and not task.is_open_ended
    return str(taken if options["steps"] == "auto" or options["block_length"] or is_one else options["steps"])


def _steps_of_a_block(options: Mapping[str, Any], result: TaskResult) -> str:
    """Of a block diffusion model, whose steps over all blocks grow with the masks that it does not see."""
    if options["steps_per_block"] is not None:
        return f"{options['steps_per_block']} a block"
    return str(result.effective["returned_tokens"][1] if options["steps"] == "auto" else options["steps"])


def benchmark_decoding(file: ResultFile, result: TaskResult, *, is_autoregressive: bool) -> str:
    """How a standard benchmark was scored, as the last words of its column."""
    if file.mdlm is None:
        facts = [AUTOREGRESSIVE if is_autoregressive else _NOT_STATED, *_sampling_of_others(file, result)]
    elif result.output_type == "generate_until":
        options = options_of(file, result)
        facts = [_masks(options, result), f"steps={_range(result.effective['steps'])}", *_unmasking(options)]
        if int(options["n_fillers"]):
            facts.append(f"{options['n_fillers']} fillers {options['filler']!r}")
        if options["n_masks"] != "auto" and "max_gen_toks" in {
            *file.mdlm.get("explicit_options", ()),
            *file.gen_kwargs,
        }:
            facts.append(f"max_gen_toks={options['max_gen_toks']}")
        facts += _deviations(options) + _typed(file, DECODING_DEFAULTS)
    else:
        likelihood = {**LIKELIHOOD_DEFAULTS, **file.mdlm["likelihood"]}
        masks = likelihood["n_masks"]
        facts = [f"n_masks={'the continuation' if masks == 'auto' else masks}", f"mc_num={likelihood['mc_num']}"]
        # Whether greedy decoding gives the continuation is a score where there is one continuation only.
        silent = _SILENT_IN_LIKELIHOOD | ({"check_greedy"} if result.output_type == "multiple_choice" else set())
        facts += _changed(likelihood, LIKELIHOOD_DEFAULTS, silent)
        if likelihood["likelihood"] in ("auto", "mc"):
            facts += _seed(likelihood)
    if result.truncated_prompts:
        facts.append(f"{result.truncated_prompts} prompts cut off")
    return ", ".join(filter(None, facts))


def method_and_pace(file: ResultFile, result: TaskResult) -> tuple[str, str]:
    """A generation benchmark's way of decoding without what sets its pace, and that.

    An approximate cache is part of the way, so that its points and exact ones are of different curves.
    """
    options = options_of(file, result)
    rules = [name for name in PARALLEL_RULES if options[name] is not None]
    pace = [f"{name}={options[name]}" for name in rules]
    if not rules:
        pace = [f"steps={_range(result.effective['steps'])}"]
    elif options["steps"] != "auto" or options["steps_per_block"] is not None:
        pace += [f"{name}={options[name]}" for name in ("steps", "steps_per_block") if options[name] is not None]
    rest = options | {name: DECODING_DEFAULTS[name] for name in _PACE_NAMES}
    facts = [_masks(options, result), *_unmasking(options), *_deviations(rest)]
    return ", ".join([*facts, f"by {' and '.join(rules) or 'steps'}"]), ", ".join(pace)


def _masks(options: Mapping[str, Any], result: TaskResult) -> str:
    ratio = options["mask_ratio"]
    return f"n_masks={_range(result.effective['masks'])}" if ratio is None else f"mask_ratio={ratio}"


def _unmasking(options: Mapping[str, Any]) -> list[str]:
    rule = options["unmasking"]
    return [] if rule == DECODING_DEFAULTS["unmasking"] else [f"unmasking={rule}"]


def _deviations(options: Mapping[str, Any]) -> list[str]:
    """What is not the default; the seed too, where anything is drawn."""
    facts = _changed(options, DECODING_DEFAULTS, _SILENT | _COLUMNS)
    draws = float(options["temperature"] or 0) > 0 or options["unmasking"] == "random"
    return facts + _seed(options) if draws else facts


def _seed(options: Mapping[str, Any]) -> list[str]:
    return [] if str(options["seed"]) == DEFAULT_SEED else [f"seed={options['seed']}"]


def _changed(options: Mapping[str, Any], defaults: Mapping[str, Any], silent: Collection[str]) -> list[str]:
    """`name=value` of options that are not as usual; of an unknown one, None is taken for usual, as in all options."""
    return [
        f"{name}={value}"
        for name, value in options.items()
        if name not in silent and not _same(value, defaults.get(name))
    ]


def _same(value: Any, usual: Any) -> bool:
    return str(value).lower() == str(usual).lower() or (usual == 0.0 and not float(value or 0))


def _sampling_of_others(file: ResultFile, result: TaskResult) -> list[str]:
    """Sampling settings of a model other than ours, which decodes greedily where they are silent."""
    if result.output_type != "generate_until":
        return []
    temperature = float(result.generation.get("temperature") or 0)
    sampling = [f"temperature={temperature:g}"] if temperature and result.generation.get("do_sample") else []
    return sampling + _typed(file, ("temperature",))


def _typed(file: ResultFile, shown: Collection[str]) -> list[str]:
    """What the user asked of every request (`--gen_kwargs`), such as other stop strings, beside what is `shown`."""
    return [f"{name}={value}" for name, value in file.gen_kwargs.items() if name not in {*shown, "do_sample"}]


def _range(bounds: tuple[int, int]) -> str:
    return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]} to {bounds[1]}"
