"""The study over training seeds: its cells, its way of asking, and its tables."""

from pathlib import Path

import pytest

from mdlm_lm_eval import MDLM
from tests.conftest import evaluate
from training import study


def test_a_cell_stands_on_one_before_it() -> None:
    names: list[str] = []
    for cell in study.cells():
        assert cell.name not in names
        assert not cell.base or cell.base in names
        names.append(cell.name)
    paddings = ("none-", "shown-", "masks-", "")
    ablation = {f"contrastive-0-sft-{padding}{seed}" for padding in paddings for seed in range(5)}
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
        right = [token == letter for token, letter in zip(tokens, study.keys()[task][1], strict=True)]
        assert results["results"][task]["exact_match,none"] == pytest.approx(sum(right) / len(right))


def test_shares_and_gains() -> None:
    """One model is right, one says EOS where a third of the answers are A, and is right among letters."""
    right = {task: [letters, letters] for task, (_, letters) in study.keys().items()}
    ended = {task: [letters.replace("A", "E"), letters] for task, (letters, _) in right.items()}
    answers = {"plain-0": {"2": right, "200": right}, "plain-0-sft-0": {"2": right, "200": ended}}
    assert study.summary(answers["plain-0-sft-0"]) == (
        "as decoded at 2: 100.0, among letters at 2: 100.0, EOS at 2: 0.0, "
        "as decoded at 200: 66.7, among letters at 200: 100.0, EOS at 200: 33.3"
    )
    lines = study.tables(answers).splitlines()
    (gains,) = [line for line in lines if line.startswith("| `plain-0-sft-0` | `plain-0`")]
    _, _, at_2, at_200, letters = (cell.strip() for cell in gains.strip("|").split("|"))
    assert [one.split()[0].rstrip(",") for one in (at_2, at_200, letters)] == ["0.0", "-33.3", "0.0"]


def test_the_documented_tables_are_those_of_the_committed_answers() -> None:
    text = (Path(__file__).parents[1] / "docs/built_in_model.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- tables: printed by study.py -->\n")
    answers, gain = study.read_answers(), study.gain
    assert rest.partition("<!-- end of tables -->")[0].strip() == study.tables(answers).strip()
    before, ended, repaired = (answers[f"plain-0{cell}"] for cell in ("", "-sft-0", "-sft-ce-tv-0"))
    lost, of_letters = (gain(ended, before, 200, measure) for measure in ("as decoded", "among letters"))
    words = " ".join(text.split())
    assert f"costs `built-in` {lost} points at 200 masks as decoded, and {of_letters} among letters" in words
    won = gain(ended, repaired, 200), gain(ended, repaired, 200, "among letters"), gain(ended, repaired, 2)
    assert "wins back {} points at 200 masks, {} of them among letters, and {} at 2 masks".format(*won) in words
