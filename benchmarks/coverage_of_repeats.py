"""How often the 95% intervals of means and of pass@k hold the truth, of questions that are asked several times.

    python benchmarks/coverage_of_repeats.py    # writes coverage_of_repeats.csv, in a minute

Repetitions are independent, or share what makes a question easy: success varies between questions by a beta
distribution with a correlation of 0.5 between two answers. Cases outside of 93 to 97% are marked.
"""

from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import betaln

from mdlm_lm_eval.results.statistics import score_of_sets
from mdlm_lm_eval.tasks.repeated.task import pass_at

FILE = Path(__file__).with_suffix(".csv")
CORRELATION = 0.5


def main(repetitions: int = 2000) -> None:
    """All cases."""
    rng = np.random.default_rng(0)
    lines = ["questions,repeats,success,answers of a question,score,covered (%),mean width (points),outside of 93-97%"]
    for n, repeats, p, correlation in product((10, 50, 200), (1, 4, 64), (0.02, 0.5, 0.98), (0.0, CORRELATION)):
        if correlation:
            a, b = (share * (1 - correlation) / correlation for share in (p, 1 - p))
            chances = rng.beta(a, b, size=(repetitions, n))
        else:
            chances = np.full((repetitions, n), p)
        right = rng.binomial(repeats, chances)  # [repetitions, questions]
        for k in {1, max(repeats // 2, 1)}:
            scores = np.array([pass_at(k, repeats, count) for count in range(repeats + 1)])[right]
            misses = np.exp(betaln(a, b + k) - betaln(a, b)) if correlation else (1 - p) ** k
            found = [score_of_sets({"": [*enumerate(own)]}, repeats).interval for own in scores.tolist()]
            ends = np.array([(one.low, one.high) for one in found], dtype=float)  # [repetitions, 2]
            covered = 100 * np.mean((ends[:, 0] <= 1 - misses) & (1 - misses <= ends[:, 1]))
            kind, name = "dependent" if correlation else "independent", f"pass@{k}" if k > 1 else "mean"
            width, is_outside = 100 * np.mean(np.diff(ends)), not 93 <= covered <= 97
            mark = "yes" if is_outside else ""
            lines.append(f"{n},{repeats},{p},{kind},{name},{covered:.1f},{width:.2f},{mark}")
            print(lines[-1], flush=True)
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
