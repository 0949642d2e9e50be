"""The order in which answers were filled, from results of `trace=true`."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from lm_eval.loggers import EvaluationTracker

from mdlm_lm_eval.analyses.__main__ import main
from mdlm_lm_eval.analyses.order import calibration, order_by_model, order_of, read_orders
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import evaluate
from tests.test_attribution_shots_against_masks import result_file


def traced(words: list[str], steps: list[int], confidence: float = 0.5) -> dict[str, Any]:
    """As a result holds it, of an answer whose tokens are these words."""
    ends = [len("".join(words[: n + 1])) for n in range(len(words))]
    columns = {"ends": ends, "steps": steps, "confidence": [confidence] * len(words), "edits": [0] * len(words)}
    text = {name: " ".join(map(str, column)) for name, column in columns.items()}
    return {"doc_id": 0, "text": "".join(words), **text}


def test_tau_is_kendalls() -> None:
    for seed in range(20):
        steps = random.Random(seed).sample(range(1, 9), 8)
        tau = order_of(traced(list("abcdefgh"), steps))["tau"]
        assert tau == pytest.approx(scipy.stats.kendalltau(range(8), steps).statistic)
    assert order_of(traced(list("abcd"), [1, 2, 3, 4]))["tau"] == 1
    assert order_of(traced(list("abcd"), [4, 3, 2, 1]))["tau"] == -1
    assert order_of(traced(list("abcd"), [1, 1, 2, 2]))["tau"] == 1  # in one pass there is no order
    assert order_of(traced(list("abcd"), [1, 1, 1, 1]))["tau"] is None


@pytest.mark.parametrize(
    ("words", "steps", "first"),
    [
        (["2", " and", " 3", " make", " 1", "2"], [3, 4, 5, 6, 1, 2], 1),
        (["2", " and", " 3", " make", " 1", "2"], [1, 2, 3, 4, 5, 6], 0),
        (["2", " and", " 3", " make", " 1", "2"], [2, 3, 4, 5, 1, 6], 0),  # half of the number is no answer
        (["so", " 7", "."], [2, 1, 3], 1),
        (["7", " it", " is"], [1, 2, 3], None),
        (["none", " at", " all"], [1, 2, 3], None),
    ],
)
def test_the_last_number_before_the_reasoning(words: list[str], steps: list[int], first: int | None) -> None:
    assert order_of(traced(words, steps))["number_first"] == first


def test_calibration_of_known_confidences() -> None:
    sure = [{"model": "m", "confidence": 0.95, "correct": float(n < 9)} for n in range(10)]
    unsure = [{"model": "m", "confidence": 0.25, "correct": float(n < 3)} for n in range(4)]
    low, high = calibration(sure + unsure)
    assert (low["answers"], low["correct"], high["answers"], high["correct"]) == (4, 0.75, 10, 0.9)
    assert low["error"] == high["error"] == pytest.approx((4 * 0.5 + 10 * 0.05) / 14)


def test_left_to_right_has_tau_1_and_another_order_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for unmasking in ("left_to_right", "random"):
        lm = MDLM(trace=True, unmasking=unmasking, batch_size=4)
        result = evaluate(lm, ["mdlm_reversal_as_given"], limit=4)
        tracker = EvaluationTracker(output_path=str(tmp_path / unmasking))
        samples = result.pop("samples")
        tracker.save_results_aggregated(results=result, samples=samples)
        tracker.save_results_samples("mdlm_reversal_as_given", samples["mdlm_reversal_as_given"])
    rows = read_orders([tmp_path])
    assert len(rows) == 8
    tau = {row["model"]: row["tau"] for row in order_by_model(rows)["tau"]}
    assert sorted(value == 1 for value in tau.values()) == [False, True]
    assert all(row["correct"] in (0, 1) and 0 < row["confidence"] < 1 for row in rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["mdlm-attribution", "order", str(tmp_path), "--output_path", str(tmp_path / "out")])
        main()
    assert re.search(r"left_to_right.*: Kendall's tau with left to right 1\.000", capsys.readouterr().out)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"order.{end}" for end in ("csv", "json", "png", "svg")
    }


def test_results_without_a_trace_say_how_to_get_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result_file(5, 1, (0.4, 0.5, 0.6, 0.7))))
    with pytest.raises(OptionError, match="trace=true"):
        read_orders([path])
