"""One run: a recipe -> an adapter folder, written whole or not at all."""

import os
import re
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from accelerate import PartialState
from peft import LoraConfig, get_peft_model
from transformers import PretrainedConfig, PreTrainedTokenizerBase, set_seed

from mdlm_finetune.collator import Example, MaskAgnosticCollator
from mdlm_finetune.folders import check_folders, checkpoint_folder, claim, evaluation_folder, last_checkpoint
from mdlm_finetune.generated import generated_examples
from mdlm_finetune.instructions import instruction_examples
from mdlm_finetune.merge import write_merged
from mdlm_finetune.model_card import write_card
from mdlm_finetune.options import FinetuneOptions, training_arguments
from mdlm_finetune.trainer import MaskAgnosticTrainer
from mdlm_lm_eval import families
from mdlm_lm_eval.context import context_length
from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.denoiser import Denoiser
from mdlm_lm_eval.devices import share_cpu_among_processes
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.sentences import one_line

BUILT_IN = "mdlm-lm-eval built-in model"


def finetune(
    options: FinetuneOptions, *, resume: bool = False, overwrite: bool = False, merge: bool = False
) -> MaskAgnosticTrainer:
    """Trains a LoRA adapter and writes it to `options.output`, where it appears whole at the end.

    `merge` writes the model with the adapter folded in to OUTPUT.merged as well. Raises OptionError for folders of
    another run, a LoRA target that matches no module, and data without an example to train on.
    """
    share_cpu_among_processes()
    arguments = training_arguments(options, checkpoint_folder(options))
    is_main = arguments.process_index == 0
    if is_main:
        check_folders(options, resume=resume, overwrite=overwrite, merge=merge)
    PartialState().wait_for_everyone()
    pretrained = options.pretrained or str(default_model_path())
    config = families.load_config(pretrained)
    tokenizer = families.load_tokenizer(pretrained, config=config)
    context = context_length(config, tokenizer)
    if options.max_length > context:
        raise OptionError(
            f"max_length={options.max_length} is not allowed: the context of {options.pretrained or BUILT_IN} is "
            f"{context} tokens"
        )
    lora = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        lora_dropout=0.0,
        target_modules=_target_modules(options.lora_targets),
    )
    _check_targets(options, config, lora)
    if tokenizer.eos_token_id is None:
        raise OptionError(f"pretrained={pretrained}: its tokenizer has no EOS token, in which answers could end")
    examples = _examples(options, tokenizer, report=is_main)
    denoiser = load_denoiser(pretrained, dtype=options.dtype, attn_implementation=options.attn_implementation)
    set_seed(options.seed)  # of LoRA's random half
    denoiser.model = get_peft_model(denoiser.model, lora)
    # Left to itself, peft names the folder of the built-in model on this machine.
    denoiser.model.peft_config["default"].base_model_name_or_path = options.pretrained or BUILT_IN
    # Left to itself, peft reads the base checkpoint's config with transformers' class, which family configs are not.
    denoiser.model.save_pretrained = partial(denoiser.model.save_pretrained, save_embedding_layers=False)
    try:
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
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        raise OptionError(f"trainer={options.trainer}: {one_line(error)}") from error
    if is_main:
        claim(options, overwrite=overwrite, merge=merge)
    PartialState().wait_for_everyone()
    trainer.train(resume_from_checkpoint=last_checkpoint(options))
    _write_adapter(trainer, options)
    if merge and is_main:
        write_merged(options)
    return trainer


def _target_modules(targets: str | list[str]) -> str | list[str]:
    """As PEFT takes them: it reads a text as a regular expression of whole names, and the parts of a list as names."""
    return [targets] if isinstance(targets, str) and re.fullmatch(r"[\w.]+", targets) else targets


def _check_targets(options: FinetuneOptions, config: PretrainedConfig, lora: LoraConfig) -> None:
    """Raises OptionError where a LoRA target matches no module, or one that LoRA cannot adapt."""
    try:
        adapted = get_peft_model(families.load_skeleton(config), lora).base_model.targeted_module_names
    except (ValueError, re.error) as error:
        raise OptionError(f"lora_targets={options.lora_targets} is not allowed: {one_line(error)}") from error
    for target in options.lora_targets if isinstance(options.lora_targets, list) else ():
        if not any(f".{name}".endswith(f".{target}") for name in adapted):
            raise OptionError(f"lora_targets={options.lora_targets} is not allowed: no module is named {target}")


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


def _write_adapter(trainer: MaskAgnosticTrainer, options: FinetuneOptions) -> None:
    """The adapter and its card, moved into place when both are whole."""
    output = Path(options.output)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        whole = Path(scratch) / "adapter"
        # Sharded training gathers the weights here, so every process takes part.
        trainer.save_model(str(whole))
        if trainer.is_world_process_zero():
            (whole / "training_args.bin").unlink(missing_ok=True)  # a pickle, with paths of this machine
            write_card(whole, options, trainer.state.log_history)
            shutil.rmtree(evaluation_folder(options), ignore_errors=True)  # another adapter's
            os.replace(whole, output)
