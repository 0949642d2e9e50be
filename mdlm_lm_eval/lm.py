"""The lm-eval model `mdlm`: requests in, strings and log-likelihoods out."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils_hf import get_dtype
from tqdm import tqdm
from transformers import PretrainedConfig, PreTrainedModel

from mdlm_lm_eval import checkpoints as families
from mdlm_lm_eval.checkpoints import context_length
from mdlm_lm_eval.command_line import runs_lm_eval, say_at_the_end, show_option_errors_alone
from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.decoding.caches import cache_name, cache_policy
from mdlm_lm_eval.decoding.canvas import (
    Canvas,
    Completion,
    RowCost,
    build_canvas,
    build_infill_canvas,
    seed_of,
)
from mdlm_lm_eval.decoding.checks import check_decoding
from mdlm_lm_eval.decoding.memory import row_memory, rows_that_fit
from mdlm_lm_eval.decoding.run import columns_of
from mdlm_lm_eval.decoding.trace import filled
from mdlm_lm_eval.default_model import BUILT_IN, MODEL_FOLDERS, model_path
from mdlm_lm_eval.likelihood import (
    LikelihoodRequest,
    answer_length,
    fill_by_reads,
    most_rows,
    rolling_windows,
    score,
    truncated_tokens,
)
from mdlm_lm_eval.loader import load_plugins
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.text import Ending, closing_ids, encode_infill, encode_without_masks
from mdlm_lm_eval.options import DecodingOptions, OptionError, parse_flag, shown
from mdlm_lm_eval.presets import mismatches
from mdlm_lm_eval.record import Answer, RunRecord, fingerprint, in_words, provenance
from mdlm_lm_eval.request_cache import RequestCache
from mdlm_lm_eval.resolve import Request, Settings, resolve, without_effect
from mdlm_lm_eval.results.names import model_name

logger = logging.getLogger(__name__)
show_option_errors_alone()

# `batch_size=auto` starts from what fits a GPU and halves when memory runs out; a CPU swaps long before it says so.
_MAX_AUTO_BATCH, _MAX_AUTO_BATCH_ON_CPU = 1024, 16
# Likelihood results reach the request cache after this many batches.
_BATCHES_PER_SAVE = 16
# Slots are refilled from this many batches, which are planned together and are of similar lengths.
_BATCHES_PER_RUN = 64
_CUT = "%d of %d prompts were longer than the model's context of %d tokens allows and lost tokens on the left"
# What a completion took, as results name it.
_COUNTS = ("forward_passes", "denoising_steps", "layer_tokens", "written_tokens", "answer_tokens")
# HFLM's arguments that its methods read, and those that belong to methods which are others here.
_OF_HFLM = "mixed_precision_dtype max_length batch_size max_batch_size add_bos_token prefix_token_id think_end_token"
_OF_METHODS = (*_OF_HFLM.split(), "enable_thinking", "chat_template_args")
_WITHOUT_EFFECT = ("backend", "logits_cache", "softmax_dtype", "truncation", "use_cache")


T = TypeVar("T")


@dataclass
class Generation:
    """One generation request, and what came of it: its string, and where it is audited the exact answer."""

    instance: Instance
    request: Request
    canvas: Canvas
    ending: Ending
    counts: dict[str, int]  # its effective numbers, and how many prompt tokens were cut off
    own_key: bool  # whether lm-eval's `--use_cache` would give all repetitions one answer, or none
    is_audited: bool = False
    string: str | None = None
    exact: Answer | None = None


def where_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Where model arguments say that a checkpoint's files are, and whether its code may run."""
    return {
        "revision": str(arguments.get("revision") or "main"),
        "subfolder": str(arguments.get("subfolder") or ""),
        "trust_remote_code": parse_flag("trust_remote_code", arguments.get("trust_remote_code") or False),
    }


def config_of(pretrained: str | None, arguments: Mapping[str, Any]) -> PretrainedConfig:
    """The config that model arguments load a checkpoint with. Raises OptionError, as `families.load_config` does."""
    name = model_path(str(pretrained or BUILT_IN))
    return families.load_config(name, diffusion_family=arguments.get("diffusion_family"), **where_of(arguments))


