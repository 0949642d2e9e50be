"""The study over training seeds: arms, the way of asking, the registered analysis, and what documents say of it."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mdlm_lm_eval import MDLM
from mdlm_lm_eval.results.statistics import Interval
from tests.conftest import evaluate
from training import asking, shipping, study, study_tables

pytestmark = pytest.mark.slow


def test_trained_models_have_a_median_and_a_share_that_collapses() -> None:
    """By sign test, order statistics and Clopper and Pearson; fewer than eight have their values and no interval."""
    changes = [-73.0, -41.0, *(float(n) for n in range(-9, 9))]
    found = study_tables.over_models(changes)
    assert found.median == Interval(-1.5, *(sorted(changes)[k] for k in (5, 14)))
    assert found.p == pytest.approx(stats.binomtest(11, 20).pvalue), "a change of 0 counts for neither sign"
    share = stats.binomtest(2, 20).proportion_ci(method="exact")
    assert (found.n_collapsed, found.collapsed.low) == (2, pytest.approx(100 * share.low))
    assert found.collapsed.high == pytest.approx(100 * share.high)
    rng = np.random.default_rng(0)
    for n in range(8, 40):
        drawn = [round(one) for one in rng.normal(1, 2, size=n)]
        assert study_tables.over_models(drawn).median.is_significant == (study_tables.over_models(drawn).p <= 0.05), (
            "the interval is the test's"
        )
    five = study_tables.over_models(changes[:5])
    assert five.median.in_words == "-9.0 (median of -73.0, -41.0, -9.0, -8.0, -7.0)"
    assert (five.n_collapsed, five.collapsed.low) == (2, None)


def test_an_arm_stands_on_one_before_it() -> None:
    names = [*study.ARMS]
    for name, arm in study.ARMS.items():
        assert not arm.base or names.index(arm.base) < names.index(name)
        assert arm.is_secondary or not arm.base or not study.ARMS[arm.base].is_secondary


def test_every_set_is_asked_three_times() -> None:
    found = asking.asked(n_sets=asking.SETS[asking.OUTCOME])
    names = [one.name for some in found.values() for one in some]
    assert len(found) == 16
    assert len(names) == 3 * len(set(names)) == 3 * 2 * 64


@pytest.mark.parametrize("ending", ["2", "dots"])
def test_answers_are_those_of_an_evaluation(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_masks, n_fillers = asking.ENDINGS[ending]
    monkeypatch.setattr(asking, "ENDINGS", {ending: (n_masks, n_fillers)})
    (found,) = asking.ask("built-in", n_sets=8).values()
    samples = {task: [*range(len(tokens))] for task, (tokens, _) in found.items()}
    results = evaluate(MDLM(n_masks=n_masks, n_fillers=n_fillers, steps=1), [*samples], samples=samples)
    right = asking.values(found)
    for task, (tokens, _) in found.items():
        (name,) = (name for name in results["samples"] if name.rpartition("::")[2] == task)
        said = ["".join(one["filtered_resps"][0]) for one in results["samples"][name]]  # in lists since lm-eval 0.5
        assert [sign if sign in "ABC" else "" for sign in tokens] == [one if one in "ABC" else "" for one in said]
        assert results["results"][name]["exact_match,none"] == pytest.approx(fmean(value for _, value in right[task]))


def test_questions_of_another_seed_have_their_own_keys() -> None:
    for name, task in asking.tasks(asking.CHOICE).items():
        documents, keys = [*task.test_docs()], asking.asked(asking.CHOICE)[name]
        assert [(one["set"], task.doc_to_target(one)) for one in documents] == [(one.name, one.right) for one in keys]
        assert documents[0] != next(iter(asking.tasks(asking.OUTCOME)[name].test_docs()))


def test_strata_tell_a_reader_of_capitals_from_a_reader() -> None:
    """One model takes the only option with a capital, if there is one, and is right where there is none."""
    found = {}
    for task, some in asking.asked(n_sets=8).items():
        taken = [
            one.rules.index("capitalised") if "capitalised" in one.rules else "ABC".index(one.right) for one in some
        ]
        found[task] = ["".join("ABC"[place] for place in taken)] * 2
    shares = {name: share for name, (share, _) in asking.strata(found).items()}
    assert [shares[name] for name in asking.CAPITALS] == [100, 0, 100]
    assert shares["rule capitalised"] == 100
    assert shares["rule country"] == 100  # no set has both rules
    assert 50 < shares["all"] < 100
    assert sum(n for name, (_, n) in asking.strata(found).items() if name.startswith("key")) == 8 * 2 * 3


def test_models_are_fine_tuned_after_bases_that_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second base reads: three seeds, two of them with all arms. Nothing finished is computed again."""
    trained: list[tuple[int, str]] = []

    def train(seed: int, arm: str, work: Path, device: str) -> None:
        trained.append((seed, arm))
        study.folder_of(seed, arm, work).mkdir(parents=True, exist_ok=True)
        (study.folder_of(seed, arm, work) / "model.safetensors").write_text(f"{seed} {arm}")

    def ask(model: str, fewshot_seed: int, device: str) -> dict[str, dict[str, list[str]]]:
        is_right = int(Path(model).name.removesuffix(".merged").rpartition("-")[2]) % 2 == 0
        some = asking.asked(fewshot_seed, asking.SETS[fewshot_seed])
        signs = {task: ["".join(one.right if is_right else "E" for one in asked)] * 2 for task, asked in some.items()}
        return dict.fromkeys(asking.ENDINGS, signs)

    monkeypatch.setattr(study, "train", train)
    monkeypatch.setattr(study, "ask", ask)
    monkeypatch.setattr(study, "N_READING", 2)
    monkeypatch.setattr(study, "N_SECONDARY", 1)
    words = ["study", str(tmp_path), "--answers", str(tmp_path / "answers")]
    monkeypatch.setattr("sys.argv", words)
    study.main()
    primary = [name for name, arm in study.ARMS.items() if not arm.is_secondary]
    secondary = [name for name, arm in study.ARMS.items() if arm.is_secondary]
    arms = [*((0, arm) for arm in primary), (1, "base"), *((2, arm) for arm in primary)]
    assert trained == [*arms, *((0, arm) for arm in secondary)]
    study.main()
    assert len(trained) == len(arms) + len(secondary)
    assert study.read_seed(0, tmp_path / "answers").keys() == study.ARMS.keys()
    assert study.read_seed(1, tmp_path / "answers").keys() == {"base"}
    for _ in range(2):
        study_tables.add_answers(tmp_path / "answers", tmp_path / "all.json.xz")
    committed = study_tables.read_study(tmp_path / "all.json.xz")
    assert {seed: [*models] for seed, models in committed.items()} == {
        0: [*study.ARMS],
        1: ["base"],
        2: primary,
    }


