"""How a result file decoded: what tells two rows of one checkpoint apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mdlm_leaderboard.checkpoint import AUTOREGRESSIVE_KINDS, DECODING_NAMES
from mdlm_leaderboard.result_files import ResultFile, TaskResult
from mdlm_leaderboard.rows import AUTOREGRESSIVE
from mdlm_leaderboard.suite import SuiteTask

_NOT_STATED = "mask count not stated"
_DEFAULT_SEED = "1234"  # lm-eval's own
_DECODING_DEFAULTS: Mapping[str, Any] = {
    "block_length": None,
    "schedule": "linear",
    "confidence_threshold": None,
    "temperature": 0.0,
    "top_p": None,
    "top_k": None,
    "cfg_scale": 0.0,
    "suppress_eos": False,
    "eos_last": False,
}
_SAMPLING_NAMES = frozenset({"temperature", "top_p", "top_k", "max_gen_toks"})
_LIKELIHOOD_DEFAULTS: Mapping[str, Any] = {"likelihood": "auto", "cfg_scale": 0.0}


@dataclass(frozen=True)
class Decoding:
    """How answers were decoded; `other` names whatever is not the default."""

    steps: str
    unmasking: str
    other: str


def suite_decoding(file: ResultFile, result: TaskResult, task: SuiteTask) -> Decoding:
    """How a task of the suite was decoded. In one step no order is left to choose, so `unmasking` is then "none"."""
    if file.mdlm is None:
        return Decoding(AUTOREGRESSIVE, "", _sampling_of_others(result))
    options = _options(file, result)
    steps = _suite_steps(options, result, task)
    if steps == "1":
        options["unmasking"] = "none"
    facts = _deviations(options)
    masks = result.effective["masks"][1]
    if not task.is_open_ended and masks > 1:
        facts.append(f"{masks - 1} mask{'s' if masks > 2 else ''} after the text")
    if int(options["n_fillers"]) and not task.is_slot:
        facts.append(f"{options['n_fillers']} fillers")
    if int(options["n_fillers"]) and options["filler"] != ".":
        facts.append(f"filler={options['filler']!r}")
    return Decoding(steps, str(options["unmasking"]), ", ".join(facts))


def _suite_steps(options: Mapping[str, Any], result: TaskResult, task: SuiteTask) -> str:
    """The number asked for; where none was, or where it may not count, the number taken."""
    if options["confidence_threshold"] is not None:
        return "by confidence"
    taken = result.effective["steps"][1]
    is_one = taken == 1 and not task.is_open_ended
    return str(taken if options["steps"] == "auto" or options["block_length"] or is_one else options["steps"])


def benchmark_decoding(file: ResultFile, result: TaskResult) -> str:
    """How a standard benchmark was scored, as the last words of its column."""
    if file.mdlm is None:
        facts = [AUTOREGRESSIVE if file.model_kind in AUTOREGRESSIVE_KINDS else _NOT_STATED]
        return ", ".join([*facts, *filter(None, [_sampling_of_others(result)])])
    if result.output_type == "generate_until":
        options = _options(file, result)
        ratio = options["mask_ratio"]
        masks = f"n_masks={_range(result.effective['masks'])}" if ratio is None else f"mask_ratio={ratio}"
        facts = [masks, f"steps={_range(result.effective['steps'])}"]
        if options["unmasking"] != "confidence":
            facts.append(f"unmasking={options['unmasking']}")
        if int(options["n_fillers"]):
            facts.append(f"{options['n_fillers']} fillers {options['filler']!r}")
        return ", ".join(facts + _deviations(options))
    likelihood = file.mdlm["likelihood"]
    masks = likelihood["n_masks"]
    facts = [f"n_masks={'the continuation' if masks == 'auto' else masks}", f"mc_num={likelihood['mc_num']}"]
    return ", ".join(
        [
            *facts,
            *(
                f"{name}={likelihood[name]}"
                for name, usual in _LIKELIHOOD_DEFAULTS.items()
                if likelihood[name] != usual
            ),
        ]
    )


def mask_ratio_of(file: ResultFile, result: TaskResult) -> float | None:
    """The share of the prompt's tokens that was appended as masks, where a share was asked for."""
    ratio = _options(file, result)["mask_ratio"] if file.mdlm else None
    return None if ratio is None else float(ratio)


def fillers_of(file: ResultFile, result: TaskResult) -> int:
    """How many fillers were asked for."""
    return int(_options(file, result)["n_fillers"])


def _options(file: ResultFile, result: TaskResult) -> dict[str, Any]:
    """The decoding options of a task: a request's own win, sampling keys of its YAML only over what nobody set."""
    assert file.mdlm is not None
    options = dict(file.mdlm["decoding"])
    explicit = set(file.mdlm.get("explicit_options", ()))
    generation = result.generation
    for name in DECODING_NAMES & generation.keys():
        if name not in _SAMPLING_NAMES or (name not in explicit and generation[name] is not None):
            options[name] = generation[name]
    if str(generation.get("do_sample", "")).lower() == "false" and "temperature" not in explicit:
        options["temperature"] = 0.0
    return options


def _deviations(options: Mapping[str, Any]) -> list[str]:
    """What differs from greedy decoding by the linear schedule; the seed too, where anything is drawn."""
    facts = [
        f"{name}={options[name]}"
        for name, usual in _DECODING_DEFAULTS.items()
        if str(options[name]).lower() != str(usual).lower() and not (usual == 0.0 and not float(options[name] or 0))
    ]
    draws = float(options["temperature"] or 0) > 0 or options["unmasking"] == "random"
    return [*facts, f"seed={options['seed']}"] if draws and str(options["seed"]) != _DEFAULT_SEED else facts


def _sampling_of_others(result: TaskResult) -> str:
    """Sampling settings of a model other than ours, which decodes greedily where they are silent."""
    temperature = float(result.generation.get("temperature") or 0)
    return f"temperature={temperature:g}" if temperature and result.generation.get("do_sample") else ""


def _range(bounds: tuple[int, int]) -> str:
    return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]} to {bounds[1]}"
