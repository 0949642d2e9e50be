"""Likelihood: computes the log-likelihoods of requests, each of which is scored in one or several windows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from lm_eval.api.instance import Instance
from tqdm import tqdm

from mdlm_lm_eval.jobs.memory import RowSize, most_rows
from mdlm_lm_eval.jobs.shared import Context, PreparedRequest, least_saved, measured, task_of
from mdlm_lm_eval.likelihood import scoring
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length
from mdlm_lm_eval.likelihood.scored_passes import Likelihood
from mdlm_lm_eval.model.devices import positions_of
from mdlm_lm_eval.model.prefix_store import most_held
from mdlm_lm_eval.options import LikelihoodOptions

_COLUMNS = ["doc_id", "choice", "window", "block", "draw", "masks", "position", "token_id", "weight", "log_prob"]
# Results are saved to the request cache after this many batches.
_BATCHES_PER_SAVE = 16


@dataclass(kw_only=True)
class PreparedWindow(PreparedRequest):
    """A window of a likelihood request. asked: the part of the text that is scored in it."""

    asked: LikelihoodRequest


@dataclass
class ScoredRequest:
    """One request, in the windows that it is scored in.

    result: log p in nats and the greedy flag, or only log p for a rolling request of lm-eval 0.4; None before scoring.
    """

    instance: Instance
    windows: Sequence[PreparedWindow]
    result: Any = None


class LikelihoodJob:
    """The likelihood requests of one call, of one `request_type` of lm-eval."""

    def __init__(
        self,
        context: Context,
        request_type: str,
        scorings: Sequence[ScoredRequest],
        options: LikelihoodOptions,
        *,
        shows_progress: bool,
    ) -> None:
        self.context, self.request_type, self.scorings, self.options = context, request_type, scorings, options
        self.windows = [window for one in scorings for window in one.windows]
        self.folder = context.settings.model.log_likelihood_draws
        self.draws: dict[str, list[pd.DataFrame]] = {}  # by task, for this folder
        self.bar = tqdm(total=len(scorings), desc=f"Running {request_type} requests", disable=not shows_progress)

    def run(self) -> list[Any]:
        """Returns the results of all requests. Scores the longest first, and those with the same context together.

        Raises OptionError if a request's logits are not finite.
        """
        context = self.context
        shared, self.store = scoring.with_shared_contexts(
            context.denoiser,
            [window.asked for window in self.windows],
            self.options,
            context.max_length,
            least=least_saved(context),
        )
        for window, asked in zip(self.windows, shared, strict=True):
            window.asked = asked
        context.batches.run(
            sorted(self.scorings, key=lambda one: scoring.longest_first(_longest(one.windows))),
            self._run_part,
            batches_per_call=_BATCHES_PER_SAVE,
            most=self._most_rows(),
            rows_of=lambda one: sum(scoring.rows_of_request(window.asked, self.options) for window in one.windows),
        )
        self.store.clear()
        self.bar.close()
        self._write_draws()
        return [one.result for one in self.scorings]

    def _most_rows(self) -> int:
        """Returns how many canvases fit into a GPU if all are as long as the longest."""
        if not self.windows:
            return 1
        longest = _longest(self.windows)
        length = min(len(longest.context_ids) + answer_length(longest, self.options), self.context.max_length)
        row = RowSize(
            length=positions_of(length, self.context.denoiser.device),
            n_logits=len(longest.continuation_ids),
            is_cached=self.context.denoiser.attention.is_block_causal,
            is_guided=self.options.cfg_scale > 0.0,
        )
        return most_rows(self.context, row, n_shared=most_held([window.asked.prefix for window in self.windows]))

    def _run_part(self, part: list[ScoredRequest], batch_size: int) -> None:
        """Scores some requests, divides the cost equally among their windows, and saves their results."""
        denoiser, record = self.context.denoiser, self.context.record
        passes, canvases, tokens = denoiser.forward_passes, denoiser.canvas_count, denoiser.token_count
        batch = [window for one in part for window in one.windows]
        with measured(self.context, [window.instance for window in batch]) as meter:
            scores = scoring.score(
                denoiser,
                [window.asked for window in batch],
                self.options,
                batch_size=batch_size,
                max_length=self.context.max_length,
            )
        seconds, peak_memory = meter.read()
        record.forward_passes += denoiser.forward_passes - passes
        spent = {
            "canvases": (denoiser.canvas_count - canvases) / max(1, len(batch)),
            "layer_tokens": (denoiser.token_count - tokens) / max(1, len(batch)),
            "shared_tokens": self.store.spent()[2] / max(1, len(batch)),
            "seconds": seconds / max(1, len(batch)),
            "peak_memory_bytes": peak_memory,
        }
        scores_left = iter(scores)
        for one in part:
            own = [next(scores_left) for _ in one.windows]
            self._complete(one, own, spent)
            if self.folder is not None:
                self.draws.setdefault(task_of(one.instance), []).append(_frame(one, own))
        if (cache := self.context.request_cache) is not None:
            cache.save(self.request_type, ((one.instance.args, one.result, None) for one in part), record)
        self.bar.update(len(part))

    def _complete(self, one: ScoredRequest, scores: Sequence[Likelihood], spent: dict[str, float]) -> None:
        """Sets a request's result, the sum over its windows; records each window and the standard error of the sum."""
        for window in one.windows:
            task = window.add_to(self.context.record, self.request_type, spent)
            task.longer_continuations += window.asked.at_own_length
        if any(score.error is not None for score in scores):
            error = math.hypot(*(score.error or 0.0 for score in scores))
            task.errors.append((one.instance.doc_id, one.instance.idx, error))
        total = sum((score.total for score in scores), 0.0)
        # Rolling requests of lm-eval 0.4 are (text,) and their result is a number; in 0.5, ("", text) and a pair.
        one.result = (total, all(score.is_greedy for score in scores)) if len(one.instance.args) == 2 else total

    def _write_draws(self) -> None:
        """Writes a file for each task; processes other than the first add their rank to its name."""
        for name, frames in self.draws.items():
            rank = f"_{self.context.rank}" if self.context.rank else ""
            path = Path(str(self.folder)) / f"{self.request_type}_{name}{rank}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pd.concat(frames, ignore_index=True).to_parquet(path)


def _frame(one: ScoredRequest, scores: Sequence[Likelihood]) -> pd.DataFrame:
    """Returns one row for each token and draw, which adds `weight` times `log_prob` to the request's log-likelihood.

    Draws that mask the same tokens have one number. `block` is the position in the continuation at which the block of
    the masked tokens begins, 0 without blocks.
    """
    rows = []
    for window, score in enumerate(scores):
        ids = one.windows[window].asked.continuation_ids
        draws = {sample: number for number, sample in enumerate(dict.fromkeys(term.sample for term in score.terms))}
        for position, weight, log_prob, sample in score.terms:
            block, *masked = sample or (0,)
            row = (window, block, draws[sample], len(masked), position, ids[position], weight, log_prob)
            rows.append((one.instance.doc_id, one.instance.idx, *row))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _longest(windows: Sequence[PreparedWindow]) -> LikelihoodRequest:
    """The longest text of these windows; an empty one if there are none."""
    nothing = LikelihoodRequest([], [])
    asked = (window.asked for window in windows)
    return max(asked, key=lambda one: len(one.context_ids) + len(one.continuation_ids), default=nothing)
