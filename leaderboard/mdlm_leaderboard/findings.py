"""The board's findings in sentences, with the numbers of its tables."""

from mdlm_leaderboard.board import Section
from mdlm_leaderboard.columns import first_token_share, loss
from mdlm_leaderboard.experiments import AUTOREGRESSIVE
from mdlm_leaderboard.page.templates import sentences
from mdlm_leaderboard.rows import Estimate, Row, is_exact
from mdlm_lm_eval.results.frame import COSTS
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.parallelism import TIMES, slack_of
from mdlm_lm_eval.results.statistics import Interval, difference

_ONE_STEP = ("1", AUTOREGRESSIVE)
MOST_LINES = 7  # in the figure of masks


def short_name(model: str) -> str:
    """A model's name without its organisation."""
    return model.rpartition("/")[2]


def one_step(section: Section) -> list[Row]:
    """The rows that are decoded in one step with both numbers of masks."""
    return [row for row in section.rows if row.who.steps in _ONE_STEP and loss(row, section.pair)]


def mask_lines(section: Section) -> list[Row]:
    """The rows of the finding about masks, all decoded in one step.

    These are the model with the largest loss among those with adapters, and its adapters; or all models, if no adapter
    was measured.
    """
    rows = one_step(section)
    plain = [row for row in rows if not row.who.adapter]
    with_adapter = [row for row in rows if row.who.adapter]
    adapted = {
        row.id: [one for one in with_adapter if (one.who.model, one.who.other) == (row.who.model, row.who.other)]
        for row in plain
    }
    if not any(adapted.values()):
        return plain[:MOST_LINES]
    before = max((row for row in plain if adapted[row.id]), key=lambda row: loss_of(row, section).mean)
    return [before, *sorted(adapted[before.id], key=lambda row: row.who.adapter)]


def masks_finding(section: Section) -> str:
    """The loss to masks, before and after fine-tuning, in sentences; "" if no row has two mask counts."""
    pair, lines = section.pair, mask_lines(section)
    plain = sorted((row for row in lines if not row.who.adapter), key=lambda row: loss_of(row, section).mean)
    tuned = [row for row in lines if row.who.adapter]
    named = [plain[0], plain[-1]] if len(plain) > 1 else plain
    scores = [[row.curve("masks")[n].over_rules for n in pair] for row in named]
    over_rules = [difference(most, few).scaled(100) for few, most in scores if few and most]
    return " ".join(
        sentences(
            "masks",
            pair=pair,
            plain=plain,
            tuned=tuned,
            accuracies=sorted(row.curve("masks")[pair[1]].mean for row in tuned),
            over_rules=over_rules if len(over_rules) == len(named) else [],
            loss=loss,
            share=first_token_share,
            built_in=BUILT_IN,
        )
    )


def loss_of(row: Row, section: Section) -> Interval:
    """The loss to masks of a row of `mask_lines`."""
    found = loss(row, section.pair)
    assert found
    return found


def speed_findings(section: Section, name: str) -> list[str]:
    """Compares, for each checkpoint, the fastest setting on a frontier of a benchmark with the best exact setting.

    There are two frontiers: of exact settings, and of the others (approximate caches and guests). Differences that are
    not significant have no sentence.
    """
    pairs = []
    rows = [row for row in section.rows if name in row.benchmarks and row.benchmarks[name].speed]
    for who in dict.fromkeys(str(row.who) for row in rows):
        own = [(row, row.benchmarks[name]) for row in rows if str(row.who) == who]
        exact = [one for one in own if is_exact(one[0])]
        for on in (exact, [one for one in own if one not in exact]) if exact else ():
            slow = max(exact, key=lambda one: (one[1].mean, one[1].speed))
            fast = max((one for one in on if one[1].mark), key=lambda one: one[1].speed, default=slow)
            if found := _change(slow[1], fast[1]):
                pairs.append((slow, fast, found))
    return sentences("speed", pairs=pairs, times=TIMES, costs=COSTS)


def _change(best: Estimate, other: Estimate) -> Interval | None:
    """How far the scores are apart, in points, if the second setting is faster and its score differs significantly."""
    if not best.score or not other.score or other.speed <= slack_of(best.speed_by) * best.speed:
        return None
    found = difference(*sorted((best.score, other.score), key=lambda score: score.mean)).scaled(100)
    return found if found.is_significant else None
