"""Trains the built-in model, or its block-diffusion twin, from scratch on a CPU (needs torch 2.9 for Muon).

    export OMP_NUM_THREADS=1
    python -m mdlm_lm_eval.default_model.training.train --output out/default_model
    python -m mdlm_lm_eval.default_model.training.train --output out/default_model_block --block_length 8

Documents become longer from stage to stage. In three quarters of the windows answers are masked; in the others every
token with probability t ~ U(0,1), with weight 1/t, as in LLaDA's pre-training.
"""

import argparse
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import LlamaForCausalLM

from mdlm_lm_eval.default_model.training.batches import Batch, Noiser, concatenate
from mdlm_lm_eval.default_model.training.corpus import Document
from mdlm_lm_eval.default_model.training.curriculum import STAGES, Stage, draw_document
from mdlm_lm_eval.default_model.training.model import build_model, logits_at_masks, masked_loss
from mdlm_lm_eval.default_model.training.tokenizer import save_tokenizer
from mdlm_lm_eval.default_model.training.validation import accuracies
from mdlm_lm_eval.tasks import questions

log = logging.getLogger("train")


@dataclass(frozen=True)
class TrainingOptions:
    """What may be varied; the defaults made the published weights."""

    seed: int = 0
    block_length: int | None = None  # of block-causal attention; None for full attention
    tokens_per_step: int = 1600
    stage_accuracy: float = 0.75  # at which the next stage begins
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    warmup_steps: int = 50
    average_decay: float = 0.99
    check_every: int = 50  # steps
    validation_questions: int = 960


class Training:
    """The model, its optimisers, the running average of its weights, and random states."""

    def __init__(self, model: LlamaForCausalLM, noiser: Noiser, options: TrainingOptions, log_file: Path) -> None:
        self.model, self.noiser, self.options, self.log_file = model, noiser, options, log_file
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in name]
        others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed_tokens" in name]
        self.optimisers = [
            torch.optim.Muon(matrices, lr=options.muon_rate, weight_decay=0.01),
            torch.optim.AdamW(others, lr=options.adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        warmup = options.warmup_steps
        self.schedulers = [LinearLR(optimiser, 1 / warmup, total_iters=warmup) for optimiser in self.optimisers]
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(options.average_decay))
        self.rng = Random(f"curriculum {options.seed}")
        self.generator = torch.Generator().manual_seed(self.rng.getrandbits(32))
        self.steps = self.tokens = 0
        self.started = time.time()

    def run(self) -> LlamaForCausalLM:
        """Trains through the stages, each until the model is right often enough in it; returns the averaged weights."""
        for index, stage in enumerate(STAGES):
            right = 0.0
            while right < self.options.stage_accuracy:
                self.step(self.draw_batch(STAGES[: index + 1]))
                if self.steps % self.options.check_every == 0:
                    right = self.stage_accuracy(stage)
                    self.report(stage=stage.name, right=right)
        return self.average.module

    def draw_batch(self, stages: tuple[Stage, ...]) -> Batch:
        """Windows of the last stage, a quarter of whose documents are of earlier ones."""
        *earlier, stage = stages

        def draw() -> Document:
            if earlier and self.rng.random() < 0.25:
                return draw_document(earlier[questions.draw(self.rng, len(earlier))], self.rng)
            return draw_document(stage, self.rng)

        n = self.options.tokens_per_step // stage.length
        clean, is_answer = self.noiser.windows(draw, n, stage.length)
        n_answers = 3 * n // 4
        return concatenate(
            self.noiser.answers_masked(clean[:n_answers], is_answer[:n_answers], 0.7, self.generator),
            self.noiser.everything_masked(clean[n_answers:], self.generator),
        )

    def step(self, batch: Batch) -> None:
        """One optimiser step."""
        masked_loss(logits_at_masks(self.model, batch, self.options.block_length), batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, scheduler in zip(self.optimisers, self.schedulers, strict=True):
            optimiser.step()
            scheduler.step()
            optimiser.zero_grad()
        self.average.update_parameters(self.model)
        self.steps += 1
        self.tokens += batch.clean.numel()

    @torch.no_grad()
    def stage_accuracy(self, stage: Stage) -> float:
        """Share of the masked answers of fresh documents of the stage that the averaged weights get right."""
        n = max(32, 2 * self.options.tokens_per_step // stage.length)
        clean, is_answer = self.noiser.windows(lambda: draw_document(stage, self.rng), n, stage.length)
        if stage.max_relevant > 0:
            is_answer &= torch.isin(clean, torch.tensor([self.noiser.ids[letter] for letter in questions.LETTERS]))
        batch = self.noiser.answers_masked(clean, is_answer, 0.1, self.generator)
        logits = logits_at_masks(self.average.module, batch, self.options.block_length)
        return (logits.argmax(-1) == clean[batch.weights > 0]).float().mean().item()

    def report(self, **values: str | float) -> None:
        """Logs how far the training is, with what was measured."""
        minutes = (time.time() - self.started) / 60
        record = {"minutes": round(minutes, 2), "steps": self.steps, "tokens": self.tokens, **values}
        log.info(" ".join(f"{key}={value}" for key, value in record.items()))
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the model and training_log.jsonl")
    for name, value in asdict(TrainingOptions()).items():
        parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value)
    arguments = vars(parser.parse_args())
    output = arguments.pop("output")
    options = TrainingOptions(**arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    tokenizer = save_tokenizer(output)
    noiser = Noiser(tokenizer)
    model = build_model(tokenizer, options.block_length, options.seed)
    log.info("%.2f M parameters, %s", model.num_parameters() / 1e6, options)
    training = Training(model, noiser, options, output / "training_log.jsonl")
    averaged = training.run()
    averaged.save_pretrained(output)
    training.report(**accuracies(averaged, noiser, options.block_length, options.validation_questions))


if __name__ == "__main__":
    main()
