"""The suite's question builder."""

from mdlm_lm_eval.tasks import questions

__all__ = ["questions"]
