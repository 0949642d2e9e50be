"""One run: a recipe -> an adapter folder, written whole or not at all."""

import copy
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from traceback import walk_tb

import torch
from accelerate import PartialState
from peft import LoraConfig, get_peft_model
from peft.utils import load_peft_weights, set_peft_model_state_dict
from transformers import PretrainedConfig, PreTrainedTokenizerBase, TrainerCallback, TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.collator import Collator, Example
from mdlm_finetune.folders import (
    begin,
    check_folders,
    checkpoint_folder,
    evaluation_folder,
    last_checkpoint,
    leaving_no_empty_folder,
    writing,
)
from mdlm_finetune.generated import generated_examples
from mdlm_finetune.instructions import instruction_examples
from mdlm_finetune.merge import write_merged
from mdlm_finetune.model_card import write_card
from mdlm_finetune.objective import Objective
from mdlm_finetune.recipe import Actions
from mdlm_finetune.trainer import DiffusionTrainer
from mdlm_lm_eval import families
from mdlm_lm_eval.context import context_length
from mdlm_lm_eval.families.loading.errors import reason
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import share_cpu_among_processes
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import whole_folder
from mdlm_lm_eval.results.locks import claim
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.values import must_be

_BUILT_IN_BASE = "mdlm-lm-eval built-in model"  # in an adapter's config


def finetune(arguments: FinetuneArguments, objective: Objective, actions: Actions | None = None) -> DiffusionTrainer:
    """Trains a LoRA adapter and writes it to `arguments.output_dir`, where it appears whole at the end.

    Raises OptionError for folders of another run or in use, a LoRA target that matches no module, and data without an
    example to train on.
    """
    actions = actions or Actions()
    share_cpu_among_processes()
    recipe = arguments.changed() | asdict(objective) | arguments.circumstances()
    is_main = arguments.process_index == 0
    if is_main:
        choices = {"overwrite": actions.overwrite, "merge": actions.merge}
        check_folders(arguments, recipe, resume=actions.resume, **choices)

    def take_folders() -> None:
        if is_main:
            begin(arguments, recipe, **choices)
        PartialState().wait_for_everyone()

    with claim(arguments.folder) if is_main else nullcontext(), leaving_no_empty_folder(arguments):
        PartialState().wait_for_everyone()
        trainer = _trainer(arguments, objective)
        first_step = _AfterTheFirstStep(take_folders)
        trainer.add_callback(first_step)
        checkpoint = None if actions.overwrite else last_checkpoint(arguments)
        with writing(arguments):
            with _until(first_step, objective, checkpoint):
                _train(trainer, checkpoint)
            _write_adapter(trainer, arguments, objective)
            if actions.merge and is_main:
                write_merged(arguments)
    return trainer


def _trainer(arguments: FinetuneArguments, objective: Objective) -> DiffusionTrainer:
    """Model, data and trainer. Raises OptionError for what does not fit the model."""
    config = families.load_config(arguments.checkpoint)
    tokenizer = families.load_tokenizer(arguments.checkpoint, config=config)
    lora = LoraConfig(
        r=arguments.lora_r,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=_target_modules(arguments.lora_target_modules),
    )
    _check(arguments, config, tokenizer, lora)
    examples = _examples(arguments, objective, tokenizer)
    a_pass = arguments.world_size * arguments.per_device_train_batch_size
    if arguments.dataloader_drop_last and len(examples) < a_pass:
        raise OptionError(
            f"dataloader_drop_last=True leaves nothing of {len(examples)} examples: a pass takes {a_pass}"
        )
    denoiser = load_denoiser(
        arguments.checkpoint, dtype=arguments.dtype, attn_implementation=arguments.attn_implementation
    )
    _adapt(denoiser, lora, arguments)
    at_checkpoints = copy.copy(arguments)
    at_checkpoints.output_dir = str(checkpoint_folder(arguments))  # the Trainer's
    eos_token_id = tokenizer.eos_token_id
    collator = Collator(objective, denoiser.mask_token_id, eos_token_id, arguments.max_length, arguments.seed)
    try:
        return DiffusionTrainer(denoiser, at_checkpoints, examples, collator)
    except (ValueError, TypeError, RuntimeError, ImportError, OSError) as error:
        raise OptionError(one_line(error)) from error


def _train(trainer: DiffusionTrainer, checkpoint: str | None) -> None:
    """Trains, from `checkpoint` on where there is one. From one of the last step, the Trainer would make another."""
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME)))
        if state.global_step == trainer.args.max_steps:
            set_peft_model_state_dict(trainer.model, load_peft_weights(checkpoint, device="cpu"))
            trainer.state = state
            return
    trainer.train(resume_from_checkpoint=checkpoint)


