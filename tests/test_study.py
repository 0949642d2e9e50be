"""The studies over training seeds: arms, the way of asking, and the first study's tables."""

from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from mdlm_lm_eval import MDLM
from mdlm_lm_eval.results.statistics import Score
from tests.conftest import evaluate
from tests.test_documented_results import missing
from training import asking, study, study_tables

committed = cache(study_tables.read_study)


def test_an_arm_stands_on_one_before_it() -> None:
    names = [*study.ARMS]
    for name, arm in study.ARMS.items():
        assert not arm.base or names.index(arm.base) < names.index(name)
        assert arm.is_secondary or not arm.base or not study.ARMS[arm.base].is_secondary


def test_every_set_is_asked_three_times() -> None:
    keys = study_tables.keys()
    asked = [name for sets, _ in keys.values() for name in sets]
    assert len(keys) == 16
    assert len(asked) == 3 * len(set(asked)) == 3 * 2 * 64


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


def test_built_in_instruct_is_a_model_of_the_first_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ENDINGS", {"200": (200, 0)})
    expected = committed()["plain-0-sft-0"]["200"]
    for task, (tokens, letters) in asking.ask("built-in-instruct", n_sets=8)["200"].items():
        assert [tokens, letters] == [signs[: len(tokens)] for signs in expected[task]]


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
        some = asking.asked(fewshot_seed, asking.SETS)
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


def test_shares_and_gains() -> None:
    """One model is right, one says EOS where a third of the answers are A, and is right among letters."""
    right = {task: [letters, letters] for task, (_, letters) in study_tables.keys().items()}
    ended = {task: [letters.replace("A", "E"), letters] for task, (letters, _) in right.items()}
    answers = {"plain-0": {"2": right, "200": right}, "plain-0-sft-0": {"2": right, "200": ended}}
    lines = [line.split(" | ") for line in study_tables.tables(answers).splitlines()]
    gains = {line[0].removeprefix("| "): line[1].split()[0] for line in lines if len(line) == 2}
    assert gains["SFT above base, 2"] == "0.0"
    assert gains["SFT above base, 200"] == "-33.3"
    assert "CE + TV above SFT, 200" not in gains
    files = study_tables.csv_files(answers)
    assert "plain-0-sft-0,100.0" in files["shares.csv"]
    assert "SFT above base: among letters at 200,0.0" in files["gains.csv"]


def test_the_ablation_has_the_mean_of_its_seeds() -> None:
    right = {task: [letters, letters] for task, (_, letters) in study_tables.keys().items()}
    ended = {task: ["E" * len(letters), letters] for task, (letters, _) in right.items()}
    alike, lost = ({str(n): one for n in study_tables.MASKS} for one in (right, ended))
    cells = {
        "plain-0": alike,
        "plain-0-sft-none-0": alike,
        "plain-0-sft-0": alike,
        "plain-0-sft-1": lost,
        "plain-0-ce-0": alike,
    }
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in study_tables.tables(cells).splitlines()]
    shown = {row[0]: row[1:] for row in rows}
    assert shown["nothing"] == ["100.0→100.0"]
    assert shown["EOS, predicted"] == ["50.0→50.0"]
    assert shown["masks, CE only"] == ["100.0→100.0"]
    assert shown["EOS, predicted above nothing, 200"] == ["-50.0", "-50.0", "1"], "the model, the median, p"
    assert shown["EOS, predicted above nothing, 200, among letters"] == ["+0.0", "+0.0", "1"]


def test_the_documented_tables_are_those_of_the_committed_answers() -> None:
    found = committed()
    text = (study_tables.DOCS / "built_in_model.md").read_text(encoding="utf-8")
    assert f"<!-- study -->\n{study_tables.compact(study_tables.tables(found))}\n<!-- end -->" in text, (
        "training.study_tables --write"
    )
    for name, table in study_tables.csv_files(found).items():
        assert (study_tables.ANSWERS / name).read_text(encoding="utf-8") == table


def test_readmes_figure_is_that_of_the_committed_answers(tmp_path: Path) -> None:
    study_tables.write_figure(committed(), tmp_path)
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (study_tables.DOCS / "figures" / made.name).read_bytes()


def test_the_documented_claims_without_a_number() -> None:
    found = committed()

    for other, *what in product(("CE only", "control"), study_tables.fine_tuned(found), study_tables.MASKS):
        above = study_tables.compared(found, f"CE + TV above {other}", *what)
        assert not above or above.mean < 0 or not above.is_significant
    collapsed, others = collapsed_and_others(found)
    for base in (*collapsed, *others):
        for seed in study_tables.arms(found, base)["EOS, predicted"]:
            assert (study_tables.score(seed, 200, "EOS").mean > 0.5) == (base in collapsed)
    for base in collapsed:
        decoded, letters = (study_tables.compared(found, "SFT above base", base, 200, measure) for measure in BOTH)
        won_back = study_tables.compared(found, "CE + TV above SFT", base, 200)
        assert decoded
        assert letters
        assert won_back
        assert abs(letters.mean) < abs(decoded.mean) / 2 < won_back.mean
        of_letters = study_tables.compared(found, "CE + TV above SFT", base, 200, "among letters")
        assert of_letters
        assert of_letters.mean < won_back.mean / 2
    for base in others:
        won_back = study_tables.compared(found, "CE + TV above SFT", base, 200)
        assert won_back
        assert won_back.mean < 0 or not won_back.is_significant
        lost = [study_tables.compared(found, "SFT above base", base, n) for n in study_tables.MASKS]
        few, most = (one.mean for one in lost if one)
        assert few < most + 2
    for seeds in study_tables.arms(found, "contrastive-0").values():
        few, most = (study_tables.mean(seeds, n) for n in study_tables.MASKS)
        assert most > few - 1
    assert study_tables.mean(study_tables.arms(found, "plain-1")["nothing"], 200, "EOS") == 0


