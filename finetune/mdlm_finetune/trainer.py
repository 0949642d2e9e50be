"""transformers' Trainer with the mask-agnostic loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from mdlm_finetune.collator import Example, MaskAgnosticCollator
from mdlm_finetune.loss import Divergence, Weighting, mask_agnostic_loss
from mdlm_lm_eval.denoiser import Denoiser


class _Examples(Dataset[Example]):
    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]


class _Wrapped(nn.Module):
    """A model called through its wrapper (DDP, FSDP), which gathers gradients, with the inner model's own names."""

    def __init__(self, wrapper: nn.Module, inner: Any) -> None:
        super().__init__()
        self.wrapper, self.inner, self.config = wrapper, inner, inner.config

    def get_output_embeddings(self) -> nn.Module | None:
        return self.inner.get_output_embeddings()

    def get_input_embeddings(self) -> nn.Module:
        return self.inner.get_input_embeddings()

    def forward(self, **inputs: Tensor) -> Any:
        return self.wrapper(**inputs)


class MaskAgnosticTrainer(Trainer):
    """Trains a denoiser's model; views are drawn here, since only the trainer knows which pass it is in."""

    def __init__(
        self,
        denoiser: Denoiser,
        args: TrainingArguments,
        examples: Sequence[Example],
        collator: MaskAgnosticCollator,
        *,
        alpha: float = 0.1,
        beta: float = 1.0,
        divergence: Divergence = "tv",
        weighting: Weighting = "1/p",
        **kwargs: Any,
    ) -> None:
        if len(examples) == 0:
            raise ValueError("the data set holds no example to train on")
        if alpha == 0.0 and (beta == 0.0 or divergence == "none"):
            raise ValueError(f"alpha={alpha}, beta={beta}, divergence={divergence}: nothing is left of the loss")
        # The collator needs whole examples, which have no column that is an argument of the model.
        args.remove_unused_columns = False
        super().__init__(
            model=denoiser.model,
            args=args,
            train_dataset=_Examples(examples),
            data_collator=lambda rows: {"examples": rows},
            **kwargs,
        )
        self.denoiser, self.collator = denoiser, collator
        self.alpha, self.beta = alpha, beta
        self.divergence, self.weighting = divergence, weighting
        self._wrapped: tuple[nn.Module, Denoiser] | None = None
        self._optimiser_step, self._accumulated = -1, 0
        self._terms: list[Tensor] = []  # cross-entropy and consistency of each pass since the last log, [2]

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One forward-backward pass; counts passes within an optimiser step for the curriculum."""
        if self.state.global_step != self._optimiser_step:
            self._optimiser_step, self._accumulated = self.state.global_step, 0
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._accumulated += 1
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The loss of both views, which pass through the model together. Raises FloatingPointError where it is NaN."""
        forward_backward_pass = self.state.global_step * self.args.gradient_accumulation_steps + self._accumulated
        views = self.collator(inputs["examples"], forward_backward_pass)
        device = self.args.device
        logits = self._denoiser_of(model).logits(
            views.input_ids.to(device),
            views.attention_mask.to(device),
            views.masked.flatten().nonzero().squeeze(1).to(device),
            gradient=True,
        )
        one, two = logits.chunk(2)  # [N, V] each
        loss = mask_agnostic_loss(
            one,
            two,
            views.targets.to(device),
            views.example.to(device),
            views.mask_ratio.to(device),
            alpha=self.alpha,
            beta=self.beta,
            divergence=self.divergence,
            weighting=self.weighting,
        )
        if not bool(torch.isfinite(loss.total)):
            raise FloatingPointError(
                f"the loss is {loss.total.item()} in step {self.state.global_step + 1}, "
                f"on the examples {list(views.ids)}"
            )
        self._terms.append(torch.stack([loss.cross_entropy, loss.consistency]).detach())
        return loss.total

    def _denoiser_of(self, model: nn.Module) -> Denoiser:
        """The denoiser around `model`, which the Trainer may have wrapped; made once."""
        if self._wrapped is None or self._wrapped[0] is not model:
            inner = self.accelerator.unwrap_model(model)
            denoiser = Denoiser(
                model if model is inner else _Wrapped(model, inner),
                mask_token_id=self.denoiser.mask_token_id,
                pad_token_id=self.denoiser.pad_token_id,
                shift=self.denoiser.shift,
                attention=self.denoiser.attention,
            )
            self._wrapped = (model, denoiser)
        return self._wrapped[1]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds both terms of the loss, averaged over the passes since the last log."""
        if self._terms and "loss" in logs:
            everywhere = self.accelerator.gather(torch.stack(self._terms).mean(0)[None])  # [processes, 2]
            cross_entropy, consistency = everywhere.mean(0).tolist()
            logs = {**logs, "cross_entropy": cross_entropy, "consistency": consistency}
            self._terms.clear()
        super().log(logs, *args, **kwargs)
