"""The study over training seeds: its cells, its way of asking, and its tables."""

from pathlib import Path

import pytest

from mdlm_lm_eval import MDLM
from mdlm_lm_eval.results.statistics import Interval, difference
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
        "as decoded at 2: 100.0, among letters at 2: 100.0, EOS at 2: 0.0, "
        "as decoded at 200: 66.7, among letters at 200: 100.0, EOS at 200: 33.3"
    )
    lines = [line.split("|")[1:-1] for line in study_tables.tables(answers).splitlines()]
    means = {line[0].strip(): (line[1].split()[0], line[2].strip()) for line in lines if len(line) == 3}
    assert means["SFT above base, 2 masks"] == ("0.0", "0 of 1")
    assert means["SFT above base, 200 masks"] == ("-33.3", "1 of 1")
    assert means["SFT above base, 200 masks, among letters"] == ("0.0", "0 of 1")
    assert "CE + TV above SFT, 200 masks" not in means


def test_the_ablation_has_the_mean_of_its_seeds() -> None:
    right = {task: [letters, letters] for task, (_, letters) in study.keys().items()}
    ended = {task: ["E" * len(letters), letters] for task, (letters, _) in right.items()}
    alike, lost = ({str(n): one for n in study.MASKS} for one in (right, ended))
    cells = {"plain-0-sft-none-0": alike, "plain-0-sft-0": alike, "plain-0-sft-1": lost}
    rows = [line.split(" | ") for line in study_tables.tables(cells).splitlines() if "plain-0" in line]
    assert [(tail, n, decoded.split()[0]) for _, tail, n, decoded, *_ in rows] == [
        ("nothing", "1", "100.0"),
        ("EOS, predicted", "2", "50.0"),
    ]
    assert rows[1][-1].startswith("50.0")


def test_the_documented_tables_are_those_of_the_committed_answers() -> None:
    tables = study_tables.tables(study_tables.read_study())
    text = (study_tables.DOCS / "built_in_model.md").read_text(encoding="utf-8")
    assert f"<!-- study -->\n{tables}\n<!-- end -->" in text, "python -m training.study_tables --write"


def test_readmes_figure_is_that_of_the_committed_answers(tmp_path: Path) -> None:
    study_tables.write_figure(study_tables.read_study(), tmp_path)
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (study_tables.DOCS / "figures" / made.name).read_bytes()


def test_the_documented_sentences_follow_from_the_answers() -> None:
    """A failing test shows what the documents should say."""
    found = study_tables.read_study()
    at_2, cost, misread, won_at_2, won, of_letters, ce, tv = (
        study_tables.compared(found, name)
        for name in (
            "SFT above base, 2 masks",
            "SFT above base, 200 masks",
            "SFT above base, 200 masks, among letters",
            "CE + TV above SFT, 2 masks",
            "CE + TV above SFT, 200 masks",
            "CE + TV above SFT, 200 masks, among letters",
            "CE only above SFT, 200 masks",
            "CE + TV above CE only, 200 masks",
        )
    )
    before = [f"{100 * study_tables.changed(found[name]):.1f}%" for name in ("plain-1", "contrastive-0")]
    repaired = (won["plain-0"].in_words, of_letters["plain-0"].in_words, won_at_2["plain-0"].in_words)
    page = [
        f"It costs `plain-1` {loss(cost['plain-1'])} points with 200 masks, but {loss(misread['plain-1'])} among letters",
        f"and {loss(at_2['plain-1'])} with 2 masks",
        f"It costs `built-in` {loss(cost['plain-0'])} points, and {loss(misread['plain-0'])} among letters",
        f"`contrastive-0` loses {loss(cost['contrastive-0'])} points",
        "changes {} of `plain-1`'s answers before fine-tuning, {} of `contrastive-0`'s".format(*before),
        "wins back {} points of `built-in` at 200 masks, {} among letters, and {} at 2 masks".format(*repaired),
        f"CE only wins back {ce['plain-0'].in_words} at 200 masks, {loss(tv['plain-0'])} more than CE + TV",
        f"until now they took {study_tables.hours():.1f} hours of CPU time",
    ]
    arms = study_tables.arms(found, "plain-0")
    at = {words: [study_tables.mean(seeds, n) for n in study.MASKS] for words, seeds in arms.items()}
    over_base = difference(study_tables.score(found["plain-0"], 200), at["masks, not predicted"][1]).scaled(100)
    page += [
        f"`built-in` loses {loss(difference(*at['nothing']).scaled(100))} points from 2 to 200 masks",
        f"which are not predicted, put it {over_base.with_significance} points above the base at 200 masks",
    ]
    assert missing("docs/built_in_model.md", page) == []
    shares = {
        name: [f"{100 * study_tables.score(found[name], 200, measure).mean:.1f}%" for measure in study.MEASURES]
        for name in ("plain-0-sft-0", "plain-1-sft-0")
    }
    guide = [
        f"{shares['plain-0-sft-0'][2]} of the built-in model's answers with 200 masks are the end of the text",
        "wins back {} points there, {} of them by reading, and {} at 2 masks".format(*repaired),
    ]
    assert missing("finetune/README.md", guide) == []
    first = "is right in {} of the questions with 200 masks, but in {} by its likeliest letter; {} of its answers"
    assert missing("README.md", [first.format(*shares["plain-1-sft-0"])]) == []


def loss(gain: Interval) -> str:
    assert gain.low is not None
    assert gain.high is not None
    return f"{-gain.mean:.1f} ({-gain.high:.1f} to {-gain.low:.1f})"
