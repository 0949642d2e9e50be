"""`mdlm-leaderboard samples`: a static page of the questions of one or two results, with their answers and traces.

Reads the files of lm-eval's `--log_samples` beside the results, and the traces of `trace=true`. Loads no model.
"""

import base64
import gzip
import json
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mdlm_leaderboard.compare import labels
from mdlm_leaderboard.templates import render
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.recorded import ANSWERED
from mdlm_lm_eval.results.result_file import ResultFile, read_chosen_file
from mdlm_lm_eval.results.samples import metrics_of, read_samples, samples_path

_OF_TRACE = ("canvas", "blocks", "returned", "ending", "steps", "confidence", "edits", "events")
# The task of a question, its number, and the digest of its document.
Key = tuple[str, int, str]


def write_samples(paths: Sequence[Path], output: Path) -> int:
    """Writes a page of the questions that all results have, and returns their number.

    A folder stands for its newest file. Raises UnusableFile if there is no question, or a file cannot be read.
    """
    files = [read_chosen_file(path, is_compared=len(paths) > 1) for path in paths]
    runs = [_questions_of(file) for file in files]
    shared = [key for key in runs[0] if all(key in run for run in runs)]
    if not shared:
        where = " and ".join(repr(str(file.place)) for file in files)
        raise UnusableFile(f"no questions are logged beside {where}; run its command with --log_samples")
    tasks = [name for name in files[0].tasks if all(name in file.tasks for file in files)]
    names = labels(files, [[file.tasks[name] for file in files] for name in tasks])
    asked = {task for task, _, _ in shared}
    spelled = [(_recorded(file, task).get("trace_tokens") or {} for task in asked) for file in files]
    content = {
        "names": names,
        "tokens": [dict(ChainMap(*of_file)) for of_file in spelled],
        "questions": [
            {"task": key[0], "id": key[1], **runs[0][key][0], "runs": [run[key][1] for run in runs]} for key in shared
        ],
    }
    # Packing saves three quarters of the size, and keeps texts of models out of the page's HTML.
    packed = base64.b64encode(gzip.compress(json.dumps(content).encode(), mtime=0)).decode("ascii")
    output.mkdir(parents=True, exist_ok=True)
    title = "Questions of " + " and ".join(names)
    render("samples", output / "index.html", title=title, data=packed, is_pair=len(files) > 1)
    return len(shared)


def _questions_of(file: ResultFile) -> dict[Key, tuple[dict[str, Any], dict[str, Any]]]:
    """Each question with a sample beside the file -> the question's texts, and this run's answers."""
    found: dict[Key, tuple[dict[str, Any], dict[str, Any]]] = {}
    for name in file.tasks:
        path = samples_path(file.place, name)
        traces = defaultdict(list)
        for trace in _recorded(file, name).get("trace") or ():
            traces[trace.get("prompt_hash")].append(trace)  # with --samples, documents have other numbers
        for sample in read_samples(path, ANSWERED) if path else ():
            key = (name, sample["doc_id"], sample["doc_hash"])
            scores = {f"{metric},{sample['filter']}": value for metric, value in metrics_of(sample).items()}
            if key in found:  # the same answers after another filter
                found[key][1]["scores"] |= scores
            else:
                found[key] = _asked(sample), _answered(sample, traces[sample.get("prompt_hash")]) | {"scores": scores}
    return found


def _recorded(file: ResultFile, task: str) -> Mapping[str, Any]:
    return dict(file.mdlm.get("tasks", {}).get(task, {}))


def _asked(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A question's different prompts, target, choices, and the place of the right one among them.

    lm-eval's target of a multiple choice is its place, or its text.
    """
    arguments = [[*one.values()] for one in sample["arguments"].values()]
    choices = [str(one[1]) for one in arguments if len(one) > 1 and isinstance(one[1], str)]
    prompts = [*dict.fromkeys(str(one[0]) for one in arguments if one)]
    target = str(sample.get("target", ""))
    places = {choice.strip(): place for place, choice in enumerate(choices)} | {str(n): n for n in range(len(choices))}
    correct = places.get(target.strip())
    return {"prompts": prompts, "target": target, "choices": choices, "correct": correct}


def _answered(sample: Mapping[str, Any], traces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The texts of the answers, each with its trace or None; for choices, their log-likelihoods."""
    if all(isinstance(one, list) for of_request in sample["resps"] for one in of_request):
        return {"log_likelihoods": [float(of_request[0][0]) for of_request in sample["resps"]]}
    texts = [str(one) for of_request in sample["resps"] for one in of_request]
    kept = {
        one["repetition"]: {name: one[name] for name in _OF_TRACE if name in one}
        for one in traces
        if "canvas" in one and one["repetition"] < len(texts) and texts[one["repetition"]] in one["text"]
    }
    return {"answers": [{"text": text, "trace": kept.get(n)} for n, text in enumerate(texts)]}
