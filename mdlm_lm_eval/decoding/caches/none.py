"""Remembers nothing: every pass runs all that its block sees."""

from mdlm_lm_eval.decoding.caches import CachePolicy
from mdlm_lm_eval.registry import register

register(name="none", cache=CachePolicy(remembers=False, is_exact=True))
