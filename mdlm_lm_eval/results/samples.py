"""Answers to single questions, out of the files that lm-eval writes with `--log_samples`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mdlm_lm_eval.results.files import UnusableFile, read_bytes
from mdlm_lm_eval.results.result_file import is_number
from mdlm_lm_eval.results.sentences import one_line

_MOST_BYTES = 2**30  # prompts of 16,000 questions take some 50 MB

# What tells a question: its number and the digest of its document.
Question = tuple[int, str]


def samples_path(result: Path, task: str) -> Path | None:
    """The samples of a task beside a result file, None where there are none."""
    date = result.stem.rpartition("_")[2]  # has no underscore, and the name that was asked for may have some
    path = result.with_name(f"samples_{task}_{date}.jsonl")
    return path if path.exists() else None


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of samples. Raises UnusableFile."""
    try:
        return [dict(json.loads(line)) for line in read_bytes(path, at_most=_MOST_BYTES).splitlines()]
    except (ValueError, TypeError, RecursionError) as error:
        raise UnusableFile(f"holds no samples of lm-eval in {path.name!r} ({one_line(error)})") from error


def read_scores(path: Path) -> Mapping[str, Mapping[Question, float]]:
    """Metric (`metric,filter`) -> question -> score. Raises UnusableFile."""
    scores: dict[str, dict[Question, float]] = {}
    try:
        for sample in read_samples(path):
            question = int(sample["doc_id"]), str(sample["doc_hash"])
            for metric in sample["metrics"]:
                value: Any = sample.get(metric)
                if is_number(value):
                    scores.setdefault(f"{metric},{sample['filter']}", {})[question] = float(value)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableFile(f"holds no samples of lm-eval in {path.name!r} ({one_line(error)})") from error
    return scores
