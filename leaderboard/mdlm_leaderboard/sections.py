"""Which rows may share a table, in which order, and how the tables are called."""

import re
from collections.abc import Iterable
from typing import Any

from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

from mdlm_leaderboard.checkpoint import Checkpoint
from mdlm_leaderboard.decoding import Decoding
from mdlm_leaderboard.rows import Setting
from mdlm_lm_eval.results.suite import current_version

RowKey = tuple[Checkpoint, Decoding, Setting]


def row_order(key: RowKey) -> tuple[Any, ...]:
    """Standard settings first, then by model, adapter and steps."""
    checkpoint, decoding, setting = key
    steps = int(decoding.steps) if decoding.steps.isdecimal() else 0
    return (
        _distance(setting),
        checkpoint.model.lower(),
        checkpoint.adapter or "",
        checkpoint.loading,
        steps,
        decoding.unmasking,
        decoding.other,
        setting.suite_hash or "",
    )


def _distance(setting: Setting) -> tuple[Any, ...]:
    """How far a setting is from the standard one; newer suite versions first."""
    version = [-int(part) for part in re.findall(r"\d{1,9}", setting.suite_version or "")]
    return (
        setting.suite_version is None,
        setting.suite_version != current_version(),
        setting.limit is not None,
        -(setting.limit or 0),
        *(vars(setting)[name] != standard for name, standard in DEFAULT_SETTINGS.items()),
        version,
        setting.chat_template,
        *(vars(setting)[name] or 0 for name in DEFAULT_SETTINGS),
    )


def sections_of(keys: Iterable[RowKey]) -> list[tuple[str, str, list[RowKey]]]:
    """Title, why it stands apart, and row keys, one for each setting; benchmarks without a mask count by themselves.

    The first is the main table. Of two states of one suite version, it is that of more rows.
    """
    by_setting: dict[tuple[Setting, bool], list[RowKey]] = {}
    for key in keys:
        states_masks = key[0].states_masks or key[2].suite_version is not None
        by_setting.setdefault((key[2], states_masks), []).append(key)
    ordered = sorted(
        by_setting,
        key=lambda one: (*_distance(one[0]), not one[1], -len(by_setting[one]), one[0].suite_hash or ""),
    )
    main = ordered[0][0]
    return [
        (
            _title(setting, states_masks),
            _why_apart(setting, main, states_masks=states_masks),
            sorted(by_setting[setting, states_masks], key=row_order),
        )
        for setting, states_masks in ordered
    ]


def _title(setting: Setting, states_masks: bool) -> str:
    if setting.suite_version is None:
        title = "Standard benchmarks" + ("" if states_masks else " without a mask count")
    else:
        title = f"Few-shot suite {setting.suite_version}"
    facts = []
    if setting.suite_version is not None:
        facts.append(f"{setting.fewshot_relevant} relevant and {setting.fewshot_distractors} distractor examples")
        if setting.fewshot_seed != DEFAULT_SETTINGS["fewshot_seed"]:
            facts.append(f"seed {setting.fewshot_seed}")
        if setting.chat_template:
            facts.append("chat template")
    if setting.limit is not None:
        facts.append(f"--limit {setting.limit:g}")
    return ", ".join([title, *facts])


def _why_apart(setting: Setting, main: Setting, *, states_masks: bool) -> str:
    """What forbids a common table with the main one, and with full results of the standard setting."""
    reasons = []
    if setting.limit is not None:
        reasons.append(f"--limit {setting.limit:g} leaves out questions")
    if not states_masks:
        reasons.append("the result files state no mask count")
    if setting.suite_version is not None:
        if setting.suite_version != current_version():
            reasons.append(f"suite version {setting.suite_version} asks other questions than {current_version()}")
        if setting.suite_version == main.suite_version and setting.suite_hash != main.suite_hash:
            reasons.append(
                f"the files of suite version {setting.suite_version} (hash {(setting.suite_hash or 'unknown')[:12]}) "
                f"differ from those of the main table ({(main.suite_hash or 'unknown')[:12]})"
            )
        examples = (setting.fewshot_relevant, setting.fewshot_distractors)
        standard = (DEFAULT_SETTINGS["fewshot_relevant"], DEFAULT_SETTINGS["fewshot_distractors"])
        if examples != standard:
            reasons.append(
                f"{examples[0]} relevant and {examples[1]} distractor examples are not the standard {standard[0]} and "
                f"{standard[1]}"
            )
        if setting.fewshot_seed != DEFAULT_SETTINGS["fewshot_seed"]:
            reasons.append(f"fewshot_seed={setting.fewshot_seed} draws other questions")
        if setting.chat_template and not main.chat_template:
            reasons.append("prompts follow the models' chat templates")
    return "; ".join(reasons)
