"""Answers to single questions: from the files of lm-eval's `--log_samples` (also compressed), and from first tokens.

First tokens split a single-token score into reading, format and the end of text: all shares are about the likeliest
token in the pass that filled the slot, before any token was banned.
"""

import os
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from mdlm_lm_eval.results.files import MOST_BYTES, UnusableFile, check_inside, check_regular, opened, parsed_json
from mdlm_lm_eval.results.recorded import LARGEST, SAMPLES, check_types
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult
from mdlm_lm_eval.results.statistics import Score, clusters_of, median_of_seeds, score_of_questions
from mdlm_lm_eval.results.suite import SUITE_METRIC, suite_task
from mdlm_lm_eval.tasks import rule_sets

# A question's identity: its number, the digest of its document, and its cluster ("" if it has none).
Question = tuple[int, str, str]
Answers = Mapping[str, Mapping[str, Mapping[Question, float]]]  # task -> `metric,filter` -> question -> score
# Task -> `metric,filter` -> the cluster of each question (the question itself if it has none), and its score.
AnswersByCluster = Mapping[str, Mapping[str, Sequence[tuple[Hashable, float]]]]

_MOST_BYTES = 2**31  # of all lines; 500 prompts of 128,000 tokens have half as many
_NOTHING = frozenset(("", "[invalid]", "None"))
#: Share -> the letters of `LabelTokens.letter` that it counts.
SHARES = {
    "decoded": "R",  # the right label is the likeliest token
    "among_labels": "RETO",  # the right label is the likeliest label
    "label": "RWL",  # any label is the likeliest token
    "eos": "Ee",
    "end_of_turn": "Tt",
    "other": "Oo",
}
#: Share -> its name in sentences and cards.
WORDS = {
    "decoded": "as decoded",
    "among_labels": "among letters",
    "eos": "EOS",
    "end_of_turn": "end of turn",
    "other": "other tokens",
}
_OF_ANSWER = ("decoded", "among_labels")  # need the right label


def samples_path(result: Path, task: str) -> Path | None:
    """The file of a task's samples beside a result file; None if there is none."""
    return samples_paths(result, [task]).get(task)


def samples_paths(result: Path, tasks: Iterable[str]) -> dict[str, Path]:
    """Task -> the file of its samples beside a result file, without tasks that have none."""
    # A date has no underscore; a name that the user chose may have some.
    date = result.name.removesuffix(".gz").removesuffix(".json").rpartition("_")[2]
    # lm-eval 0.5 writes the group's name and `::` before the task's.
    named = re.compile(rf"samples_(?:.*::)?(.+)_{re.escape(date)}\.jsonl(?:\.gz)?")
    found = [match for name in sorted(os.listdir(result.parent), reverse=True) if (match := named.fullmatch(name))]
    of_tasks = {match[1]: result.parent / match[0] for match in found}  # of several, the first name stays
    return {task: of_tasks[task] for task in tasks if task in of_tasks}


def read_samples(path: Path, types: TypeAdapter[Any] = SAMPLES) -> list[dict[str, Any]]:
    """The lines of a file of samples.

    Raises UnusableFile if it is no regular file of its folder, is too large or cut off, or a line has other types.
    """
    left, samples = _MOST_BYTES, []
    try:
        check_regular(path)
        check_inside(path, path.parent)
        with opened(path) as file:
            while line := file.readline(MOST_BYTES + 1):
                left -= len(line)
                if left < 0:
                    raise UnusableFile(f"has more than {_MOST_BYTES >> 20} MiB")
                samples.append(parsed_json(line))
        check_types(samples, types)
    except (OSError, ValueError, EOFError, zlib.error) as error:  # UnusableFile, too
        raise UnusableFile(f"has samples that cannot be read: {path.name!r} ({error})") from error
    return samples


def read_scores(path: Path, cluster: str = "", *, of_suite: bool = False) -> Mapping[str, Mapping[Question, float]]:
    """Metric (`metric,filter`) -> question -> score, for metrics with one number per question.

    Questions whose documents have the same value in the field `cluster` are one cluster; without it, those of the
    few-shot suite with the same `set`. Raises UnusableFile if a document lacks the field `cluster`.
    """
    scores: dict[str, dict[Question, float]] = defaultdict(dict)
    for sample in read_samples(path):
        document = sample.get("doc")
        fields = document if isinstance(document, dict) else {}
        if cluster and cluster not in fields:
            raise UnusableFile(
                f"{path.name!r} has a document without the field {cluster!r}: it has {', '.join(fields)}"
            )
        of_set = str(fields.get("set", "")) if of_suite else ""
        question = (sample["doc_id"], sample["doc_hash"], f"{cluster} {fields[cluster]}" if cluster else of_set)
        for metric, value in metrics_of(sample).items():
            scores[f"{metric},{sample['filter']}"][question] = value
    return scores


