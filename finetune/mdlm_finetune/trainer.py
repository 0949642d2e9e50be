"""transformers' Trainer with the loss of a masked diffusion objective, and the collator that noises its batches."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME

from mdlm_finetune.data import Example
from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError


@dataclass(frozen=True)
class Collator:
    """Turns examples into a noised batch. Padding of shorter examples is not attended to.

    All randomness of an example comes from (`seed`, pass, id), so it does not change if a run is resumed, or if
    processes share a batch.
    """

    objective: Objective
    mask_token_id: int
    eos_token_id: int
    max_length: int = 1024
    seed: int = 0

    def __call__(self, examples: Sequence[Example], forward_backward_pass: int) -> NoisedBatch:
        """The batch of one pass. Each example must have room for another token."""
        texts = [torch.tensor(example.prompt_ids + example.answer_ids, dtype=torch.long) for example in examples]
        maskable = [
            torch.arange(len(each.prompt_ids) + len(each.answer_ids)) >= len(each.prompt_ids) for each in examples
        ]
        noised = [self._noised(*parts, forward_backward_pass) for parts in zip(examples, texts, maskable, strict=True)]
        whole = [
            F.pad(text, (0, one.n_padding), value=self.eos_token_id) for text, one in zip(texts, noised, strict=True)
        ]
        rows = [view for views in zip(*(one.views for one in noised), strict=True) for view in views]
        lengths = torch.tensor([len(row) for row in rows])
        longest = int(lengths.max())
        masked = [one.is_masked.nonzero().squeeze(1) for one in noised]  # indices into each text with its padding
        n_views = len(rows) // len(examples)
        return NoisedBatch(
            input_ids=nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.eos_token_id),
            attention_mask=(torch.arange(longest) < lengths[:, None]).long(),
            prompt_lengths=torch.tensor([len(example.prompt_ids) for example in examples] * n_views),
            positions=torch.cat([row * longest + where for row, where in enumerate(masked * n_views)]),
            targets=torch.cat([text[where] for text, where in zip(whole, masked, strict=True)]),
            example=torch.cat([torch.full_like(where, index) for index, where in enumerate(masked)]),
            mask_ratio=torch.tensor([one.mask_ratio for one in noised]),
            n_maskable=torch.stack([each.sum() + one.n_padding for each, one in zip(maskable, noised, strict=True)]),
            ids=tuple(example.id for example in examples),
        )

    def _noised(self, example: Example, text: Tensor, maskable: Tensor, forward_backward_pass: int) -> Noised:
        room = self.max_length - len(text)
        # Odd multipliers mod 2^63 give distinct triples distinct seeds in practice.
        seed = self.seed * 0x9E3779B97F4A7C15 + forward_backward_pass * 0xC2B2AE3D27D4EB4F
        generator = torch.Generator().manual_seed((seed + example.id * 0x165667B19E3779F9) % 2**63)
        noising = Noising(generator, self.mask_token_id, self.eos_token_id, room, forward_backward_pass)
        return self.objective.noise(text, maskable, noising)


def predictions(denoiser: Denoiser, batch: NoisedBatch) -> Tensor:
    """Logits [V N, vocabulary] at the positions of the batch, with gradients."""
    return denoiser.logits(
        batch.input_ids, batch.attention_mask, batch.positions, prompt_lengths=batch.prompt_lengths, gradient=True
    )


class DiffusionTrainer(Trainer):
    """Trains the model of a denoiser. Examples are noised here, as only the trainer knows the number of the pass.

    The loss of an optimiser step is the mean over its examples, even if its passes have different numbers of examples.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        args: TrainingArguments,
        examples: Sequence[Example],
        collator: Collator,
        **kwargs: Any,
    ) -> None:
        data = {"train_dataset": examples, "data_collator": lambda rows: {"examples": rows}}
        super().__init__(model=denoiser.model, args=args, **data, **kwargs)
        self.denoiser, self.collator = denoiser, collator
        self._passes_done, self._n_examples = 0, 0  # in this optimiser step; examples of all processes
        self._terms: list[dict[str, Tensor]] = []  # terms of the loss in each pass since the last log

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """The batches of one optimiser step. The last one of an epoch may be smaller than the others."""
        passes, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        n_here = torch.tensor(sum(len(each["examples"]) for each in passes), device=device)
        self._n_examples, self._passes_done = int(self.accelerator.gather(n_here).sum()), 0
        return passes, None

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The objective's loss; all views pass through the model together. Raises OptionError if it is not finite."""
        forward_backward_pass = self.state.global_step * self.args.gradient_accumulation_steps + self._passes_done
        self._passes_done += 1
        batch = self.collator(inputs["examples"], forward_backward_pass).to(self.args.device)
        terms = self.collator.objective.loss(predictions(self._denoiser_of(model), batch), batch)
        if not bool(torch.isfinite(terms["loss"])):
            where = f"in step {self.state.global_step + 1}, on the examples {list(batch.ids)}"
            raise OptionError(f"the loss is {terms['loss'].item()} {where}")
        # The Trainer averages over passes and processes, so each pass is weighted by its number of examples.
        weight = len(batch.ids) * self.current_gradient_accumulation_steps * self.args.world_size / self._n_examples
        self._terms.append({name: weight * term.detach() for name, term in terms.items() if name != "loss"})
        return weight * terms["loss"]

    def _denoiser_of(self, model: nn.Module) -> Denoiser:
        """The denoiser with `model`, which the Trainer may have wrapped."""
        inner = self.accelerator.unwrap_model(model)
        if model is inner:
            return self.denoiser
        through_wrapper = copy.copy(self.denoiser)
        through_wrapper.model = _Wrapped(model, inner)
        return through_wrapper

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model without the pickle of all arguments, which contains paths of this machine."""
        super().save_model(output_dir, _internal_call)
        Path(output_dir or self.args.output_dir or ".", TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Also logs the objective's terms, averaged over the passes since the last log."""
        if self._terms and "loss" in logs:
            logs = dict(logs)
            for name in self._terms[0]:
                mean = torch.stack([terms[name] for terms in self._terms]).mean()
                logs[name] = self.accelerator.gather(mean[None]).mean().item()
            self._terms.clear()
        super().log(logs, *args, **kwargs)


class _Wrapped(nn.Module):
    """A model that is called through its wrapper (DDP, FSDP), which gathers gradients; attributes are the model's."""

    def __init__(self, wrapper: nn.Module, inner: Any) -> None:
        super().__init__()
        self.wrapper, self.config = wrapper, inner.config
        self.get_output_embeddings, self.get_input_embeddings = inner.get_output_embeddings, inner.get_input_embeddings

    def forward(self, **inputs: Tensor) -> Any:
        return self.wrapper(**inputs)
