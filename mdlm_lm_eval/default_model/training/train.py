"""Trains the built-in model from scratch, on CPU or GPU.

    python -m mdlm_lm_eval.default_model.training.train --output out/default_model

The circuits of in-context rule induction are learned by a curriculum of ever longer documents, in which the answers are
masked in half of the rows and everything at t ~ U(0,1) in the other half; then the model is pre-trained plainly, as
LLaDA was: documents packed into fixed windows, every token masked with probability t, weight 1/t.
"""

import argparse
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mdlm_lm_eval.default_model.training.batches import Batch, Noiser, concatenate
from mdlm_lm_eval.default_model.training.corpus import Document
from mdlm_lm_eval.default_model.training.curriculum import STAGES, Stage, draw_document
from mdlm_lm_eval.default_model.training.suite import questions
from mdlm_lm_eval.default_model.training.tokenizer import save_tokenizer
from mdlm_lm_eval.default_model.training.validation import accuracy

log = logging.getLogger("train")


@dataclass(frozen=True)
class TrainingOptions:
    """Sizes, rates and lengths of the training; the defaults made the published weights."""

    seed: int = 0
    hidden_size: int = 256
    layers: int = 4
    heads: int = 8
    intermediate_size: int = 512
    peak_learning_rate: float = 1e-3
    plain_learning_rate: float = 5e-4
    warmup_steps: int = 200
    curriculum_tokens_per_step: int = 3200
    plain_tokens_per_step: int = 2816
    window: int = 704
    stage_accuracy: float = 0.9
    curriculum_steps: int = 3243
    plain_steps: int = 165
    evaluate_every_minutes: float = 2.0


def build_model(options: TrainingOptions, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama with bidirectional attention and random weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads,
        intermediate_size=options.intermediate_size,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=False,
        attn_implementation="eager",  # several times faster than the fused kernel's backward pass on CPUs
    )
    config.is_causal = False
    config.mask_token_id = tokenizer.mask_token_id
    torch.manual_seed(options.seed)
    return LlamaForCausalLM(config)


