"""The record of a run in a result: effective numbers and cost of each task; digests of weights and settings."""

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval import __version__
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.trace import Event, as_recorded, filled
from mdlm_lm_eval.loader import plugins
from mdlm_lm_eval.model.text import ENDINGS
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.registry import package_digest
from mdlm_lm_eval.results.suite import suite_info

_VALUES_PER_PARAMETER = 16
_OF_ENDINGS = ("empty", "at_once", "thinking_closed", "thinking_kept", *ENDINGS)
# Settings that only say where a model came from, or that the weights show.
_SILENT_SETTINGS = {"_name_or_path", "base_model_name_or_path", "transformers_version", "dtype", "block_length_from"}


class TaskCost(Counter[str]):
    """The cost of a task: sums over its requests, in whatever batches these were.

    forward_passes: forward passes that a request's row took part in.
    slot_passes: passes of a batch times its lanes, busy or not, divided among the requests.
    denoising_steps: passes in which masks could be filled or tokens changed.
    layer_tokens: positions that went through the layers; those of a shared prefix count once. Absent if not counted.
    shared_tokens: positions whose keys and values were copied from a shared prefix instead.
    written_tokens: tokens in the returned slots, including those after an EOS.
    answer_tokens: tokens before the EOS or end of turn.
    canvases: canvases that were scored for likelihood tasks; those of a batch are divided among its requests.
    seconds: wall time of decoding or scoring, divided among the requests.
    peak_memory_bytes: the most memory in use during the task, as `devices.Meter` reads it.
    """

    def add(self, amounts: Mapping[str, float]) -> None:
        """Adds the cost of a request. The peak of memory is the maximum."""
        for name, amount in amounts.items():
            self[name] = max(self[name], amount) if name == "peak_memory_bytes" else self[name] + amount  # type: ignore[assignment]

    def merge(self, other: "TaskCost") -> None:
        """Adds the cost of a process that ran at the same time, so that the time in seconds is the maximum."""
        self.add({name: amount for name, amount in other.items() if name != "seconds"})
        self["seconds"] = max(self["seconds"], other["seconds"])

    def as_dict(self) -> dict[str, Any]:
        """Returns the cost for the results file, with the share of busy lanes (`batch_occupancy`) and tokens per pass.

        Tokens per pass are a ratio of sums, as in d3LLM (arXiv 2601.07568).
        """
        found: dict[str, Any] = {name: amount for name, amount in self.items() if amount}
        for name in {"canvases", "layer_tokens", "shared_tokens"} & found.keys():
            found[name] = round(found[name])
        if self["slot_passes"]:
            found["batch_occupancy"] = self["forward_passes"] / self["slot_passes"]
        if self["forward_passes"]:
            found["tokens_per_forward"] = self["answer_tokens"] / self["forward_passes"]
            found["written_tokens_per_forward"] = self["written_tokens"] / self["forward_passes"]
        return found


class Answer(NamedTuple):
    """The answer to a request, and its cost."""

    string: str
    token_ids: Sequence[int]
    cost: dict[str, float]


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the first index at which two sequences differ; the length of the shorter one if there is none."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


class OfFirstToken(NamedTuple):
    """The likeliest first token of a single-token answer, as a letter of `LabelTokens.letter`.

    of_set: the question's set, "" if it has none. entropy: in nats.
    """

    doc_id: int | None
    of_set: str
    letter: str
    entropy: float


