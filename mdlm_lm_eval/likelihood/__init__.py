"""log p(continuation | context): Monte-Carlo bound, left-to-right chain, the decoder's own; windows over long texts."""

from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length, rolling_windows, truncated_tokens
from mdlm_lm_eval.likelihood.scoring import most_rows, score, with_prefixes

__all__ = [
    "LikelihoodRequest",
    "answer_length",
    "most_rows",
    "rolling_windows",
    "score",
    "truncated_tokens",
    "with_prefixes",
]