def planted(shares: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The models of a seed: arm -> ending -> share of right answers; all others are EOS, and among letters right."""
    models = {}
    for arm, of_endings in shares.items():
        answers = {}
        for fewshot_seed in (asking.OUTCOME, asking.CHOICE):
            signs: dict[str, dict[str, list[str]]] = {}
            for ending, (task, some) in product(
                asking.ENDINGS, asking.asked(fewshot_seed, asking.SETS[fewshot_seed]).items()
            ):
                letters = "".join(one.right for one in some)
                n_right = round(of_endings[ending] * len(letters))
                signs.setdefault(ending, {})[task] = [letters[:n_right] + "E" * (len(letters) - n_right), letters]
            answers[str(fewshot_seed)] = signs
        models[arm] = {"answers": answers}
    return models


def test_the_registered_analysis_of_planted_models() -> None:
    """Eight models read and one does not. Predicted EOS costs all 62.5 points, masks 25; CE + TV adds nothing to CE."""
    base = {"2": 1.0, "200": 1.0, "dots": 1.0}
    ended, kept, repaired = {**base, "200": 0.375}, {**base, "200": 0.75}, {**base, "200": 0.875}
    arms = {"base": base, "sft": ended, "sft-masks": kept, "sft-ce": repaired, "sft-ce-tv": repaired}
    seeds = {seed: planted(arms) for seed in range(8)} | {8: planted({"base": {**base, "2": 0.5}})}
    found = study_tables.reading(seeds)
    assert [*found] == [*range(8)]
    over, first, second, verdict = study_tables.primary(found)["EOS padding"]
    assert over.changes == pytest.approx([-37.5] * 8)
    assert (first.n_collapsed, second.n_collapsed, verdict) == (8, 0, "worse")
    said = study_tables.headline(found)
    assert "This is significant after correction for two comparisons (p = 0.0078 before), so our verdict" in said
    assert over.p == pytest.approx(2 / 2**8)
    over, *_, verdict = study_tables.primary(found)["TV"]
    assert (over.median.mean, over.median.low, over.median.high, over.p, verdict) == (0, 0, 0, 1, "no effect")
    assert "CE + TV changes accuracy by a median of +0.0 points (95%: +0.0 to +0.0)" in study_tables.tv(found)
    text = study_tables.finding(found)
    assert "EOS padding changes accuracy by a median of -37.5 points (95%: -37.5 to -37.5), compared" in text
    assert "8 of 8 models (63 to 100%) score more than 30 points lower with 200 masks than before fine-tuning" in text
    rows = study_tables.secondary(found)
    assert rows["`sft` minus `sft-masks`: 200 masks, among letters"].changes == (0,) * 8
    assert rows["`sft`: 200 masks minus 199 dots"].changes == pytest.approx([-62.5] * 8)
    text = study_tables.tables(seeds)
    assert "medians over the 8 models that count (of 9 seeds)" in text
    assert "8,base,50.00,100.00,100.00," in study_tables.csv_files(seeds)["models.csv"]
    assert "| `sft` | 100.0 (100…100) | 37.5 (38…38) | 100.0 (100…100) | 100.0 (100…100) | 62.5 (62…62) |" in text
    assert shipping.conditions(found[0], "built-in")[2:] == [True, False]


def test_the_documents_say_what_follows_from_the_committed_answers(tmp_path: Path) -> None:
    found = study_tables.read_study()
    for (place, documents), text in zip(study_tables.PLACES.items(), study_tables.texts(found).values(), strict=True):
        for document in documents:
            assert f"<!-- {place} -->\n{text}\n<!-- end -->" in document.read_text(encoding="utf-8"), (
                "training.study_tables --write"
            )
    _, predicted, *_ = study_tables.primary(study_tables.reading(found))["EOS padding"]
    assert study_tables.below_base(predicted) in (study_tables.ROOT / "leaderboard/results/notes.yaml").read_text()
    for name, table in study_tables.csv_files(found).items():
        assert (study_tables.ANSWERS.parent / name).read_text(encoding="utf-8") == table
    study_tables.write_figure(found, tmp_path)
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (study_tables.ROOT / "docs/figures" / made.name).read_bytes()
