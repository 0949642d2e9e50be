"""Answers to single questions, from the files of lm-eval's `--log_samples` (also compressed, `.jsonl.gz`)."""

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mdlm_lm_eval.results.files import UnusableFile

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
