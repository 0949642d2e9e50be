"""How often the verdicts on the paper's claims are right and wrong, on simulated reports of all claims.

    python -m benchmarks.verdicts --reports 2000

Each report has 16 tasks whose effects scatter around the true one, and answers that are drawn question by question, in
pairs. `stated` is the number of questions at which every claim's declared power for "not reproduced" at no effect is
80%. A verdict is wrong if it is "reproduced" or "the opposite" at no effect, "not reproduced" or "the opposite" at two
or four times delta, or any of these three at delta itself.
"""

import argparse
from collections import Counter

import numpy as np

from mdlm_lm_eval.paper.verdict import N_TASKS, POWER, Claim, Evidence, claims, decide, power

EFFECTS = (0.0, 0.5, 1.0, 2.0, 4.0)  # true effects, in deltas
WRONG = {
    0.0: {"reproduced", "the opposite"},
    1.0: {"reproduced", "not reproduced", "the opposite"},
    2.0: {"not reproduced", "the opposite"},
    4.0: {"not reproduced", "the opposite"},
    "ceiling": {"reproduced", "not reproduced", "the opposite"},
    "end of text": {"reproduced", "not reproduced", "the opposite"},
}
RIGHT = {0.0: "not reproduced", 4.0: "reproduced"}
_REFERENCE, _REFERENCE_SD = 80.0, 8.0  # percent right, and its deviation over tasks
_BACK = 0.06  # share of questions that turn right where others turn wrong


def stated_questions(n_claims: int) -> int:
    """The fewest questions of each task at which every claim has its power at no effect, in steps of 10."""
    for questions in range(10, 100_000, 10):
        if all(power(claim, 0.0, questions, n_claims) >= POWER for claim in claims().values()):
            return questions
    raise ValueError("no number of questions gives this power")


def is_gated(claim: Claim, scenario: float | str) -> bool:
    """Whether a scenario concerns a claim: not all have a ceiling, and among letters every answer is a letter."""
    return {"ceiling": claim.ceiling is not None, "end of text": claim.name != "masks_among_letters"}.get(
        scenario, True
    )


def simulated(claim: Claim, effect: float, questions: int, kind: str, rng: np.random.Generator) -> Evidence:
    """Evidence on a claim whose mean effect is `effect`, in its unit."""
    of_tasks = rng.normal(effect, claim.task_sd, N_TASKS)
    reference = {"ceiling": 99.0, "end of text": 30.0}.get(kind, _REFERENCE)
    without_letter = 60.0 if kind == "end of text" else 1.0
    if claim.scale == "ratio":
        found = of_tasks + rng.normal(0, claim.question_sd, (N_TASKS, questions)).mean(1)
        noise = claim.question_sd**2 / questions
        return _evidence(found, noise, questions, reference, without_letter)
    n_differences = 2 if claim.name in ("dots", "distractors", "fine_tuning") else 1
    found, noises = np.zeros(N_TASKS), np.zeros(N_TASKS)
    for n in range(n_differences):
        true = of_tasks / 100 if n == 0 else np.zeros(N_TASKS)
        base = np.clip(rng.normal(reference, _REFERENCE_SD, N_TASKS) / 100, 0.35, 0.99)
        lost = np.clip(_BACK + true, 0.0, base)
        gained = np.clip(lost - true, 0.0, 1 - lost)
        counts = rng.multinomial(questions, np.stack([lost, gained, 1 - lost - gained], axis=-1))  # [T, 3]
        shares = counts / questions
        difference = shares[:, 0] - shares[:, 1]
        found += 100 * (difference if n == 0 else -difference)
        noises += 1e4 * (shares[:, 0] + shares[:, 1] - difference**2) / questions
    return _evidence(found, float(noises.mean()), questions, reference, without_letter)


def _evidence(found: np.ndarray, noise: float, questions: int, reference: float, without_letter: float) -> Evidence:
    effects = {f"task {n}": float(effect) for n, effect in enumerate(found)}
    return Evidence(effects, noise, questions, reference, without_letter)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=2000)
    parser.add_argument("--questions", type=int, help="of each task (default: the stated number)")
    given = parser.parse_args()
    table = claims()
    questions = given.questions or stated_questions(len(table))
    print(f"{questions} questions of each task, {len(table)} claims, {given.reports} reports a line\n")
    print("|true effect|reports with a wrong verdict|right, least of all claims|verdicts|\n|---|---|---|---|")
    scenarios: list[float | str] = [*EFFECTS, "ceiling", "end of text"]
    for scenario in scenarios:
        rng = np.random.default_rng(0)
        n_wrong, right, kinds = 0, Counter[str](), Counter[str]()
        for _ in range(given.reports):
            times = scenario if isinstance(scenario, float) else 2.0
            kind = scenario if isinstance(scenario, str) else ""
            evidence = {
                name: simulated(claim, times * claim.delta, questions, kind, rng) for name, claim in table.items()
            }
            verdicts = decide(evidence)
            decided = {name: one.kind for name, one in verdicts.items() if is_gated(table[name], scenario)}
            n_wrong += any(one in WRONG.get(scenario, set()) for one in decided.values())
            right.update(name for name, one in decided.items() if one == RIGHT.get(scenario))
            kinds.update(decided.values())
        total = sum(kinds.values())
        shown = ", ".join(f"{name} {100 * n / total:.1f}%" for name, n in kinds.most_common())
        least = f"{100 * min(right[name] for name in decided if not table[name].needs) / given.reports:.1f}%"
        label = f"{scenario:g} delta" if isinstance(scenario, float) else scenario
        wrong = f"{100 * n_wrong / given.reports:.1f}%" if scenario in WRONG else ""
        print(f"|{label}|{wrong}|{least if scenario in RIGHT else ''}|{shown}|", flush=True)


if __name__ == "__main__":
    main()
