"""Likelihood: computes the log-likelihoods of requests, each of which is scored in one or several windows."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from lm_eval.api.instance import Instance
from tqdm import tqdm

from mdlm_lm_eval.decoding.memory import RowSize
from mdlm_lm_eval.jobs.prepared import task_of
from mdlm_lm_eval.jobs.shared import Context, measured, most_rows
from mdlm_lm_eval.likelihood import scoring
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length
from mdlm_lm_eval.likelihood.scored_passes import Likelihood
from mdlm_lm_eval.model.devices import positions_of
from mdlm_lm_eval.model.prefix_store import most_held
from mdlm_lm_eval.options import LikelihoodOptions

_COLUMNS = ["doc_id", "choice", "window", "block", "draw", "masks", "position", "token_id", "weight", "log_prob"]
# Results are saved to the request cache after this many batches.
_BATCHES_PER_SAVE = 16


@dataclass
class ScoredRequest:
    """One request, in the windows that it is scored in.

    truncated: for each window, the number of context tokens that are cut off on the left.
    texts: for each window, the number of its tokens, and of those that are unknown.
    result: log p in nats and the greedy flag, or only log p for a rolling request of lm-eval 0.4; None before scoring.
    """

    instance: Instance
    windows: Sequence[LikelihoodRequest]
    truncated: Sequence[int]
    texts: Sequence[Counter[str]]
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
        draws: str | None,
        shows_progress: bool,
    ) -> None:
        self.context, self.request_type, self.scorings, self.folder = context, request_type, scorings, draws
        # lm-eval does not read the greedy flag of rolling requests.
        is_rolling = request_type == "loglikelihood_rolling"
        self.options = replace(options, check_greedy=False) if is_rolling else options
        self.draws: dict[str, list[pd.DataFrame]] = {}  # by task, for this folder
        self.bar = tqdm(total=len(scorings), desc=f"Running {request_type} requests", disable=not shows_progress)

    def run(self) -> list[Any]:
        """Returns the results of all requests. Scores the longest first, and those with the same context together.

        Raises OptionError if a request's logits are not finite.
        """
        context, windows = self.context, [window for one in self.scorings for window in one.windows]
        shared, self.store = scoring.with_shared_contexts(
            context.denoiser, windows, self.options, context.max_length, least=context.least_saved
        )
        windows_left = iter(shared)
        for one in self.scorings:
            one.windows = [next(windows_left) for _ in one.windows]
        context.batches.run(
            sorted(
                self.scorings,
                key=lambda one: scoring.longest_first(max(one.windows, key=_length, default=LikelihoodRequest([], []))),
            ),
            self._run_part,
            batches_per_call=_BATCHES_PER_SAVE,
            most=self._most_rows(),
            rows_of=lambda one: sum(scoring.rows_of_request(window, self.options) for window in one.windows),
        )
        self.store.clear()
        self.bar.close()
        self._write_draws()
        return [one.result for one in self.scorings]

    def _most_rows(self) -> int:
        """Returns how many canvases fit into a GPU if all are as long as the longest."""
        windows = [window for one in self.scorings for window in one.windows]
        if not windows:
            return 1
        longest = max(windows, key=_length)
        length = min(len(longest.context_ids) + answer_length(longest, self.options), self.context.max_length)
        row = RowSize(
            length=positions_of(length, self.context.denoiser.device),
            n_logits=len(longest.continuation_ids),
            is_cached=self.context.denoiser.attention.is_block_causal,
            is_guided=self.options.cfg_scale > 0.0,
        )
        return most_rows(self.context, row, n_shared=most_held([window.prefix for window in windows]))

    def _run_part(self, part: list[ScoredRequest], batch_size: int) -> None:
        """Scores some requests, divides the cost equally among their windows, and saves their results."""
        denoiser, record = self.context.denoiser, self.context.record
        passes, canvases, tokens = denoiser.forward_passes, denoiser.canvas_count, denoiser.token_count
        batch = [(one, window) for one in part for window in one.windows]
        with measured(self.context, [one.instance for one, _ in batch]) as meter:
            windows = [window for _, window in batch]
            scores = scoring.score(
                denoiser, windows, self.options, batch_size=batch_size, max_length=self.context.max_length
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
        log_likelihood, is_greedy, known = 0.0, True, []
        for window, truncated, text, score in zip(one.windows, one.truncated, one.texts, scores, strict=True):
            log_likelihood, is_greedy = log_likelihood + score.total, is_greedy and score.is_greedy
            n_tokens = len(window.continuation_ids)
            n_masks = self.options.n_masks
            if n_masks == "auto" or window.at_own_length:
                n_masks = n_tokens
            known.append(score.error)
            task = self.context.record.add(
                task_of(one.instance),
                (self.request_type, self.options),
                cost=spent,
                numbers={"masks": n_masks, "asked_masks": n_masks, "continuation_tokens": n_tokens},
                truncated=truncated,
                text=text,
            )
            task.longer_continuations += window.at_own_length
        if any(error is not None for error in known):
            error = math.hypot(*(error or 0.0 for error in known))
            task.errors.append((one.instance.doc_id, one.instance.idx, error))
        # Rolling requests of lm-eval 0.4 are (text,) and their result is a number; in 0.5, ("", text) and a pair.
        one.result = (log_likelihood, is_greedy) if len(one.instance.args) == 2 else log_likelihood

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
        ids = one.windows[window].continuation_ids
        draws = {sample: number for number, sample in enumerate(dict.fromkeys(term.sample for term in score.terms))}
        for position, weight, log_prob, sample in score.terms:
            block, *masked = sample or (0,)
            row = (window, block, draws[sample], len(masked), position, ids[position], weight, log_prob)
            rows.append((one.instance.doc_id, one.instance.idx, *row))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _length(window: LikelihoodRequest) -> int:
    return len(window.context_ids) + len(window.continuation_ids)
