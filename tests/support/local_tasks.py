"""Task files that include those of lm-eval or of the package, with local documents in the place of the hub's."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml


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
