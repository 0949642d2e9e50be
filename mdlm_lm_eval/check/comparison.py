"""Compares our network and sampler with the authors': logits on the same canvases, and choices in each of their passes.

Our sampler decodes the canvas of each of their passes. Its choice differs from theirs if the canvas after the pass
does. A difference is a fault if it is also there under the arguments of their call, with two exceptions: our sampler
makes their choice from their logits, or it prefers its own choice by at most twice the largest difference between both
networks' logits.
"""

import functools
import json
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.utils import send_to_device
from safetensors.torch import load_file
from torch import Tensor

from mdlm_lm_eval.check import authors
from mdlm_lm_eval.decoding.candidates import Proposer, WhereMasked
from mdlm_lm_eval.decoding.canvas import Canvas, DecodingCall
from mdlm_lm_eval.decoding.engine import Engine, decode_canvases
from mdlm_lm_eval.decoding.row_decoders import row_decoder_for
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.decoding.windows import next_window
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError, shown

# Largest difference of logits by dtype; more than that means another network.
_TOLERATED = {torch.float32: 1e-2, torch.bfloat16: 1.0, torch.float16: 0.25}
_ROUNDING = 1e-5  # rounding error of float32 confidences
_PARTS = "their code reuses cached values and ours recomputes them"


@dataclass(frozen=True)
class Theirs:
    """Results of the authors' side: its report, and tensors by name, as `authors` describes them."""

    report: dict[str, Any]
    tensors: dict[str, Tensor]


