"""Estimators of log p(continuation | context): Monte-Carlo bound, left-to-right chain, rolling windows."""

from mdlm_lm_eval.likelihood.canvases import LikelihoodRequest, truncated_tokens
from mdlm_lm_eval.likelihood.rolling import rolling_windows
from mdlm_lm_eval.likelihood.scoring import most_rows, score

__all__ = ["LikelihoodRequest", "most_rows", "rolling_windows", "score", "truncated_tokens"]
