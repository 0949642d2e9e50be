"""`python -m mdlm_finetune --config RECIPE.yaml [--set key=value ...]`: a recipe -> an adapter folder."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from peft import LoraConfig, get_peft_model
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from mdlm_finetune.collator import MaskAgnosticCollator
from mdlm_finetune.data import generated_texts, stored_texts, tokenized
from mdlm_finetune.options import FinetuneOptions, read_recipe
from mdlm_finetune.trainer import MaskAgnosticTrainer
from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import OptionError


def finetune(options: FinetuneOptions, *, resume: bool = False) -> Path:
    """Trains a LoRA adapter and returns its folder, which appears whole at the end.

    Raises OptionError for an output folder that exists and a LoRA target that matches no module.
    """
    output, runs = Path(options.output), Path(f"{options.output}.checkpoints")
    if output.exists():
        raise OptionError(f"output={output} exists already; name another folder or remove it")
    last = get_last_checkpoint(str(runs)) if runs.exists() else None
    if runs.exists() and not resume:
        raise OptionError(f"{runs} holds another run; continue it with --resume or remove it")
    pretrained = options.pretrained or str(default_model_path())
    tokenizer = checkpoints.load_tokenizer(pretrained, config=checkpoints.load_config(pretrained))
    texts = generated_texts(options.seed) if options.data == "generated" else stored_texts(options.data, options.seed)
    examples, skipped = tokenized(texts, tokenizer, n_examples=options.n_examples, max_length=options.max_length)
    print(f"{len(examples)} examples, {skipped} skipped as longer than {options.max_length} tokens", file=sys.stderr)
    denoiser = load_denoiser(pretrained, dtype=options.dtype)
    lora = LoraConfig(
        r=options.lora_rank, lora_alpha=options.lora_alpha, lora_dropout=0.0, target_modules=options.lora_targets
    )
    try:
        denoiser.model = get_peft_model(denoiser.model, lora)
    except ValueError as error:
        raise OptionError(f"lora_targets={options.lora_targets}: {error}") from error
    arguments = TrainingArguments(
        output_dir=str(runs),
        max_steps=options.steps,
        save_steps=options.save_steps,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        learning_rate=options.learning_rate,
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=10,
        report_to=[],
        seed=options.seed,
    )
    collator = MaskAgnosticCollator(
        mask_token_id=denoiser.mask_token_id,
        eos_token_id=tokenizer.eos_token_id,
        max_length=options.max_length,
        p_low=options.p_low,
        p_high=options.p_high,
        masks_start=options.masks_start,
        masks_end=options.masks_end,
        curriculum_passes=options.curriculum_passes,
        seed=options.seed,
    )
    trainer = MaskAgnosticTrainer(
        denoiser,
        arguments,
        examples,
        collator,
        alpha=options.alpha,
        beta=options.beta,
        divergence=options.divergence,
        weighting=options.weighting,
    )
    trainer.train(resume_from_checkpoint=last)
    if trainer.is_world_process_zero():
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
            whole = Path(scratch) / "adapter"
            denoiser.model.save_pretrained(whole)
            os.replace(whole, output)
    return output


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="mdlm-finetune", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], action="extend", metavar="key=value")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    try:
        finetune(read_recipe(given.config, given.set), resume=given.resume)
    except (OptionError, FloatingPointError) as error:
        sys.exit(f"mdlm-finetune: {error}")


if __name__ == "__main__":
    main()