def settings_of(config: PretrainedConfig, arguments: Mapping[str, Any]) -> Settings:
    """Model arguments, merged for the model of a config. Raises OptionError for what it cannot do."""
    family, implementation = families.family_of(config), arguments.get("attn_implementation")

    def check(options: DecodingOptions, attention: Any, in_slots: bool | None = None) -> None:
        families.check_options(config, options, in_slots=in_slots)
        check_decoding(options, attention, edits=family.edits)
        if in_slots:
            family.refuse("infill", "true")

    return resolve(
        arguments,
        family=family.decoding_defaults,
        attention_of=lambda length: families.attention_of(config, length, implementation),
        check=check,
        default_seed=torch.initial_seed() % 2**63,  # lm-eval seeds torch with --seed before it builds the model
    )


class Batches:
    """Batch size as lm-eval gives it. `auto` starts from the largest size and halves it whenever memory runs out.

    size: the one in use; most: the largest that did not run out of memory yet.
    """

    def __init__(self, batch_size: int | str, largest: int) -> None:
        self.automatic = batch_size == "auto"
        self.size = self.most = largest if self.automatic else int(batch_size)

    def run(
        self,
        requests: Sequence[T],
        run: Callable[[list[T], int], None],
        *,
        batches_per_call: int,
        most: int,
        rows_of: Callable[[T], int] = lambda _: 1,
    ) -> None:
        """Calls `run(part, batch size)` for consecutive parts of `requests`, each of at most so many batches of rows.

        A request stands for `rows_of(request)` rows; a part has one at least. `auto` takes up to `most` rows.

        Parts that are done stay done when a later one runs out of memory; the smaller size is kept for the next call.
        """
        left = list(requests)
        self.size = min(self.most, most) if self.automatic else self.size
        while left:
            rows = count = 0
            while count < len(left) and (count == 0 or rows + rows_of(left[count]) <= self.size * batches_per_call):
                rows += rows_of(left[count])
                count += 1
            try:
                run(left[:count], self.size)
            except RuntimeError as error:
                if not should_reduce_batch_size(error) or not self.automatic or self.size == 1:
                    raise
                self.size = self.most = self.size // 2
            else:
                del left[:count]
                continue
            clear_device_cache(garbage_collection=True)  # here, where the error no longer holds the batch's tensors


