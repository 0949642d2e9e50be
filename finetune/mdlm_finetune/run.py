"""Trains an adapter by a recipe, with transformers' Trainer on noised batches. Its folder appears whole or not at all.

On one machine, the same recipe gives the same weights bit for bit, even if the run was killed and resumed. Other CPUs
and GPUs add numbers in other orders.
"""

import copy
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import CONFIG_NAME, load_peft_weights, set_peft_model_state_dict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase, Trainer, TrainerState, TrainingArguments, set_seed
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME

from mdlm_finetune.card import write_card
from mdlm_finetune.data import Example, load_examples
from mdlm_finetune.objective import Noised, NoisedBatch, Noising, Objective
from mdlm_finetune.recipe import Recipe, Run, decides_weights
from mdlm_lm_eval import __version__, load_denoiser, load_tokenizer
from mdlm_lm_eval.checkpoints import adapter_config, context_length, load_config
from mdlm_lm_eval.loader import digests
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import whole_folder, write_whole
from mdlm_lm_eval.results.names import other_base

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collator:
    """Turns examples into a noised batch. Padding of shorter examples is not attended to.

    All randomness of an example comes from (`seed`, pass, id), so it does not change if a run is resumed, or if
    processes share a batch.
    """

    objective: Objective
    mask_token_id: int
    eos_token_id: int
    max_length: int = 1024
    seed: int = 0

    def __call__(self, examples: Sequence[Example], forward_backward_pass: int) -> NoisedBatch:
        """The batch of one pass. Each example must have room for another token."""
        texts = [torch.tensor(example.prompt_ids + example.answer_ids, dtype=torch.long) for example in examples]
        maskable = [
            torch.arange(len(each.prompt_ids) + len(each.answer_ids)) >= len(each.prompt_ids) for each in examples
        ]
        noised = [self._noised(*parts, forward_backward_pass) for parts in zip(examples, texts, maskable, strict=True)]
        whole = [
            F.pad(text, (0, one.n_padding), value=self.eos_token_id) for text, one in zip(texts, noised, strict=True)
        ]
        rows = [view for views in zip(*(one.views for one in noised), strict=True) for view in views]
        lengths = torch.tensor([len(row) for row in rows])
        longest = int(lengths.max())
        masked = [one.is_masked.nonzero().squeeze(1) for one in noised]  # indices into each text with its padding
        n_views = len(rows) // len(examples)
        return NoisedBatch(
            input_ids=nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.eos_token_id),
            attention_mask=(torch.arange(longest) < lengths[:, None]).long(),
            prompt_lengths=torch.tensor([len(example.prompt_ids) for example in examples] * n_views),
            positions=torch.cat([row * longest + where for row, where in enumerate(masked * n_views)]),
            targets=torch.cat([text[where] for text, where in zip(whole, masked, strict=True)]),
            example=torch.cat([torch.full_like(where, index) for index, where in enumerate(masked)]),
            mask_ratio=torch.tensor([one.mask_ratio for one in noised]),
            n_maskable=torch.stack([each.sum() + one.n_padding for each, one in zip(maskable, noised, strict=True)]),
            ids=tuple(example.id for example in examples),
        )

    def _noised(self, example: Example, text: Tensor, maskable: Tensor, forward_backward_pass: int) -> Noised:
        room = self.max_length - len(text)
        # Odd multipliers mod 2^63 give distinct triples distinct seeds in practice.
        seed = self.seed * 0x9E3779B97F4A7C15 + forward_backward_pass * 0xC2B2AE3D27D4EB4F
        generator = torch.Generator().manual_seed((seed + example.id * 0x165667B19E3779F9) % 2**63)
        noising = Noising(generator, self.mask_token_id, self.eos_token_id, room, forward_backward_pass)
        return self.objective.noise(text, maskable, noising)


def predictions(denoiser: Denoiser, batch: NoisedBatch) -> Tensor:
    """Logits [V N, vocabulary] at the positions of the batch, with gradients."""
    return denoiser.logits(
        batch.input_ids, batch.attention_mask, batch.positions, prompt_lengths=batch.prompt_lengths, gradient=True
    )


class DiffusionTrainer(Trainer):
    """Trains the model of a denoiser. Examples are noised here, as only the trainer knows the number of the pass.

    The loss of an optimiser step is the mean over its examples, even if its passes have different numbers of examples.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        args: TrainingArguments,
        examples: Sequence[Example],
        collator: Collator,
        **kwargs: Any,
    ) -> None:
        data = {"train_dataset": examples, "data_collator": lambda rows: {"examples": rows}}
        super().__init__(model=denoiser.model, args=args, **data, **kwargs)
        self.denoiser, self.collator = denoiser, collator
        self._passes_done, self._n_examples = 0, 0  # in this optimiser step; examples of all processes
        self._terms: list[dict[str, Tensor]] = []  # terms of the loss in each pass since the last log

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """The batches of one optimiser step. The last one of an epoch may be smaller than the others."""
        passes, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        n_here = torch.tensor(sum(len(each["examples"]) for each in passes), device=device)
        self._n_examples, self._passes_done = int(self.accelerator.gather(n_here).sum()), 0
        return passes, None

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The objective's loss; all views pass through the model together. Raises OptionError if it is not finite."""
        forward_backward_pass = self.state.global_step * self.args.gradient_accumulation_steps + self._passes_done
        self._passes_done += 1
        batch = self.collator(inputs["examples"], forward_backward_pass).to(self.args.device)
        terms = self.collator.objective.loss(predictions(self._denoiser_of(model), batch), batch)
        if not bool(torch.isfinite(terms["loss"])):
            where = f"in step {self.state.global_step + 1}, on the examples {list(batch.ids)}"
            raise OptionError(f"the loss is {terms['loss'].item()} {where}")
        # The Trainer averages over passes and processes, so each pass is weighted by its number of examples.
        weight = len(batch.ids) * self.current_gradient_accumulation_steps * self.args.world_size / self._n_examples
        self._terms.append({name: weight * term.detach() for name, term in terms.items() if name != "loss"})
        return weight * terms["loss"]

    def _denoiser_of(self, model: nn.Module) -> Denoiser:
        """The denoiser with `model`, which the Trainer may have wrapped."""
        inner = self.accelerator.unwrap_model(model)
        if model is inner:
            return self.denoiser
        through_wrapper = copy.copy(self.denoiser)
        through_wrapper.model = _Wrapped(model, inner)
        return through_wrapper

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model without the pickle of all arguments, which contains paths of this machine."""
        super().save_model(output_dir, _internal_call)
        Path(output_dir or self.args.output_dir or ".", TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Also logs the objective's terms, averaged over the passes since the last log."""
        if self._terms and "loss" in logs:
            logs = dict(logs)
            for name in self._terms[0]:
                mean = torch.stack([terms[name] for terms in self._terms]).mean()
                logs[name] = self.accelerator.gather(mean[None]).mean().item()
            self._terms.clear()
        super().log(logs, *args, **kwargs)


