"""Trains the built-in model, or its block-diffusion twin, from scratch on a CPU.

    python -m mdlm_lm_eval.default_model.training.train --output out/default_model
    python -m mdlm_lm_eval.default_model.training.train --output out/default_model_block --block_length 8

A curriculum of ever longer documents teaches to find a rule in context; then the model is pre-trained plainly, as LLaDA
was: documents packed into fixed windows, every token masked with probability t, weight 1/t.
"""

import argparse
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import LlamaForCausalLM

from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.default_model.training.batches import Batch, Noiser, concatenate
from mdlm_lm_eval.default_model.training.corpus import Document
from mdlm_lm_eval.default_model.training.curriculum import STAGES, Stage, draw_document
from mdlm_lm_eval.default_model.training.model import build_model, logits_at_masks, masked_loss
from mdlm_lm_eval.default_model.training.suite import questions
from mdlm_lm_eval.default_model.training.tokenizer import save_tokenizer
from mdlm_lm_eval.default_model.training.validation import accuracies

log = logging.getLogger("train")

WARMUP_STEPS = 50


@dataclass(frozen=True)
class TrainingOptions:
    """What may be varied; the defaults made the published weights."""

    seed: int = 0
    block_length: int | None = None
    curriculum_tokens: int = 3200
    curriculum_accuracy: float = 0.9
    curriculum_rate: float = 2e-3
    muon_rate: float = 0.02
    window: int = 704
    plain_windows: int = 4
    plain_rate: float = 5e-4
    plain_steps: int = 450
    walks: float = 0.8
    evaluate_every: int = 50
    validation_questions: int = 240


class Training:
    """Model, running average of its weights, and random states."""

    def __init__(self, options: TrainingOptions, output: Path) -> None:
        self.options, self.output = options, output
        tokenizer = save_tokenizer(output)
        self.noiser = Noiser(tokenizer)
        self.model = build_model(tokenizer, options.block_length, options.seed)
        self.rng = Random(options.seed)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.started = time.time()
        self.steps = self.tokens = 0

    def start_phase(self, decay: float, optimisers: list[torch.optim.Optimizer]) -> None:
        """Sets the average to the weights as they are, and warms the optimisers' learning rates up."""
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.optimisers = optimisers
        self.warmups = [
            torch.optim.lr_scheduler.LinearLR(optimiser, 1 / WARMUP_STEPS, total_iters=WARMUP_STEPS)
            for optimiser in optimisers
        ]

    def step(self, batch: Batch) -> None:
        logits = logits_at_masks(self.model, batch, self.options.block_length)
        masked_loss(logits, batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, warmup in zip(self.optimisers, self.warmups, strict=True):
            optimiser.step()
            warmup.step()
            optimiser.zero_grad()
        self.average.update_parameters(self.model)
        self.steps += 1
        self.tokens += batch.clean.numel()

    def run_curriculum(self) -> None:
        """Moves to the next stage once the model is right often enough in this one."""
        matrices = [p for name, p in self.model.named_parameters() if p.ndim == 2 and "embed_tokens" not in name]
        others = [p for name, p in self.model.named_parameters() if p.ndim == 1 or "embed_tokens" in name]
        muon = torch.optim.Muon(matrices, lr=self.options.muon_rate, weight_decay=0.01)
        adam = torch.optim.AdamW(others, lr=self.options.curriculum_rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.start_phase(0.99, [muon, adam])
        for index, stage in enumerate(STAGES):
            right = 0.0
            while right < self.options.curriculum_accuracy:
                self.step(self.curriculum_batch(STAGES[: index + 1]))
                if self.steps % 50 == 0:
                    right = self.stage_accuracy(stage)
                    self.log(phase=stage.name, right=right)

    def curriculum_batch(self, stages: tuple[Stage, ...]) -> Batch:
        """Windows of the last stage, a quarter of whose documents are of earlier ones."""
        *earlier, stage = stages

        def draw() -> Document:
            if earlier and self.rng.random() < 0.25:
                return draw_document(earlier[questions.draw(self.rng, len(earlier))], self.rng)
            return draw_document(stage, self.rng)

        n = self.options.curriculum_tokens // stage.length
        clean, is_answer = self.noiser.windows(draw, n, stage.length)
        n_answers = 3 * n // 4
        return concatenate(
            self.noiser.answers_masked(clean[:n_answers], is_answer[:n_answers], 0.7, self.generator),
            self.noiser.everything_masked(clean[n_answers:], self.generator),
        )

    @torch.no_grad()
    def stage_accuracy(self, stage: Stage) -> float:
        """Share of the masked answers of fresh documents of the stage that the model gets right."""
        n = 2 * self.options.curriculum_tokens // stage.length
        clean, is_answer = self.noiser.windows(lambda: draw_document(stage, self.rng), n, stage.length)
        if stage.max_relevant > 0:
            letters = [self.noiser.ids[letter] for letter in questions.LETTERS]
            is_answer &= torch.isin(clean, torch.tensor(letters))
        batch = self.noiser.answers_masked(clean, is_answer, 0.1, self.generator)
        logits = logits_at_masks(self.model, batch, self.options.block_length)
        return (logits.argmax(-1) == clean[batch.weights > 0]).float().mean().item()

    def run_plain(self) -> None:
        """Pre-trains plainly, and keeps the averaged weights of the step that shows the effect best."""
        decayed = [p for p in self.model.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.start_phase(0.98, [torch.optim.AdamW(groups, lr=self.options.plain_rate, betas=(0.9, 0.98))])
        for step in range(1, self.options.plain_steps + 1):
            clean, _ = self.noiser.windows(
                lambda: corpus.plain_document(self.options.walks, self.rng),
                self.options.plain_windows,
                self.options.window,
            )
            self.step(self.noiser.everything_masked(clean, self.generator))
            if step % self.options.evaluate_every == 0:
                self.evaluate("plain")

    def evaluate(self, phase: str) -> None:
        """Logs the averaged weights' accuracies and writes a checkpoint."""
        n = self.options.validation_questions
        scores = accuracies(self.average.module, self.noiser, self.options.block_length, n)
        self.average.module.save_pretrained(self.output / f"checkpoint-{self.steps}")
        self.log(phase=phase, **scores)

    def log(self, **values: str | float) -> None:
        minutes = (time.time() - self.started) / 60
        record = {"minutes": minutes, "steps": self.steps, "tokens": self.tokens, **values}
        with (self.output / "training_log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        log.info(" ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in record.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the model, its checkpoints and the log")
    for name, value in asdict(TrainingOptions()).items():
        parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value)
    arguments = vars(parser.parse_args())
    output = arguments.pop("output")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    output.mkdir(parents=True, exist_ok=True)
    training = Training(TrainingOptions(**arguments), output)
    log.info("%.2f M parameters, options %s", sum(p.numel() for p in training.model.parameters()) / 1e6, arguments)
    training.run_curriculum()
    training.evaluate("curriculum")
    training.run_plain()


if __name__ == "__main__":
    main()
