"""The lm-eval model `mdlm`, which answers requests with strings and log-likelihoods."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.arguments import settings_of
from mdlm_lm_eval.command_line import say_at_the_end, show_errors_and_warnings_alone
from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas, build_infill_canvas, repetitions, seed_of_request
from mdlm_lm_eval.decoding.guests import asked_tokens, signature_of
from mdlm_lm_eval.jobs.generation import NO_LABELS, Generation, GenerationJob, Labels
from mdlm_lm_eval.jobs.likelihood import LikelihoodJob, PreparedWindow, ScoredRequest
from mdlm_lm_eval.jobs.request_cache import RequestCache
from mdlm_lm_eval.jobs.shared import PreparedRequest, own_requests, seeds_of, task_of, warn_of_unknown
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, rolling_windows, truncated_tokens
from mdlm_lm_eval.likelihood.scoring import check_likelihood
from mdlm_lm_eval.loaded import LoadedModel
from mdlm_lm_eval.model.text import (
    ENDINGS,
    SLOT_MARKER,
    Ending,
    closes_thinking,
    count_unknown,
    encode_infill,
    has_slots,
    stop_ids,
)
from mdlm_lm_eval.models import BUILT_IN
from mdlm_lm_eval.options import DEFAULT_SAMPLER, DecodingOptions, LikelihoodOptions, OptionError, shown
from mdlm_lm_eval.presets import mismatches
from mdlm_lm_eval.provenance import fingerprint, in_words, provenance
from mdlm_lm_eval.record import RunRecord
from mdlm_lm_eval.resolve import ResolvedRequest

logger = logging.getLogger(__name__)
show_errors_and_warnings_alone()

_CUT = (
    "%d of %d prompts were cut on the left, because prompt and masks exceed the model's context of %d tokens; at "
    "worst, the last %d of %d tokens of a prompt are left; set a lower n_masks"
)
_PLAIN = "%d of %d prompts hold %s as plain text; for slots, write <|mask|> in a task with infill: true"
_NO_SLOTS = "%d of %d prompts hold <|mask|> as plain text; a task's infill: true makes it a slot"
_OTHER_DECODER = "pretrained=%s was trained for a decoder of its own, which %s; use %s"
_ONE_BLOCK = "block_length is longer than %d of %d canvases, which are one block each; the shortest has %d masks"
_UNFINISHED = "%d of %d answers end before think_end_token=%s (unfinished_thinking=%s); raise max_gen_toks"
_KEPT = "%d answers hold their thinking (%s), which is scored; set think_end_token"
_CLOSED = "%d of %d prompts end thinking before it begins (chat template or gen_prefix), although it was asked for"
_THOUGHT = (
    "{}: the prompts leave thinking open, so that choices would be scored as thoughts; use enable_thinking=false, if "
    "the chat template knows it, or no chat template"
)
_LONGER = "%d of %d continuations are longer than n_masks=%d and scored at their own lengths, of up to %d tokens"


class MDLM(LoadedModel):
    """A masked diffusion language model for lm-eval, which `lm_eval --model mdlm` uses.

    The arguments are those of `--model_args`.
    """

    _facts: dict[str, Any] | None = None  # the facts that `get_model_info` returned last
    _last: Sequence[Instance] = ()  # the last request since `barrier`, of which there may be copies

    def __init__(self, pretrained: str | PreTrainedModel | None = BUILT_IN, **arguments: Any) -> None:
        super().__init__(pretrained, **arguments)
        self.start_record()
        say_at_the_end(lambda: {} if self._facts is None else in_words(self._facts))

    # Options

    def use_options(self, arguments: Mapping[str, Any]) -> None:
        """Changes the model arguments for the same weights, and begins a new record."""
        self.settings, self._facts = settings_of(self._config, arguments), None
        self.start_record()
        self.denoiser.attention = self.settings.attention

    def _take_seed(self) -> None:
        """Takes the seed of this evaluation, with which lm-eval seeds torch, perhaps after the model was built."""
        self.settings = self.settings.seeded(torch.initial_seed() % 2**63)

    def use_adapter(self, peft: str | None) -> None:
        """Puts another adapter, or none, on the base model. Raises OptionError if the adapter does not fit."""
        base = self._model if self.peft is None else checkpoints.without_adapter(self._model)
        self._model = base if peft is None else checkpoints.load_adapter(base, peft, revision=self.revision)
        self._model.eval()
        self.peft = peft
        self.adapter_weights = peft and checkpoints.checkpoint_digest(peft, revision=self.revision)
        self.denoiser.model = self._model
        self._facts = None

    # Generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns a string for each request. Raises OptionError before the first pass if any cannot be answered."""
        self._take_seed()
        self._warn_of_preset(requests)
        self._warn_of_decoder()
        self._last = requests[-1:]
        requests, answered_by = own_requests(requests, self.world_size)
        wanted = self._with_closed_thinking(requests, [self.settings.request(one.args[1]) for one in requests])
        if ignored := {name for request in wanted for name in request.ignored}:
            logger.warning("Ignored, as masked diffusion has no use for them: %s", ", ".join(sorted(ignored)))
        seeds = seeds_of(requests, [request.options.seed for request in wanted])
        repeated = repetitions((task_of(one), one.doc_id, one.idx) for one in requests)
        generations = [self._prepare(*each) for each in zip(requests, wanted, seeds, repeated, strict=True)]
        self._warn_of_no_effect(generations)
        self._warn_of_requests(requests, generations, [one.canvas.prompt_length for one in generations])
        job = GenerationJob(self, generations, shows_progress=not disable_tqdm and self.rank == 0)
        with self._own_record():
            strings = job.run()
        endings = sum((task.endings for task in self.record.tasks.values()), Counter[str]())
        if n_unfinished := endings["unfinished_thinking"]:
            n = sum(endings[name] for name in ENDINGS)
            logger.warning(_UNFINISHED, n_unfinished, n, self.think_end_token, wanted[0].options.unfinished_thinking)
        if n_kept := endings["thinking_kept"]:
            logger.warning(_KEPT, n_kept, wanted[0].options.end_think)
        return [strings[n] for n in answered_by]

    def _with_closed_thinking(
        self, requests: Sequence[Instance], wanted: Sequence[ResolvedRequest]
    ) -> list[ResolvedRequest]:
        """Returns the options of each request, as its prompt closes thinking, leaves it open, or has none.

        Warns if the user asked for thinking where a prompt closes it.
        """
        has_asked = bool(self.chat_template_args.get("enable_thinking"))
        found, n_closed = [], 0
        for instance, request in zip(requests, wanted, strict=True):
            is_closed = self._closes_thinking(instance.args[0], request.options)
            begun = request.as_thought if is_closed is False else request
            found.append(request.without_thinking if is_closed else begun)
            n_closed += bool(is_closed) and (has_asked or found[-1].options != request.options)
        if n_closed:
            logger.warning(_CLOSED, n_closed, len(found))
        return found

    def _closes_thinking(self, prompt: str, options: DecodingOptions) -> bool | None:
        """Returns whether a prompt closes thinking; False if it leaves it open, None if it has none."""
        turn_ends, named = sorted(self.eos_ids | self.end_of_turn_ids), self.think_end_token
        think_end = self.tokenizer.decode([named]) if isinstance(named, int) else named
        return closes_thinking(prompt, think_end or options.end_think, self.tokenizer.convert_ids_to_tokens(turn_ends))

    def _prepare(self, instance: Instance, request: ResolvedRequest, seed: int, repetition: int) -> Generation:
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
        if self.family.generate is not None and not request.infill:
            del numbers["steps"]  # which its own method decides
        if options.guest is not None:
            takes, asked = signature_of(options), asked_tokens(options, n_masks, canvas.n_returned)
            told = takes.arguments(options, asked, canvas.n_returned)
            numbers = {"masks": takes.length(asked, options), "asked_masks": asked}
            if (own := takes.own_name("steps")) in told:
                numbers["steps"] = told[own]
        numbers["returned_tokens"] = canvas.n_returned
        numbers["fillers"] = len(fillers)
        numbers["prompt_tokens"] = canvas.prompt_length
        may_draw = options.guest is not None or self.family.draws
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
                self.eos_ids | self.end_of_turn_ids | stop_ids(self.tokenizer, request.until),
                request.until,
                self.think_end_token,
                thinks=request.thinks,
                empties=options.unfinished_thinking == "empty",
                in_text=request.infill,
            ),
            labels=Labels.of(instance.doc) if canvas.n_returned == 1 else NO_LABELS,
            repetition=repetition,
        )

    def canvas(self, text: str, request: ResolvedRequest, fillers: list[int], seed: int) -> tuple[Canvas, int]:
        """Returns a request's canvas, and the number of prompt tokens that were cut off."""
        options = request.options
        ids: list[Any]
        build: Callable[..., tuple[Canvas, int]] = build_infill_canvas if request.infill else build_canvas
        if request.infill:
            encode = lambda piece, first: HFLM.tok_encode(self, piece, None if first else False)  # noqa: E731
            ids = encode_infill(self.tokenizer, text, self.mask_token_id, encode)
            if self.family.read:  # such a family fills slots in one step
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
        prefix = self.prefix_token_id
        if context.strip():
            context_ids, ids = self._encode_pair(context, text)
        else:
            ids = self.tok_encode(context + text, add_special_tokens=False)
            context_ids, ids = [prefix], ids[1:] if ids[:1] == [prefix] else ids
        if not is_rolling:
            return [LikelihoodRequest(context_ids, ids, seed, self.ids_after_answers)]
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
        self.family.refuse("likelihood", options.likelihood)
        if (named := self.settings.model.modeling) is not None:
            raise OptionError(f"modeling={named} only generates; likelihoods need the model without it")
        check_likelihood(self.denoiser, options, of_text=is_rolling)

    def scored(self, request_type: str, instance: Instance, *, at_own_length: bool = True) -> ScoredRequest:
        """Returns a likelihood request with the windows that it is scored in.

        at_own_length: whether a continuation longer than `n_masks` has a canvas of its own length. Raises OptionError
        if a canvas does not fit, if the prompt leaves thinking open, and, without `at_own_length`, for such a
        continuation.
        """
        if request_type == "loglikelihood" and self._closes_thinking(instance.args[0], self.settings.decoding) is False:
            raise OptionError(_THOUGHT.format(task_of(instance)))
        options = self._likelihood_options(request_type)
        # Equal texts have one value, in all tasks, as in lm-eval's `--use_cache`.
        seed = seed_of_request(options.seed, instance.args)
        windows = self._windows(request_type == "loglikelihood_rolling", instance.args, seed)
        if at_own_length and (most := options.n_masks) != "auto":
            windows = [replace(one, at_own_length=len(one.continuation_ids) > most) for one in windows]
        return ScoredRequest(instance, [self._prepared_window(instance, one, options) for one in windows])

    def _likelihood_options(self, request_type: str) -> LikelihoodOptions:
        """Returns the options for this type of request. lm-eval does not read the greedy flag of rolling ones."""
        options = self.settings.likelihood
        return replace(options, check_greedy=False) if request_type == "loglikelihood_rolling" else options

    def _prepared_window(
        self, instance: Instance, asked: LikelihoodRequest, options: LikelihoodOptions
    ) -> PreparedWindow:
        n_tokens = len(asked.continuation_ids)
        n_masks = n_tokens if options.n_masks == "auto" or asked.at_own_length else options.n_masks
        numbers = {"masks": n_masks, "asked_masks": n_masks, "continuation_tokens": n_tokens}
        if options.mode == "diffusion" and (block_length := self.denoiser.attention.block_length) is not None:
            numbers["block_length"] = block_length
        return PreparedWindow(
            instance=instance,
            options=options,
            numbers=numbers,
            truncated=truncated_tokens(asked, options, self.max_length),
            text=count_unknown(self.tokenizer, asked.context_ids + asked.continuation_ids),
            asked=asked,
        )

    def _score(self, request_type: str, requests: Sequence[Instance], disable_tqdm: bool) -> list[Any]:
        """Returns the results of all requests. Raises OptionError before the first pass if a canvas does not fit."""
        self._take_seed()
        self.check_likelihoods(request_type)
        self._warn_of_preset(requests)
        self._last = requests[-1:]
        requests, answered_by = own_requests(requests, self.world_size)
        scorings = [self.scored(request_type, one) for one in requests]
        windows = [window for one in scorings for window in one.windows]
        self._warn_of_requests(requests, windows, [len(one.asked.context_ids) - one.truncated for one in windows])
        if longer := [len(one.asked.continuation_ids) for one in windows if one.asked.at_own_length]:
            logger.warning(_LONGER, len(longer), len(scorings), self.settings.likelihood.n_masks, max(longer))
        shows_progress = not disable_tqdm and self.rank == 0
        job = LikelihoodJob(
            self, request_type, scorings, self._likelihood_options(request_type), shows_progress=shows_progress
        )
        with self._own_record():
            results = job.run()
        return [results[n] for n in answered_by]

    # Warnings before the first pass

    def _warn_of_preset(self, requests: Sequence[Instance]) -> None:
        """Warns in one process if the preset was made for other tasks or another family."""
        if (preset := self.settings.model.preset) and self.rank == 0:
            for sentence in mismatches(preset, self.family.name, sorted({task_of(one) for one in requests})):
                logger.warning(sentence)

    def _warn_of_decoder(self) -> None:
        """Warns in one process if the checkpoint was trained for another sampler than the one in effect."""
        options, known = self.settings.decoding, self.own_decoder
        is_plain = self.settings.way.name == DEFAULT_SAMPLER and not options.is_parallel
        if self.rank == 0 and known is not None and (is_plain or (known.use.startswith("its") and not options.guest)):
            logger.warning(_OTHER_DECODER, self.name, known.does, known.use)

    def _warn_of_requests(
        self, requests: Sequence[Instance], prepared: Sequence[PreparedRequest], left: Sequence[int]
    ) -> None:
        """Warns of prompts that were cut, of texts with the mask token's own string, and of unknown tokens.

        left: the number of tokens that are left of each prepared request's prompt.
        """
        if cut := [(one.truncated, n) for one, n in zip(prepared, left, strict=True) if one.truncated]:
            n_lost, n_left = max(cut)
            logger.warning(_CUT, len(cut), len(prepared), self.max_length, n_left, n_lost + n_left)
        mask = self.tokenizer.convert_ids_to_tokens(self.mask_token_id)
        if n_plain := 0 if mask in (None, SLOT_MARKER) else sum(mask in one.args[0] for one in requests):
            logger.warning(_PLAIN, n_plain, len(requests), mask)
        warn_of_unknown((task_of(one.instance), one.text) for one in prepared)

    def _warn_of_no_effect(self, generations: Sequence[Generation]) -> None:
        """Warns of options that were set and change nothing in these requests, and of slots that are not filled."""
        if plain := sum(has_slots(one.instance.args[0]) for one in generations if not one.request.infill):
            logger.warning(_NO_SLOTS, plain, len(generations))
        for request in {id(one.request): one.request for one in generations}.values():
            for name, why in request.without_effect.items():
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
            logger.warning(_ONE_BLOCK, len(short), len(generations), min(short))

    # Batches, processes and records

    def start_record(self) -> None:
        """Begins an empty record, without a request cache."""
        self.request_cache: RequestCache | None = None
        self.record = self.record_of_all = RunRecord()  # for this process, and for all processes

    @contextmanager
    def _own_record(self) -> Iterator[None]:
        """Forgets what a run has answered that an error or Ctrl-C ends: the next one is another evaluation."""
        try:
            yield
        except BaseException:
            self.start_record()
            raise

    def barrier(self) -> None:
        """Waits for all processes, merges their records, and takes back the answers to lm-eval's padding copies.

        lm-eval calls this in every process after each kind of request. The methods above cannot exchange records, as
        they do not run in a process whose requests were all in the request cache.
        """
        for one in self._last:  # lm-eval adds them to the request's own, where pass@k would count them
            del one.resps[one.repeats or 1 :]
        self._last = ()
        if self.world_size > 1:
            records: list[Any] = [None] * self.world_size
            torch.distributed.all_gather_object(records, self.record)
            self.record_of_all = RunRecord()
            for record in records:
                self.record_of_all.merge(record)

    def get_model_info(self) -> dict[str, Any]:
        """Returns lm-eval's own facts about the model and, under `mdlm`, everything that a score depends on.

        Requests after this call belong to another evaluation, which has a new record. Until there are some, a repeated
        call returns the same facts.
        """
        if self._facts is None or self.record_of_all != RunRecord():
            self._facts = provenance(self, self.record_of_all)
            self.start_record()
            self.used_template = None
            self.chat_template_args.pop("chat_template", None)
        return super().get_model_info() | {"mdlm": self._facts}

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns the tokenizer's chat template. lm-eval calls this if it applies the template and writes results."""
        self.used_template = super().chat_template(chat_template)
        if isinstance(chat_template, str) and isinstance(self.tokenizer.chat_template, dict):
            self.chat_template_args["chat_template"] = chat_template  # lm-eval would apply the default one
        return self.used_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the text of a conversation. Raises OptionError for a template without an end."""
        self.used_template = self.used_template or self.tokenizer.get_chat_template()
        with checkpoints.ending_templates(self.pretrained):
            return str(super().apply_chat_template(chat_history, add_generation_prompt))

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Takes lm-eval's request cache. Raises OptionError if another model or other options filled it."""
        self._take_seed()
        if cache_hook.dbdict is not None:
            self.request_cache = RequestCache(cache_hook.dbdict, fingerprint(self, self.record_of_all))
            self.record = self.record_of_all = self.request_cache.record or self.record
            self.record.kept = sum(task.requests for task in self.record.tasks.values())
        super().set_cache_hook(cache_hook)