def metrics_of(sample: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of one sample that are numbers."""
    found = {metric: sample.get(metric) for metric in sample["metrics"]}
    return {name: float(one) for name, one in found.items() if isinstance(one, int | float) and abs(one) <= LARGEST}


def read_answers(file: ResultFile, unread: list[str] | None = None, cluster: str = "") -> Answers:
    """The scores of all questions of a file, in the order of its documents.

    Clusters are documents with the same value in the field `cluster`, by default in the one that the task's metadata
    name (`cluster: FIELD`), and in `set` in the few-shot suite. Tasks without readable samples beside the file are left
    out. If samples cannot be read, `unread` gets a sentence about them.
    """
    found: dict[str, Mapping[str, Mapping[Question, float]]] = {}
    for name, path in samples_paths(file.place, file.tasks).items():
        task = file.tasks[name]
        try:
            by_metric = read_scores(path, cluster or task.cluster, of_suite=task.suite is not None)
        except UnusableFile as error:
            if unread is not None:
                unread.append(str(error))
        else:
            found[name] = {metric: dict(sorted(scores.items())) for metric, scores in by_metric.items()}
    return found


def by_cluster(answers: Answers) -> AnswersByCluster:
    """The same answers with their clusters in place of the questions."""
    found: dict[str, Mapping[str, Sequence[tuple[Hashable, float]]]] = {}
    for name, by_metric in answers.items():
        task = suite_task(name)
        found[name] = {
            metric: [
                (cluster or (f"{task.task} {n}" if task else (name, n, digest)), score)
                for (n, digest, cluster), score in scores.items()
            ]
            for metric, scores in by_metric.items()
        }
    return found


def scores_by_question(file: ResultFile, unread: list[str] | None = None) -> AnswersByCluster:
    """The answers of `read_answers` by cluster."""
    return by_cluster(read_answers(file, unread))


def unparsed_answers(path: Path) -> Counter[str]:
    """Filter -> the number of answers in which it found nothing: its result is empty, or lm-eval's word for that."""
    samples = (one for one in read_samples(path) if one["filter"] != "none")
    return Counter(one["filter"] for one in samples if {*_texts(one.get("filtered_resps", "?"))} <= _NOTHING)


def _texts(found: Any) -> Iterator[str]:
    """The findings of a filter; lm-eval 0.5 puts them into further lists, and 0.4 those of several answers."""
    for one in found:
        yield from _texts(one) if isinstance(one, list) else [str(one)]


def pair_accuracies(answers: AnswersByCluster) -> dict[str, tuple[float, int]]:
    """Group of `mdlm_rules` -> the share of its sets that are right all three times, and the number of sets.

    `answers` are those of `scores_by_question`; sets that were not asked three times do not count.
    """
    askings: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for name, asked in answers.items():
        task = suite_task(name)
        if task and task.asks == "mdlm_rules":
            askings[task.group] += [(str(one), score == 1) for one, score in asked.get(SUITE_METRIC, ())]
    found = {}
    for group, own in askings.items():
        with suppress(ValueError):  # with --limit, there may be no complete set
            found[group] = rule_sets.pair_accuracy(own)
    return found


def new_instance(
    request_type: str, document: Any, arguments: tuple[Any, ...], task: str | None, doc_id: int | None
) -> Any:
    """A request as the installed lm-eval builds it; since 0.5, task and document are arguments."""
    from lm_eval.api.instance import Instance

    if signature(Instance).parameters["task_name"].default is Parameter.empty:
        return Instance(
            request_type=request_type, doc=document, arguments=arguments, idx=0, task_name=task, doc_id=doc_id
        )
    return Instance(request_type=request_type, doc=document, arguments=arguments, idx=0, metadata=(task, doc_id, 1))


# First tokens


@dataclass(frozen=True)
class Decomposition:
    """The shares of `SHARES` over some tasks' questions, and the mean entropy of the first token in nats.

    `decoded` and `among_labels` are missing if the right label is not known.
    """

    shares: Mapping[str, Score]
    entropy: float

    @property
    def in_words(self) -> str:
        """The shares, such as "4.7% as decoded, 68.1% among letters, 95.2% EOS"; ends and other tokens if any occur."""
        known = {name: self.shares[name].mean for name in WORDS if name in self.shares}
        words = [f"{100 * one:.1f}% {WORDS[name]}" for name, one in known.items() if one or name in _OF_ANSWER]
        return ", ".join([*words, f"entropy {self.entropy:.2f}"])


def decomposition_of(tasks: Sequence[TaskResult], names: Iterable[str] = SHARES) -> Decomposition | None:
    """The shares `names` of several tasks, each with the same weight; None if one has no record of first tokens."""
    recorded = [task.first_token for task in tasks]
    if not all(one.get("letters") for one in recorded):
        return None
    letters = [one["letters"] for one in recorded]
    likeliest, sizes = np.array([*"".join(letters)]), [*map(len, letters)]
    clusters = clusters_of(of_set for task in tasks for of_set in _sets(task))
    shares = {
        name: score_of_questions(clusters, np.isin(likeliest, [*SHARES[name]]).astype(float), sizes, sum(sizes))
        for name in names
        if name not in _OF_ANSWER or "L" not in likeliest
    }
    return Decomposition(shares, fmean(one["entropy"] for one in recorded))


def over_seeds(found: Sequence[Decomposition]) -> Decomposition:
    """The median of each share over several training seeds."""
    shares = {name: median_of_seeds([one.shares[name] for one in found]) for name in found[0].shares}
    return Decomposition(shares, fmean(one.entropy for one in found))


def said_of(file: ResultFile) -> list[str]:
    """A line for each top group or task of a file with recorded first tokens: its masks and its decomposition."""
    lines = {}
    for result in file.top:
        found = decomposition_of(file.tasks_of(result))
        low, high = result.effective.get("asked_masks", (0, 0))
        masks = f"{low} to {high}" if low != high else str(high)
        if found:
            lines[result.name] = f"{masks} mask{'' if masks == '1' else 's'}: {found.in_words}"
    return [f"{name}, {line}" for name, line in lines.items()] if len(lines) > 1 else [*lines.values()]


def _sets(task: TaskResult) -> list[str]:
    """The set of each question; if they are not recorded, each question is a set of its own."""
    letters = task.first_token["letters"]
    sets = (task.first_token.get("sets") or "").split()
    return sets if len(sets) == len(letters) else [f"{task.name} {n}" for n in range(len(letters))]
