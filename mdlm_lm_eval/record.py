"""The part of a result that describes a run: effective numbers and cost of each task, and all that scores depend on."""

import hashlib
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from peft import PeftModel
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval import __version__
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.trace import Event, Filled, as_recorded
from mdlm_lm_eval.loader import foreign_files, plugins
from mdlm_lm_eval.model.devices import device_name
from mdlm_lm_eval.model.text import ENDINGS
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.presets import mismatches
from mdlm_lm_eval.resolve import SAMPLING_NAMES
from mdlm_lm_eval.results.files import read_json
from mdlm_lm_eval.results.in_words import audit_in_words, cost_in_words, kept_in_words, settings_in_words
from mdlm_lm_eval.results.names import adapter_name
from mdlm_lm_eval.results.suite import suite_info

if TYPE_CHECKING:
    from mdlm_lm_eval.lm import MDLM

_VALUES_PER_PARAMETER = 16
_OF_MODEL = "mask_token_id max_length think_end_token add_bos_token weights revision adapter_weights"
# The facts about a run that an answer depends on.
_OF_ANSWERS = """
    mask_token_id shift_logits max_length think_end_token mixed_precision_dtype add_bos_token cache_audit
    prefix_token_id package_version plugins
"""
_OF_REQUEST = ("seed", "max_gen_toks")  # which a task or lm-eval's --seed sets
# Settings that say where a model came from, or that its weights say better.
_SILENT_SETTINGS = {"_name_or_path", "base_model_name_or_path", "transformers_version", "dtype"}


