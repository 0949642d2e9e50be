"""Fast-dLLM's prefix cache: passes run the block and all after it, and remember what stands before."""

from mdlm_lm_eval.decoding.caches import RenewedPerBlock
from mdlm_lm_eval.registry import register

register(name="prefix", cache=RenewedPerBlock(runs_rest=True))
