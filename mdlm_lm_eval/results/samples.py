"""Answers to single questions, from the files of lm-eval's `--log_samples` (also compressed, `.jsonl.gz`)."""

import gzip
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.recorded import LARGEST, FilteredSample, Sample, Shaped
from mdlm_lm_eval.results.result_file import ResultFile
from mdlm_lm_eval.results.suite import SUITE_METRIC, suite_task
from mdlm_lm_eval.tasks import rule_sets

# What identifies a question: its number, the digest of its document, and its set of the few-shot suite ("" without).
Question = tuple[int, str, str]
# The set that a question belongs to, and its score.
Answer = tuple[Hashable, float]

SAMPLES = Shaped(list[Sample])
_FILTERED = Shaped(list[FilteredSample])
_NOTHING = frozenset(("", "[invalid]", "None"))


def samples_path(result: Path, task: str) -> Path | None:
    """The samples of a task beside a result file, None where there are none."""
    date = result.stem.rpartition("_")[2]  # has no underscore; a name of the user's own may have some
    with suppress(OSError, ValueError):  # what a task is called need not be a file's name
        endings = [f"{escape(task)}_{date}.jsonl{ending}" for ending in ("", ".gz")]
        names = [f"samples_{before}{ending}" for before in ("", "*::") for ending in endings]  # as lm-eval 0.5 writes
        return next((path for name in names for path in result.parent.glob(name)), None)
    return None


def read_samples(path: Path, shape: Shaped) -> list[dict[str, Any]]:
    """The lines of a file of samples. Raises UnusableFile where it is cut off, or a line is of another shape."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            samples = [json.loads(line) for line in lines]
        shape.check(samples)
    except (OSError, ValueError, EOFError, RecursionError, zlib.error) as error:  # also of the shape
        raise UnusableFile(f"has samples that cannot be read: {path.name!r} ({error})") from error
    return samples


def read_scores(path: Path) -> Mapping[str, Mapping[Question, float]]:
    """Metric (`metric,filter`) -> question -> score, of metrics that are one number per question."""
    scores: dict[str, dict[Question, float]] = defaultdict(dict)
    for sample in read_samples(path, SAMPLES):
        document = sample.get("doc")
        of_set = document.get("set", "") if isinstance(document, dict) else ""
        for metric, value in metrics_of(sample).items():
            scores[f"{metric},{sample['filter']}"][sample["doc_id"], sample["doc_hash"], str(of_set)] = value
    return scores


def metrics_of(sample: Mapping[str, Any]) -> dict[str, float]:
    """Those of one sample that are a number."""
    found = {metric: sample.get(metric) for metric in sample["metrics"]}
    return {name: float(one) for name, one in found.items() if isinstance(one, int | float) and abs(one) <= LARGEST}


def scores_by_question(file: ResultFile, unread: list[str] | None = None) -> dict[str, Mapping[str, Sequence[Answer]]]:
    """Task -> `metric,filter` -> what each question shares with others, itself or its set of the suite, and its score.

    Of tasks with samples beside the file that can be read; `unread` gets a sentence about each of the others.
    """
    found: dict[str, Mapping[str, Sequence[Answer]]] = {}
    for name in file.tasks:
        path = samples_path(file.place, name)
        try:
            by_metric = read_scores(path) if path else {}
        except UnusableFile as error:
            if unread is not None:
                unread.append(str(error))
            continue
        found[name] = {
            metric: [
                ((of_set or f"{known.task} {n}") if (known := suite_task(name)) else (name, n, digest), score)
                for (n, digest, of_set), score in scores.items()
            ]
            for metric, scores in by_metric.items()
        }
    return found


def unparsed_answers(path: Path) -> Counter[str]:
    """Filter -> answers that it found nothing in: empty, or lm-eval's own word for that."""
    samples = (one for one in read_samples(path, _FILTERED) if one.get("filter", "none") != "none")
    return Counter(one["filter"] for one in samples if {*map(str, one.get("filtered_resps", "?"))} <= _NOTHING)


def pair_accuracies(answers: Mapping[str, Mapping[str, Sequence[Answer]]]) -> dict[str, tuple[float, int]]:
    """Group of `mdlm_rules` -> share of its sets of which all three askings are right, and the number of sets.

    `answers` are those of `scores_by_question`; sets that were not asked three times do not count.
    """
    askings: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for name, asked in answers.items():
        task = suite_task(name)
        if task and task.asks == "mdlm_rules":
            askings[task.group] += [(str(one), score == 1) for one, score in asked.get(SUITE_METRIC, ())]
    found = {}
    for group, own in askings.items():
        with suppress(ValueError):  # --limit may leave no set whole
            found[group] = rule_sets.pair_accuracy(own)
    return found
