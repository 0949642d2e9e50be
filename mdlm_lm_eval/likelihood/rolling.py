"""Windows over a text that is longer than a canvas, for perplexities."""

from collections.abc import Sequence
from typing import Literal

from mdlm_lm_eval.likelihood.canvases import LikelihoodRequest
from mdlm_lm_eval.options import OptionError


def rolling_windows(
    token_ids: Sequence[int],
    *,
    max_length: int,
    prefix_token_id: int,
    n_masks: int | Literal["auto"] = "auto",
    seed: int = 0,
) -> list[LikelihoodRequest]:
    """Cut a text into requests that score each token once, with as much of the text before it as fits.

    The first window's context is the prefix token. A window holds at most max_length - 1 tokens, at most `n_masks` of
    them scored. Windows draw from different seeds. Raises OptionError if `n_masks` leaves no room for the prefix.
    """
    longest_answer = max_length - 1
    if n_masks != "auto" and n_masks > longest_answer:
        raise OptionError(
            f"n_masks={n_masks} does not fit into max_length={max_length} together with the prefix token; "
            f"allowed are auto and whole numbers up to {longest_answer}"
        )
    stride = longest_answer if n_masks == "auto" else n_masks
    text = [prefix_token_id, *token_ids]
    windows: list[LikelihoodRequest] = []
    for start in range(1, len(text), stride):
        continuation = text[start : start + stride]
        room = max_length - (len(continuation) if n_masks == "auto" else n_masks)
        windows.append(LikelihoodRequest(text[max(0, start - room) : start], continuation, seed + len(windows)))
    return windows
