"""The study over training seeds: its cells, its way of asking, and its tables."""

import re
from pathlib import Path

import pytest

from mdlm_lm_eval import MDLM
from mdlm_lm_eval.results.statistics import Interval
from tests.conftest import evaluate
from tests.test_documented_results import missing
from training import study, study_tables


def test_a_cell_stands_on_one_before_it() -> None:
    names: list[str] = []
    for cell in study.cells():
        assert cell.name not in names
        assert not cell.base or cell.base in names
        names.append(cell.name)
    paddings = ("none-", "shown-", "masks-", "")
    ablation = {f"plain-0-sft-{padding}{seed}" for padding in paddings for seed in range(5)}
    assert ablation < set(names)


def test_every_set_is_asked_three_times() -> None:
    keys = study.keys()
    asked = [name for sets, _ in keys.values() for name in sets]
    assert len(keys) == 16
    assert len(asked) == 3 * len(set(asked)) == 3 * 2 * 64


def test_answers_are_those_of_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "SETS", 8)
    monkeypatch.setattr(study, "MASKS", (2,))
    found = study.ask("built-in")["2"]
    samples = {task: [*range(len(tokens))] for task, (tokens, _) in found.items()}
    results = evaluate(MDLM(n_masks=2, steps=1), [*samples], samples=samples)
    for task, (tokens, _) in found.items():
        said = [one["filtered_resps"][0] for one in results["samples"][task]]
        assert [sign if sign in "ABC" else "" for sign in tokens] == [one if one in "ABC" else "" for one in said]
        right = [token == letter for token, letter in zip(tokens, study.keys(8)[task][1], strict=True)]
        assert results["results"][task]["exact_match,none"] == pytest.approx(sum(right) / len(right))


def test_built_in_instruct_is_a_model_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "SETS", 8)
    monkeypatch.setattr(study, "MASKS", (200,))
    committed = study_tables.read_study()["plain-0-sft-0"]["200"]
    for task, (tokens, letters) in study.ask("built-in-instruct")["200"].items():
        assert [tokens, letters] == [signs[: len(tokens)] for signs in committed[task]]


def test_shares_and_gains() -> None:
    """One model is right, one says EOS where a third of the answers are A, and is right among letters."""
    right = {task: [letters, letters] for task, (_, letters) in study.keys().items()}
    ended = {task: [letters.replace("A", "E"), letters] for task, (letters, _) in right.items()}
    answers = {"plain-0": {"2": right, "200": right}, "plain-0-sft-0": {"2": right, "200": ended}}
    assert study.summary(answers["plain-0-sft-0"]) == (
        "as decoded at 2: 100.0, among letters at 2: 100.0, EOS at 2: 0.0, other tokens at 2: 0.0, "
        "as decoded at 200: 66.7, among letters at 200: 100.0, EOS at 200: 33.3, other tokens at 200: 0.0"
    )
    answers |= {name.replace("0", "1", 1): one for name, one in answers.items()}
    lines = [line.split(" | ") for line in study_tables.tables(answers).splitlines()]
    (above_base,) = (line for line in lines if line[0] == "| SFT above base")
    n_seeds, at_2, at_200, of_letters = (one.removesuffix(" |") for one in above_base[1:])
    assert n_seeds == "2"
    assert (at_2.split()[0], at_2[-5:]) == ("0.0", "+0 -0")
    assert (at_200.split()[0], at_200[-5:]) == ("-33.3", "+0 -2")
    assert of_letters == at_2
    assert not any(line[0] == "| CE + TV above SFT" for line in lines)
    files = study_tables.csv_files(answers)
    assert "plain-1-sft-0,100.0" in files["shares.csv"]
    assert "SFT above base: as decoded at 200,-33.3" in files["gains.csv"]


