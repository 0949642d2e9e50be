"""When most of a block is filled, fills its least sure tokens again (ReMDM for LLaDA, arXiv 2503.00307)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mdlm_lm_eval.decoding.remasking import Remasking
from mdlm_lm_eval.decoding.sampler import Needs, Settled, Step
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, option
from mdlm_lm_eval.registry import register


@dataclass(frozen=True)
class Remdm(Remasking):
    """Fills 7/8 of a block one by one, then refills `remask_tokens` per pass, in as many passes as it has tokens."""

    settled: ClassVar[Settled] = "with its block"
    ends_at_eos: ClassVar[bool] = True

    remask_tokens: int = option(1, "Number of tokens that a pass masks again", least=1)

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Refuses `steps` and `schedule`, as a pass fills one token."""
        if (options.steps, options.steps_per_block) != ("auto", None):
            return f"steps must be auto with sampler=remdm, which fills one token a pass, not {options.steps}"
        if options.schedule != DecodingOptions.schedule:
            return f"schedule={options.schedule} does not work with sampler=remdm, which fills one token a pass"
        return super().refuses(options, attention)

    def needs(self, options: DecodingOptions) -> Needs:
        """The block's tokens."""
        return Needs(filled=True)

    def steps_of(self, n_masks: int, options: DecodingOptions) -> int | None:
        """Twice as many passes as tokens."""
        return 2 * n_masks

    def plan(self, n_masks: int, steps: int, options: DecodingOptions, *, after_one: bool = False) -> Sequence[Step]:
        """The passes; one that masks tokens again is followed by one that fills as many."""
        begins = int(n_masks / 8 * 7)
        loop = range(begins, begins + n_masks)
        return [
            Step(self.remask_tokens if i in loop else 1, self.remask_tokens if i + 1 in loop else 0)
            for i in range(2 * n_masks)
        ]


register(name="remdm", sampler=Remdm)
