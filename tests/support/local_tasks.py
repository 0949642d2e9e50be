"""Tasks of lm-eval or of the package on local documents, and a model with given answers."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.model import LM


class Stub(LM):
    """Answers a request with the next of the given answers, in turns."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[Any] = []

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.asked += requests
        return [answer for answer, _ in zip(itertools.cycle(self.answers), requests, strict=False)]

    loglikelihood = loglikelihood_rolling = generate_until  # type: ignore[assignment]


def local_task(
    folder: Path, source: Path, splits: Mapping[str, Sequence[Any]], *, name: str = "task", **changes: Any
) -> str:
    """Writes `{name}.yaml`, which includes `source`, and the documents of each split beside it; returns its path."""
    files = {split: str(folder / f"{name}-{split}.jsonl") for split in splits}
    for split, documents in splits.items():
        Path(files[split]).write_text("".join(json.dumps(document) + "\n" for document in documents))
    dataset = {"data_files": files, "cache_dir": str(folder / "cache")}
    config = {"include": str(source), "dataset_path": "json", "dataset_kwargs": dataset, **changes}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return str(folder / f"{name}.yaml")