def ask_authors(job: Mapping[str, Any], python: str | None) -> Theirs:
    """Runs the authors' side in a process of its own, so that one model is in memory at a time.

    Raises OptionError if that process fails, or with the sentence that it reports.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        try:
            subprocess.run([python or sys.executable, authors.__file__, name], check=True)
        except subprocess.CalledProcessError as error:
            raise OptionError("the authors' code failed; its own error is above") from error
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        if "error" in report:
            raise OptionError(report["error"])
        return Theirs(report, load_file(folder / "tensors.safetensors"))


def compare_logits(denoiser: Denoiser, canvases: Sequence[Sequence[int]], theirs: Theirs) -> dict[str, Any]:
    """Compares logits on the same canvases: largest difference, and share of the same likeliest tokens."""
    rows = []
    for k, canvas in enumerate(canvases):
        ids = torch.tensor([canvas], device=denoiser.device)
        columns = torch.arange(len(canvas), device=denoiser.device)[None]
        ours = denoiser.window_logits(ids, columns, None, None).float().cpu()
        other = theirs.tensors[f"logits.{k}"][:, : ours.shape[1]]
        rows.append(
            {
                "tokens": len(canvas),
                "masks": canvas.count(denoiser.mask_token_id),
                "largest_difference": float((ours[:, : other.shape[1]] - other).abs().max()),
                "same_argmax": float((ours.argmax(-1) == other.argmax(-1)).float().mean()),
            }
        )
    largest = max(row["largest_difference"] for row in rows)
    return {"canvases": rows, "largest_difference": largest, "is_fault": not largest <= _TOLERATED[denoiser.dtype]}


class Followed:
    """Our denoiser on the canvases of the authors' passes. In the passes `kept`, it returns their logits.

    device: that of its results, whatever the model's is.
    is_theirs: whether the next pass is one of theirs; if not, it only remembers a finished block.
    outputs: our logits and theirs [W, V] in the passes `kept`.
    differences: the largest difference between both networks' logits in each pass.
    """

    device = torch.device("cpu")

    def __init__(self, denoiser: Denoiser, passes: Sequence[Mapping[str, Tensor]], kept: Collection[int] = ()) -> None:
        self.denoiser, self.passes, self.kept = denoiser, passes, kept
        self.outputs: dict[int, tuple[Tensor, Tensor]] = {}  # ours and theirs
        self.differences: list[float] = []
        self.is_theirs = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.denoiser, name)

    def logits(self, input_ids: Tensor, mask: None, positions: Tensor, *, is_aligned: bool, **guidance: Any) -> Tensor:
        """Logits [N, V] of the tokens at `positions` [N] in the next pass, which runs the whole canvas [1, T]."""
        at = positions - (positions > 0).long() if self.denoiser.shift else positions
        columns = torch.arange(input_ids.shape[1])[None]
        return self.window_logits(input_ids, columns, None, at, **guidance)

    def window_logits(self, ids: Tensor, columns: Tensor, sees: Tensor | None, at: Tensor, **named: Any) -> Tensor:
        """Logits [N, V] of the next pass, at its outputs `at` [N].

        Only the highest of their logits and the log-sum-exp are known. The others are ours plus one number per
        position, so that the log-sum-exp is theirs.
        """
        inputs, named = send_to_device(((ids, columns, sees, None), named), self.denoiser.device)
        logits = self.denoiser.window_logits(*inputs, **named).float().cpu()
        if not self.is_theirs:
            return logits[at]
        number = len(self.differences)
        one = self.passes[number]
        inside = one["columns"] < len(logits)
        run, top, values = one["columns"][inside], one["top"][inside], one["values"][inside]
        self.differences.append(float((logits[run[:, None], top] - values).abs().max()))
        if number in self.kept:
            plain = logits.clone()
            ours, whole = logits[run], one["lse"][inside]
            rest = ours.scatter(1, top, -torch.inf).logsumexp(1)
            share = (1 - (values.logsumexp(1) - whole).exp()).clamp(min=1e-9).log()
            logits[run] = (ours + (whole + share - rest)[:, None]).scatter(1, top, values)
            self.outputs[number] = plain, logits
        return logits[at]


def our_canvases(
    followed: Followed,
    canvas: Canvas,
    options: DecodingOptions,
    path: Sequence[Sequence[int]],
    end_ids: Collection[int],
) -> list[list[int]]:
    """Our canvas after each pass that begins with the next one of `path`, but for its last one.

    They are fewer if our row ends before.
    """
    denoiser: Any = followed
    way = way_of(replace(options, cache="none", early_exit=False), denoiser.attention)
    engine = Engine(DecodingCall(denoiser, [canvas], way, eos_ids=end_ids, batch_size=1))
    engine.fill()
    row, tokens = engine.lanes.rows[0], engine.lanes.tokens[0, : len(canvas.token_ids)]
    assert row is not None
    found: list[list[int]] = []
    while not row.is_over and len(found) < len(path) - 1:
        window = next_window(engine.batch, engine.lanes)
        followed.is_theirs = bool(window.own.any())
        outcome = engine.passes.run(window)
        if outcome is not None and followed.is_theirs:
            ours = engine.lanes.tokens[0].copy()
            ours[window.columns[0]] = outcome.after[0]
            found.append(ours[: len(tokens)].tolist())
            tokens[:] = path[len(found)]
            row.answer[:] = tokens[list(canvas.slots)].tolist()
            outcome = outcome._replace(after=engine.lanes.tokens[window.lanes, window.columns])
        engine.move_on(window, outcome)
    return found


def differing_arguments(theirs: Theirs) -> dict[str, Any]:
    """Arguments of the authors' call that differ from our options."""
    told = theirs.report["told"]  # our options under the names of their arguments
    return {name: value for name, value in theirs.report["arguments"].items() if told.get(name) != value}