@pytest.mark.parametrize("document", ["docs/built_in_model.md", "finetune/README.md", "README.md"])
def test_the_documented_sentences_follow_from_the_answers(document: str) -> None:
    """A failing test shows what the document should say."""
    assert missing(document, sentences()[document]) == []


def sentences() -> dict[str, list[str]]:
    """Document -> what it should say."""
    found = committed()
    every = study_tables.fine_tuned(found)
    collapsed, _ = collapsed_and_others(found)

    def percent(score: Score) -> str:
        return f"{100 * score.mean:.1f}"

    significant = study_tables.significant(found)

    def worse_than(other: str) -> str:
        told = [(f"CE + TV above {other}", base, 200, "as decoded") in significant for base in every]
        return f"{sum(told)} of {len(told)}"

    def changes(name: str, n: int, *, sign: int = 1) -> list[str]:
        of_models = [study_tables.compared(found, name, base, n) for base in every]
        return [f"{sign * one.mean:z.1f}" for one in of_models if one]

    def apart(first: str, second: str, n: int = 200, *, sign: int = 1) -> list[str]:
        """An arm minus another on each model, in points."""
        over = study_tables.arms_compared(found, first, second, n)
        assert over
        return [f"{sign * change:z.1f}" for change in over.changes]

    def of_block(recipe: str, measure: str) -> list[str]:
        return [percent(study_tables.score(found[f"block-0-{recipe}-0"], n, measure)) for n in study_tables.MASKS]

    share = f"{len(collapsed)} of {len(every)}"
    price = [float(one) for one in changes("CE + TV above base", 2)]
    is_price = [("CE + TV above base", base, 2, "as decoded") in significant for base in every]
    nothing = study_tables.arms(found, "plain-1")["nothing"]
    decoded, letters = (f"{study_tables.mean(nothing, 200, measure):.1f}" for measure in BOTH)
    worse = sum(all(mean < 0 for mean in predicted_above_masks(found, base)) for base in every)
    eos, masks = study_tables.ARMS_COMPARED[0]
    lost, lost_few = apart(eos, masks, sign=-1), apart(eos, masks, 2, sign=-1)
    over = study_tables.arms_compared(found, eos, masks, 200)
    assert over
    won, won_few = (changes("CE + TV above SFT", n) for n in (200, 2))
    protected = apart(masks, "nothing")
    return {
        "docs/built_in_model.md": [
            f"In {worse} of {len(every)} models it is worse than masks in its place",
            f"With 200 masks it costs {listed(lost)} points (in the order of the tables), "
            f"with 2 masks {listed(lost_few)}.",
            f"no padding at all, it costs {listed(apart(eos, 'nothing', sign=-1))} with 200",
            f"gives each p = {over.p:.2f}, the least",
            f"cost `plain-0` and `plain-1` {listed(protected[:2])} points more than with masks as padding",
            f"The other three differ by {listed(protected[2:])}.",
            f"`plain-1` is right in {decoded}% ({letters}% among letters)",
            f"most answers are EOS in {share} models, {listed(f'`{base}`' for base in collapsed)}",
            "After SFT, {}% of `block-0`'s answers are EOS with 2 masks and {}% with 200".format(
                *of_block("sft", "EOS")
            ),
            "masks in the padding's place it is right in {} and {}%".format(*of_block("sft-masks", "as decoded")),
            f"With 2 masks all {len(price)} models stay below their bases, "
            f"{sum(is_price)} significantly, by {-max(price):.1f} to {-min(price):.1f} points",
            f"makes `plain-4` {won[3].removeprefix('-')} points worse",
            f"and changes the others by {listed([won[2], won[4]])}.",
            f"CE + TV is {listed(apart('masks, CE + TV', 'masks, CE only'))} points above CE only",
            f"beats CE + TV significantly in {worse_than('CE only')} models",
            f"and the control does in {worse_than('control')}",
            f"The committed ones took {study_tables.hours():.1f} hours of CPU time",
        ],
        "finetune/README.md": [
            f"the end of the text in {share} models",
            f"their scores with 200 masks by {listed(won)} points, and [with 2 by {listed(won_few)}]",
        ],
        "README.md": [f"With 200 masks, predicted EOS costs {listed(lost)} points", f"sign test p = {over.p:.2f}"],
    }


def predicted_above_masks(found: study_tables.Study, base: str) -> list[float]:
    """How far predicted EOS is above masks in its place on one model, for both mask counts and both measures."""
    first, second = (study_tables.arms(found, base)[words] for words in study_tables.ARMS_COMPARED[0])
    return [
        study_tables.mean(first, *what) - study_tables.mean(second, *what) for what in product(study_tables.MASKS, BOTH)
    ]


BOTH = ("as decoded", "among letters")


def collapsed_and_others(found: study_tables.Study) -> tuple[list[str], list[str]]:
    """The pretrained models most of whose answers with 200 masks are EOS after SFT, and the others."""
    groups: tuple[list[str], list[str]] = ([], [])
    for base in study_tables.fine_tuned(found):
        groups[study_tables.score(found[f"{base}-sft-0"], 200, "EOS").mean <= 0.5].append(base)
    return groups


def listed(parts: Iterable[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last
