"""transformers' Trainer with the loss of a masked diffusion objective."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME

from mdlm_finetune.collator import Collator, Example, MaskAgnosticCollator
from mdlm_finetune.loss import Divergence, Weighting
from mdlm_finetune.objective import NoisedBatch
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from mdlm_lm_eval.model.denoiser import Denoiser


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


def predictions(denoiser: Denoiser, batch: NoisedBatch) -> Tensor:
    """Logits [V N, vocabulary] at the batch's positions, kept for a backward pass."""
    return denoiser.logits(
        batch.input_ids, batch.attention_mask, batch.positions, prompt_lengths=batch.prompt_lengths, gradient=True
    )


class DiffusionTrainer(Trainer):
    """Trains a denoiser's model; examples are noised here, since only the trainer knows which pass it is in."""

    def __init__(
        self,
        denoiser: Denoiser,
        args: TrainingArguments,
        examples: Sequence[Example],
        collator: Collator,
        **kwargs: Any,
    ) -> None:
        if len(examples) == 0:
            raise ValueError("the data set holds no example to train on")
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
        self._through_wrapper: Denoiser | None = None
        self._optimiser_step, self._accumulated = -1, 0
        self._terms: list[dict[str, Tensor]] = []  # of each pass since the last log

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
        """The objective's loss; all views pass through the model together. Raises FloatingPointError for NaN."""
        forward_backward_pass = self.state.global_step * self.args.gradient_accumulation_steps + self._accumulated
        batch = self.collator(inputs["examples"], forward_backward_pass)
        batch = batch.to(self.args.device)
        terms = dict(self.collator.objective.loss(predictions(self._denoiser_of(model), batch), batch))
        loss = terms.pop("loss")
        if not bool(torch.isfinite(loss)):
            raise FloatingPointError(
                f"the loss is {loss.item()} in step {self.state.global_step + 1}, on the examples {list(batch.ids)}"
            )
        self._terms.append({name: term.detach() for name, term in terms.items()})
        return loss

    def _denoiser_of(self, model: nn.Module) -> Denoiser:
        """The denoiser around `model`, which the Trainer may have wrapped; made once."""
        inner = self.accelerator.unwrap_model(model)
        if model is inner:
            return self.denoiser
        if self._through_wrapper is None:
            self._through_wrapper = copy.copy(self.denoiser)
            self._through_wrapper.model = _Wrapped(model, inner)
        return self._through_wrapper

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Without a pickle of all arguments, which holds `hub_token` and paths of this machine."""
        super().save_model(output_dir, _internal_call)
        Path(output_dir or self.args.output_dir or ".", TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds the objective's terms, averaged over the passes since the last log."""
        if self._terms and "loss" in logs:
            logs = dict(logs)
            for name in self._terms[0]:
                mean = torch.stack([terms[name] for terms in self._terms]).mean()
                logs[name] = self.accelerator.gather(mean[None]).mean().item()
            self._terms.clear()
        super().log(logs, *args, **kwargs)


class MaskAgnosticTrainer(DiffusionTrainer):
    """A trainer of the mask-agnostic objective, of whose loss it takes the options."""

    def __init__(
        self,
        denoiser: Denoiser,
        args: TrainingArguments,
        examples: Sequence[Example],
        collator: MaskAgnosticCollator,
        *,
        alpha: float = MaskAgnostic.alpha,
        beta: float = MaskAgnostic.beta,
        divergence: Divergence = MaskAgnostic.divergence,
        weighting: Weighting = MaskAgnostic.weighting,
        **kwargs: Any,
    ) -> None:
        loss: dict[str, Any] = {"alpha": alpha, "beta": beta, "divergence": divergence, "weighting": weighting}
        fields = vars(collator) | {"objective": replace(collator.objective, **loss)}
        super().__init__(denoiser, args, examples, Collator(**fields), **kwargs)
