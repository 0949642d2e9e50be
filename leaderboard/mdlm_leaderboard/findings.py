"""What the board says in sentences, with the numbers of its tables."""

from collections.abc import Sequence
from itertools import product

from mdlm_leaderboard.board import ONE_STEP, QUALITIES, Estimate, Row, Section, is_exact, loss
from mdlm_leaderboard.scores import Who
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.statistics import Interval

_MOST_LINES = 5  # of the figure of masks


def short_name(model: str) -> str:
    """Without its organisation."""
    return "built-in model" if model == BUILT_IN else model.rpartition("/")[2]


def mask_lines(section: Section) -> list[Row]:
    """What the figure of masks shows, decoded in one step: the model of the largest loss among those with adapters, and
    these; or, where no adapter was measured, the models.
    """
    rows = [row for row in section.rows if row.who.steps in ONE_STEP and loss(row, section.pair)]
    plain = [row for row in rows if not row.who.adapter]
    adapted = {row.id: [one for one in rows if _is_adapted(one.who, row.who)] for row in plain}
    if not any(adapted.values()):
        return plain[:_MOST_LINES]
    before = max((row for row in plain if adapted[row.id]), key=lambda row: _loss(row, section).mean)
    return [before, *sorted(adapted[before.id], key=lambda row: row.who.adapter)]


def _is_adapted(one: Who, base: Who) -> bool:
    return bool(one.adapter) and (one.model, one.other) == (base.model, base.other)


def masks_finding(section: Section) -> str:
    """What masks cost, before and after fine-tuning, with the numbers of the table; "" without two counts."""
    lines = mask_lines(section)
    if not lines:
        return ""
    few, most = section.pair
    before, *others = lines
    if others and not others[0].who.adapter:
        costs = "; ".join(f"{short_name(row.who.model)} {_loss(row, section).with_significance}" for row in lines)
        return f"Points of accuracy that appended masks cost (from {few} to {most} masks): {costs}."
    name = short_name(before.who.model)
    cost = f"{_loss(before, section).with_significance} points of accuracy (from {few} to {most} masks)"
    sentence = f"Appended masks cost {'the ' if name == 'built-in model' else ''}{name} {cost}."
    if not others:
        return sentence
    parts = [f"{_adapter(row)}: {_most(row, section)}, loss {_loss(row, section).with_significance}" for row in others]
    first = f"Accuracy at {most} masks: {_most(before, section)} before fine-tuning."
    return f"{sentence} {first} After it: {'; '.join(parts)}."


def _loss(row: Row, section: Section) -> Interval:
    found = loss(row, section.pair)
    assert found
    return found


def _adapter(row: Row) -> str:
    return f"{row.who.recipe}, {len(row.seeds)} seeds" if row.seeds else row.who.adapter


def _most(row: Row, section: Section) -> str:
    return f"{100 * row.curve('masks')[section.pair[1]].mean:.1f}%"


def speed_findings(section: Section) -> list[str]:
    """Per benchmark and checkpoint, the fastest setting on the frontier beside the most accurate one.

    Exact answers and those with an approximate cache have a frontier, and so a sentence, each.
    """
    sentences = []
    names = section.benchmark_names[: 1 if section.setting.group else None]  # of a group the mean
    checkpoints = dict.fromkeys(str(row.who) for row in section.rows)
    for name, who, exact in product(names, checkpoints, (True, False)):
        rows = [row for row in section.rows if str(row.who) == who and is_exact(row) == exact]
        found = [(row, row.benchmarks[name]) for row in rows if name in row.benchmarks]
        on = sorted((one for one in found if one[1].on_frontier), key=lambda one: one[1].tokens_per_pass or 0)
        if len(on) > 1:
            (slow, best), (fast, fastest) = on[0], on[-1]
            caches = "" if exact else ", with an approximate cache"
            sentences.append(
                f"{name}{caches}: {best.in_words}% at {best.tokens_per_pass:.2f} tokens per forward pass "
                f"({slow.label}), {fastest.in_words}% at {fastest.tokens_per_pass:.2f} ({fast.label})."
                + _at_quality([one for _, one in found])
            )
    return sentences


def _at_quality(found: Sequence[Estimate]) -> str:
    """Per quality, how fast the checkpoint can be that good in any of these ways of decoding."""
    most = {q: max((tokens for one in found if (tokens := one.at_quality.get(q))), default=None) for q in QUALITIES}
    words = [f"{q}% up to {tokens:.2f}" for q, tokens in most.items() if tokens]
    return f" Of the slowest exact setting's score it keeps {', '.join(words)}." if words else ""
