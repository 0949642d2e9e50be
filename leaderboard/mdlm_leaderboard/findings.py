"""The board's findings in sentences, with the numbers of its tables."""

from mdlm_leaderboard.board import Section
from mdlm_leaderboard.columns import first_token_share, loss
from mdlm_leaderboard.experiments import AUTOREGRESSIVE
from mdlm_leaderboard.rows import Estimate, Row, is_exact
from mdlm_lm_eval.results.frame import COSTS
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.parallelism import TIMES, slack_of
from mdlm_lm_eval.results.statistics import Interval, difference

_ONE_STEP = ("1", AUTOREGRESSIVE)
_MOST_LINES = 7  # in the figure of masks
_NAMED_ADAPTERS = 2


def short_name(model: str) -> str:
    """A model's name without its organisation."""
    return model.rpartition("/")[2]


def mask_lines(section: Section) -> list[Row]:
    """The rows of the figure of masks, all decoded in one step.

    These are the model with the largest loss among those with adapters, and its adapters; or all models, if no adapter
    was measured.
    """
    rows = [row for row in section.rows if row.who.steps in _ONE_STEP and loss(row, section.pair)]
    plain = [row for row in rows if not row.who.adapter]
    with_adapter = [row for row in rows if row.who.adapter]
    adapted = {
        row.id: [one for one in with_adapter if (one.who.model, one.who.other) == (row.who.model, row.who.other)]
        for row in plain
    }
    if not any(adapted.values()):
        return plain[:_MOST_LINES]
    before = max((row for row in plain if adapted[row.id]), key=lambda row: loss_of(row, section).mean)
    return [before, *sorted(adapted[before.id], key=lambda row: row.who.adapter)]


def masks_finding(section: Section) -> str:
    """The loss to masks, before and after fine-tuning, in sentences; "" if no row has two mask counts."""
    lines = mask_lines(section)
    if not lines:
        return ""
    few, most = section.pair
    before, *others = lines
    if others and not others[0].who.adapter:
        least, *_, worst = sorted(lines, key=lambda row: loss_of(row, section).mean)
        mild, strong = (short_name(row.who.model) for row in (least, worst))
        low, high = (" least:", " most:") if len(lines) > 2 else ("", "")
        both = f"cost {mild}{low} {_cost(least, section)} points of accuracy; they cost {strong}{high}"
        finding = f"Appended masks (from {few} to {most}) {both} {_cost(worst, section)}{_ended(worst, most)}."
        return finding + _over_rules([least, worst], section)
    name = "the built-in model" if before.who.model == BUILT_IN else short_name(before.who.model)
    sentence = f"Appended masks cost {name} {_cost(before, section)} points of accuracy (from {few} to {most} masks)."
    if not others:
        return sentence + _over_rules([before], section)
    at_most = f"At {most} masks it is right in {_most(before, section)}{_ended(before, most)}."
    return f"{sentence} {at_most} {_after_fine_tuning(others, section)}"


def _after_fine_tuning(tuned: list[Row], section: Section) -> str:
    """The accuracies of a model's adapters with the most masks: each of a few, of more the worst and the best."""
    if len(tuned) <= _NAMED_ADAPTERS:
        each = []
        for row in tuned:
            seeds = f"median of {len(row.seeds)} seeds" if row.seeds else "one seed"
            each.append(f"{_most(row, section)} with {row.who.recipe} ({seeds})")
        return f"After fine-tuning, it is right in {' and '.join(each)}."
    worst, *_, best = sorted(tuned, key=lambda row: row.curve("masks")[section.pair[1]].mean)
    return f"After {len(tuned)} fine-tunings, it is right in {_most(worst, section)} to {_most(best, section)}."


def _over_rules(rows: list[Row], section: Section) -> str:
    """The intervals of the losses for other word rules, in a sentence; "" if they are not known of every row."""
    ends = []
    for row in rows:
        few, most = (row.curve("masks")[n].over_rules for n in section.pair)
        if few is None or most is None:
            return ""
        found = difference(most, few).scaled(100)
        ends.append(f"{found.low:.1f} to {found.high:.1f}")
    lead = "interval of this loss is" if len(ends) == 1 else "intervals of these losses are"
    return f" Over other word rules, the 95% {lead} {' and '.join(ends)} points."


def _ended(row: Row, most: int) -> str:
    """How many answers with `most` masks begin with EOS, if it is the majority."""
    eos = first_token_share(row, most, "eos")
    return (
        f"; {100 * eos.mean:.1f}% of its answers begin with EOS, which counts as wrong"
        if eos and eos.mean > 0.5
        else ""
    )


def _cost(row: Row, section: Section) -> str:
    return loss_of(row, section).with_significance


def loss_of(row: Row, section: Section) -> Interval:
    """The loss to masks of a row of `mask_lines`."""
    found = loss(row, section.pair)
    assert found
    return found


def _most(row: Row, section: Section) -> str:
    return f"{100 * row.curve('masks')[section.pair[1]].mean:.1f}%"


def speed_findings(section: Section, name: str) -> list[str]:
    """Compares, for each checkpoint, the fastest setting on a frontier of a benchmark with the best exact setting.

    There are two frontiers: of exact settings, and of the others (approximate caches and guests). Differences that are
    not significant have no sentence.
    """
    sentences = []
    rows = [row for row in section.rows if name in row.benchmarks and row.benchmarks[name].speed]
    for who in dict.fromkeys(str(row.who) for row in rows):
        own = [(row, row.benchmarks[name]) for row in rows if str(row.who) == who]
        exact = [one for one in own if is_exact(one[0])]
        for on in (exact, [one for one in own if one not in exact]) if exact else ():
            slow = max(exact, key=lambda one: (one[1].mean, one[1].speed))
            fast = max((one for one in on if one[1].mark), key=lambda one: one[1].speed, default=slow)
            sentences += _gain(*slow, *fast)
    return sentences


def _gain(slow: Row, best: Estimate, fast: Row, other: Estimate) -> list[str]:
    """A sentence about the second setting, if it is faster and its score differs significantly."""
    if not best.score or not other.score or other.speed <= slack_of(best.speed_by) * best.speed:
        return []
    found = difference(*sorted((best.score, other.score), key=lambda score: score.mean)).scaled(100)
    by = "" if other.speed_by in TIMES else f" by {COSTS[other.speed_by]}"
    before, now = (one.costs["tokens_per_second"] for one in (best, other))
    clock = (
        f" ({now / before:.1f} times by the clock)" if before and now and by and best.machine == other.machine else ""
    )
    gain = f"{fast.label} is {other.speed / best.speed:.1f} times faster{by}{clock}"
    how = "worse" if best.mean > other.mean else "better"
    than = slow.label if slow.settings or slow.shown else "the defaults"
    return [f"{gain} and {found.in_words} points {how} than {than}."] if found.is_significant else []