class TaskCost(Counter[str]):
    """Sums over a task's requests, whatever batches these were in.

    forward_passes: passes of the model that a request's row took part in.
    slot_passes: passes of whole batches times their lanes, shared among the requests: the passes that had room.
    denoising_steps: the passes in which masks could be filled or tokens changed.
    layer_tokens: positions that went through the layers, those of shared prefixes once; absent where they are not
        counted.
    shared_tokens: positions whose keys and values were copied from a shared prefix instead.
    written_tokens: tokens in the returned slots, also those after an EOS.
    answer_tokens: tokens up to the EOS or end of turn, without it.
    canvases: canvases that were scored for likelihood tasks; those of a batch are shared among its requests.
    seconds: wall time of decoding or scoring, shared likewise.
    peak_memory_bytes: the most that was in use meanwhile, as `devices.Meter` reads it.
    """

    def add(self, amounts: Mapping[str, float]) -> None:
        """Adds the cost of one more request; the peak is the highest of all."""
        for name, amount in amounts.items():
            self[name] = max(self[name], amount) if name == "peak_memory_bytes" else self[name] + amount  # type: ignore[assignment]

    def merge(self, other: "TaskCost") -> None:
        """Adds the cost of another process for the same task at the same time: seconds are the longer ones."""
        self.add({name: amount for name, amount in other.items() if name != "seconds"})
        self["seconds"] = max(self["seconds"], other["seconds"])

    def as_dict(self) -> dict[str, Any]:
        """For the results file, with the share of lanes that were busy (`batch_occupancy`) and tokens per forward pass.

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
    """The answer to a request, its cost, and with the option `trace` how it came to be."""

    string: str
    token_ids: Sequence[int]
    cost: dict[str, float]
    trace: Sequence[Filled] = ()


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first place at which two texts differ: at most the length of the shorter one."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


class OfFirstToken(NamedTuple):
    """What the likeliest first token of a single-token answer is, as `LabelTokens.letter` says it."""

    doc_id: int | None
    of_set: str
    letter: str
    entropy: float


@dataclass
class TaskRecord:
    """Numbers of one task's requests.

    ranges: the smallest and the largest of each effective number.
    audited: document, exact answer and first differing token for each request that was decoded exactly as well; the
        latter two are None where the strings agree.
    caches: the caches in effect in generation tasks: that of the option `cache`, where auto becomes exact or none, and
        auto where the family's own method decodes.
    endings: how many answers each of `ENDINGS` has, and how many are empty, whatever ended them, or end at their first
        token.
    first_tokens: those of single-token answers with known labels, in the pass that filled the slot, before any ban.
    traces: for each answer decoded with `trace`, its document and repetition, its text, for each token where it ends in
        the text and the fields of `Filled`, each column one string with blanks between the numbers; and the canvas with
        its blocks and events, as `trace.as_recorded` writes them. trace_tokens: what the ids in them stand for.
    repeated: questions that were asked several times, their answers, and how many of these differ from all before.
    errors: document, number of the choice and standard error in nats of each log-likelihood that is estimated.
    """

    requests: int = 0
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    truncated_prompts: int = 0
    truncated_tokens: int = 0
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

    def audit(self, doc_id: int | None, cached: Answer, exact: Answer) -> None:
        """Compares two answers. Tokens count only where strings differ: those after a stop string are no answer."""
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
        """Keeps how an answer came to be, its tokens up to where its string ends; with `facts` about it."""
        ids = answer.token_ids
        texts = [tokenizer.decode(ids[:n], skip_special_tokens=True) for n in range(len(answer.trace) + 1)]
        begin = texts[-1].find(answer.string)
        text = texts[-1][: begin + len(answer.string)] if begin >= 0 else texts[-1]
        rows = [
            (len(after), one.step, f"{one.confidence:.4g}", one.edits)
            for before, after, one in zip(texts, texts[1:], answer.trace, strict=False)
            if not before.startswith(text)  # several tokens may be one character
        ]
        columns = zip(("ends", "steps", "confidence", "edits"), zip(*rows, strict=True), strict=False)
        recorded = as_recorded(canvas.token_ids, canvas.slots[0], events)
        recorded |= {"blocks": " ".join(map(str, canvas.block_lengths)), "returned": canvas.n_returned}
        facts = facts | {"text": text, **recorded}
        self.traces.append(facts | {name: " ".join(map(str, column)) for name, column in columns})
        written = (event.new for event in events if event.new is not None)
        for id in {*canvas.token_ids[canvas.slots[0] :], *written} - self.trace_tokens.keys():
            self.trace_tokens[id] = tokenizer.decode([id])

    def merge(self, other: "TaskRecord") -> None:
        """Adds the record of another process for the same task."""
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
        """For the results file."""
        facts = {
            "requests": self.requests,
            **{name: list(bounds) for name, bounds in self.ranges.items()},
            "truncated_prompts": self.truncated_prompts,
            "truncated_tokens": self.truncated_tokens,
            "cost": self.cost.as_dict(),
        }
        if self.caches:
            facts["cache"] = " and ".join(sorted(self.caches))
        if self.endings:
            facts["endings"] = {name: int(self.endings[name]) for name in ("empty", "at_once", *ENDINGS)}
        if self.traces:
            order = lambda one: (-1 if one["doc_id"] is None else one["doc_id"], one["repetition"])  # noqa: E731
            facts |= {"trace": sorted(self.traces, key=order), "trace_tokens": self.trace_tokens}
            known = [[*map(float, one["confidence"].split())] for one in self.traces if one.get("confidence")]
            facts |= {"average_confidence": fmean(map(fmean, known))} if known else {}
        if self.first_tokens:
            facts["first_token"] = self._first_token()
        facts |= {"repeated": dict(self.repeated)} if self.repeated else {}
        if self.errors:
            errors = [error for _, _, error in sorted(self.errors, key=lambda one: (one[0] or 0, one[1]))]
            facts["standard_error"] = [min(errors), max(errors)]
            facts["standard_error_of_mean"] = math.hypot(*errors) / len(errors)
            facts["standard_errors"] = " ".join(f"{error:.4g}" for error in errors)
        return facts | ({"audit": self._audit()} if self.audited else {})

    def _first_token(self) -> dict[str, Any]:
        """In the order of the documents: a letter a question, their sets, and the mean entropy in nats."""
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


Setting = tuple[str, DecodingOptions | LikelihoodOptions]


@dataclass
class RunRecord:
    """Records of all tasks in this process.

    settings: (request type, effective options) -> the tasks that ran with them.
    forward_passes: the model's calls, for whole batches.
    kept: requests that an earlier run answered, whose cost is in the record too.
    """

    tasks: defaultdict[str, TaskRecord] = field(default_factory=lambda: defaultdict(TaskRecord))
    settings: defaultdict[Setting, set[str]] = field(default_factory=lambda: defaultdict(set))
    forward_passes: int = 0
    kept: int = 0

    def add(
        self,
        name: str,
        setting: Setting,
        *,
        cost: Mapping[str, float],
        numbers: Mapping[str, float],
        truncated: int,
    ) -> TaskRecord:
        """Counts one request of a task: its setting, cost, effective numbers, and prompt tokens that were cut off."""
        self.settings[setting].add(name)
        task = self.tasks[name]
        task.requests += 1
        task.truncated_prompts += truncated > 0
        task.truncated_tokens += truncated
        task.cost.add(cost)
        for key, value in numbers.items():
            lowest, highest = task.ranges.get(key, (value, value))
            task.ranges[key] = (min(lowest, value), max(highest, value))
        return task

    def merge(self, other: "RunRecord") -> None:
        """Adds the record of another process."""
        self.forward_passes += other.forward_passes
        self.kept += other.kept
        for name, task in other.tasks.items():
            self.tasks[name].merge(task)
        for setting, names in other.settings.items():
            self.settings[setting] |= names


def facts_of_run(
    run: RunRecord, options_of: Callable[[DecodingOptions | LikelihoodOptions], dict[str, Any]]
) -> dict[str, Any]:
    """What results say of any run, whoever answers it: its tasks, and the settings that these ran with."""
    tasks = {name: task.as_dict() for name, task in sorted(run.tasks.items())}
    return {
        "package_version": __version__,
        "plugins": plugins(),
        "settings": [
            {"request_type": kind, "options": options_of(options), "tasks": sorted(names)}
            for (kind, options), names in sorted(run.settings.items(), key=repr)
        ],
        "tasks": tasks,
        "task_suite": suite_info(tasks),
    }


def provenance(lm: "MDLM") -> dict[str, Any]:
    """Everything that a score depends on: model, options, effective numbers of each task, machine."""
    run, preset = lm.record_of_all, lm.settings.model.preset
    foreign = foreign_files({"sampler": lm.settings.decoding.guest, "modeling": lm.settings.model.modeling})
    of_run = facts_of_run(run, lambda options: options.as_record())
    return of_run | {
        "decoding": lm.settings.decoding.as_record(),
        "likelihood": lm.settings.likelihood.as_record(),
        **{name: getattr(lm, name) for name in _OF_MODEL.split()},
        **{
            name: getattr(lm.settings.model, name)
            for name in ("cache_audit", "preset", "compile", "share_prefix", "modeling")
        },
        "cuda_graphs": lm.denoiser.graphs is not None,
        "shift_logits": lm.denoiser.shift,
        "mixed_precision_dtype": str(lm.mixed_precision_dtype),
        "prefix_token_id": lm.custom_prefix_token_id,
        "plugins": [*of_run["plugins"], *foreign],
        "family": lm._family.name,
        "pretrained": lm.name,
        "adapter": lm.peft and adapter_name(lm.peft),
        "device": str(lm.device),
        "device_name": device_name(lm.device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "attn_implementation": lm.model.config._attn_implementation,
        "peak_memory_of": "GPUs" if lm.device.type == "cuda" else "process",
        "processes": lm.world_size,
        "check": _check(lm),
        "preset_mismatches": mismatches(preset, lm._family.name, of_run["tasks"]) if preset else [],
        "explicit_options": sorted(lm.settings.explicit),
        "family_options": sorted(lm.settings.from_family),
        "batch_size": lm.batches.size,
        "forward_passes": run.forward_passes,
        "kept_answers": run.kept,
    }


def checked(lm: "MDLM") -> dict[str, Any]:
    """What a check must have in common with a run to say something about it."""
    options = {name: value for name, value in lm.settings.decoding.as_record().items() if name not in _OF_REQUEST}
    return {
        "weights": _weights_digest(lm.model),
        "package_version": __version__,
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "options": options,
    }


def check_file(facts: Mapping[str, Any]) -> Path:
    """Where `mdlm-check` keeps what it found under these facts."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "mdlm_lm_eval" / "checks" / f"{_digest(facts)[:24]}.json"


