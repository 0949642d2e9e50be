"""Writes the generated questions and their Croissant description: `python -m mdlm_lm_eval.tasks.croissant FOLDER`.

One file of JSON lines per group, and `croissant.json` beside them (https://docs.mlcommons.org/croissant, version 1.0).
"""

import argparse
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
GROUPS = {
    "mdlm_context": "Three options and ten solved examples of the rule by which one of them is right.",
    "mdlm_rules": "Sets of three options, each asked under three rules, so that only the examples tell the answer.",
    "mdlm_parallel": "Lists to copy, order and change, with the bound of filling several names at once.",
    "mdlm_infill": "Texts and small programs whose middle follows from both sides.",
    "mdlm_planning": "Countdown, 4x4 Sudoku and facts asked in reverse.",
}
_TYPES = {str: "sc:Text", int: "sc:Integer", float: "sc:Float"}
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "recordSet": "cr:recordSet",
    "repeated": "cr:repeated",
    "source": "cr:source",
}


def write(folder: Path, groups: Iterable[str] = GROUPS) -> Path:
    """Writes the questions of the groups and returns the path of their description."""
    from lm_eval.tasks import TaskManager  # slow to import, which --help does not wait for

    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    folder.mkdir(parents=True, exist_ok=True)
    files, records, version = [], [], ""
    for group in groups:
        lines = []
        for task in manager.load([group])["tasks"].values():
            named = {"task": task.config.task}
            lines += [named | {key: _flat(value) for key, value in doc.items()} for doc in task.test_docs()]
            version = max(version, str(task.config.metadata["version"]))
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        (folder / f"{group}.jsonl").write_bytes(content)
        files.append(_file(group, content))
        records.append(_records(group, lines))
    described = _dataset(version) | {"distribution": files, "recordSet": records}
    path = folder / "croissant.json"
    path.write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _flat(value: Any) -> Any:
    """A list of lists as text: fields hold numbers, texts, and lists of these."""
    return json.dumps(value) if isinstance(value, list) and value and isinstance(value[0], list) else value


def _dataset(version: str) -> dict[str, Any]:
    name = "Questions for masked diffusion language models"
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "mdlm-lm-eval",
        "description": f"{name}, generated from word lists. DATASHEET.md says how, and what for.",
        "version": version,
        "license": "https://www.apache.org/licenses/LICENSE-2.0",
        "url": "https://pypi.org/project/mdlm-lm-eval/",
        "creator": {"@type": "sc:Organization", "name": "mdlm-lm-eval contributors"},
        "datePublished": "2026-11-22",
        "citeAs": f"mdlm-lm-eval contributors (2026). {name}, version {version}.",
    }


def _file(group: str, content: bytes) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": f"{group}.jsonl",
        "name": f"{group}.jsonl",
        "contentUrl": f"{group}.jsonl",
        "contentSize": f"{len(content)} B",
        "encodingFormat": "application/jsonlines",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _records(group: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The fields that any line has; a list's type is that of its items."""
    fields = []
    for name, value in {key: value for line in lines for key, value in line.items()}.items():
        item = value[0] if isinstance(value, list) else value
        fields.append(
            {
                "@type": "cr:Field",
                "@id": f"{group}/{name}",
                "name": name,
                "dataType": _TYPES[type(item)],
                "source": {"fileObject": {"@id": f"{group}.jsonl"}, "extract": {"column": name}},
            }
            | ({"repeated": True} if isinstance(value, list) else {})
        )
    about = {"@type": "cr:RecordSet", "@id": group, "name": group, "description": GROUPS[group]}
    return about | {"field": fields}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    print(write(parser.parse_args().folder))
