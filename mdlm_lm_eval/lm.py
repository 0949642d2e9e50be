"""The lm-eval model `mdlm`, which answers requests with strings and log-likelihoods."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM
from peft import PeftModel
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from mdlm_lm_eval import __version__, checkpoints
from mdlm_lm_eval.command_line import check_output_path, runs_lm_eval, say_at_the_end, show_option_errors_alone
from mdlm_lm_eval.declared import as_record, silent_names
from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas, build_infill_canvas, repetitions, seed_of_request
from mdlm_lm_eval.decoding.checks import check_decoding, check_family
from mdlm_lm_eval.decoding.guests import asked_tokens, signature_of
from mdlm_lm_eval.decoding.way import Way
from mdlm_lm_eval.default_model import BUILT_IN, MODEL_FOLDERS, model_path
from mdlm_lm_eval.jobs.generation import Generation, GenerationJob
from mdlm_lm_eval.jobs.likelihood import LikelihoodJob, ScoredRequest
from mdlm_lm_eval.jobs.requests import resolved, seeds_of, task_of, warn_of_unknown, without_padding_copies
from mdlm_lm_eval.jobs.shared import Batches, Context
from mdlm_lm_eval.labels import Labels
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, rolling_windows, truncated_tokens
from mdlm_lm_eval.likelihood.scoring import check_likelihood
from mdlm_lm_eval.loader import foreign_files, load_plugins
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import device_name
from mdlm_lm_eval.model.grouped_attention import use_grouped_attention
from mdlm_lm_eval.model.text import (
    ENDINGS,
    SLOT_MARKER,
    Ending,
    closes_thinking,
    closing_ids,
    count_unknown,
    encode_infill,
    encode_without_masks,
    has_slots,
)
from mdlm_lm_eval.options import DEFAULT_SAMPLER, OptionError, parse_flag, parse_whole, shown
from mdlm_lm_eval.presets import mismatches
from mdlm_lm_eval.record import RunRecord, check_of, digest_of_settings, facts_of_run, in_words, weights_digest
from mdlm_lm_eval.request_cache import RequestCache
from mdlm_lm_eval.resolve import SAMPLING_NAMES, ResolvedRequest, Settings, loading_names, resolve, without_effect
from mdlm_lm_eval.results.names import adapter_name, adapter_recipe, model_name
from mdlm_lm_eval.silence import silenced

logger = logging.getLogger(__name__)
show_option_errors_alone()

# `batch_size=auto` starts from the rows that fit into a GPU, and halves when memory runs out. A CPU swaps long before.
_MAX_AUTO_BATCH, _MAX_AUTO_BATCH_ON_CPU = 1024, 16
_UNFINISHED = "%d of %d answers end before think_end_token=%s (unfinished_thinking=%s); raise max_gen_toks"
_CLOSED = "%d of %d prompts end thinking before it begins (chat template or gen_prefix), although it was asked for"
_CUT = (
    "%d of %d prompts do not fit into the model's context of %d tokens beside what is appended: of the most shortened, "
    "the last %d of %d tokens are left"
)
_PLAIN = "%d of %d prompts hold %s as plain text; for slots, write <|mask|> in a task with infill: true"
_LONGER = "%d of %d continuations are longer than n_masks=%d and scored at their own lengths, of up to %d tokens"
# HFLM's arguments that are passed on to it, as its methods read them.
_OF_HFLM = "mixed_precision_dtype max_length batch_size max_batch_size add_bos_token prefix_token_id think_end_token"
_OF_METHODS = (*_OF_HFLM.split(), "enable_thinking", "chat_template_args")
# Attributes of the model, and model options, that results record.
_RECORDED = "mask_token_id max_length think_end_token add_bos_token weights revision adapter_weights".split()  # noqa: SIM905
_RECORDED_OPTIONS = "cache_audit preset compile fused share_prefix modeling ignore_weights".split()  # noqa: SIM905
# The recorded facts that an answer depends on.
_OF_ANSWERS = (
    "mask_token_id shift_logits max_length think_end_token mixed_precision_dtype add_bos_token cache_audit "  # noqa: SIM905
    "prefix_token_id package_version plugins dtype".split()
)
_WITHOUT_EFFECT = ("backend", "logits_cache", "softmax_dtype", "truncation")


def source_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model arguments that say which files of a checkpoint are read, and whether its own code may run."""
    return {
        "revision": str(arguments.get("revision") or "main"),
        "subfolder": str(arguments.get("subfolder") or ""),
        "trust_remote_code": parse_flag("trust_remote_code", arguments.get("trust_remote_code") or False),
    }


