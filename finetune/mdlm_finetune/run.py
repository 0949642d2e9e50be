"""One run: a recipe -> an adapter folder, written whole or not at all."""

import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

import yaml
from accelerate import PartialState
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import get_last_checkpoint

from mdlm_finetune.collator import Example, MaskAgnosticCollator
from mdlm_finetune.generated import generated_examples
from mdlm_finetune.instructions import instruction_examples
from mdlm_finetune.model_card import write_card
from mdlm_finetune.options import FinetuneOptions, training_arguments
from mdlm_finetune.trainer import MaskAgnosticTrainer
from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.denoiser import Denoiser
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import OptionError

RECIPE = "recipe.yaml"  # in the checkpoint folder, for resuming
BUILT_IN = "mdlm-lm-eval built-in model"
# Keys that a resumed run may change: they rule where and when something is written, not what is learned.
FREE_ON_RESUMING = ("output", "save_steps", "evaluation_limit", "trainer")


def finetune(
    options: FinetuneOptions, *, resume: bool = False, overwrite: bool = False, merge: bool = False
) -> MaskAgnosticTrainer:
    """Trains a LoRA adapter and writes it to `options.output`, where it appears whole at the end.

    `merge` writes the model with the adapter folded in to OUTPUT.merged as well. Raises OptionError for folders of
    another run, a LoRA target that matches no module, and data without an example to train on.
    """
    output, checkpoint_folder = Path(options.output), Path(f"{options.output}.checkpoints")
    arguments = training_arguments(options, checkpoint_folder)
    if arguments.process_index == 0:
        _check_folders(options, output, checkpoint_folder, resume=resume, overwrite=overwrite)
    PartialState().wait_for_everyone()
    pretrained = options.pretrained or str(default_model_path())
    config = checkpoints.load_config(pretrained)
    lora = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        lora_dropout=0.0,
        target_modules=options.lora_targets,
        base_model_name_or_path=options.pretrained or BUILT_IN,
    )
    try:
        get_peft_model(checkpoints.load_skeleton(config), lora)
    except ValueError as error:
        raise OptionError(f"lora_targets={options.lora_targets} is not allowed: {error}") from error
    tokenizer = checkpoints.load_tokenizer(pretrained, config=config)
    examples = _examples(options, tokenizer, report=arguments.process_index == 0)
    if arguments.process_index == 0:
        _claim(options, checkpoint_folder, resume=resume)
    PartialState().wait_for_everyone()
    denoiser = load_denoiser(pretrained, dtype=options.dtype, attn_implementation=options.attn_implementation)
    set_seed(options.seed)  # of LoRA's random half
    denoiser.model = get_peft_model(denoiser.model, lora)
    # Left to itself, peft reads the base checkpoint's config with transformers' class, which family configs are not.
    denoiser.model.save_pretrained = partial(denoiser.model.save_pretrained, save_embedding_layers=False)
    trainer = MaskAgnosticTrainer(
        denoiser,
        arguments,
        examples,
        _collator(options, denoiser, tokenizer),
        alpha=options.alpha,
        beta=options.beta,
        divergence=options.divergence,
        weighting=options.weighting,
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoint_folder)))
    _write_adapter(trainer, options, output)
    if merge:
        _write_merged(trainer, tokenizer, Path(f"{options.output}.merged"))
    return trainer


def _check_folders(
    options: FinetuneOptions, output: Path, checkpoint_folder: Path, *, resume: bool, overwrite: bool
) -> None:
    """Raises OptionError where the output or the checkpoints are another run's."""
    if output.exists() and not overwrite:
        raise OptionError(f"output={output} exists already; name another folder, or replace it with --overwrite")
    if not checkpoint_folder.exists() or overwrite:
        return
    if not resume:
        raise OptionError(
            f"{checkpoint_folder} holds another run; continue it with --resume, or replace it with --overwrite"
        )
    recipe, settings = checkpoint_folder / RECIPE, asdict(options)
    stored = yaml.safe_load(recipe.read_text(encoding="utf-8")) if recipe.exists() else {}
    for name in settings.keys() - set(FREE_ON_RESUMING):
        if name not in stored or stored[name] != settings[name]:
            raise OptionError(
                f"{name}={settings[name]} is not allowed with --resume: {checkpoint_folder} holds a run with "
                f"{name}={stored.get(name)}"
            )


def _claim(options: FinetuneOptions, checkpoint_folder: Path, *, resume: bool) -> None:
    """Makes the checkpoint folder this run's own."""
    if checkpoint_folder.exists() and not resume:
        shutil.rmtree(checkpoint_folder)
    checkpoint_folder.mkdir(parents=True, exist_ok=True)
    recipe = yaml.safe_dump(asdict(options), sort_keys=False)
    (checkpoint_folder / RECIPE).write_text(recipe, encoding="utf-8")


def _examples(options: FinetuneOptions, tokenizer: PreTrainedTokenizerBase, *, report: bool) -> list[Example]:
    if options.data == "generated":
        return generated_examples(options, tokenizer)
    examples, sentence = instruction_examples(options, tokenizer, report=report)
    if report:
        print(sentence, file=sys.stderr)
    return examples


def _collator(options: FinetuneOptions, denoiser: Denoiser, tokenizer: PreTrainedTokenizerBase) -> MaskAgnosticCollator:
    return MaskAgnosticCollator(
        mask_token_id=denoiser.mask_token_id,
        eos_token_id=tokenizer.eos_token_id,
        max_length=options.max_length,
        masked_part=options.masked_part,
        p_low=options.p_low,
        p_high=options.p_high,
        masks_start=options.masks_start,
        masks_end=options.masks_end,
        curriculum_passes=options.curriculum_passes,
        seed=options.seed,
    )


def _write_adapter(trainer: MaskAgnosticTrainer, options: FinetuneOptions, output: Path) -> None:
    """The adapter and its card, moved into place when both are whole."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        whole = Path(scratch) / "adapter"
        # Sharded training gathers the weights here, so every process takes part.
        trainer.save_model(str(whole))
        if trainer.is_world_process_zero():
            (whole / "training_args.bin").unlink(missing_ok=True)  # a pickle, with paths of this machine
            write_card(whole, options, trainer.state.log_history)
            for replaced in (output, Path(f"{output}.evaluation")):
                if replaced.exists():
                    shutil.rmtree(replaced)
            os.replace(whole, output)


def _write_merged(trainer: MaskAgnosticTrainer, tokenizer: PreTrainedTokenizerBase, merged: Path) -> None:
    """The model with the adapter folded in, as a checkpoint of its own."""
    if not trainer.is_world_process_zero():
        return
    adapted: PeftModel = trainer.accelerator.unwrap_model(trainer.model)
    with tempfile.TemporaryDirectory(dir=merged.parent) as scratch:
        whole = Path(scratch) / "model"
        adapted.merge_and_unload().save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        if merged.exists():
            shutil.rmtree(merged)
        os.replace(whole, merged)
