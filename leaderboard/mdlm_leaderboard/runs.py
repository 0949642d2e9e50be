"""The run behind a result file: its settings, and its command in a form that can be pasted into a shell."""

import shlex
from collections.abc import Iterable
from typing import Any

from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

from mdlm_leaderboard.rows import Run
from mdlm_lm_eval.options import LM_EVAL_SEEDS
from mdlm_lm_eval.results.commands import typed_pairs
from mdlm_lm_eval.results.result_file import ResultFile, is_number, leaves
from mdlm_lm_eval.results.suite import suite_task

_SEEDS = ("random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
_FACTS = ("family", "preset", "processes", "forward_passes", "device_name", "attn_implementation", "cache_audit")


def run_of(file: ResultFile) -> Run:
    """What made a result file."""
    return Run(path=file.path, command=command(file), settings=_settings(file), versions=file.versions, date=file.date)


def machine_of(file: ResultFile) -> str:
    """Where seconds were counted, and what they depend on."""
    mdlm = file.mdlm or {}
    several = [f"{mdlm['processes']} processes"] if mdlm.get("processes", 1) != 1 else []
    name = mdlm.get("device_name") or mdlm.get("device") or "unknown device"
    return ", ".join([str(name), file.dtype, f"batches of {mdlm.get('batch_size')}", *several])


def command(file: ResultFile) -> str:
    """The sweep's command where the file names it, else the `lm_eval` command that its settings amount to."""
    if isinstance(file.sweep.get("command"), str):
        return str(file.sweep["command"])
    words = ["lm_eval", "--model", file.model_kind]
    if file.model_args:
        words += ["--model_args", typed_pairs(file.model_args)]
    words += ["--tasks", ",".join(_asked_for(file))]
    if file.gen_kwargs:
        words += ["--gen_kwargs", typed_pairs(file.gen_kwargs)]
    words += _shots(file)
    if file.limit is not None:
        words += ["--limit", f"{file.limit:g}"]
    if file.run_options["batch_size"] is not None:
        words += ["--batch_size", str(file.run_options["batch_size"])]
    if file.chat_template:
        words += ["--apply_chat_template", "--fewshot_as_multiturn", str(file.fewshot_as_multiturn).lower()]
    if file.system_instruction:
        words += ["--system_instruction", file.system_instruction]
    seeds = tuple(file.run_options[name] for name in _SEEDS)
    if seeds != LM_EVAL_SEEDS:
        words += ["--seed", ",".join(map(str, seeds))]
    if any(task.unsafe_code for task in file.tasks.values()):
        words.append("--confirm_run_unsafe_code")
    return shlex.join(words)


def _asked_for(file: ResultFile) -> Iterable[str]:
    """The outermost groups, and the tasks in none."""
    inside = {member for members in file.groups.values() for member in members}
    outermost = [group for group in file.groups if group not in inside]
    covered = {leaf for group in outermost for leaf in leaves(group, file.groups)}
    return [*outermost, *(task for task in file.tasks if task not in covered)]


def _shots(file: ResultFile) -> list[str]:
    """`--num_fewshot` for standard benchmarks of one number of shots, `--metadata` for the suite's own settings."""
    suites = [task for task in file.tasks.values() if suite_task(task.name)]
    if not suites:
        shots = {task.shots for task in file.tasks.values()}
        return ["--num_fewshot", str(shots.pop())] if len(shots) == 1 else []
    changed = [
        f"{name}={suites[0].metadata[name]}"
        for name, standard in DEFAULT_SETTINGS.items()
        if suites[0].metadata.get(name, standard) != standard
    ]
    return ["--metadata", *changed] if changed else []


def _settings(file: ResultFile) -> dict[str, Any]:
    """What a reader needs to judge a run, flat, without paths."""
    mdlm = file.mdlm or {}
    settings: dict[str, Any] = {
        "model": file.model_kind,
        "batch_size": mdlm.get("batch_size", file.run_options["batch_size"]),
        "device": mdlm.get("device", file.run_options["device"]),
        "dtype": file.dtype,
        "limit": file.limit,
        "chat_template": file.chat_template,
        **{name: value for name, value in mdlm.get("decoding", {}).items() if value is not None},
        **file.gen_kwargs,
    }
    if any(result.output_type != "generate_until" for result in file.tasks.values()):
        settings |= {f"likelihood {name}": value for name, value in mdlm.get("likelihood", {}).items()}
    if mdlm:
        settings |= {name: mdlm.get(name) for name in _FACTS}
    return {name: _scalar(value) for name, value in settings.items() if value not in (None, "")}


def _scalar(value: object) -> object:
    """Numbers, truth values and text as they are, anything else as text."""
    return value if isinstance(value, str | bool) or is_number(value) else str(value)
