"""The Croissant description of the generated questions: its required fields, and that it fits the files beside it."""

import hashlib
import json
from pathlib import Path
from typing import Any

from mdlm_lm_eval.tasks import croissant

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.results.suite import current_version

# What the specification, version 1.0, requires and recommends of a data set.
DATASET = "@context @type conformsTo name description license url creator datePublished version citeAs".split()  # noqa: SIM905


def check(described: dict[str, Any]) -> None:
    assert all(described[name] for name in [*DATASET, "distribution", "recordSet"])
    assert (described["@type"], described["conformsTo"]) == ("sc:Dataset", "http://mlcommons.org/croissant/1.0")
    files = {one["@id"]: one for one in described["distribution"]}
    for one in files.values():
        assert one["@type"] == "cr:FileObject"
        assert all(one[name] for name in ("name", "contentUrl", "encodingFormat"))
        assert len(one["sha256"]) == 64
    for records in described["recordSet"]:
        assert (records["@type"], records["name"]) == ("cr:RecordSet", records["@id"])
        for field in records["field"]:
            assert field["@type"] == "cr:Field"
            assert field["@id"] == f"{records['@id']}/{field['name']}"
            assert field["dataType"] in ("sc:Text", "sc:Integer", "sc:Float")
            assert field["source"]["fileObject"]["@id"] in files
            assert field["source"]["extract"] == {"column": field["name"]}


def test_the_committed_description_has_all_groups_and_required_fields() -> None:
    described = json.loads((tasks_path() / "croissant.json").read_text(encoding="utf-8"))
    check(described)
    assert [one["@id"] for one in described["recordSet"]] == list(croissant.GROUPS)
    assert described["version"] == current_version()
    assert {field["name"] for field in described["recordSet"][1]["field"]} == {
        *("task", "set", "question", "options", "answer")
    }


def test_the_command_writes_the_committed_questions(tmp_path: Path) -> None:
    described = json.loads(croissant.write(tmp_path, ["mdlm_parallel"]).read_text(encoding="utf-8"))
    check(described)
    committed = json.loads((tasks_path() / "croissant.json").read_text(encoding="utf-8"))
    (file,) = described["distribution"]
    assert file in committed["distribution"], "run python -m mdlm_lm_eval.tasks.croissant"
    content = (tmp_path / file["contentUrl"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == file["sha256"]
    (records,) = described["recordSet"]
    types = {"sc:Text": str, "sc:Integer": int, "sc:Float": float}
    fields = {field["name"]: field for field in records["field"]}
    for line in map(json.loads, content.decode().splitlines()):
        for name, value in line.items():
            values = value if fields[name].get("repeated") else [value]
            assert all(isinstance(one, types[fields[name]["dataType"]]) for one in values)
