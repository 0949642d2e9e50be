"""A training objective in one file: the whole answer is masked at once, and its mean cross-entropy is the loss.

Load it with `--plugins objective.py`, or let a package name it in its pyproject.toml:

    [project.entry-points."mdlm_lm_eval.objective"]
    whole_answer = "acme.objective"
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
from mdlm_lm_eval.registry import register


@dataclass(frozen=True)
class WholeAnswer(Objective):
    """Fields are flags of mdlm-finetune: --label_smoothing 0.1."""

    label_smoothing: float = 0.0

    @property
    def label(self) -> str:
        return "Whole answer"

    @property
    def in_words(self) -> str:
        return "cross-entropy of an answer that is masked whole"

    def noise(self, text: Tensor, maskable: Tensor, noising: Noising) -> Noised:
        """One view of the text [L]; what may be masked, is."""
        return Noised((text.masked_fill(maskable, noising.mask_token_id),), maskable, 1.0)

    def loss(self, logits: Tensor, batch: NoisedBatch) -> Mapping[str, Tensor]:
        """Of logits [N, V]."""
        return {"loss": F.cross_entropy(logits.float(), batch.targets, label_smoothing=self.label_smoothing)}


register(name="whole_answer", objective=WholeAnswer)