@dataclass
class TaskRecord:
    """The record of one task's requests.

    ranges: the smallest and the largest value of each effective number.
    text: the number of tokens of its texts, and of those that are unknown to the tokenizer.
    audited: document, exact answer and first differing token of each request that was also decoded exactly; the exact
        answer and the token are None if the answers are the same.
    caches: the KV caches in effect in generation tasks. `cache=auto` is recorded as exact or none, or as auto if the
        family's own method decodes.
    endings: the number of answers with each of `ENDINGS`, of empty answers, of answers that end at once, that hold
        their thinking, or are in it, as no `think_end_token` is set, and of prompts that close thinking.
    first_tokens: those of single-token answers with known labels, in the pass that filled the slot, before any token
        was banned.
    traces: for each answer decoded with `trace`: document, repetition, text, and for each token its end in the text and
        the fields of `Filled`, where a column is one string with blanks between the numbers; also the canvas with its
        blocks and events, as `trace.as_recorded` writes them. trace_tokens: the text of each token id in the traces.
    repeated: the number of questions that were asked several times, of their answers, and of distinct answers.
    errors: document, number of the choice and standard error in nats of each estimated log-likelihood.
    drawn: the number of answers that depend on the seed.
    longer_continuations: the number of continuations longer than `n_masks`, which were scored at their own lengths.
    short_answers: the number of answers that a server ended for their length before they had all tokens.
    """

    requests: int = 0
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    truncated_prompts: int = 0
    truncated_tokens: int = 0
    text: Counter[str] = field(default_factory=Counter)
    cost: TaskCost = field(default_factory=TaskCost)
    audited: list[tuple[int | None, str | None, int | None]] = field(default_factory=list)
    exact_cost: TaskCost = field(default_factory=TaskCost)
    caches: set[str] = field(default_factory=set)
    endings: Counter[str] = field(default_factory=Counter)
    traces: list[dict[str, Any]] = field(default_factory=list)
    trace_tokens: dict[int, str] = field(default_factory=dict)
    first_tokens: list[OfFirstToken] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    errors: list[tuple[int | None, int, float]] = field(default_factory=list)
    drawn: int = 0
    longer_continuations: int = 0
    short_answers: int = 0

    def audit(self, doc_id: int | None, cached: Answer, exact: Answer) -> None:
        """Compares two answers. Tokens count only if the strings differ, as those after a stop string do not matter."""
        self.exact_cost.add(exact.cost)
        if cached.string == exact.string:
            self.audited.append((doc_id, None, None))
            return
        self.audited.append((doc_id, exact.string, first_difference(cached.token_ids, exact.token_ids)))

    def trace(
        self,
        facts: dict[str, Any],
        answer: Answer,
        canvas: Canvas,
        events: Sequence[Event],
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        """Records the trace of an answer, up to the token with which its string ends. `facts` are recorded with it."""
        ids, slots = answer.token_ids, canvas.slots[: len(answer.token_ids)]
        texts = [tokenizer.decode(ids[:n], skip_special_tokens=True) for n in range(len(slots) + 1)]
        written = filled(events, slots, mask_token_id=canvas.token_ids[slots[0]])
        begin = texts[-1].find(answer.string)
        text = texts[-1][: begin + len(answer.string)] if begin >= 0 else texts[-1]
        rows = [
            (len(after), one.step, f"{one.confidence:.4g}", one.edits)
            for before, after, one in zip(texts, texts[1:], written, strict=False)
            if not before.startswith(text)  # several tokens may be one character
        ]
        columns = zip(("ends", "steps", "confidence", "edits"), zip(*rows, strict=True), strict=False)
        recorded = as_recorded(canvas.token_ids, canvas.slots[0], events)
        recorded |= {"blocks": " ".join(map(str, canvas.block_lengths)), "returned": canvas.n_returned}
        facts = facts | {"text": text, **recorded}
        self.traces.append(facts | {name: " ".join(map(str, column)) for name, column in columns})
        of_events = (event.new for event in events if event.new is not None)
        for id in {*canvas.token_ids[canvas.slots[0] :], *of_events} - self.trace_tokens.keys():
            self.trace_tokens[id] = tokenizer.decode([id])

    def merge(self, other: "TaskRecord") -> None:
        """Adds another process's record of the same task."""
        for each in fields(self):
            own, its = getattr(self, each.name), getattr(other, each.name)
            if isinstance(own, TaskCost):
                own.merge(its)
            elif isinstance(own, (int, list)):
                setattr(self, each.name, own + its)
            elif each.name != "ranges":
                own.update(its)
        for name, (low, high) in other.ranges.items():
            lowest, highest = self.ranges.get(name, (low, high))
            self.ranges[name] = (min(lowest, low), max(highest, high))

    def as_dict(self) -> dict[str, Any]:
        """Returns the record for the results file."""
        facts = {
            "requests": self.requests,
            **{name: list(bounds) for name, bounds in self.ranges.items()},
            "truncated_prompts": self.truncated_prompts,
            "truncated_tokens": self.truncated_tokens,
            "unknown_share": self.text["unknown"] / max(1, self.text["tokens"]),
            "cost": self.cost.as_dict(),
        }
        if self.caches:
            facts["cache"] = " and ".join(sorted(self.caches))
        if self.endings:
            facts["endings"] = {name: int(self.endings[name]) for name in _OF_ENDINGS}
        if self.traces:
            order = lambda one: (-1 if one["doc_id"] is None else one["doc_id"], one["repetition"])  # noqa: E731
            facts |= {"trace": sorted(self.traces, key=order), "trace_tokens": self.trace_tokens}
            known = [[*map(float, one["confidence"].split())] for one in self.traces if one.get("confidence")]
            facts |= {"average_confidence": fmean(map(fmean, known))} if known else {}
        if self.first_tokens:
            facts["first_token"] = self._first_token()
        facts |= {"repeated": dict(self.repeated)} if self.repeated else {}
        for name in ("drawn", "longer_continuations", "short_answers"):
            facts |= {name: n} if (n := getattr(self, name)) else {}
        if self.errors:
            errors = [error for _, _, error in sorted(self.errors, key=lambda one: (one[0] or 0, one[1]))]
            facts["standard_error"] = [min(errors), max(errors)]
            facts["standard_error_of_mean"] = math.hypot(*errors) / len(errors)
            facts["standard_errors"] = " ".join(f"{error:.4g}" for error in errors)
        return facts | ({"audit": self._audit()} if self.audited else {})

    def _first_token(self) -> dict[str, Any]:
        """Returns the letters and sets of the questions, ordered by document, and the mean entropy in nats."""
        found = sorted(self.first_tokens, key=lambda one: -1 if one.doc_id is None else one.doc_id)
        facts = {"letters": "".join(one.letter for one in found), "entropy": fmean(one.entropy for one in found)}
        return facts | ({"sets": " ".join(one.of_set for one in found)} if all(one.of_set for one in found) else {})

    def _audit(self) -> dict[str, Any]:
        differences = [first for _, _, first in self.audited if first is not None]
        answers = sorted(self.audited, key=lambda one: -1 if one[0] is None else one[0])
        first = {"smallest": min(differences), "median": median(differences)} if differences else None
        exactly = [{"doc_id": doc} | ({} if exact is None else {"exact": exact}) for doc, exact, _ in answers]
        n_same = sum(exact is None for _, exact, _ in self.audited)
        facts = {"requests": len(answers), "same_strings": n_same, "first_differing_token": first}
        return facts | {"exact_cost": self.exact_cost.as_dict(), "exact_answers": exactly}


OptionsInEffect = tuple[str, DecodingOptions | LikelihoodOptions]


@dataclass
class RunRecord:
    """The records of all tasks in this process.

    settings: (request type, effective options) -> the tasks that ran with them.
    forward_passes: the number of forward passes of whole batches.
    kept: the number of requests that an earlier run answered; their cost is in the record, too.
    """

    tasks: defaultdict[str, TaskRecord] = field(default_factory=lambda: defaultdict(TaskRecord))
    settings: defaultdict[OptionsInEffect, set[str]] = field(default_factory=lambda: defaultdict(set))
    forward_passes: int = 0
    kept: int = 0

    def merge(self, other: "RunRecord") -> None:
        """Adds another process's record."""
        self.forward_passes += other.forward_passes
        self.kept += other.kept
        for name, task in other.tasks.items():
            self.tasks[name].merge(task)
        for setting, names in other.settings.items():
            self.settings[setting] |= names


def facts_of_run(
    run: RunRecord, options_of: Callable[[DecodingOptions | LikelihoodOptions], dict[str, Any]]
) -> dict[str, Any]:
    """Returns the facts that results contain for any model: tasks, and the settings that these ran with."""
    tasks = {name: task.as_dict() for name, task in sorted(run.tasks.items())}
    return {
        "package_version": __version__,
        "package_digest": package_digest(),
        "plugins": plugins(),
        "settings": [
            {"request_type": kind, "options": options_of(options), "tasks": sorted(names)}
            for (kind, options), names in sorted(run.settings.items(), key=repr)
        ],
        "tasks": tasks,
        "task_suite": suite_info(tasks),
    }


def weights_digest(model: torch.nn.Module) -> str:
    """Returns a digest of the name, shape, type and first values of every weight.

    It is cheap, and differs after training, unless that changed no first value. Weights are the parameters and the
    saved buffers, such as those of a GPTQ or AWQ checkpoint.
    """
    digest = hashlib.sha256()
    saved = model.state_dict(keep_vars=True).keys()
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
    for name, parameter in (*model.named_parameters(), *buffers):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not local.is_meta:  # as weights that are offloaded to disk are
            first = local.detach().flatten()[:_VALUES_PER_PARAMETER].float().cpu()
            digest.update(first.numpy().tobytes())
    return digest.hexdigest()


def digest_of_file(path: str | None) -> str | None:
    """Returns the SHA-256 of a file that an option names; None if it names none."""
    return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()


def digest_of_settings(settings: Mapping[str, Any]) -> str:
    """Returns a digest of settings that weights do not show: the config of a model or adapter, or a vocabulary."""
    kept = {name: value for name, value in settings.items() if name not in _SILENT_SETTINGS}
    as_json = json.dumps(
        kept, sort_keys=True, default=lambda value: sorted(value) if isinstance(value, set) else str(value)
    )
    return hashlib.sha256(as_json.encode()).hexdigest()