def config_of(pretrained: str | None, arguments: Mapping[str, Any]) -> PretrainedConfig:
    """Loads a checkpoint's config as model arguments say. Raises OptionError, as `checkpoints.load_config` does."""
    path, family = model_path(str(pretrained or BUILT_IN)), arguments.get("diffusion_family")
    return checkpoints.load_config(path, diffusion_family=family, **source_of(arguments))


def tokenizer_of(name: str, config: PretrainedConfig, arguments: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """Loads the tokenizer for a config as model arguments say."""
    return checkpoints.load_tokenizer(
        name,
        config=config,
        use_fast_tokenizer=arguments.get("use_fast_tokenizer", True),
        add_bos_token=arguments.get("add_bos_token"),
        **source_of(arguments),
    )


def settings_of(config: PretrainedConfig, arguments: Mapping[str, Any]) -> Settings:
    """Merges model arguments for the model of a config.

    Raises OptionError for options that it does not support, and for an adapter that is not there.
    """
    family, implementation = checkpoints.family_of(config), arguments.get("attn_implementation")

    def check(way: Way, in_slots: bool | None) -> None:
        options = way.options
        check_family(way, config, in_slots=in_slots)
        if options.guest is None:
            checkpoints.refuse_other_decoders(config.name_or_path or "")
        check_decoding(way, edits=family.edits)
        if options.unfinished_thinking == "empty" and arguments.get("think_end_token") is None:
            raise OptionError("unfinished_thinking=empty needs think_end_token, such as think_end_token=</think>")
        if in_slots:
            if options.guest is not None:
                raise OptionError(f"infill=true does not work with sampler={options.guest}, which continues texts")
            family.refuse("infill", "true")

    settings = resolve(
        arguments,
        family=family.decoding_defaults,
        attention_of=lambda length: checkpoints.attention_of(config, length, implementation),
        check=check,
        default_seed=torch.initial_seed() % 2**63,  # lm-eval seeds torch with --seed before it builds the model
    )
    if peft := arguments.get("peft"):
        checkpoints.adapter_config(str(peft), revision=source_of(arguments)["revision"])
    return settings


class MDLM(HFLM):
    """Masked diffusion language model for lm-eval, registered as `mdlm`.

    `pretrained` is a hub id, a folder, a model object, or the name of a model that comes with the package. These models
    are small, and their default `batch_size` is auto. Other arguments are those of HFLM and transformers, and the
    fields of `DecodingOptions`, `LikelihoodOptions` and `ModelOptions`.
    Raises OptionError, before it reads weights, for an unknown argument and for an option that the model does not
    support.
    """

    _model: Any  # set by HFLM
    _has_chat_template = False
    peft: str | None

    _facts: dict[str, Any] | None = None  # the facts that `get_model_info` returned last

    def __init__(self, pretrained: str | PreTrainedModel | None = BUILT_IN, **arguments: Any) -> None:
        load_plugins(arguments.get("plugins"))
        model: Any = pretrained if isinstance(pretrained, torch.nn.Module) else None
        if model is None and (pretrained or BUILT_IN) in MODEL_FOLDERS and arguments.get("batch_size") is None:
            arguments["batch_size"] = "auto"
        if (size := arguments.get("batch_size")) is not None and not str(size).startswith("auto"):
            parse_whole("batch_size", size, least=1)
        self._config = config_of(pretrained, arguments) if model is None else model.config
        name = model_path(str(pretrained or BUILT_IN)) if model is None else model.name_or_path
        checkpoints.check_config(self._config, name or "a model object")
        self._family = checkpoints.family_of(self._config)
        self.settings = settings_of(self._config, arguments)
        loading, source = dict(self.settings.loading), source_of(arguments)
        for key in sorted(set(_WITHOUT_EFFECT) & loading.keys()):
            logger.warning("%s has no effect with --model mdlm", key)
        of_methods = {key: loading.pop(key) for key in _OF_METHODS if key in loading}
        tokenizer = self._tokenizer_from(loading.pop("tokenizer", name))
        self.mask_token_id = checkpoints.resolve_mask_token_id(
            self._config, tokenizer, self.settings.model.mask_token_id
        )
        self._context_length = checkpoints.context_length(self._config, tokenizer)
        peft = str(loading.pop("peft", None) or "") or None
        for key in (*source, "use_fast_tokenizer", *_WITHOUT_EFFECT):
            loading.pop(key, None)
        processes = None
        if model is None:
            model, processes = self._network_from(name, source, loading)
        if peft:
            model = checkpoints.load_adapter(model, peft, revision=source["revision"])
        with silenced(HFLM.__module__):  # it warns of models that it did not load itself
            super().__init__(model, backend="causal", tokenizer=tokenizer, peft=peft, **source, **of_methods)
        if processes is not None and processes.num_processes > 1:
            self.accelerator = processes
            self._rank, self._world_size = processes.process_index, processes.num_processes
        self.pretrained, self.name = name, model_name(name)
        self.enable_thinking = of_methods.get("enable_thinking")
        # Computed at once, as a training may write into these folders during the evaluation.
        self.weights = checkpoints.files_digest(name, source["subfolder"]) if name else None
        self.adapter_weights = peft and checkpoints.files_digest(peft)
        self.denoiser = self._denoiser()
        # Encoders have no generation config.
        generation = getattr(self.model, "generation_config", None)
        self.eos_ids = checkpoints.eos_ids(self.tokenizer, generation and generation.eos_token_id)
        self.end_of_turn_ids = checkpoints.end_of_turn_ids(self.tokenizer)
        self._closing_ids = closing_ids(self.tokenizer)
        self.ids_after_answers = checkpoints.ids_after_answers(self.tokenizer, self._config)
        if self.max_length > self._context_length:
            logger.warning("max_length=%d: the model was made for %d tokens", self.max_length, self._context_length)
        self.start_record()
        say_at_the_end(lambda: {} if self._facts is None else in_words(self._facts, self._has_chat_template))

    def _tokenizer_from(self, given: Any) -> PreTrainedTokenizerBase:
        """Returns the tokenizer of this name or path, or a tokenizer object as it is. Raises OptionError."""
        if isinstance(given, (str, int, float)):
            return tokenizer_of(str(given), self._config, self.settings.loading)
        checkpoints.check_tokenizer(given, self._config, given.name_or_path)
        return given

    def _network_from(self, name: str, source: Mapping[str, Any], loading: dict[str, Any]) -> tuple[Any, Any]:
        """Loads the network by the arguments of HFLM and transformers. Returns it, and the processes that share it."""
        dtype = loading.pop("torch_dtype", None) or loading.pop("dtype", None)
        loading, processes = checkpoints.device_placement(loading)
        loading["ignore_weights"] = self.settings.model.ignore_weights
        if (named := self.settings.model.modeling) is not None:
            model = checkpoints.load_network(name, named, dtype=dtype, **source, **loading)
        else:
            model = checkpoints.load_model(name, self._config, dtype=dtype, **source, **loading)
        use_grouped_attention(model.config)  # a user's own model object stays as it is
        return model, processes

    def _denoiser(self) -> Denoiser:
        """Returns the model as a denoiser. Raises OptionError for kernels that do not work with mixed precision."""
        options, family = self.settings.model, self._family
        if options.fused and self.mixed_precision_dtype is not None:
            raise OptionError(
                "fused must be false with mixed_precision_dtype, which changes dtypes between its kernels"
            )
        shift = family.shift(self._config) if options.shift_logits is None else options.shift_logits
        denoiser = Denoiser(
            self.model,
            mask_token_id=self.mask_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
            shift=shift,
            attention=self.settings.attention,
            edits=family.edits,
            read=family.read,
            generate=family.generate,
            compiled=options.compile,
            fused=options.fused,
            cuda_graphs=options.cuda_graphs,
        )
        denoiser.rows_alone = checkpoints.sees_padding(denoiser)
        return denoiser

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> "MDLM":
        """Returns the model as `lm_eval` builds it. `batch_size` and `device` may be model arguments, too."""
        check_output_path()
        given = loading_names(arg_dict)
        # After the model is built, lm-eval reads the name for the folder of results from the same dictionary.
        arg_dict["pretrained"] = given["pretrained"] = given.get("pretrained") or BUILT_IN
        own = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if own.get("batch_size") == 1 and runs_lm_eval():  # the command's default; a typed value would be text
            del own["batch_size"]
        return cls(**own | given)

    # Options

    def use_options(self, arguments: Mapping[str, Any]) -> None:
        """Changes the model arguments for the same weights, and begins a new record."""
        self.settings, self._facts = settings_of(self._config, arguments), None
        self.start_record()
        self.denoiser.attention = self.settings.attention

    def use_adapter(self, peft: str | None) -> None:
        """Puts another adapter, or none, on the base model. Raises OptionError if the adapter does not fit."""
        base = self._model if self.peft is None else self._model.unload()
        self._model = base if peft is None else checkpoints.load_adapter(base, peft, revision=self.revision)
        self._model.eval()
        self.peft = peft
        self.adapter_weights = peft and checkpoints.files_digest(peft)
        self.denoiser.model = self._model
        self._facts = None

    # Text

    @cached_property
    def vocabulary_digest(self) -> str:
        """A digest of the tokenizer's vocabulary and of how it reads a text, computed once for all results."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        rules = {name: getattr(backend, name, None) for name in ("normalizer", "pre_tokenizer")}
        states = {name: rule.__getstate__().decode() for name, rule in rules.items() if rule is not None}
        return digest_of_settings({"tokens": self.tokenizer.get_vocab(), **states})

    @cached_property
    def max_length(self) -> int:
        """The number of tokens that fit on a canvas."""
        return int(self._max_length or self._context_length)

    @cached_property
    def prefix_token_id(self) -> int:
        """The token in front of a text without context; [CLS] for an encoder."""
        found = super().prefix_token_id
        return self.tokenizer.cls_token_id if found is None else found

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Returns the token ids of a text that goes on: without a closing token such as [SEP].

        The string of the mask token is encoded as plain text.
        """
        encode = lambda piece, first: HFLM.tok_encode(self, piece, add_special_tokens if first else False)  # noqa: E731
        ids = encode_without_masks(self.tokenizer, string, self.mask_token_id, encode)
        closed = self._closing_ids and ids[-len(self._closing_ids) :] == self._closing_ids
        return ids[: -len(self._closing_ids)] if closed else ids

    # Generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns a string for each request. Raises OptionError before the first pass if any cannot be answered."""
        self._warn_of_preset(requests)
        self._warn_of_decoder()
        requests, answered_by = without_padding_copies(requests, self.world_size)
        wanted = self._with_closed_thinking(requests, resolved(requests, self.settings.request))
        if ignored := {name for request in wanted for name in request.ignored}:
            logger.warning("Ignored, as masked diffusion has no use for them: %s", ", ".join(sorted(ignored)))
        seeds = seeds_of(requests, [request.options.seed for request in wanted])
        generations = [self._prepare(*each) for each in zip(requests, wanted, seeds, strict=True)]
        asked = [(task_of(one.instance), one.instance.doc_id, one.instance.idx) for one in generations]
        for one, repetition in zip(generations, repetitions(asked), strict=True):
            one.repetition = repetition
        warn_of_no_effect(generations)
        self._warn_of_truncation([(one.truncated, one.canvas.prompt_length) for one in generations])
        self._warn_of_mask_strings(requests)
        warn_of_unknown((task_of(one.instance), one.text) for one in generations)
        job = GenerationJob(self.context, generations, shows_progress=not disable_tqdm and self.rank == 0)
        strings = job.run(self.settings.model.cache_audit)
        endings = sum((task.endings for task in self.record.tasks.values()), Counter[str]())
        if n_unfinished := endings["unfinished_thinking"]:
            n = sum(endings[name] for name in ENDINGS)
            logger.warning(_UNFINISHED, n_unfinished, n, self.think_end_token, wanted[0].options.unfinished_thinking)
        return [strings[n] for n in answered_by]

    def _with_closed_thinking(
        self, requests: Sequence[Instance], wanted: Sequence[ResolvedRequest]
    ) -> list[ResolvedRequest]:
        """Returns the options of each request, without thinking where its prompt closes it.

        Warns if the user asked for thinking there.
        """
        turn_ends = self.tokenizer.convert_ids_to_tokens(sorted(self.eos_ids | self.end_of_turn_ids))
        named = self.think_end_token
        think_end = self.tokenizer.decode([named]) if isinstance(named, int) else named
        without = {id(request): request.without_thinking() for request in wanted}
        found = [
            without[id(request)]
            if closes_thinking(instance.args[0], think_end or request.options.end_think, turn_ends)
            else request
            for instance, request in zip(requests, wanted, strict=True)
        ]
        has_asked = bool(self.chat_template_args.get("enable_thinking"))
        asked = [has_asked or before.options != after.options for before, after in zip(wanted, found, strict=True)]
        if n_closed := sum(not after.thinks and was for after, was in zip(found, asked, strict=True)):
            logger.warning(_CLOSED, n_closed, len(found))
        return found

    def _prepare(self, instance: Instance, request: ResolvedRequest, seed: int) -> Generation:
        """Returns a request with its canvas and the effective numbers for the results."""
        options = request.options
        fillers = self.tok_encode(options.filler, False) * options.n_fillers if options.n_fillers else []
        canvas, truncated = self.canvas(instance.args[0], request, fillers, seed)
        n_masks, asked, block_length = len(canvas.slots), options.n_masks, request.attention.block_length
        numbers = {"masks": n_masks, "asked_masks": n_masks, "steps": canvas.steps}
        if block_length is not None and options.mode != "ar":  # the last block is filled up with masks
            numbers["asked_masks"] = asked if isinstance(asked, int) else canvas.n_returned
            numbers["block_length"] = block_length
            numbers["masks_in_block"] = canvas.block_lengths[0]
        elif options.block_length is not None:
            numbers["block_length"] = max(canvas.block_lengths)
        if options.guest is not None:
            takes, asked = signature_of(options), asked_tokens(options, n_masks, canvas.n_returned)
            told = takes.arguments(options, asked, canvas.n_returned)
            numbers = {"masks": takes.length(asked, options), "asked_masks": asked}
            if (own := takes.own_name("steps")) in told:
                numbers["steps"] = told[own]
        numbers["returned_tokens"] = canvas.n_returned
        numbers["fillers"] = len(fillers)
        numbers["prompt_tokens"] = canvas.prompt_length
        may_draw = options.guest is not None or self._family.generate is not None
        differs = request.sampled or may_draw or bool(instance.args[1].get("do_sample"))
        return Generation(
            instance=instance,
            options=options,
            numbers=numbers,
            truncated=truncated,
            text=count_unknown(self.tokenizer, [id for id in canvas.token_ids if id != self.mask_token_id]),
            own_seed=seed if differs else None,
            request=request,
            canvas=canvas,
            ending=Ending(
                self.tokenizer,
                self.eos_ids | self.end_of_turn_ids,
                request.until,
                self.think_end_token,
                thinks=request.thinks,
                empties=options.unfinished_thinking == "empty",
            ),
            labels=Labels.of(instance.doc) if canvas.n_returned == 1 else None,
        )

    def canvas(self, text: str, request: ResolvedRequest, fillers: list[int], seed: int) -> tuple[Canvas, int]:
        """Returns a request's canvas, and the number of prompt tokens that were cut off."""
        options = request.options
        ids: list[Any]
        build: Callable[..., tuple[Canvas, int]] = build_infill_canvas if request.infill else build_canvas
        if request.infill:
            encode = lambda piece, first: HFLM.tok_encode(self, piece, None if first else False)  # noqa: E731
            ids = encode_infill(self.tokenizer, text, self.mask_token_id, encode)
            if self._family.read:  # such a family fills slots in one step
                options = replace(options, steps=1)
        else:
            ids, fillers = self.tok_encode(text), [*fillers, *self.ids_after_answers]
        return build(
            ids,
            replace(request, options=options),
            mask_token_id=self.mask_token_id,
            max_length=self.max_length,
            filler_ids=fillers,
            seed=seed,
        )

    # Likelihood

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns log p(continuation | context) in nats and the greedy flag for each request."""
        if not self.settings.likelihood.check_greedy:
            logger.warning("check_greedy=false: exact-match metrics of likelihood tasks will be 0")
        return self._score("loglikelihood", requests, disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns a lower bound of log p(text) in nats for each request: the sum over its windows."""
        return self._score("loglikelihood_rolling", requests, disable_tqdm)

    def _windows(self, is_rolling: bool, arguments: tuple[Any, ...], seed: int) -> list[LikelihoodRequest]:
        """Returns the windows that a request is scored in. A request that is not rolling has one."""
        context, text = ("", arguments[-1]) if is_rolling else arguments
        if context.strip():
            context_ids, ids = self._encode_pair(context, text)
            return [LikelihoodRequest(context_ids, ids, seed, self.ids_after_answers)]
        prefix, ids = self.prefix_token_id, self.tok_encode(context + text, add_special_tokens=False)
        ids = ids[1:] if ids[:1] == [prefix] else ids
        if not is_rolling:
            return [LikelihoodRequest([prefix], ids, seed, self.ids_after_answers)]
        windows = rolling_windows(
            ids,
            prefix_token_id=prefix,
            seed=seed,
            max_length=self.max_length - len(self.ids_after_answers),
            n_masks=self.settings.likelihood.n_masks,
        )
        return [replace(one, after_ids=self.ids_after_answers) for one in windows]

    def check_likelihoods(self, request_type: str) -> None:
        """Raises OptionError if model and options allow no likelihoods of this type of request."""
        options, is_rolling = self.settings.likelihood, request_type == "loglikelihood_rolling"
        if self.enable_thinking and not is_rolling:
            raise OptionError("enable_thinking=true does not work with likelihood tasks")
        self._family.refuse("likelihood", options.likelihood)
        if (named := self.settings.model.modeling) is not None:
            raise OptionError(f"modeling={named} only generates; likelihoods need the model without it")
        check_likelihood(self.denoiser, options, of_text=is_rolling)

    def scored(self, request_type: str, instance: Instance, *, at_own_length: bool = True) -> ScoredRequest:
        """Returns a likelihood request with the windows that it is scored in.

        at_own_length: whether a continuation longer than `n_masks` has a canvas of its own length. Raises OptionError
        if a canvas does not fit, and, without `at_own_length`, for such a continuation.
        """
        options = self.settings.likelihood
        # Equal texts have one value, in all tasks, as in lm-eval's `--use_cache`.
        seed = seed_of_request(options.seed, instance.args)
        windows = self._windows(request_type == "loglikelihood_rolling", instance.args, seed)
        if at_own_length and (most := options.n_masks) != "auto":
            windows = [replace(one, at_own_length=len(one.continuation_ids) > most) for one in windows]
        truncated = [truncated_tokens(window, options, self.max_length) for window in windows]
        texts = [count_unknown(self.tokenizer, one.context_ids + one.continuation_ids) for one in windows]
        return ScoredRequest(instance, windows, truncated, texts)

    def _score(self, request_type: str, requests: Sequence[Instance], disable_tqdm: bool) -> list[Any]:
        """Returns the results of all requests. Raises OptionError before the first pass if a canvas does not fit."""
        self.check_likelihoods(request_type)
        self._warn_of_preset(requests)
        requests, answered_by = without_padding_copies(requests, self.world_size)
        scorings = [self.scored(request_type, one) for one in requests]
        self._warn_of_truncation(
            (tokens, len(window.context_ids) - tokens)
            for one in scorings
            for tokens, window in zip(one.truncated, one.windows, strict=True)
        )
        self._warn_of_mask_strings(requests)
        warn_of_unknown((task_of(one.instance), text) for one in scorings for text in one.texts)
        if longer := [len(w.continuation_ids) for one in scorings for w in one.windows if w.at_own_length]:
            logger.warning(_LONGER, len(longer), len(scorings), self.settings.likelihood.n_masks, max(longer))
        draws, options = self.settings.model.log_likelihood_draws, self.settings.likelihood
        job = LikelihoodJob(
            self.context,
            request_type,
            scorings,
            options,
            draws=draws,
            shows_progress=not disable_tqdm and self.rank == 0,
        )
        results = job.run()
        return [results[n] for n in answered_by]

    # Batches, processes and records

    @cached_property
    def batches(self) -> Batches:
        """The batch size in use, for all requests of a run."""
        most = int(self.settings.loading.get("max_batch_size") or _MAX_AUTO_BATCH)
        return Batches(self.batch_size, min(most, _MAX_AUTO_BATCH_ON_CPU) if self.device.type == "cpu" else most)

    @property
    def context(self) -> Context:
        """What jobs need of this model."""
        return Context(
            denoiser=self.denoiser,
            tokenizer=self.tokenizer,
            eos_ids=self.eos_ids,
            end_of_turn_ids=self.end_of_turn_ids,
            max_length=self.max_length,
            batches=self.batches,
            record=self.record,
            request_cache=self.request_cache,
            share_prefix=self.settings.model.share_prefix,
            mixed_precision_dtype=self.mixed_precision_dtype,
            rank=self.rank,
            world_size=self.world_size,
        )

    def _warn_of_preset(self, requests: Sequence[Instance]) -> None:
        """Warns if the preset was made for other tasks or another family."""
        preset = self.settings.model.preset
        if preset and self.rank == 0:
            for sentence in mismatches(preset, self._family.name, sorted({task_of(one) for one in requests})):
                logger.warning(sentence)

    def _warn_of_decoder(self) -> None:
        """Warns if the checkpoint was trained for another sampler than the one in effect."""
        options, known = self.settings.decoding, checkpoints.own_decoder(self.pretrained or "")
        is_plain = self.settings.way.name == DEFAULT_SAMPLER and not options.is_parallel
        if known is not None and self.rank == 0 and (is_plain or (known.use.startswith("its") and not options.guest)):
            sentence = "pretrained=%s was trained for a decoder of its own, which %s; use %s"
            logger.warning(sentence, self.name, known.does, known.use)

    def _warn_of_truncation(self, lengths: Iterable[tuple[int, int]]) -> None:
        """Warns of prompts that were cut. `lengths`: the numbers of tokens that each lost, and that are left of it."""
        known = list(lengths)
        if cut := [one for one in known if one[0]]:
            n_lost, n_left = max(cut)
            logger.warning(_CUT, len(cut), len(known), self.max_length, n_left, n_lost + n_left)

    def _warn_of_mask_strings(self, requests: Sequence[Instance]) -> None:
        """Warns of texts with the mask token's own string, which is plain text in every request."""
        masks = self.tokenizer.convert_ids_to_tokens(self.mask_token_id)
        if n_plain := 0 if masks in (None, SLOT_MARKER) else sum(masks in one.args[0] for one in requests):
            logger.warning(_PLAIN, n_plain, len(requests), masks)

    def start_record(self) -> None:
        """Begins an empty record, without a request cache."""
        self.request_cache: RequestCache | None = None
        self.record = self.record_of_all = RunRecord()  # for this process, and for all processes

    def barrier(self) -> None:
        """Waits for all processes, and merges their records.

        lm-eval calls this in every process after each kind of request. The methods above cannot exchange records, as
        they do not run in a process whose requests were all in the request cache.
        """
        if self.world_size > 1:
            records: list[Any] = [None] * self.world_size
            torch.distributed.all_gather_object(records, self.record)
            self.record_of_all = RunRecord()
            for record in records:
                self.record_of_all.merge(record)

    def provenance(self) -> dict[str, Any]:
        """Returns what a score depends on: model, options, effective numbers of each task, machine."""
        settings, run = self.settings, self.record_of_all
        foreign = foreign_files({"sampler": settings.decoding.guest, "modeling": settings.model.modeling})
        of_run, preset = facts_of_run(run, as_record), settings.model.preset
        return of_run | {
            "decoding": as_record(settings.decoding),
            "likelihood": as_record(settings.likelihood),
            **{name: getattr(self, name) for name in _RECORDED},
            **{name: getattr(settings.model, name) for name in _RECORDED_OPTIONS},
            "cuda_graphs": self.denoiser.graphs is not None,
            "shift_logits": self.denoiser.shift,
            "rows_alone": self.denoiser.rows_alone,
            "block_length_from": self._block_length_from(),
            "config_digest": digest_of_settings(self.model.config.to_dict()),
            "vocabulary_digest": self.vocabulary_digest,
            "mixed_precision_dtype": str(self.mixed_precision_dtype),
            "prefix_token_id": self.custom_prefix_token_id,
            "plugins": [*of_run["plugins"], *foreign],
            "family": self._family.name,
            "pretrained": self.name,
            "adapter": self.peft and adapter_name(self.peft),
            "adapter_recipe": self.peft and adapter_recipe(self.peft),
            "device": str(self.device),
            "device_name": device_name(self.device),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attn_implementation": self.model.config._attn_implementation,
            "peak_memory_of": "GPUs" if self.device.type == "cuda" else "process",
            "processes": self.world_size,
            "check": check_of(settings.model.check, self.checked),
            "preset_mismatches": mismatches(preset, self._family.name, of_run["tasks"]) if preset else [],
            "explicit_options": sorted(settings.explicit),
            "family_options": sorted(settings.from_family),
            "batch_size": self.batches.size,
            "forward_passes": run.forward_passes,
            "kept_answers": run.kept,
        }

    def _block_length_from(self) -> str | None:
        """Returns the source of a block-diffusion model's block length; None for other models."""
        if self.denoiser.attention.block_length is None:
            return None
        is_typed = "block_length" in self.settings.explicit
        return "model_args" if is_typed else self.model.config.to_dict().get("block_length_from", "config.json")

    def checked(self) -> dict[str, Any]:
        """Returns the facts that must be the same in a check and in a run for the check to apply to the run."""
        options = as_record(self.settings.decoding).items()
        return {
            "weights": weights_digest(self.model),
            "config": digest_of_settings(self.model.config.to_dict()),
            "vocabulary": self.vocabulary_digest,
            "package_version": __version__,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            # A task or lm-eval's --seed sets these two.
            "options": {name: value for name, value in options if name not in ("seed", "max_gen_toks")},
        }

    def fingerprint(self) -> dict[str, Any]:
        """Returns everything that an answer to a request depends on, in a flat dictionary."""
        facts, silent, model = self.provenance(), silent_names(), self.model
        is_adapted = isinstance(model, PeftModel)
        return {
            **{f"decoding {name}": value for name, value in facts["decoding"].items() if name not in silent},
            **{f"likelihood {name}": value for name, value in facts["likelihood"].items()},
            **{name: facts[name] for name in _OF_ANSWERS},
            # A task's sampling options count only if the user did not set them.
            "set sampling options": sorted(self.settings.explicit.intersection(SAMPLING_NAMES)),
            "weights": weights_digest(model),
            "config": facts["config_digest"],
            "adapter": digest_of_settings(model.active_peft_config.to_dict()) if is_adapted else None,
            "attention": self.denoiser.attention,
            "eos_ids": sorted(self.eos_ids),
            "end_of_turn_ids": sorted(self.end_of_turn_ids),
            "vocabulary": facts["vocabulary_digest"],
        }

    def get_model_info(self) -> dict[str, Any]:
        """Returns lm-eval's own facts about the model and, under `mdlm`, everything that a score depends on.

        Requests after this call belong to another evaluation, which has a new record. Until there are some, a repeated
        call returns the same facts.
        """
        if self._facts is None or self.record_of_all != RunRecord():
            self._facts = self.provenance()
            self.start_record()
        return super().get_model_info() | {"mdlm": self._facts}

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns the tokenizer's chat template. lm-eval calls this if it applies the template."""
        self._has_chat_template = bool(chat_template)
        return super().chat_template(chat_template)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the text of a conversation. Raises OptionError for a template without an end."""
        with checkpoints.ending_templates(self.pretrained):
            return str(super().apply_chat_template(chat_history, add_generation_prompt))

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Takes lm-eval's request cache. Raises OptionError if another model or other options filled it."""
        if cache_hook.dbdict is not None:
            self.request_cache = RequestCache(cache_hook.dbdict, self.fingerprint())
            self.record = self.record_of_all = self.request_cache.record or self.record
            self.record.kept = sum(task.requests for task in self.record.tasks.values())
        super().set_cache_hook(cache_hook)


def warn_of_no_effect(generations: Sequence[Generation]) -> None:
    """Warns of options that were set and change nothing in these requests, and of slots that are not filled."""
    if plain := sum(has_slots(one.instance.args[0]) for one in generations if not one.request.infill):
        sentence = "%d of %d prompts hold <|mask|> as plain text; a task's infill: true makes it a slot"
        logger.warning(sentence, plain, len(generations))
    for request in {id(one.request): one.request for one in generations}.values():
        for name, why in without_effect(request).items():
            if name in request.typed:
                logger.warning("%s=%s has no effect %s", name, shown(request.options.as_dict()[name]), why)
    short = [
        len(one.canvas.slots)
        for one in generations
        if "block_length" in one.request.typed
        and not one.request.attention.is_block_causal
        and (one.request.options.block_length or 0) > len(one.canvas.slots)
    ]
    if short:
        sentence = "block_length is longer than %d of %d canvases, which are one block each; the shortest has %d masks"
        logger.warning(sentence, len(short), len(generations), min(short))
