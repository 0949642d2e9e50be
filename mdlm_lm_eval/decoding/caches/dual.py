"""Fast-dLLM's dual cache: passes run the block alone, and remember what stands before and after it."""

from mdlm_lm_eval.decoding.caches import RenewedPerBlock
from mdlm_lm_eval.registry import register

register(name="dual", cache=RenewedPerBlock())