class _Wrapped(nn.Module):
    """A model that is called through its wrapper (DDP, FSDP), which gathers gradients; attributes are the model's."""

    def __init__(self, wrapper: nn.Module, inner: Any) -> None:
        super().__init__()
        self.wrapper, self.config = wrapper, inner.config
        self.get_output_embeddings, self.get_input_embeddings = inner.get_output_embeddings, inner.get_input_embeddings

    def forward(self, **inputs: Tensor) -> Any:
        return self.wrapper(**inputs)


# The run


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
        if denoiser.attention.causal_context:
            raise OptionError(
                f"model_name_or_path={recipe.model_name_or_path}: a block sees finished ones causally, and training "
                "runs all blocks of an answer in one pass"
            )
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
                write_card(folder, run, len(examples), trainer.state.log_history, _digest_of(run, learned))
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


def check_base(recipe: Recipe) -> None:
    """Raises OptionError if the adapter in `output_dir` was trained on another model than the recipe's."""
    if base := other_base(adapter_config(recipe.output_dir).base_model_name_or_path, recipe.model_name_or_path):
        here = recipe.model_name_or_path
        raise OptionError(f"{recipe.folder} was trained on {base}; model_name_or_path is {here}")


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
    """Puts a new LoRA adapter around the denoiser's model. Raises OptionError as `_check_targets` does."""
    targets = recipe.lora_target_modules
    # PEFT takes a text as a regular expression for whole names, and the elements of a list as names.
    modules = targets[0] if len(targets) == 1 and not re.fullmatch(r"[\w.]+", targets[0]) else targets
    scale = {"r": recipe.lora_r, "lora_alpha": recipe.lora_alpha, "lora_dropout": recipe.lora_dropout}
    set_seed(recipe.seed)  # for LoRA's random matrices
    denoiser.model = get_peft_model(denoiser.model, LoraConfig(target_modules=modules, **scale))
    _check_targets(denoiser.model, modules)
    # Otherwise PEFT would record the path of the built-in model on this machine.
    denoiser.model.peft_config["default"].base_model_name_or_path = recipe.model_name_or_path
    # Otherwise PEFT would read the base checkpoint's config with transformers' class, which fails for our families.
    denoiser.model.save_pretrained = partial(denoiser.model.save_pretrained, save_embedding_layers=False)


def _check_targets(model: PeftModel, modules: str | list[str]) -> None:
    """Raises OptionError for a name that no module has, and warns of linear layers that `all-linear` leaves out.

    PEFT ignores such a name beside others. It takes the names of a mixture's experts for all that are called so.
    """
    config, head = model.peft_config["default"], model.get_output_embeddings()
    plain = [name for name, each in model.named_modules() if type(each) is nn.Linear and each is not head]
    plain = [name for name in plain if not name.endswith(".base_layer") and "lora_" not in name]
    if modules == "all-linear" and plain:
        logger.warning(
            "lora_target_modules=all-linear: PEFT leaves out %d linear layers, such as %s", len(plain), plain[0]
        )
    adapted = [f".{name}" for name in model.base_model.targeted_module_names]
    for name in modules if isinstance(modules, list) else ():
        if name in config.target_modules and not any(one.endswith(f".{name}") for one in adapted):
            others = ", ".join(sorted({one.rpartition(".")[2] for one in (*adapted, *plain)}))
            raise OptionError(f"lora_target_modules={name}: no module has this name; there are {others}")


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
    """Everything that decides the weights: settings, number of processes (each has a batch), data and version."""
    settings = {name: value for name, value in run.settings.items() if decides_weights(name)}
    if run.recipe.train_file is not None:
        if not Path(run.recipe.train_file).is_file():
            raise OptionError(f"train_file={run.recipe.train_file} does not exist")
        with open(run.recipe.train_file, "rb") as file:
            settings["train_file_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    settings.pop("plugins", None)
    if loaded := digests({"objective": run.recipe.objective}):
        settings["plugins"] = loaded
    return settings | {"processes": run.training.world_size, "package_version": __version__}


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
    merged = recipe.beside("merged")
    if recipe.merge:
        _check_replaceable(merged, "config.json", overwrite=recipe.overwrite)
    elif merged.exists():
        raise OptionError(f"{merged} is of an earlier adapter; merge the new one, too (--merge), or move it")
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