def test_the_ablation_has_the_mean_of_its_seeds() -> None:
    right = {task: [letters, letters] for task, (_, letters) in study.keys().items()}
    ended = {task: ["E" * len(letters), letters] for task, (letters, _) in right.items()}
    alike, lost = ({str(n): one for n in study.MASKS} for one in (right, ended))
    cells = {"plain-0-sft-none-0": alike, "plain-0-sft-0": alike, "plain-0-sft-1": lost, "plain-0-ce-0": alike}
    rows = [line.split(" | ") for line in study_tables.tables(cells).splitlines() if "plain-0" in line]
    assert [(tail, n, decoded.split()[0]) for _, tail, n, decoded, *_ in rows] == [
        ("nothing", "1", "100.0"),
        ("EOS, predicted", "2", "50.0"),
        ("masks, CE only", "1", "100.0"),
    ]
    assert rows[1][-1].startswith("50.0")


def test_the_documented_tables_are_those_of_the_committed_answers() -> None:
    found = study_tables.read_study()
    text = (study_tables.DOCS / "built_in_model.md").read_text(encoding="utf-8")
    assert f"<!-- study -->\n{study_tables.tables(found)}\n<!-- end -->" in text, "training.study_tables --write"
    for name, table in study_tables.csv_files(found).items():
        assert (study.ANSWERS / name).read_text(encoding="utf-8") == table


def test_readmes_figure_is_that_of_the_committed_answers(tmp_path: Path) -> None:
    study_tables.write_figure(study_tables.read_study(), tmp_path)
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (study_tables.DOCS / "figures" / made.name).read_bytes()


@pytest.mark.parametrize("document", ["docs/built_in_model.md", "finetune/README.md", "README.md"])
def test_the_documented_sentences_follow_from_the_answers(document: str) -> None:
    """A failing test shows what the document should say."""
    assert missing(document, sentences()[document]) == []


def sentences() -> dict[str, list[str]]:
    """Document -> what it should say."""
    found = study_tables.read_study()
    tuned = [name.removesuffix("-sft-0") for name in found if re.fullmatch(r"(plain|contrastive)-\d-sft-0", name)]
    ended = {base: study_tables.score(found[f"{base}-sft-0"], 200, "EOS").mean for base in tuned}
    collapsed = f"{sum(share > 0.5 for share in ended.values())} of {len(tuned)}"

    plain = [base for base in tuned if base.startswith("plain")]

    def gain(name: str, n_masks: int, measure: str = "as decoded") -> Interval:
        return study_tables.compared(found, name, study_tables.with_both(found, name, "plain"), n_masks, measure)

    def share(measure: str) -> str:
        models = [found[f"{base}-sft-0"] for base in plain]
        return f"{100 * study_tables.mean(models, 200, measure).mean:.1f}%"

    fall, misread, at_2 = (gain("SFT above base", *what) for what in ((200,), (200, "among letters"), (2,)))
    won, read = (gain("CE + TV above SFT", 200, measure).in_words for measure in ("as decoded", "among letters"))
    end = f"most answers with 200 masks are the end of the text in {collapsed} models"
    decoded, letters, ends = map(share, ("as decoded", "among letters", "EOS"))
    return {
        "docs/built_in_model.md": [
            f"After SFT, {end}",
            f"lose {lost(fall)} points, of which {lost(misread)} among letters, and {lost(at_2)} with 2 masks",
            f"At 200 masks CE + TV wins back {won} points, of which {read} among letters",
            f"until now they took {study_tables.hours():.1f} hours of CPU time",
        ],
        "finetune/README.md": [f"After `built-in-llada-sft`, {end}", f"wins back {won} points there, {read} of them"],
        "README.md": [
            f"{len(plain)} small models trained like the built-in one (*plain*) are right in {decoded} of the "
            f"questions with 200 masks, but in {letters} by their likeliest letter; {ends} of their answers are the end"
        ],
    }


def lost(gain: Interval) -> str:
    assert gain.low is not None
    assert gain.high is not None
    return f"{-gain.mean:.1f} ({-gain.high:.1f} to {-gain.low:.1f})"