class _AfterTheFirstStep(TrainerCallback):
    """Calls `act` once a step has worked: a run that is refused before leaves everything as it was."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.is_done = False

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        if not self.is_done:
            self._act()
            self.is_done = True


@contextmanager
def _until(first_step: _AfterTheFirstStep, objective: Objective, checkpoint: str | None) -> Iterator[None]:
    """Turns what the Trainer and torch refuse, most of it only while they run, into one sentence.

    So does what they cannot read of `checkpoint`. Whatever the objective's own code raises keeps its traceback.
    """
    try:
        yield
    except Exception as error:  # whatever a damaged file makes them raise
        modules = {frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)}
        is_objectives = type(objective).__module__ in modules
        if first_step.is_done or is_objectives or isinstance(error, torch.OutOfMemoryError | OptionError):
            raise
        if checkpoint is not None:
            raise OptionError(
                f"{checkpoint} cannot be continued: {reason(error)}; remove it, or begin anew with --overwrite"
            ) from error
        if not isinstance(error, ValueError | TypeError | RuntimeError | ImportError):
            raise
        raise OptionError(f"the first step failed with these arguments: {one_line(error)}") from error


def _target_modules(targets: list[str]) -> str | list[str]:
    """As PEFT takes them: it reads a text as a regular expression of whole names, and the parts of a list as names."""
    return targets[0] if len(targets) == 1 and not re.fullmatch(r"[\w.]+", targets[0]) else targets


def _check(
    arguments: FinetuneArguments, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, lora: LoraConfig
) -> None:
    """Raises OptionError for what this model cannot do, before its weights are read."""
    context = context_length(config, tokenizer)
    if arguments.max_length > context:
        what = f"at most {context}, the context of {arguments.model_name_or_path}"
        raise must_be("max_length", what, arguments.max_length)
    if tokenizer.eos_token_id is None:
        raise OptionError(
            f"model_name_or_path={arguments.model_name_or_path}: its tokenizer has no EOS token, in which answers "
            "could end"
        )
    if lora.r > config.hidden_size:
        raise must_be("lora_r", f"at most {config.hidden_size}, the width of the model", lora.r)
    shown = f"lora_target_modules={' '.join(arguments.lora_target_modules)}"
    try:
        adapted = get_peft_model(families.load_skeleton(config), lora).base_model.targeted_module_names
    except (ValueError, re.error) as error:
        raise OptionError(f"{shown}: {one_line(error)}") from error
    for target in lora.target_modules if isinstance(lora.target_modules, set) else ():
        if not any(f".{name}".endswith(f".{target}") for name in adapted):
            raise OptionError(f"{shown}: no module is named {target}")


def _adapt(denoiser: Denoiser, lora: LoraConfig, arguments: FinetuneArguments) -> None:
    """Puts a new adapter around the denoiser's model."""
    set_seed(arguments.seed)  # of LoRA's random half
    denoiser.model = get_peft_model(denoiser.model, lora)
    # Left to itself, peft names the folder of the built-in model on this machine.
    base = _BUILT_IN_BASE if arguments.is_built_in else arguments.model_name_or_path
    denoiser.model.peft_config["default"].base_model_name_or_path = base
    # Left to itself, peft reads the base checkpoint's config with transformers' class, which family configs are not.
    denoiser.model.save_pretrained = partial(denoiser.model.save_pretrained, save_embedding_layers=False)


def _examples(arguments: FinetuneArguments, objective: Objective, tokenizer: PreTrainedTokenizerBase) -> list[Example]:
    if arguments.is_generated:
        return generated_examples(arguments, tokenizer)
    report = arguments.process_index == 0
    examples, sentence = instruction_examples(arguments, objective, tokenizer, report=report)
    if report:
        print(sentence, file=sys.stderr)
    return examples


def _write_adapter(trainer: DiffusionTrainer, arguments: FinetuneArguments, objective: Objective) -> None:
    """The adapter and its card, which appear when both are whole."""
    is_main = trainer.is_world_process_zero()
    with whole_folder(arguments.folder) if is_main else nullcontext(arguments.folder) as folder:
        # Sharded training gathers the weights here, so every process takes part; the first one writes.
        trainer.save_model(str(folder))
        if is_main:
            write_card(folder, arguments, objective, trainer.state.log_history)
            shutil.rmtree(evaluation_folder(arguments), ignore_errors=True)  # another adapter's
