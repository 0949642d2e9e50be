"""Likelihood: requests, each in one or several windows, become log-likelihoods."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from lm_eval.api.instance import Instance

from mdlm_lm_eval.decoding.memory import RowSize
from mdlm_lm_eval.jobs.requests import task_of
from mdlm_lm_eval.jobs.workplace import Workplace
from mdlm_lm_eval.likelihood.from_python import error_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length
from mdlm_lm_eval.likelihood.scored_passes import Term
from mdlm_lm_eval.likelihood.scoring import most_rows, score, with_prefixes
from mdlm_lm_eval.model.devices import positions_of
from mdlm_lm_eval.model.prefix_store import Place, most_held, place_of
from mdlm_lm_eval.options import LikelihoodOptions

_COLUMNS = ["doc_id", "choice", "window", "block", "draw", "masks", "position", "token_id", "weight", "log_prob"]
# Results reach the request cache after this many batches.
_BATCHES_PER_SAVE = 16


@dataclass
class Scoring:
    """One request in the windows that it is scored in.

    truncated: for each window, the context tokens that are cut off on the left. result: a pair of log p in nats and the
    greedy flag, or log p alone for a text as lm-eval 0.4 asks for it; None before it is scored.
    """

    instance: Instance
    windows: Sequence[LikelihoodRequest]
    truncated: Sequence[int]
    result: Any = None


class LikelihoodJob:
    """The likelihood requests of one call, of one `request_type` of lm-eval."""

    def __init__(
        self,
        place: Workplace,
        request_type: str,
        scorings: Sequence[Scoring],
        options: LikelihoodOptions,
        max_length: int,
    ) -> None:
        self.place, self.request_type, self.scorings = place, request_type, scorings
        # The greedy flag of a text is not read.
        self.options = replace(options, check_greedy=False) if request_type == "loglikelihood_rolling" else options
        self.max_length = max_length
        self.draws: dict[str, list[pd.DataFrame]] = {}  # by task, where a folder for them is named
        self.bar = place.bar(request_type, len(scorings), unit="it")

    def run(self) -> list[Any]:
        """Scores all requests, longest first and those with the same context together.

        Raises OptionError where a request's logits are not finite.
        """
        place, windows = self.place, [window for one in self.scorings for window in one.windows]
        shared, self.store = with_prefixes(
            place.denoiser, windows, self.options, self.max_length, shares=place.shares_prefixes
        )
        windows_left = iter(shared)
        for one in self.scorings:
            one.windows = [next(windows_left) for _ in one.windows]
        place.batches.run(
            sorted(self.scorings, key=_longest_first),
            self._run_part,
            batches_per_call=_BATCHES_PER_SAVE,
            most=self._most_rows(),
            rows_of=lambda one: sum(most_rows(window, self.options) for window in one.windows),
        )
        self.store.clear()
        self.bar.close()
        self._write_draws()
        return [one.result for one in self.scorings]

    def _most_rows(self) -> int:
        """Canvases as long as the longest that fit into a GPU."""
        windows = [window for one in self.scorings for window in one.windows]
        if not windows:
            return 1
        longest = max(windows, key=_length)
        length = min(len(longest.context_ids) + answer_length(longest, self.options), self.max_length)
        row = RowSize(
            length=positions_of(length, self.place.device),
            n_logits=len(longest.continuation_ids),
            is_cached=self.place.denoiser.attention.is_block_causal,
            is_guided=self.options.cfg_scale > 0.0,
        )
        return self.place.most_rows(row, n_shared=most_held([window.prefix for window in windows]))

    def _run_part(self, part: list[Scoring], batch_size: int) -> None:
        """Scores some requests, divides the cost among them, and saves their results."""
        denoiser, record = self.place.denoiser, self.place.record
        passes, canvases, tokens = denoiser.forward_passes, denoiser.canvas_count, denoiser.token_count
        batch = [(one, window) for one in part for window in one.windows]
        with self.place.measured([one.instance for one, _ in batch]) as meter:
            windows = [window for _, window in batch]
            terms: list[list[Term]] = [[] for _ in windows]
            scores = score(
                denoiser, windows, self.options, batch_size=batch_size, max_length=self.max_length, terms=terms
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
        scores_left, terms_left = iter(scores), iter(terms)
        for one in part:
            own = [next(terms_left) for _ in one.windows]
            self._complete(one, [next(scores_left) for _ in one.windows], own, spent)
            if self.place.draws is not None:
                self.draws.setdefault(task_of(one.instance), []).append(_frame(one, own))
        self.place.save(self.request_type, ((one.instance.args, one.result, None) for one in part))
        self.bar.update(len(part))

    def _complete(
        self, one: Scoring, scores: Sequence[Sequence[Any]], terms: Sequence[Sequence[Term]], spent: dict[str, float]
    ) -> None:
        """A request is scored: sums over its windows, and records each of them and the standard error of the sum."""
        log_likelihood, is_greedy, known = 0.0, True, []
        parts = zip(one.windows, one.truncated, scores, terms, strict=True)
        for window, truncated, (of_window, greedy, *errors), own in parts:
            log_likelihood, is_greedy = log_likelihood + of_window, is_greedy and greedy
            n_tokens = len(window.continuation_ids)
            n_masks = n_tokens if self.options.n_masks == "auto" else self.options.n_masks
            known.append(errors[0] if errors else error_of(own, n_tokens, self.options))
            task = self.place.record.add(
                task_of(one.instance),
                (self.request_type, self.options),
                cost=spent,
                numbers={"masks": n_masks, "asked_masks": n_masks, "continuation_tokens": n_tokens},
                truncated=truncated,
            )
        if any(error is not None for error in known):
            error = math.hypot(*(error or 0.0 for error in known))
            task.errors.append((one.instance.doc_id, one.instance.idx, error))
        # lm-eval 0.4 rolls over (text,) and wants a number; 0.5 over ("", text), and wants a pair.
        one.result = (log_likelihood, is_greedy) if len(one.instance.args) == 2 else log_likelihood

    def _write_draws(self) -> None:
        """A file for each task, and for each process beside the first."""
        for name, frames in self.draws.items():
            rank = f"_{self.place.rank}" if self.place.rank else ""
            path = Path(str(self.place.draws)) / f"{self.request_type}_{name}{rank}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pd.concat(frames, ignore_index=True).to_parquet(path)


def _frame(one: Scoring, terms: Sequence[Sequence[Term]]) -> pd.DataFrame:
    """What each token adds to a request's log-likelihood in each draw: `weight` times `log_prob`.

    A draw is known by the tokens that it masks; `block` is where theirs begins in the continuation, 0 without blocks.
    """
    rows = []
    for window, own in enumerate(terms):
        ids = one.windows[window].continuation_ids
        draws = {sample: number for number, sample in enumerate(dict.fromkeys(term.sample for term in own))}
        for position, weight, log_prob, sample in own:
            block, *masked = sample or (0,)
            row = (window, block, draws[sample], len(masked), position, ids[position], weight, log_prob)
            rows.append((one.instance.doc_id, one.instance.idx, *row))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _longest_first(one: Scoring) -> tuple[Place, list[int], int]:
    longest = max(one.windows, key=_length, default=LikelihoodRequest([], []))
    context = longest.context_ids
    return place_of(longest.prefix, len(context)), context, -len(longest.continuation_ids)


def _length(window: LikelihoodRequest) -> int:
    return len(window.context_ids) + len(window.continuation_ids)