def _check(lm: "MDLM") -> dict[str, Any] | None:
    """The check that the user names or that applies: its file, verdict and noise floor, and what has changed since."""
    named = lm.settings.model.check
    if named is None and not check_file({}).parent.is_dir():
        return None
    facts = checked(lm)
    path = Path(named) if named else check_file(facts)
    if not path.is_file():
        return None
    content = read_json(path)
    stale = [name for name, value in facts.items() if content.get("applies_to", {}).get(name) != value]
    noise = content.get("noise_floor") or {}
    kept = {name: noise[name] for name in ("task", "change", "share", "interval", "largest_move") if name in noise}
    return {"file": path.name, "verdict": content.get("verdict"), "stale": stale, "noise_floor": kept or None}


def in_words(facts: Mapping[str, Any], has_chat_template: bool) -> dict[str, str]:
    """Settings in effect, speed and audit of a run, from its `provenance`."""
    tasks = facts["tasks"].values()
    return {
        "settings": ", ".join(settings_in_words(tasks, has_chat_template)),
        "speed": cost_in_words([{**task["cost"], "requests": task["requests"]} for task in tasks]),
        "cache": kept_in_words(facts["kept_answers"]),
        "audit": audit_in_words([task.get("audit", {}) for task in tasks]),
    }


def fingerprint(lm: "MDLM") -> dict[str, Any]:
    """All that an answer to a request depends on, under flat names."""
    facts = provenance(lm)
    return {
        **{f"decoding {name}": value for name, value in facts["decoding"].items()},
        **{f"likelihood {name}": value for name, value in facts["likelihood"].items()},
        **{name: facts[name] for name in _OF_ANSWERS.split()},
        "set sampling options": sorted(lm.settings.explicit.intersection(SAMPLING_NAMES)),  # over those of a task
        "weights": _weights_digest(lm.model),
        "config": _digest(lm.model.config.to_dict()),
        "adapter": _digest(lm.model.active_peft_config.to_dict()) if isinstance(lm.model, PeftModel) else None,
        "attention": lm.denoiser.attention,
        "eos_ids": sorted(lm.eos_ids),
        "end_of_turn_ids": sorted(lm.end_of_turn_ids),
        "vocabulary": _digest(lm.tokenizer.get_vocab()),
    }


def _weights_digest(model: torch.nn.Module) -> str:
    """Digest of the name, shape, type and first values of every weight: cheap, and different after any training.

    Weights are the parameters and the buffers that are saved with them, such as those of a GPTQ or AWQ checkpoint.
    """
    digest = hashlib.sha256()
    saved = model.state_dict(keep_vars=True).keys()
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
    for name, parameter in (*model.named_parameters(), *buffers):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not local.is_meta:  # weights that are offloaded to disk are meta tensors
            first = local.detach().flatten()[:_VALUES_PER_PARAMETER].float().cpu()
            digest.update(first.numpy().tobytes())
    return digest.hexdigest()


def _digest(settings: Mapping[str, Any]) -> str:
    """Digest of the config of a model or an adapter, or of a vocabulary: facts that weights do not show, as rope."""
    kept = {name: value for name, value in settings.items() if name not in _SILENT_SETTINGS}
    as_json = json.dumps(
        kept, sort_keys=True, default=lambda value: sorted(value) if isinstance(value, set) else str(value)
    )
    return hashlib.sha256(as_json.encode()).hexdigest()
