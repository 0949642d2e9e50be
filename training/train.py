"""Trains the built-in model, or its block-diffusion twin, from scratch on a CPU, or the built-in model on lists.

    export OMP_NUM_THREADS=1
    python -m training.train --output out/built-in
    python -m training.train --output out/built-in-block --block_length 8
    python -m training.train --output out/built-in-lists --lists

1. A curriculum of word facts and few-shot documents up to the suite's length, with masks in some of their answers.
2. The same documents, and longer random walks, with LLaDA's pre-training objective.
`--lists` trains the built-in model further instead, on the stages of `lists.py`.

Two runs on one CPU give the same weights, also if one was killed and started again.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from mdlm_lm_eval.models import BUILT_IN, model_path
from mdlm_lm_eval.results.files import whole_folder
from training import corpus, lists
from training.batches import Batch, Noiser
from training.curriculum import STAGES, Stage, documents
from training.model import build_model, logits_at_masks, masked_loss
from training.muon import Muon
from training.tokenizer import build_tokenizer
from training.validation import measure
from training.walks import random_walk

FEWEST_STEPS = 60  # of a stage
WALK_STEPS_SAVED = 50  # steps between two checkpoints


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training. The published weights were trained with the defaults."""

    seed: int = 0
    block_length: int | None = None  # for block-causal attention; None means full attention
    tokens: int = 5400  # tokens of few-shot documents in a step, besides word facts
    nonsense: float = 0.1  # share of documents with a nonsense rule
    walk_steps: int = 250  # steps of part 2
    walk_length: int = 719  # tokens, without EOS
    validation_sets: int = 48