class MDLM(HFLM):
    """Masked diffusion language model for lm-eval, registered as `mdlm`.

    `pretrained` is a hub id, a folder, a model object, or the name of a model that comes with the package; these fit
    into any machine, and their `batch_size` is auto by default. Takes HFLM's and transformers' arguments, the fields of
    `DecodingOptions` and `LikelihoodOptions`, and those of `ModelOptions`.
    Raises OptionError, before weights are read, for an unknown argument and for an option that the model cannot do.
    """

    _model: Any  # set by HFLM
    _has_chat_template = False
    peft: str | None

    _facts: dict[str, Any] | None = None  # what was last said of an evaluation

    def __init__(self, pretrained: str | PreTrainedModel | None = BUILT_IN, **arguments: Any) -> None:
        load_plugins(arguments.get("plugins"))
        model: Any = pretrained if isinstance(pretrained, torch.nn.Module) else None
        if model is None and (pretrained or BUILT_IN) in MODEL_FOLDERS and arguments.get("batch_size") is None:
            arguments["batch_size"] = "auto"
        name = model_path(str(pretrained or BUILT_IN)) if model is None else model.name_or_path
        where = where_of(arguments)
        self._config = config_of(pretrained, arguments) if model is None else model.config
        families.check_config(self._config, name or "a model object")
        self._family = family = families.family_of(self._config)
        self.settings = settings = settings_of(self._config, arguments)
        loading = dict(settings.loading)
        for key in sorted(set(_WITHOUT_EFFECT) & loading.keys()):
            logger.warning("%s has no effect with --model mdlm", key)
        of_methods = {key: loading.pop(key) for key in _OF_METHODS if key in loading}
        fast, tokenizer = loading.pop("use_fast_tokenizer", True), loading.pop("tokenizer", name)
        if isinstance(tokenizer, (str, int, float)):
            how = {**where, "use_fast_tokenizer": fast, "add_bos_token": of_methods.get("add_bos_token")}
            tokenizer = families.load_tokenizer(str(tokenizer), config=self._config, **how)
        self.mask_token_id = families.resolve_mask_token_id(self._config, tokenizer, settings.model.mask_token_id)
        shift = settings.model.shift_logits
        shift = family.shift(self._config) if shift is None else shift
        self._context = context_length(self._config, tokenizer)
        self._max_length = of_methods.get("max_length")  # as HFLM sets it
        peft = str(loading.pop("peft", None) or "") or None
        for key in (*where, *_WITHOUT_EFFECT):
            loading.pop(key, None)
        processes = None
        if model is None:
            dtype = get_dtype(loading.pop("torch_dtype", None) or loading.pop("dtype", None) or "auto")
            loading, processes = families.placed(loading)
            model = families.load_model(name, self._config, dtype=dtype, **where, **loading)
        if peft:
            model = families.load_adapter(model, peft, revision=where["revision"])
        logging.getLogger(HFLM.__module__).disabled = True  # it warns of models that it did not load itself
        super().__init__(model, backend="causal", tokenizer=tokenizer, peft=peft, **where, **of_methods)
        logging.getLogger(HFLM.__module__).disabled = False
        if processes is not None and processes.num_processes > 1:
            self.accelerator = processes
            self._rank, self._world_size = processes.process_index, processes.num_processes
        self.pretrained, self.name = name, model_name(name)
        self.enable_thinking = of_methods.get("enable_thinking")
        # Now, as somebody may train into these folders while the model is evaluated.
        self.weights = families.files_digest(name, where["subfolder"]) if name else None
        self.adapter_weights = peft and families.files_digest(peft)
        pad, mask = self.tokenizer.pad_token_id, self.mask_token_id
        facts: dict[str, Any] = {"shift": shift, "attention": settings.attention}
        facts |= {"edits": family.edits, "read": family.read, "compiled": settings.model.compile}
        self.denoiser = Denoiser(self.model, mask_token_id=mask, pad_token_id=pad, **facts)
        # Encoders have no generation config.
        generation_eos = self.model.generation_config.eos_token_id if self.model.can_generate() else None
        self.eos_ids = families.eos_ids(self.tokenizer, generation_eos)
        self.end_of_turn_ids = families.end_of_turn_ids(self.tokenizer)
        self._mask_string = self.tokenizer.convert_ids_to_tokens(mask)  # None where the id has no name
        self._closing_ids = closing_ids(self.tokenizer)
        if self.max_length > self._context:
            logger.warning("max_length=%d: the model was made for %d tokens", self.max_length, self._context)
        self.start_record()
        say_at_the_end(lambda: {} if self._facts is None else in_words(self._facts, self._has_chat_template))

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> "MDLM":
        """What `lm_eval` builds the model by; `batch_size` and `device` may be among the model arguments too."""
        given = {name.strip(): value for name, value in arg_dict.items()}
        # lm-eval names the folder of results after it, from the same dictionary, once the model is built.
        arg_dict["pretrained"] = given["pretrained"] = given.get("pretrained") or BUILT_IN
        own = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if own.get("batch_size") == 1 and runs_lm_eval():  # the command's default; what is typed is text
            del own["batch_size"]
        return cls(**own | given)

    # Options

    def use_options(self, arguments: Mapping[str, Any]) -> None:
        """Decodes and scores with other model arguments over the same weights, and begins a record of its own."""
        self.settings, self._facts = settings_of(self._config, arguments), None
        self.start_record()
        self.denoiser.attention = self.settings.attention

    def use_adapter(self, peft: str | None) -> None:
        """Puts another adapter, or none, over the base model's weights. Raises OptionError where it does not fit."""
        base = self._model if self.peft is None else self._model.unload()
        self._model = base if peft is None else families.load_adapter(base, peft, revision=self.revision)
        self._model.eval()
        self.peft = peft
        self.adapter_weights = peft and families.files_digest(peft)
        self.denoiser.model = self._model
        self._facts = None

    # Text

    @cached_property
    def max_length(self) -> int:
        """Tokens that fit on a canvas."""
        return int(self._max_length or self._context)

    @cached_property
    def prefix_token_id(self) -> int:
        """Comes before a text that has no context; an encoder's is [CLS]."""
        found: int | None = super().prefix_token_id
        return int(self.tokenizer.cls_token_id) if found is None else found

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids of a text that goes on: without a closing token, and the mask token's own string stays text."""
        ids: list[int]
        if self._mask_string is None or self._mask_string not in string:
            ids = super().tok_encode(string, add_special_tokens)
        else:
            encode = lambda piece, first: HFLM.tok_encode(self, piece, add_special_tokens if first else False)  # noqa: E731
            ids = encode_without_masks(self.tokenizer, string, self.mask_token_id, encode)
        closed = self._closing_ids and ids[-len(self._closing_ids) :] == self._closing_ids
        return ids[: -len(self._closing_ids)] if closed else ids

    # Generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One string a request. Raises OptionError for any request's options before the first forward pass."""
        requests, places = self._own(requests)
        keys = [json.dumps(instance.args[1], default=str) for instance in requests]
        for key, instance in zip(keys, requests, strict=True):
            if key not in self._resolved:
                self._resolved[key] = self.settings.request(instance.args[1])
        wanted = [self._resolved[key] for key in keys]
        if ignored := {name for request in wanted for name in request.ignored}:
            logger.warning("Ignored, as masked diffusion has no use for them: %s", ", ".join(sorted(ignored)))
        seeds = seeds_of(requests, [request.options.seed for request in wanted])
        generations = [self._prepare(*each) for each in zip(requests, wanted, seeds, strict=True)]
        warn_of_no_effect(generations)
        if n_cut := sum(one.counts["truncated"] > 0 for one in generations):
            logger.warning(_CUT, n_cut, len(generations), self.max_length)
        for one in generations:
            if self.request_cache and one.own_key:
                one.string = self.request_cache.sample(one.instance.args, one.canvas.seed)
        if self.settings.model.cache_audit:
            self._choose_for_audit(generations, self.settings.model.cache_audit)
        steps, quiet = sum(one.canvas.steps for one in generations), disable_tqdm or self.rank != 0
        bar = tqdm(total=steps, desc="Running generate_until requests", unit=" steps", disable=quiet)

        def run(part: list[Generation], n_slots: int) -> None:
            part = [one for one in part if one.string is None]  # where memory ran out, some are done
            bar.update(sum(one.canvas.steps for one in generations if one.string is not None) - bar.n)
            if audited := [one for one in part if one.is_audited and one.exact is None]:
                self._decode(audited, n_slots, cache="none")
            self._decode(part, n_slots, bar.update)

        groups: dict[Hashable, list[Generation]] = {}
        for one in generations:
            if one.string is None:
                groups.setdefault(one.request.alike, []).append(one)
        for group in groups.values():  # the longest canvases first, so that memory runs out early if ever
            group.sort(key=lambda one: (-len(one.canvas.token_ids), one.canvas.token_ids))
            most = self._rows_that_fit(group[0]) if self.batches.automatic else 1
            self.batches.run(group, run, batches_per_call=_BATCHES_PER_RUN, most=most)
        bar.close()
        return [str(generations[n].string) for n in places]

    def _prepare(self, instance: Instance, request: Request, seed: int) -> Generation:
        text, options = instance.args[0], request.options
        fillers = self.tok_encode(options.filler, False) * options.n_fillers if options.n_fillers else []
        build: Callable[..., tuple[Canvas, int]] = build_canvas
        prompt: Any = None
        if request.infill:
            build = build_infill_canvas
            encode = lambda piece, first: HFLM.tok_encode(self, piece, None if first else False)  # noqa: E731
            prompt = encode_infill(self.tokenizer, text, self.mask_token_id, encode)
            if self._family.read:
                options = replace(options, steps=1)  # of a read
        canvas, truncated = build(
            prompt or self.tok_encode(text),
            options,
            mask_token_id=self.mask_token_id,
            max_length=self.max_length,
            filler_ids=fillers,
            seed=seed,
            attention=request.attention,
        )
        ending = Ending(self.tokenizer, self.eos_ids | self.end_of_turn_ids, request.until, self.think_end_token)
        n_masks, asked, block_length = len(canvas.slots), options.n_masks, request.attention.block_length
        counts = {"masks": n_masks, "asked_masks": n_masks, "steps": canvas.steps}
        if block_length is not None and options.mode != "ar":  # masks stand to the end of the last block
            counts |= {"asked_masks": asked if isinstance(asked, int) else canvas.n_returned}
            counts |= {"block_length": block_length, "masks_in_block": canvas.block_lengths[0]}
        counts |= {"returned_tokens": canvas.n_returned, "fillers": len(fillers)}
        counts |= {"truncated": truncated, "prompt_tokens": canvas.prompt_length}
        own_key = request.sampled or self._family.generate is not None or bool(instance.args[1].get("do_sample"))
        return Generation(instance, request, canvas, ending, counts, own_key)

    def _decode(
        self,
        part: Sequence[Generation],
        n_slots: int,
        advance: Callable[[int], object] = lambda _: None,
        **changes: Any,
    ) -> None:
        """Decodes requests of one setting in so many slots; with `changes` of its options, for the audit.

        Answers are kept as they are done, as many at a time as there are slots. What was spent since the last time is
        shared out by the passes that each took.
        """
        generate, first = self._family.generate, part[0]
        options = replace(first.request.options, **changes) if changes else first.request.options
        # Transformers' own methods remember what they do.
        cache = options.cache if generate else cache_name(first.request.attention, options)
        ends = self.eos_ids | self.end_of_turn_ids
        n_slots = 1 if generate else min(n_slots, len(part))
        n_left, passes = len(part), self.denoiser.forward_passes
        done: list[tuple[Generation, Completion]] = []

        def finished(at: int, completion: Completion) -> None:
            nonlocal n_left, passes
            done.append((part[at], completion))
            advance(part[at].canvas.steps - completion.cost.steps)  # what early exit saved
            if len(done) < min(n_slots, n_left):
                return
            seconds, peak_memory = meter.read()
            n_passes, passes = self.denoiser.forward_passes - passes, self.denoiser.forward_passes
            self.record.forward_passes += 0 if changes else n_passes
            n_left -= len(done)
            row_passes = sum(each.cost.forward_passes for _, each in done)
            for one, each in done:
                ids, cost, share = each.token_ids, each.cost, each.cost.forward_passes / row_passes
                n_answer = len(ids) - (ids[-1:] != [] and ids[-1] in ends)
                amounts = dict(zip(_COUNTS, (*astuple(cost), each.n_written, n_answer), strict=True))
                amounts |= {"slot_passes": share * n_slots * n_passes, "seconds": share * seconds}
                string, ending = one.ending.of(ids)
                trace = filled(each.events, one.canvas.slots[: len(ids)], self.mask_token_id) if each.events else []
                answer = Answer(string, ids, amounts | {"peak_memory_bytes": peak_memory}, trace)
                if changes:
                    one.exact = answer
                    continue
                one.string, doc_id = string, one.instance.doc_id
                setting = ("generate_until", one.request.options)
                task = self.record.add(one.instance.task_name, setting, answer.cost, **one.counts)
                task.caches.add(cache)
                task.endings.update({ending: 1, "empty": not string.strip()})
                if answer.trace:
                    task.trace(doc_id, answer, self.tokenizer)
                if one.exact:
                    task.audit(doc_id, answer, one.exact)
            if self.request_cache and not changes:
                kept = ((one.instance.args, one.string, one.canvas.seed if one.own_key else None) for one, _ in done)
                self.request_cache.save("generate_until", kept, self.record)
            done.clear()

        canvases = [one.canvas for one in part]
        with self._measured([one.instance for one in part]) as meter:
            if generate is None:
                how: dict[str, Any] = {"eos_ids": self.eos_ids, "end_of_turn_ids": self.end_of_turn_ids}
                how |= {"is_decided": first.ending.is_decided, "advance": advance, "finished": finished}
                how |= {"end_think_ids": HFLM.tok_encode(self, options.end_think, add_special_tokens=False)}
                decode_canvases(self.denoiser, canvases, options, batch_size=n_slots, **how)
                return
            for at, canvas in enumerate(canvases):
                if self.denoiser.read and first.request.infill:
                    completion = fill_by_reads(self.denoiser, canvas, options, self.batches.size, index=at)
                else:
                    prompt, how = list(canvas.token_ids[: canvas.prompt_length]), {"n_tokens": canvas.n_returned}
                    how |= {"end_ids": sorted(ends), "pad_token_id": self.tokenizer.pad_token_id, "seed": canvas.seed}
                    ids, n_passes, n_written = generate(self.model, prompt, options, **how)
                    self.denoiser.forward_passes += n_passes
                    completion = Completion(ids, RowCost(forward_passes=n_passes, steps=n_passes), n_written)
                advance(completion.cost.steps)
                finished(at, completion)

    def _rows_that_fit(self, longest: Generation) -> int:
        """The most slots for canvases up to this one."""
        options, canvas, attention = longest.request.options, longest.canvas, longest.request.attention
        is_cached = cache_policy(attention, options).remembers
        length = columns_of(len(canvas.token_ids), is_padded=is_cached)
        sizes = {"length": length, "n_logits": max(canvas.block_lengths), "is_cached": is_cached}
        sizes["is_ahead"] = attention.is_block_causal
        return self._most_rows(**sizes, guided=options.cfg_scale > 0.0)

    def _choose_for_audit(self, generations: Sequence[Generation], wanted: float) -> None:
        """Marks requests that are decoded exactly as well: chosen by their seeds, not by batches or order.

        Up to 1, `wanted` is the share of requests. Above, it is their number in each task, of which every process takes
        its part. Raises OptionError for sampled requests.
        """
        by_task: dict[str | None, list[tuple[float, Generation]]] = {}
        for one in generations:
            options = one.request.options
            if not options.is_approximate:
                continue
            if one.request.sampled:
                what = f"cache_audit={shown(wanted)} does not work with temperature={shown(options.temperature)}"
                raise OptionError(f"{what}: sampled answers differ without a cache too")
            place = seed_of(f"cache_audit {one.canvas.seed}") / 2**63
            by_task.setdefault(one.instance.task_name, []).append((place, one))
        share = int(wanted) // self.world_size + (self.rank < int(wanted) % self.world_size)
        for of_task in by_task.values():
            of_task.sort(key=lambda pair: pair[0])
            for n, (place, one) in enumerate(of_task):
                one.is_audited = place < wanted if wanted <= 1 else n < share

    # Likelihood

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log p(continuation | context) in nats, greedy flag) for every request."""
        if self.enable_thinking:
            raise OptionError("enable_thinking=true does not work with likelihood tasks")
        if not self.settings.likelihood.check_greedy:
            logger.warning("check_greedy=false: exact-match metrics of likelihood tasks will be 0")
        return self._score("loglikelihood", requests, disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """A lower bound of log p(text) in nats for every request: the sum over windows."""
        return self._score("loglikelihood_rolling", requests, disable_tqdm)

    def _windows(self, is_rolling: bool, arguments: tuple[Any, ...], seed: int) -> list[LikelihoodRequest]:
        """What one request scores: a continuation behind its context, or a text in windows."""
        context, text = ("", arguments[-1]) if is_rolling else arguments
        if context.strip():
            context_ids, ids = self._encode_pair(context, text)
            return [LikelihoodRequest(context_ids, ids, seed)]
        prefix, ids = self.prefix_token_id, self.tok_encode(context + text, add_special_tokens=False)
        ids = ids[1:] if ids[:1] == [prefix] else ids
        if not is_rolling:
            return [LikelihoodRequest([prefix], ids, seed)]
        how: dict[str, Any] = {"max_length": self.max_length, "n_masks": self.settings.likelihood.n_masks}
        return rolling_windows(ids, prefix_token_id=prefix, seed=seed, **how)

    def _score(self, request_type: str, requests: Sequence[Instance], disable_tqdm: bool) -> list[Any]:
        """Scores the windows of requests, longest first and those with the same context together."""
        options, is_rolling = self.settings.likelihood, request_type == "loglikelihood_rolling"
        if is_rolling:
            options = replace(options, check_greedy=False)  # the flag is not read there
        self._family.refuse("likelihood", options.likelihood)
        requests, places = self._own(requests)
        seeds = seeds_of(requests, [options.seed] * len(requests))
        windows = [self._windows(is_rolling, one.args, seed) for one, seed in zip(requests, seeds, strict=True)]
        cut = [[truncated_tokens(window, options, self.max_length) for window in own] for own in windows]
        if n_cut := sum(tokens > 0 for own in cut for tokens in own):
            logger.warning(_CUT, n_cut, sum(map(len, cut)), self.max_length)
        found: dict[int, Any] = {}
        bar = tqdm(total=len(requests), desc=f"Running {request_type} requests", disable=disable_tqdm or self.rank != 0)

        def run(chunk: list[int], batch_size: int) -> None:
            passes, canvases = self.denoiser.forward_passes, self.denoiser.canvas_count
            batch = [(n, window, tokens) for n in chunk for window, tokens in zip(windows[n], cut[n], strict=True)]
            with self._measured([requests[n] for n, _, _ in batch]) as meter:
                of_batch = [window for _, window, _ in batch]
                scores = score(self.denoiser, of_batch, options, batch_size=batch_size, max_length=self.max_length)
            seconds, peak_memory = meter.read()
            self.record.forward_passes += self.denoiser.forward_passes - passes
            n_canvases = self.denoiser.canvas_count - canvases
            shares = {"canvases": n_canvases / max(1, len(batch)), "seconds": seconds / max(1, len(batch))}
            sums = dict.fromkeys(chunk, (0.0, True))
            for (n, window, truncated), (log_likelihood, greedy, *errors) in zip(batch, scores, strict=True):
                sums[n] = (sums[n][0] + log_likelihood, sums[n][1] and greedy)
                tokens = len(window.continuation_ids)
                masks = tokens if options.n_masks == "auto" else options.n_masks
                values: dict[str, Any] = {"masks": masks, "asked_masks": masks, "continuation_tokens": tokens}
                if errors and errors[0] is not None:
                    values["read_standard_error"] = errors[0]
                spent = {**shares, "peak_memory_bytes": peak_memory}
                self.record.add(requests[n].task_name, (request_type, options), spent, truncated=truncated, **values)
            # lm-eval 0.4 rolls over (text,) and wants a number; 0.5 over ("", text), and wants a pair.
            found.update({n: sums[n] if len(requests[n].args) == 2 else sums[n][0] for n in chunk})
            if self.request_cache:
                entries = ((requests[n].args, found[n], None) for n in chunk)
                self.request_cache.save(request_type, entries, self.record)
            bar.update(len(chunk))

        def longest_first(n: int) -> tuple[int, list[int]]:
            first = max(windows[n], key=_length, default=LikelihoodRequest([], []))
            return -_length(first), first.context_ids

        most, longest = 1, max((window for own in windows for window in own), key=_length, default=None)
        if longest is not None:
            length = len(longest.context_ids) + answer_length(longest, options)
            sizes = {"n_logits": len(longest.continuation_ids), "is_cached": self.denoiser.attention.is_block_causal}
            most = self._most_rows(length=min(length, self.max_length), guided=options.cfg_scale > 0.0, **sizes)
        rows: dict[str, Any] = {"rows_of": lambda n: sum(most_rows(window, options) for window in windows[n])}
        order = sorted(range(len(requests)), key=longest_first)
        self.batches.run(order, run, batches_per_call=_BATCHES_PER_SAVE, most=most, **rows)
        bar.close()
        return [found[n] for n in places]

    # Batches, processes and what is kept

    @cached_property
    def batches(self) -> Batches:
        """The batch size in use, shared by all requests of a run."""
        most = int(self.settings.loading.get("max_batch_size") or _MAX_AUTO_BATCH)
        return Batches(self.batch_size, min(most, _MAX_AUTO_BATCH_ON_CPU) if self.device.type == "cpu" else most)

    def _most_rows(self, **sizes: Any) -> int:
        """Rows of these sizes, as `row_memory` takes them, that fit into a GPU beside the weights."""
        free = devices.free_bytes(self.device)
        if free is None or self._family.generate is not None:
            return self.batches.most
        row = row_memory(self.model.config, itemsize=self.model.dtype.itemsize, **sizes)
        return rows_that_fit(row, free, most=self.batches.most)

    @contextmanager
    def _measured(self, instances: Sequence[Instance]) -> Iterator[devices.Meter]:
        """Around forward passes: what they use. Names task and document where logits are not finite."""
        mixed = self.mixed_precision_dtype
        try:
            with torch.autocast(self.device.type, mixed, enabled=bool(mixed)):
                yield devices.Meter(self.device)
        except NonFiniteLogitsError as error:
            instance = instances[error.index]
            raise OptionError(
                f"the model's logits are not finite (NaN or infinity) for the task {instance.task_name}, document "
                f"{instance.doc_id}: its weights are damaged, or its dtype is too narrow (try dtype=float32)"
            ) from error

    def _own(self, requests: Sequence[Instance]) -> tuple[list[Instance], list[int]]:
        """Requests without the copies of the last one by which lm-eval makes the shares of processes equal.

        And which of them answers each that was given; repetitions follow each other. Warns of a preset that was made
        for other tasks or another family.
        """
        if (preset := self.settings.model.preset) and self.rank == 0:
            for sentence in mismatches(preset, self._family.name, sorted({str(one.task_name) for one in requests})):
                logger.warning(sentence)
        n_copies, repeats = 0, (requests[-1].repeats or 1) if requests else 1
        if self.world_size > 1:
            n_copies = max(0, sum(instance is requests[-1] for instance in requests) - repeats)
        n_own = len(requests) - n_copies
        return list(requests[:n_own]), [*range(n_own), *(n_own - repeats + n % repeats for n in range(n_copies))]

    def start_record(self) -> None:
        """Forgets what was recorded so far, and the request cache that it was kept in."""
        self.request_cache: RequestCache | None = None
        self._resolved: dict[str, Request] = {}
        self.record = self.record_of_all = RunRecord()  # of this process, and of all

    def barrier(self) -> None:
        """Waits for all processes and shares their records.

        lm-eval calls it in every process after each kind of request; a process whose requests all came from the request
        cache runs none of the methods above, so no exchange can happen there.
        """
        if self.world_size > 1:
            records: list[Any] = [None] * self.world_size
            torch.distributed.all_gather_object(records, self.record)
            self.record_of_all = RunRecord()
            for record in records:
                self.record_of_all.merge(record)

    def get_model_info(self) -> dict[str, Any]:
        """lm-eval's own facts about the model, and under `mdlm` everything that a score depends on.

        Requests that come after it are those of another evaluation, and begin a record of their own; until then, it
        says the same again.
        """
        if self._facts is None or self.record_of_all != RunRecord():
            self._facts = provenance(self)
            self.start_record()
        return super().get_model_info() | {"mdlm": self._facts}

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's template, which lm-eval asks for where it applies it."""
        self._has_chat_template = bool(chat_template)
        template: str | None = super().chat_template(chat_template)
        return template

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuses, with an OptionError, a request cache that another model or other options filled."""
        if cache_hook.dbdict is not None:
            self.request_cache = RequestCache(cache_hook.dbdict, fingerprint(self))
            self.record = self.record_of_all = self.request_cache.record or self.record
        super().set_cache_hook(cache_hook)


def warn_of_no_effect(generations: Sequence[Generation]) -> None:
    """Says which options that were typed change nothing in these requests."""
    for request in {id(one.request): one.request for one in generations}.values():
        for name, why in without_effect(request.options, request.attention).items():
            if name in request.typed:
                logger.warning("%s=%s has no effect %s", name, shown(getattr(request.options, name)), why)
    short = [
        len(one.canvas.slots)
        for one in generations
        if "block_length" in one.request.typed
        and not one.request.attention.is_block_causal
        and (one.request.options.block_length or 0) > len(one.canvas.slots)
    ]
    if short:
        what = "block_length is longer than %d of %d canvases, which are one block each; the shortest has %d masks"
        logger.warning(what, len(short), len(generations), min(short))


def seeds_of(requests: Sequence[Instance], seeds: Sequence[int]) -> list[int]:
    """Seeds by content: the same request draws the same numbers in any batch, order and process.

    Equal requests of one document are repetitions (a task with `repeats`) and get seeds of their own.
    """
    seen: Counter[str] = Counter()
    found = []
    for instance, seed in zip(requests, seeds, strict=True):
        request = json.dumps([seed, instance.args], sort_keys=True, default=str)
        key = f"{instance.doc_id!r} {request}"  # another document may happen to have the same text
        found.append(seed_of(f"{seen[key]} {request}"))
        seen[key] += 1
    return found


def _length(window: LikelihoodRequest) -> int:
    return len(window.context_ids) + len(window.continuation_ids)