def masked_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted cross-entropy at the masked positions; logits [N, V] exist for those alone."""
    device = model.device
    with torch.autocast(device.type, torch.bfloat16):
        hidden = model.model(input_ids=batch.input_ids.to(device), use_cache=False).last_hidden_state  # [B, T, H]
        logits = model.lm_head(hidden[batch.at.to(device)])  # [N, V]
    losses = torch.nn.functional.cross_entropy(logits.float(), batch.targets.to(device), reduction="none")  # [N]
    return (losses * batch.weights.to(device)).sum()


class Trainer:
    """Model, optimiser, average of the weights and random states; one step at a time."""

    def __init__(self, options: TrainingOptions, output: Path, device: str) -> None:
        self.options, self.output = options, output
        self.tokenizer = save_tokenizer(output)
        self.noiser = Noiser(self.tokenizer)
        self.model = build_model(options, self.tokenizer).to(device)
        self.average = build_model(options, self.tokenizer).to(device)
        self.average.load_state_dict(self.model.state_dict())
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)
        self.rng = Random(options.seed)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.steps = 0
        self.tokens = 0
        self.started = time.time()
        self.evaluated = self.started
        self.log_file = (output / "training_log.jsonl").open("a", encoding="utf-8")

    def rows(self, draw: Callable[[], Document], n: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        packed = [self.noiser.pack(draw, self.rng, length) for _ in range(n)]
        return torch.tensor([ids for ids, _ in packed]), torch.tensor([flags for _, flags in packed])

    def step(self, batch: Batch, learning_rate: float, average_decay: float) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        loss = masked_loss(self.model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1.0 - average_decay)
        self.steps += 1
        self.tokens += batch.input_ids.numel()
        return loss.item()

    def curriculum_batch(self, stage: Stage) -> Batch:
        n = max(2, self.options.curriculum_tokens_per_step // stage.length)
        earlier = STAGES[: STAGES.index(stage)]

        def draw() -> Document:
            if earlier and self.rng.random() < 0.25:
                return draw_document(earlier[questions.draw(self.rng, len(earlier))], self.rng)
            return draw_document(stage, self.rng)

        ids, is_answer = self.rows(draw, n, stage.length)
        half = n // 2
        return concatenate(
            self.noiser.answers_masked(ids[:half], is_answer[:half], self.generator),
            self.noiser.everything_masked(ids[half:], self.generator),
        )

    def plain_batch(self) -> Batch:
        n = self.options.plain_tokens_per_step // self.options.window
        ids, _ = self.rows(lambda: draw_document(STAGES[-1], self.rng), n, self.options.window)
        return self.noiser.everything_masked(ids, self.generator)

    def due(self) -> bool:
        return time.time() - self.evaluated > 60 * self.options.evaluate_every_minutes

    def evaluate(self, phase: str, loss: float) -> None:
        """Logs accuracies of the averaged weights and writes a checkpoint."""
        self.evaluated = time.time()
        cells = {"10+0 n=2": (10, 0, 2), "10+40 n=2": (10, 40, 2), "10+40 n=200": (10, 40, 200)}
        scores = {name: accuracy(self.average, self.noiser, *cell, seed=0) for name, cell in cells.items()}
        minutes = (time.time() - self.started) / 60
        record = {
            "phase": phase,
            "minutes": minutes,
            "steps": self.steps,
            "tokens": self.tokens,
            "loss": loss,
            **scores,
        }
        self.log_file.write(json.dumps(record) + "\n")
        self.log_file.flush()
        log.info(" ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in record.items()))
        self.average.save_pretrained(self.output / f"checkpoint-{self.steps}")

    def run_curriculum(self) -> None:
        """Moves to the next stage once this one's accuracy is there; ends after its number of steps."""
        smoothed = 0.0
        for index, stage in enumerate(STAGES):
            answers_right = 0.0
            while self.steps < self.options.curriculum_steps:
                batch = self.curriculum_batch(stage)
                rate = self.options.peak_learning_rate * min(1.0, (self.steps + 1) / self.options.warmup_steps)
                loss = self.step(batch, rate, average_decay=0.99)
                smoothed = loss if not smoothed else 0.98 * smoothed + 0.02 * loss
                if self.steps % 100 == 0:
                    answers_right = self.stage_accuracy(stage)
                    log.info(
                        "%s: step %d loss %.3f accuracy %.3f (%.0f tokens/s)",
                        stage.name,
                        self.steps,
                        smoothed,
                        answers_right,
                        self.tokens / (time.time() - self.started),
                    )
                    if answers_right >= self.options.stage_accuracy and (index + 1 < len(STAGES)):
                        break
                if self.due():
                    self.evaluate(stage.name, smoothed)

    @torch.no_grad()
    def stage_accuracy(self, stage: Stage) -> float:
        """Share of masked answers that the current weights get right on fresh documents of the stage."""
        rng_state, ids_and_flags = (
            self.rng.getstate(),
            self.rows(lambda: draw_document(stage, self.rng), 32, stage.length),
        )
        self.rng.setstate(rng_state)
        ids, flags = ids_and_flags
        letters = torch.tensor([self.noiser.ids[letter] for letter in questions.LETTERS])
        at = flags & torch.isin(ids, letters) & (torch.rand(ids.shape, generator=self.generator) < 0.2)
        hidden = self.model.model(
            input_ids=ids.masked_fill(at, self.noiser.mask_id).to(self.model.device)
        ).last_hidden_state
        predicted = self.model.lm_head(hidden[at.to(self.model.device)]).argmax(-1).cpu()
        return (predicted == ids[at]).float().mean().item()

    def run_plain(self) -> None:
        """Pre-trains plainly from the averaged weights, the learning rate falling to zero along a cosine."""
        self.model.load_state_dict(self.average.state_dict())
        self.optimiser.state.clear()
        smoothed = 0.0
        for step in range(self.options.plain_steps):
            rate = 0.5 * (1.0 + math.cos(math.pi * step / self.options.plain_steps))
            rate *= self.options.plain_learning_rate * min(1.0, (step + 1) / self.options.warmup_steps)
            loss = self.step(self.plain_batch(), rate, average_decay=0.995)
            smoothed = loss if not smoothed else 0.98 * smoothed + 0.02 * loss
            if self.due():
                self.evaluate("plain", smoothed)
        self.evaluate("plain", smoothed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the model, its checkpoints and the log")
    parser.add_argument("--init", type=Path, help="a checkpoint of the curriculum: go on with the plain pre-training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in asdict(TrainingOptions()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    arguments = vars(parser.parse_args())
    output, init, device = arguments.pop("output"), arguments.pop("init"), arguments.pop("device")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(TrainingOptions(**arguments), output, device)
    log.info("%.2f M parameters, options %s", sum(p.numel() for p in trainer.model.parameters()) / 1e6, arguments)
    if init is None:
        trainer.run_curriculum()
    else:
        trainer.average.load_state_dict(LlamaForCausalLM.from_pretrained(init).state_dict())
    trainer.run_plain()
    trainer.average.save_pretrained(output)


if __name__ == "__main__":
    main()
