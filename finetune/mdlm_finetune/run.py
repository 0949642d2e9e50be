"""Trains an adapter by a recipe. Its folder appears whole or not at all.

On one machine, the same recipe gives the same weights bit for bit, even if the run was killed and resumed. Other CPUs
and GPUs add numbers in other orders.
"""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import CONFIG_NAME, load_peft_weights, set_peft_model_state_dict
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME

from mdlm_finetune.card import write_card
from mdlm_finetune.data import load_examples
from mdlm_finetune.recipe import Recipe, Run, decides_weights
from mdlm_finetune.trainer import Collator, DiffusionTrainer
from mdlm_lm_eval import load_denoiser, load_tokenizer
from mdlm_lm_eval.checkpoints import context_length, load_config
from mdlm_lm_eval.loader import digests
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import whole_folder, write_whole

logger = logging.getLogger(__name__)


def finetune(run: Run) -> DiffusionTrainer:
    """Trains a LoRA adapter and writes it to `output_dir`, where it appears whole at the end.

    Raises OptionError for folders of another run or of another process, for data without an example to train on, and
    for a model without an end-of-text token.
    """
    recipe, is_main = run.recipe, run.training.process_index == 0
    checkpoints = recipe.beside("checkpoints")
    with ExitStack() as held:
        if is_main:
            lock = recipe.beside("lock")
            try:
                held.enter_context(FileLock(lock, timeout=0))
            except Timeout as error:
                raise OptionError(f"output_dir={recipe.folder}: another process trains it now") from error
            held.callback(lock.unlink)  # before it is released, so that a waiting process locks a new file
        tokenizer = load_tokenizer(recipe.model_name_or_path)
        run = _for_model(run, tokenizer)
        recipe, learned = run.recipe, _what_is_learned(run)
        if is_main:
            _check_folders(recipe, learned)

        examples = load_examples(run, tokenizer)
        attention = recipe.attn_implementation
        denoiser = load_denoiser(recipe.model_name_or_path, dtype=recipe.dtype, attn_implementation=attention)
        _add_adapter(denoiser, recipe)
        special_ids = denoiser.mask_token_id, tokenizer.eos_token_id
        collator = Collator(run.objective, *special_ids, recipe.longest, recipe.seed)
        trainer = DiffusionTrainer(denoiser, run.training, examples, collator)

        if is_main:
            # Scores that are already there belong to another adapter.
            for old in (recipe.beside("evaluation"), *((recipe.folder, checkpoints) if recipe.overwrite else ())):
                shutil.rmtree(old, ignore_errors=True)
            checkpoints.mkdir(parents=True, exist_ok=True)
            write_whole(checkpoints / "recipe.yaml", yaml.safe_dump(learned))
            if complaint := run.objective.complaint(run.n_passes):
                logger.warning(complaint)
        trainer.accelerator.wait_for_everyone()
        _train(trainer, _last_checkpoint(checkpoints))

        with whole_folder(recipe.folder) if is_main else nullcontext(recipe.folder) as folder:
            # Sharded training gathers the weights here, so every process takes part. Only the first one writes.
            trainer.save_model(str(folder))
            if is_main:
                write_card(folder, run, trainer.state.log_history, _digest_of(run, learned))
        if is_main and recipe.merge:
            write_merged(recipe)
    return trainer


def _for_model(run: Run, tokenizer: PreTrainedTokenizerBase) -> Run:
    """The run with the `max_length` that fits the model. Raises OptionError if the model cannot be trained by it."""
    recipe = run.recipe
    if tokenizer.eos_token_id is None:
        raise OptionError(
            f"model_name_or_path={recipe.model_name_or_path}: the tokenizer names no end-of-text token, which ends "
            'every answer; name one in tokenizer_config.json, such as "eos_token": "[SEP]"'
        )
    context = context_length(load_config(recipe.model_name_or_path), tokenizer)
    settings = dict(run.settings)
    if recipe.longest > context:
        if recipe.max_length is not None:
            raise OptionError(f"max_length={recipe.max_length} is above the model's context of {context}")
        logger.warning("max_length=%d, as the model was made for no more tokens", context)
        settings["max_length"] = context
    return run._replace(recipe=replace(recipe, max_length=min(recipe.longest, context)), settings=settings)


def write_merged(recipe: Recipe) -> None:
    """Writes OUTPUT_DIR.merged, the model with the adapter of `output_dir` folded in."""
    merged = recipe.beside("merged")
    _check_replaceable(merged, "config.json", overwrite=recipe.overwrite)
    # The adapter is read from its folder, as the trained model may be sharded.
    denoiser = load_denoiser(recipe.model_name_or_path, dtype=recipe.dtype, peft=str(recipe.folder))
    _untie(denoiser.model)
    with whole_folder(merged) as folder:
        denoiser.model.merge_and_unload().save_pretrained(folder)
        load_tokenizer(recipe.model_name_or_path).save_pretrained(folder)