def compare_choices(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    options: DecodingOptions,
    theirs: Theirs,
    *,
    end_ids: Sequence[int],
    called: tuple[Sequence[Canvas], DecodingOptions] | None,
) -> dict[str, Any]:
    """Compares our sampler with the authors' in each of their passes, and in whole answers.

    `called` has the canvases and options that correspond to the arguments of their call. It is None if our options
    cannot express these; then no difference is a fault. Raises OptionError for options that do not decode in passes
    over one canvas.
    """
    if row_decoder_for(denoiser, options) is not None:
        raise OptionError("--against: these options decode row by row and not in passes over a canvas, which it needs")
    told = theirs.report["told"]
    causes = {
        f"{name}={shown(value)} in their call and {shown(told.get(name))} here"
        for name, value in differing_arguments(theirs).items()
    }
    if options.temperature > 0.0:
        causes.add(f"tokens are drawn, at temperature={shown(options.temperature)}, with other random numbers")
        called = None
    found = Beside(denoiser, theirs, end_ids)
    for name, id in theirs.report["other_masks"].items():
        found.causes.add(f"{name}={id} by default in their function and {denoiser.mask_token_id} here")
    found.compare(canvases, options)
    under_theirs = Beside(denoiser, theirs, end_ids) if causes else found
    if causes and called is not None:
        under_theirs.compare(*called)
    faults = [one for one in under_theirs.others if not (one["mask"] or one["follows_logits"] or one["is_within"])]
    return {
        "passes": found.n_passes,
        "other_choices": found.others,
        "faults": faults,
        "causes": sorted(causes | found.causes),
        "largest_difference": found.largest_difference,
        **found.alone(canvases, options),
    }


@dataclass
class Beside:
    """Our choices on the canvases of the authors' passes.

    others: the choices that differ. causes: known reasons for differences, and why a prompt cannot be compared, in
    words. n_passes: compared passes. largest_difference: between both networks' logits.
    """

    denoiser: Denoiser
    theirs: Theirs
    end_ids: Sequence[int]
    others: list[dict[str, Any]] = field(default_factory=list)
    causes: set[str] = field(default_factory=set)
    n_passes: int = 0
    largest_difference: float = 0.0

    def compare(self, canvases: Sequence[Canvas], options: DecodingOptions) -> None:
        """Compares the passes that changed a canvas, for each prompt. `canvases` were built with `options`."""
        denoiser, theirs = self.denoiser, self.theirs
        parts = ("columns", "ids", "top", "values", "lse")
        banned = self.end_ids if options.suppress_eos else ()
        last_ids = self.end_ids if options.eos_last else ()
        proposer = Proposer(options, {denoiser.mask_token_id, *banned}, last_ids)
        for n, canvas in enumerate(canvases):
            n_passes = theirs.report["passes"][n]
            passes = [{name: theirs.tensors[f"{n}.{p}.{name}"] for name in parts} for p in range(n_passes)]
            final = theirs.tensors[f"{n}.final"]
            seen, cause = _canvases(passes, final, canvas, denoiser.mask_token_id)
            if cause:
                self.causes.add(cause)
                continue
            if any(len(one["columns"]) < len(final) for one in passes) and not denoiser.attention.is_block_causal:
                self.causes.add(_PARTS)
            moved = [p for p in range(len(passes)) if not seen[p].equal(seen[p + 1])]
            chosen = [passes[p] for p in moved]
            path = [*(seen[p].tolist() for p in moved), final.tolist()]
            if not moved:
                continue
            decoded = functools.partial(our_canvases, canvas=canvas, options=options, path=path, end_ids=self.end_ids)
            plain = Followed(denoiser, chosen)
            ours = decoded(plain)
            self.largest_difference = max([self.largest_difference, *plain.differences])
            self.n_passes += len(ours)
            differ = [k for k, after in enumerate(ours) if after != path[k + 1]]
            given = Followed(denoiser, chosen, differ)
            from_theirs = decoded(given) if differ else []
            for k in differ:
                other = _other_choice(ours[k], path[k + 1], given.outputs[k], denoiser, proposer)
                other |= {"prompt": n, "pass": moved[k], "follows_logits": from_theirs[k] == path[k + 1]}
                self.others.append(other)
                if other["mask"]:
                    self.causes.add("they write the mask token, which ours never does")

    def alone(self, canvases: Sequence[Canvas], options: DecodingOptions) -> dict[str, Any]:
        """Compares whole answers, passes and seconds. Like their function, our engine gets one prompt at a time."""
        began = time.perf_counter()
        completions = [decode_canvases(self.denoiser, [canvas], options)[0] for canvas in canvases]
        seconds = time.perf_counter() - began
        n_same = 0
        for n, (canvas, completion) in enumerate(zip(canvases, completions, strict=True)):
            answer = self.theirs.tensors[f"{n}.final"][canvas.slots[0] :][: canvas.n_returned].tolist()
            n_same += all(one == other for one, other in zip(completion.token_ids, answer, strict=False))
        return {
            "answers": len(canvases),
            "same_answers": n_same,
            "our_passes": sum(completion.cost.forward_passes for completion in completions),
            "their_passes": sum(self.theirs.report["passes"]),
            "our_seconds": seconds,
            "their_seconds": sum(self.theirs.report["seconds"]),
        }