class Training:
    """One part of the training: model, optimisers, running average of the weights, and random states."""

    def __init__(
        self, model: LlamaForCausalLM, noiser: Noiser, options: TrainingOptions, part: str, device: str = "cpu"
    ) -> None:
        self.model, self.noiser, self.options = model.to(device), noiser, options
        self.device = device
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in name]
        others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed_tokens" in name]
        self.rates = (0.005, 5e-4) if part == "walks" else (0.014, 0.004)
        self.optimisers = [
            Muon(matrices, lr=0.02, weight_decay=0.01),
            torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        self.rng = Random(f"{part} {options.seed}")
        self.generator = torch.Generator().manual_seed(self.rng.getrandbits(32))
        self.steps = self.tokens = 0

    def run(self, stage: Stage) -> None:
        """Trains until the running mean of the accuracy reaches that of the stage, within limits."""
        right, first = 0.0, self.steps
        while self.steps - first < FEWEST_STEPS or (right < stage.accuracy and self.steps - first < stage.most):
            right = 0.95 * right + 0.05 * self.step(self.batches(stage))
            if (self.steps - first) % 50 == 0:
                report(stage=stage.name, steps=self.steps, right=round(right, 3))
        report(stage=stage.name, steps=self.steps, tokens=self.tokens, right=round(right, 3))

    def batches(self, stage: Stage, share: float = 1.0) -> list[Batch]:
        """Batches of word facts and of few-shot documents of the stage, with `share` of a step's tokens."""
        facts = [corpus.word_fact(self.rng) for _ in range(64 if stage.n_relevant else 256)]
        facts_masked = self.noiser.answers_masked(facts, 0.5, self.generator)
        if not stage.n_relevant:
            return [facts_masked]
        found = documents(stage, int(share * self.options.tokens), self.options.nonsense, self.rng)
        return [facts_masked, self.noiser.answers_masked(found, 0.5 if stage.n_relevant > 2 else 0.9, self.generator)]

    def run_among_walks(self, n_steps: int) -> None:
        """Trains on the last stage's documents and on random walks."""
        for _ in range(n_steps):
            walks = [random_walk(self.options.walk_length, self.rng) for _ in range(2)]
            self.step([self.noiser.everything_masked(walks, self.generator), *self.batches(STAGES[-1], 0.5)])

    def run_on_lists(self, stage: lists.Stage, tokenizer: PreTrainedTokenizerFast) -> None:
        """Trains on short lists."""
        for step in range(stage.n_steps):
            rate = stage.rate * (1 - 0.9 * step / stage.n_steps)
            self.rates = (rate, rate / 10)
            found = lists.batches(stage, self.rng, tokenizer)
            self.step([self.noiser.everything_masked(some, self.generator, answers_alone=True) for some in found])

    def run_all(self, parts: Sequence[Callable[[], None]], checkpoint: Path) -> None:
        """Runs the parts after those that a killed training has finished, and writes the checkpoint after each."""
        trained = [self.model, self.average, *self.optimisers]
        n_done = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=False, map_location="cpu")
            for one, state in zip(trained, saved["trained"], strict=True):
                one.load_state_dict(state)
            self.rng.setstate(saved["rng"])
            self.generator.set_state(saved["generator"])
            n_done, self.steps, self.tokens = saved["numbers"]
        for part in parts[n_done:]:
            part()
            n_done += 1
            state = {"trained": [one.state_dict() for one in trained], "rng": self.rng.getstate()}
            state |= {"generator": self.generator.get_state(), "numbers": (n_done, self.steps, self.tokens)}
            unfinished = checkpoint.with_suffix(".part")
            torch.save(state, unfinished)
            os.replace(unfinished, checkpoint)

    def step(self, batches: list[Batch]) -> float:
        """One optimiser step on the sum of the losses. Returns the accuracy at the last batch's masked tokens."""
        for batch in [one.to(self.device) for one in batches]:
            logits = logits_at_masks(self.model, batch, self.options.block_length)
            masked_loss(logits, batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * min(1.0, (self.steps + 1) / 50)
            optimiser.step()
            optimiser.zero_grad()
        self.average.update_parameters(self.model)
        self.steps += 1
        self.tokens += sum(batch.clean.numel() for batch in batches)
        return (logits.argmax(-1) == batch.clean[batch.weights > 0]).float().mean().item()


def report(**values: str | float) -> None:
    """Prints a line of the log."""
    print(json.dumps({"cpu_minutes": round(time.process_time() / 60, 2), **values}), flush=True)


def pretrain(options: TrainingOptions, output: Path, device: str = "cpu") -> None:
    """Trains a model from scratch and writes it to `output`. A killed training continues from its last checkpoint."""
    tokenizer = build_tokenizer()
    noiser = Noiser(tokenizer)
    curriculum, checkpoint = (output.with_name(f"{output.name}.{ending}") for ending in ("curriculum", "checkpoint"))
    output.parent.mkdir(parents=True, exist_ok=True)
    if not (curriculum / "model.safetensors").exists():
        model = build_model(tokenizer, options.block_length, options.seed)
        report(parameters=model.num_parameters(), **asdict(options))
        training = Training(model, noiser, options, "curriculum", device)
        training.run_all([partial(training.run, stage) for stage in STAGES], checkpoint)
        with whole_folder(curriculum) as folder:
            tokenizer.save_pretrained(folder)
            cast(Any, training.average.module).save_pretrained(folder)
        checkpoint.unlink()
    checkpoint = checkpoint.with_suffix(".walks")
    model = LlamaForCausalLM.from_pretrained(curriculum, attn_implementation="plain_sdpa")
    training = Training(model, noiser, options, "walks", device)
    lengths = [
        min(WALK_STEPS_SAVED, options.walk_steps - done) for done in range(0, options.walk_steps, WALK_STEPS_SAVED)
    ]
    training.run_all([partial(training.run_among_walks, n) for n in lengths], checkpoint)
    model = training.average.module.cpu()
    with whole_folder(output) as folder:
        tokenizer.save_pretrained(folder)
        cast(Any, model).save_pretrained(folder)
    checkpoint.unlink(missing_ok=True)
    report(part=2, steps=training.steps, tokens=training.tokens, **measure(model, noiser, options.validation_sets))


def train_on_lists(options: TrainingOptions, output: Path) -> None:
    """Trains the built-in model further on lists."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(output)
    model = LlamaForCausalLM.from_pretrained(model_path(BUILT_IN), attn_implementation="plain_sdpa")
    for one in lists.STAGES:
        training = Training(model, Noiser(tokenizer), options, one.name)
        training.run_on_lists(one, tokenizer)
        report(stage=one.name, steps=training.steps, tokens=training.tokens)
    cast(Any, training.average.module).save_pretrained(output)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the model")
    parser.add_argument("--lists", action="store_true", help="train the built-in model further on lists")
    parser.add_argument("--device", default="cpu", help="where a model is trained from scratch")
    for name, value in asdict(TrainingOptions()).items():
        parser.add_argument(f"--{name}", type=int if value is None else type(value), default=value)
    arguments = vars(parser.parse_args())
    output, on_lists, device = arguments.pop("output"), arguments.pop("lists"), arguments.pop("device")
    options = TrainingOptions(**arguments)
    if on_lists:
        train_on_lists(options, output)
    else:
        pretrain(options, output, device)


if __name__ == "__main__":
    main()