def _add_adapter(denoiser: Denoiser, recipe: Recipe) -> None:
    """Puts a new LoRA adapter around the denoiser's model."""
    targets = recipe.lora_target_modules
    # PEFT takes a text as a regular expression for whole names, and the elements of a list as names.
    modules = targets[0] if len(targets) == 1 and not re.fullmatch(r"[\w.]+", targets[0]) else targets
    scale = {"r": recipe.lora_r, "lora_alpha": recipe.lora_alpha, "lora_dropout": recipe.lora_dropout}
    set_seed(recipe.seed)  # for LoRA's random matrices
    denoiser.model = get_peft_model(denoiser.model, LoraConfig(target_modules=modules, **scale))
    # Otherwise PEFT would record the path of the built-in model on this machine.
    denoiser.model.peft_config["default"].base_model_name_or_path = recipe.model_name_or_path
    # Otherwise PEFT would read the base checkpoint's config with transformers' class, which fails for our families.
    denoiser.model.save_pretrained = partial(denoiser.model.save_pretrained, save_embedding_layers=False)


def _train(trainer: DiffusionTrainer, checkpoint: str | None) -> None:
    """Trains, from `checkpoint` if there is one.

    A checkpoint of the last step is only loaded, because the Trainer would take another step from there.
    """
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME)))
        if state.global_step == trainer.args.max_steps:
            set_peft_model_state_dict(trainer.model, load_peft_weights(checkpoint, device="cpu"))
            trainer.state = state
            return
    trainer.train(resume_from_checkpoint=checkpoint)


def _untie(model: PeftModel) -> None:
    """Unties output head and embedding if one of them is adapted, because merging would change both."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.tie_word_embeddings and (isinstance(embedding, BaseTunerLayer) or isinstance(head, BaseTunerLayer)):
        layer = head.get_base_layer() if isinstance(head, BaseTunerLayer) else head
        layer.weight = nn.Parameter(layer.weight.detach().clone())
        model.config.tie_word_embeddings = False


# Folders


def _what_is_learned(run: Run) -> dict[str, Any]:
    """Everything that decides the weights: settings, number of processes (each has a batch), digest of the data."""
    settings = {name: value for name, value in run.settings.items() if decides_weights(name)}
    if run.recipe.train_file is not None:
        if not Path(run.recipe.train_file).is_file():
            raise OptionError(f"train_file={run.recipe.train_file} does not exist")
        with open(run.recipe.train_file, "rb") as file:
            settings["train_file_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    settings.pop("plugins", None)
    if loaded := digests({"objective": run.recipe.objective}):
        settings["plugins"] = loaded
    return settings | {"processes": run.training.world_size}


def _digest_of(run: Run, learned: Mapping[str, Any]) -> str:
    """A digest of the recipe without its seed: runs of equal digests differ in nothing but the seed.

    Keys that this package declares count with their defaults, too, which another version may change.
    """
    # The data and the code of plug-ins count by the digests in `learned`, the base model by that of its weights.
    without = {"seed", "model_name_or_path", "train_file", "plugins"}
    ours = {**asdict(run.recipe), **asdict(run.objective)}
    found = {name: value for name, value in ours.items() if decides_weights(name)} | {**learned}
    named = {name: value for name, value in found.items() if name not in without}
    as_json = json.dumps(named | {"code": learned.get("plugins")}, sort_keys=True, default=str)
    return hashlib.sha256(as_json.encode()).hexdigest()


def _check_folders(recipe: Recipe, learned: dict[str, Any]) -> None:
    """Raises OptionError if the folders belong to another run, or to one with other settings."""
    checkpoints = recipe.beside("checkpoints")
    _check_replaceable(recipe.folder, CONFIG_NAME, overwrite=recipe.overwrite)
    if recipe.merge:
        _check_replaceable(recipe.beside("merged"), "config.json", overwrite=recipe.overwrite)
    if recipe.overwrite or _last_checkpoint(checkpoints) is None:
        return
    if not recipe.resume:
        raise OptionError(f"{checkpoints} holds another run; continue it with --resume, or replace it with --overwrite")
    before = yaml.safe_load((checkpoints / "recipe.yaml").read_text(encoding="utf-8"))
    for name in sorted(before.keys() | learned.keys()):
        if learned.get(name) != before.get(name):
            now, then = (settings.get(name, "its default") for settings in (learned, before))
            raise OptionError(
                f"{name}={now} is not allowed with --resume: {checkpoints} holds a run with {name}={then}"
            )


def _check_replaceable(folder: Path, content: str, *, overwrite: bool) -> None:
    """Raises OptionError for a folder that may not be replaced: without `overwrite`, or without the file `content`."""
    if folder.exists() and not overwrite:
        raise OptionError(f"{folder} exists already; choose another output_dir, or replace it with --overwrite")
    if folder.exists() and not (folder / content).is_file():
        raise OptionError(f"{folder} cannot be replaced: it holds no {content}")


def _last_checkpoint(checkpoints: Path) -> str | None:
    """The newest complete checkpoint, None if there is none.

    The Trainer writes its state last, so a killed one leaves a checkpoint without a state, or with a part of it.
    """
    by_step = {}
    for state in checkpoints.glob(f"checkpoint-*/{TRAINER_STATE_NAME}"):
        with suppress(ValueError):
            by_step[json.loads(state.read_text())["global_step"]] = str(state.parent)
    return by_step[max(by_step)] if by_step else None
