"""Trains the built-in model, or its block-diffusion twin, from scratch on a CPU.

    export OMP_NUM_THREADS=1
    python -m mdlm_lm_eval.default_model.training.train --output out/default_model
    python -m mdlm_lm_eval.default_model.training.train --output out/default_model_block --block_length 8

Three parts, each beginning with fresh optimisers from the averaged weights of the one before:

1. Words and questions. Three quarters of the windows have answers masked, in the others every token is masked with
   probability t ~ U(0,1), with weight 1/t, as in LLaDA's pre-training.
2. Few-shot documents with answers masked, and, a window a step, random walks under LLaDA's pre-training objective.
3. Supervised fine-tuning on number questions, as LLaDA's: the prompt is visible, the answer masked.
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

from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.default_model.training.batches import Batch, Noiser, concatenate
from mdlm_lm_eval.default_model.training.corpus import Document
from mdlm_lm_eval.default_model.training.curriculum import FEW_SHOT, STAGES, WORDS, Stage, draw_document, draw_from
from mdlm_lm_eval.default_model.training.model import build_model, logits_at_masks, masked_loss
from mdlm_lm_eval.default_model.training.tokenizer import save_tokenizer
from mdlm_lm_eval.default_model.training.validation import accuracies
from mdlm_lm_eval.default_model.training.walks import random_walk
from mdlm_lm_eval.tasks import questions

log = logging.getLogger("train")


@dataclass(frozen=True)
class TrainingOptions:
    """What may be varied; the defaults made the published weights."""

    seed: int = 0
    block_length: int | None = None  # of block-causal attention; None for full attention
    words_tokens: int = 1600  # a step of part 1
    few_shot_tokens: int = 1040  # a step of part 2, besides one window of walks
    walk_window: int = 480  # tokens
    few_shot_among_walks: float = 0.0  # share of few-shot documents in it; 0.03 already undo the mask distraction
    stage_accuracy: float = 0.75  # at which the next stage begins
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    warmup_steps: int = 50
    average_decay: float = 0.99
    check_every: int = 50  # steps
    sft_steps: int = 90
    sft_rate: float = 2e-4
    sft_batch: int = 8  # documents
    validation_questions: int = 960


class CurriculumTraining:
    """Part 1 or 2: the model, its optimisers, the running average of its weights, and random states.

    Both parts begin with the same random state.
    """

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

    def run(self, stages: tuple[Stage, ...]) -> LlamaForCausalLM:
        """Trains through the stages, each until the model is right often enough in it; returns the averaged weights."""
        for stage in stages:
            up_to_it = STAGES[: STAGES.index(stage) + 1]
            right = 0.0
            while right < self.options.stage_accuracy:
                self.step(self.words(up_to_it) if stage in WORDS else self.few_shot_and_a_walk(up_to_it))
                if self.steps % self.options.check_every == 0:
                    right = self.stage_accuracy(stage)
                    report(self.log_file, stage=stage.name, steps=self.steps, tokens=self.tokens, right=right)
        return self.average.module

    def words(self, stages: tuple[Stage, ...]) -> list[Batch]:
        """Windows of part 1: answers masked in three quarters of them, everything in the others."""
        n = self.options.words_tokens // stages[-1].length
        clean, is_answer = self.windows(stages, n)
        n_answers = 3 * n // 4
        return [
            concatenate(
                self.noiser.answers_masked(clean[:n_answers], is_answer[:n_answers], 0.7, self.generator),
                self.noiser.everything_masked(clean[n_answers:], self.generator),
            )
        ]

    def few_shot_and_a_walk(self, stages: tuple[Stage, ...]) -> list[Batch]:
        """Windows of part 2."""
        clean, is_answer = self.windows(stages, self.options.few_shot_tokens // stages[-1].length)
        answers = self.noiser.answers_masked(clean, is_answer, 0.7, self.generator)
        clean, _ = self.noiser.windows(self.walk, 1, self.options.walk_window)
        return [answers, self.noiser.everything_masked(clean, self.generator)]

    def windows(self, stages: tuple[Stage, ...], n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`n` windows of the last stage: ids and is-an-answer, both [n, length]."""
        return self.noiser.windows(lambda: draw_document(stages, self.rng), n, stages[-1].length)

    def walk(self) -> Document:
        """A document of part 2's window of walks."""
        if self.rng.random() < self.options.few_shot_among_walks:
            return draw_from(FEW_SHOT[-1], self.rng)
        return random_walk(self.rng)

    def step(self, batches: list[Batch]) -> None:
        """One optimiser step on the sum of the batches' losses."""
        loss(self.model, batches, self.options).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, scheduler in zip(self.optimisers, self.schedulers, strict=True):
            optimiser.step()
            scheduler.step()
            optimiser.zero_grad()
        self.average.update_parameters(self.model)
        self.steps += 1
        self.tokens += sum(batch.clean.numel() for batch in batches)

    @torch.no_grad()
    def stage_accuracy(self, stage: Stage) -> float:
        """Share of the masked answers of fresh documents of the stage that the averaged weights get right."""
        n = max(32, 2 * self.options.words_tokens // stage.length)
        clean, is_answer = self.noiser.windows(lambda: draw_from(stage, self.rng), n, stage.length)
        if stage.max_relevant > 0:
            is_answer &= torch.isin(clean, torch.tensor([self.noiser.ids[letter] for letter in questions.LETTERS]))
        batch = self.noiser.answers_masked(clean, is_answer, 0.1, self.generator)
        logits = logits_at_masks(self.average.module, batch, self.options.block_length)
        return (logits.argmax(-1) == clean[batch.weights > 0]).float().mean().item()


def loss(model: LlamaForCausalLM, batches: list[Batch], options: TrainingOptions) -> torch.Tensor:
    """The sum of the batches' losses."""
    losses = [masked_loss(logits_at_masks(model, batch, options.block_length), batch) for batch in batches]
    return torch.stack(losses).sum()


def fine_tune(model: LlamaForCausalLM, noiser: Noiser, options: TrainingOptions) -> None:
    """Part 3: the last answers of documents of number questions, their prompts visible."""
    rng = Random(f"number questions {options.seed}")
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.sft_rate, weight_decay=0.0)
    schedule = LinearLR(optimiser, 1.0, 0.0, total_iters=options.sft_steps)
    for _ in range(options.sft_steps):
        fewest, most = corpus.N_NUMBER_QUESTIONS
        n_questions = fewest + questions.draw(rng, most - fewest + 1)
        documents = [corpus.number_questions(n_questions, rng) for _ in range(options.sft_batch)]
        loss(model, [noiser.response_masked(documents, generator)], options).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()


def report(log_file: Path, **values: str | float) -> None:
    """Logs how far the training is, with the minutes of CPU time and what was measured."""
    record = {"cpu_minutes": round(time.process_time() / 60, 2), **values}
    log.info(" ".join(f"{key}={value}" for key, value in record.items()))
    with log_file.open("a", encoding="utf-8") as file:
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
    noiser, log_file = Noiser(tokenizer), output / "training_log.jsonl"
    model = build_model(tokenizer, options.block_length, options.seed)
    log.info("%.2f M parameters, %s", model.num_parameters() / 1e6, options)
    for part, stages in enumerate((WORDS, FEW_SHOT), start=1):
        model = CurriculumTraining(model, noiser, options, log_file).run(stages)
        measured = accuracies(model, noiser, options.block_length, options.validation_questions)
        report(log_file, part=part, **measured)
    fine_tune(model, noiser, options)
    model.save_pretrained(output)
    report(log_file, part=3, **accuracies(model, noiser, options.block_length, options.validation_questions))


if __name__ == "__main__":
    main()