def _canvases(
    passes: Sequence[Mapping[str, Tensor]], final: Tensor, canvas: Canvas, mask_token_id: int
) -> tuple[list[Tensor], str]:
    """Their canvas before each pass and after the last one; or none, and why they cannot be compared with ours."""
    tokens = torch.tensor(canvas.token_ids)
    if len(final) != len(tokens):
        return [], f"their canvas has {len(final)} tokens and ours {len(tokens)}"
    seen = []
    for one in passes:
        tokens = tokens.index_put((one["columns"],), one["ids"])
        seen.append(tokens)
    slots = torch.tensor(canvas.slots)
    first = {int(token) for one in passes[:2] for token in one["ids"][torch.isin(one["columns"], slots)]}
    if first and mask_token_id not in first:
        return [], f"mask id {seen[0][slots[-1]]} on their canvas and {mask_token_id} on ours"
    return [*seen, final], ""


def _other_choice(
    ours: Sequence[int], theirs: Sequence[int], outputs: tuple[Tensor, Tensor], denoiser: Denoiser, proposer: Proposer
) -> dict[str, Any]:
    """Describes the difference between two canvases after a pass.

    places: where they differ. margin: by how much our sampler prefers its choice: a difference of logits between two
    tokens, of the unmasking rule's priorities between two positions. limit: twice the largest difference between both
    networks there, plus rounding. is_within: whether the margin is at most the limit. mask: whether our network's
    likeliest token is the mask at a position that we fill.
    """
    mask, shift = denoiser.mask_token_id, int(denoiser.shift)
    places = [column for column, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    at = torch.tensor([max(column - shift, 0) for column in places])
    logits, given = (each[at] for each in outputs)  # [N, V]
    slots = torch.tensor(places) - places[0]
    priority, of_given = (proposer.propose(each.clone(), WhereMasked(slots)).priority for each in (logits, given))
    tokens = [n for n, column in enumerate(places) if mask not in (ours[column], theirs[column])]
    filled = [n for n, column in enumerate(places) if theirs[column] == mask]
    left = [n for n, column in enumerate(places) if ours[column] == mask]
    found: list[tuple[float, float]] = []
    for n in tokens:
        pair = [ours[places[n]], theirs[places[n]]]
        margin, difference = logits[n, pair], (logits[n, pair] - given[n, pair]).abs().max()
        found.append((float(margin[0] - margin[1]), float(2 * difference + _ROUNDING)))
    if filled and left:
        both = [*filled, *left]
        rounding = _ROUNDING * float(priority[both].abs().max().clamp(min=1.0))
        limit = 2 * float((priority - of_given)[both].abs().max()) + rounding
        found.append((float(priority[filled].max() - priority[left].min()), limit))
    most, limit = max(found, key=lambda each: each[0] - each[1], default=(float("inf"), 0.0))
    return {
        "places": [{"place": column, "ours": ours[column], "theirs": theirs[column]} for column in places],
        "margin": most if found else None,
        "limit": limit,
        "is_within": most <= limit,
        "mask": any(int(logits[n].argmax()) == mask for n in filled),
    }
