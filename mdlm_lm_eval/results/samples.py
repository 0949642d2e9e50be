"""Answers to single questions, from the files of lm-eval's `--log_samples` (also compressed, `.jsonl.gz`)."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.result_file import ResultFile
from mdlm_lm_eval.results.suite import suite_task
from mdlm_lm_eval.tasks import rule_sets

# What identifies a question: its number and the digest of its document.
Question = tuple[int, str]


def samples_path(result: Path, task: str) -> Path | None:
    """The samples of a task beside a result file, None where there are none."""
    date = result.stem.rpartition("_")[2]  # has no underscore; a name of the user's own may have some
    paths = (result.with_name(f"samples_{task}_{date}.jsonl{ending}") for ending in ("", ".gz"))
    return next((path for path in paths if path.exists()), None)


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of samples. Raises UnusableFile where it is cut off."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise UnusableFile(f"has samples that cannot be read: {path.name!r} ({error})") from error


def read_scores(path: Path) -> Mapping[str, Mapping[Question, float]]:
    """Metric (`metric,filter`) -> question -> score, of metrics that are one number per question."""
    scores: dict[str, dict[Question, float]] = defaultdict(dict)
    for sample in read_samples(path):
        for metric in sample["metrics"]:
            if isinstance(sample[metric], int | float):
                question = int(sample["doc_id"]), str(sample["doc_hash"])
                scores[f"{metric},{sample['filter']}"][question] = float(sample[metric])
    return scores


def unparsed_answers(path: Path) -> Counter[str]:
    """Filter -> answers that it found nothing in: empty, or lm-eval's own word for that."""
    samples = (one for one in read_samples(path) if one.get("filter", "none") != "none")
    return Counter(one["filter"] for one in samples if {*map(str, one["filtered_resps"])} <= {"", "[invalid]", "None"})


def pair_accuracies(file: ResultFile) -> dict[str, tuple[float, int]]:
    """Group of `mdlm_rules` -> share of its sets of which all three askings are right, and the number of sets.

    Of groups whose tasks have their samples beside the file, and of sets that were asked three times.
    """
    askings: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for name in file.tasks:
        task, path = suite_task(name), samples_path(file.place, name)
        if task and path and task.asks == "mdlm_rules":
            askings[task.group] += [(one["doc"]["set"], one["exact_match"] == 1) for one in read_samples(path)]
    found = {}
    for group, asked in askings.items():
        with suppress(ValueError):  # --limit may leave no set whole
            found[group] = rule_sets.pair_accuracy(asked)
    return found
