"""The lm-eval model `mdlm`: requests in, strings and log-likelihoods out."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from mdlm_lm_eval import families
from mdlm_lm_eval.batching import Batches
from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.decoding.blocks import attention_in_effect, cached_blocks
from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas, build_infill_canvas
from mdlm_lm_eval.decoding.completion import Completion, Cost
from mdlm_lm_eval.decoding.requirements import check_decoding
from mdlm_lm_eval.diffusion_hflm import DiffusionHFLM
from mdlm_lm_eval.likelihood import LikelihoodRequest, most_rows, rolling_windows, score, truncated_tokens
from mdlm_lm_eval.model.denoiser import NonFiniteLogitsError
from mdlm_lm_eval.model.devices import Usage, measured
from mdlm_lm_eval.model.text import Ending, encode_infill
from mdlm_lm_eval.options import LikelihoodOptions, OptionError
from mdlm_lm_eval.provenance import fingerprint, provenance
from mdlm_lm_eval.request_cache import RequestCache, claim_cache
from mdlm_lm_eval.requests import GenerationSettings, RequestSeeds, parse_gen_kwargs
from mdlm_lm_eval.results.audit import Answer, audited_request, chosen_for_audit
from mdlm_lm_eval.results.cost import TaskCost
from mdlm_lm_eval.step_bar import StepBar
from mdlm_lm_eval.values import shown

logger = logging.getLogger(__name__)

# `batch_size=auto` starts from max_batch_size and halves when memory runs out; a CPU swaps long before it says so.
_MAX_AUTO_BATCH_ON_CPU = 16
# Likelihood results reach the request cache after this many batches.
_BATCHES_PER_SAVE = 16


@dataclass(frozen=True)
class Generation:
    """One generation request, ready to decode."""

    instance: Instance
    settings: GenerationSettings
    canvas: Canvas
    truncated: int
    fillers: int
    ending: Ending
    sampled: bool  # whether repetitions differ

    @property
    def has_own_key(self) -> bool:
        """Whether lm-eval's `--use_cache` would give all repetitions one answer, or, as `do_sample` is set, none."""
        return self.sampled or bool(self.instance.args[1].get("do_sample"))

    def without_cache(self) -> "Generation":
        """The same, decoded exactly."""
        return replace(self, settings=replace(self.settings, options=self.settings.options.override({"cache": "none"})))


@contextmanager
def _naming_requests(instances: Sequence[Instance]) -> Iterator[None]:
    """Names task and document where the logits of one of these requests are not finite."""
    try:
        yield
    except NonFiniteLogitsError as error:
        instance = instances[error.index]
        raise OptionError(
            f"the model's logits are not finite (NaN or infinity) for the task {instance.task_name}, document "
            f"{instance.doc_id}: its weights are damaged, or its dtype is too narrow (try dtype=float32)"
        ) from error


class MDLM(DiffusionHFLM):
    """Masked diffusion language model for lm-eval, registered as `mdlm`.

    Takes HFLM's arguments (`pretrained`, `dtype`, `peft`, `revision`, `batch_size`, ...), the fields of
    `DecodingOptions` and `LikelihoodOptions`, a `preset` of them, `mask_token_id`, `shift_logits`, and transformers'
    loading arguments.
    """

    def check_task(self, output_type: str, gen_kwargs: Mapping[str, Any] | None) -> None:
        """Raises OptionError where requests of a task would be refused, before any of another is run."""
        if output_type == "generate_until":
            parse_gen_kwargs(gen_kwargs or {}, self.decoding, self.explicit, self._arguments.typed)
        else:
            self._check_likelihood(rolling=output_type == "loglikelihood_rolling")

    # Generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One string a request. Raises OptionError for any request's options before the first forward pass."""
        self._leave_what_is_told()
        generations = self._prepare(requests)
        strings = self._cached_samples(generations)
        audited = self._chosen_for_audit(generations)
        steps = [generation.canvas.steps for generation in generations]
        bar = StepBar(steps, finished=strings, disable=disable_tqdm or self.rank != 0)

        def run(batch: list[int], batch_size: int) -> None:
            in_audit = [generations[n] for n in batch if n in audited]
            # First: where memory runs out, nothing of the batch is recorded yet.
            exact, usage = self._decode_measured([generation.without_cache() for generation in in_audit])
            answers = self._generate([generations[n] for n in batch], bar.advance)
            cached = [answer for n, answer in zip(batch, answers, strict=True) if n in audited]
            self._audit(in_audit, cached, exact, usage)
            for n, (string, _) in zip(batch, answers, strict=True):
                strings[n] = string
                generation = generations[n]
                seed = generation.canvas.seed if generation.has_own_key else None
                self.request_cache.add("generate_until", generation.instance.args, string, seed=seed)
            self.request_cache.save(self.record)
            bar.finish(batch)

        for group in self._groups(generations):
            self.batches.run([n for n in group if n not in strings], run)
        bar.close()
        return [strings[n] for n in range(len(requests))]

    def _prepare(self, requests: Sequence[Instance]) -> list[Generation]:
        seeds = RequestSeeds()
        generations = [self._prepare_one(instance, seeds) for instance in requests]
        if ignored := sorted(set().union(*(generation.settings.ignored for generation in generations))):
            logger.warning("Ignored, as masked diffusion has no use for them: %s", ", ".join(ignored))
        self._warn_of_truncation([generation.truncated for generation in generations])
        return generations

    def _prepare_one(self, instance: Instance, seeds: RequestSeeds) -> Generation:
        text, gen_kwargs = instance.args
        settings = parse_gen_kwargs(gen_kwargs, self.decoding, self.explicit, self._arguments.typed)
        family = families.family_of(self.config)
        families.check_options(self.config, settings.options)
        attention = attention_in_effect(self.denoiser.attention, settings.options)
        check_decoding(settings.options, attention, edits=self.denoiser.edits)
        if settings.infill:
            family.refuse("infill", "true")
        seed = seeds.next(settings.options.seed, instance.args, instance.doc_id)
        fillers = self._filler_ids(settings)
        build: Callable[..., tuple[Canvas, int]] = build_infill_canvas if settings.infill else build_canvas
        canvas, truncated = build(
            self._encode_slots(text) if settings.infill else self.tok_encode(text),
            settings.options,
            mask_token_id=self.mask_token_id,
            max_length=self.max_length,
            request_gen_toks=settings.max_gen_toks,
            filler_ids=fillers,
            seed=seed,
            attention=attention,
        )
        if settings.options.is_approximate:
            cached_blocks(canvas, settings.options, first_alone=self.denoiser.shift)
        ending = Ending(self.tokenizer, self.eos_ids | self.end_of_turn_ids, settings.until, self.think_end_token)
        sampled = settings.sampled or family.generate is not None
        return Generation(instance, settings, canvas, truncated, len(fillers), ending, sampled)

    def _cached_samples(self, generations: Sequence[Generation]) -> dict[int, str]:
        """Answers with a key of their own that a run before this one finished. lm-eval looks for the others itself."""
        found = {}
        for n, generation in enumerate(generations):
            if generation.has_own_key:
                string = self.request_cache.sample(generation.instance.args, generation.canvas.seed)
                if string is not None:
                    found[n] = string
        return found

    def _filler_ids(self, settings: GenerationSettings) -> list[int]:
        options = settings.options
        if not options.n_fillers:
            return []
        return self.tok_encode(options.filler, add_special_tokens=False) * options.n_fillers

    def _groups(self, generations: Sequence[Generation]) -> list[list[int]]:
        """Indices of requests that can share batches, longest canvases first so that memory runs out early if ever."""
        groups: dict[object, list[int]] = {}
        for n, generation in enumerate(generations):
            groups.setdefault((generation.settings.options, generation.settings.until), []).append(n)
        for group in groups.values():
            group.sort(key=lambda n: (-len(generations[n].canvas.token_ids), generations[n].canvas.token_ids))
        return list(groups.values())

    def _generate(self, batch: Sequence[Generation], advance: Callable[[int], None]) -> list[Answer]:
        passes = self.denoiser.forward_passes
        completions, usage = self._decode_measured(batch, advance)
        self.record.add_forward_passes(
            (generation.instance.task_name for generation in batch), self.denoiser.forward_passes - passes
        )
        for generation, completion in zip(batch, completions, strict=True):
            canvas = generation.canvas
            record = self.record.task(generation.instance.task_name)
            record.add(
                truncated=generation.truncated,
                masks=len(canvas.slots),
                steps=canvas.steps,
                returned_tokens=canvas.n_returned,
                fillers=generation.fillers,
                prompt_tokens=canvas.prompt_length,
                **self._block_facts(generation),
            )
            self._add_cost(record.cost, completion, usage, len(batch))
        return [
            Answer(generation.ending.text(completion.token_ids), completion.token_ids)
            for generation, completion in zip(batch, completions, strict=True)
        ]

    def _decode_measured(
        self, batch: Sequence[Generation], advance: Callable[[int], object] = lambda _: None
    ) -> tuple[list[Completion], Usage]:
        instances = [generation.instance for generation in batch]
        with measured(self.device) as usage, self._autocast(), _naming_requests(instances):
            completions = self._decode(batch, advance)
        return completions, usage

    def _block_facts(self, generation: Generation) -> dict[str, int]:
        """Of a block-causal model: the length of a block, and how many masks the answer's first one held."""
        length = attention_in_effect(self.denoiser.attention, generation.settings.options).block_length
        return {} if length is None else {"block_length": length, "masks_in_block": generation.canvas.block_lengths[0]}

    def _add_cost(self, cost: TaskCost, completion: Completion, usage: Usage, n_rows: int) -> None:
        ids = completion.token_ids
        cost.add(
            forward_passes=completion.cost.forward_passes,
            denoising_steps=completion.cost.steps,
            layer_tokens=completion.cost.tokens,
            written_tokens=completion.n_written,
            answer_tokens=len(ids) - (ids[-1:] != [] and ids[-1] in self.eos_ids | self.end_of_turn_ids),
            seconds=usage.seconds / n_rows,
            peak_memory_bytes=usage.peak_memory_bytes,
        )

    # Audit of caches

    def _chosen_for_audit(self, generations: Sequence[Generation]) -> set[int]:
        """Indices of the requests that are decoded exactly as well. Raises OptionError for sampled ones."""
        if self.cache_audit is None:
            return set()
        cached = [n for n, generation in enumerate(generations) if generation.settings.options.is_approximate]
        for n in cached:
            if generations[n].sampled:
                raise OptionError(
                    f"cache_audit={shown(self.cache_audit)} does not work with temperature="
                    f"{shown(generations[n].settings.options.temperature)}: sampled answers differ without a cache too"
                )
        tasks_and_seeds = [(generations[n].instance.task_name or "", generations[n].canvas.seed) for n in cached]
        chosen = chosen_for_audit(
            tasks_and_seeds,
            self.cache_audit,
            already={task: len(self.record.task(task).audit.requests) for task, _ in tasks_and_seeds},
            part=(self.rank, self.world_size),
        )
        return {cached[n] for n in chosen}

    def _audit(
        self, batch: Sequence[Generation], answers: Sequence[Answer], completions: Sequence[Completion], usage: Usage
    ) -> None:
        """Records whether these requests' answers agree with those that were decoded without a cache."""
        for generation, cached, completion in zip(batch, answers, completions, strict=True):
            audit = self.record.task(generation.instance.task_name).audit
            exact = Answer(generation.ending.text(completion.token_ids), completion.token_ids)
            audit.requests.append(audited_request(generation.instance.doc_id, cached, exact))
            self._add_cost(audit.exact_cost, completion, usage, len(batch))

    def _decode(self, batch: Sequence[Generation], advance: Callable[[int], object]) -> list[Completion]:
        if not batch:
            return []
        generate = families.family_of(self.config).generate
        canvases = [generation.canvas for generation in batch]
        options = batch[0].settings.options
        if generate is None:
            return decode_canvases(
                self.denoiser,
                canvases,
                options,
                eos_ids=self.eos_ids,
                end_of_turn_ids=self.end_of_turn_ids,
                is_decided=batch[0].ending.is_decided,
                advance=advance,
            )
        decoded = []
        for canvas in canvases:
            ids, passes, n_written = generate(
                self.model,
                list(canvas.token_ids[: canvas.prompt_length]),
                options,
                n_tokens=canvas.n_returned,
                end_ids=sorted(self.eos_ids | self.end_of_turn_ids),
                pad_token_id=self.tokenizer.pad_token_id,
                seed=canvas.seed,
            )
            self.denoiser.forward_passes += passes
            decoded.append(Completion(ids, Cost(forward_passes=passes, steps=passes), n_written))
        return decoded

    def _encode_slots(self, text: str) -> list[list[int]]:
        def encode(piece: str, first: bool) -> list[int]:
            return HFLM.tok_encode(self, piece, None if first else False)

        return encode_infill(self.tokenizer, text, self.mask_token_id, encode)

    # Likelihood

    def _check_likelihood(self, *, rolling: bool = False) -> None:
        families.family_of(self.config).refuse("likelihood", self.likelihood.likelihood)
        if self.enable_thinking and not rolling:
            raise OptionError("enable_thinking=True is not allowed with likelihood tasks; allowed there is false")

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log p(continuation | context) in nats, greedy flag) for every request."""
        self._check_likelihood()
        seeds = RequestSeeds()
        prepared = []
        for instance in requests:
            context, continuation = instance.args
            context_ids, continuation_ids = self._context_and_continuation(context, continuation)
            seed = seeds.next(self.likelihood.seed, instance.args, instance.doc_id)
            prepared.append(LikelihoodRequest(context_ids, continuation_ids, seed))
        if not self.likelihood.check_greedy:
            logger.warning("check_greedy=false: exact-match metrics of likelihood tasks will be 0")
        answers: dict[int, tuple[float, bool]] = {}

        def save(n: int, answer: tuple[float, bool]) -> None:
            answers[n] = answer
            self.request_cache.add("loglikelihood", requests[n].args, answer)

        self._score(prepared, self.likelihood, requests, save, "loglikelihood requests", disable_tqdm)
        return [answers[n] for n in range(len(requests))]

    def _context_and_continuation(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if context.strip():
            return self._encode_pair(context, continuation)
        ids = self.tok_encode(context + continuation, add_special_tokens=False)
        if ids[:1] == [self.prefix_token_id]:
            return ids[:1], ids[1:]
        return [self.prefix_token_id], ids

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """A lower bound of log p(text) in nats for every request: the sum over windows."""
        self._check_likelihood(rolling=True)
        seeds = RequestSeeds()
        windows: list[LikelihoodRequest] = []
        owners: list[int] = []
        for n, instance in enumerate(requests):
            (text,) = instance.args
            of_text = rolling_windows(
                self._context_and_continuation("", text)[1],
                max_length=self.max_length,
                prefix_token_id=self.prefix_token_id,
                n_masks=self.likelihood.n_masks,
                seed=seeds.next(self.likelihood.seed, instance.args, instance.doc_id),
            )
            windows += of_text
            owners += [n] * len(of_text)
        unscored = Counter(owners)
        totals = [0.0] * len(requests)

        def save(window: int, answer: tuple[float, bool]) -> None:
            n = owners[window]
            totals[n] += answer[0]
            unscored[n] -= 1
            if unscored[n] == 0:
                self.request_cache.add("loglikelihood_rolling", requests[n].args, totals[n])

        options = replace(self.likelihood, check_greedy=False)  # nobody reads the flag here
        instances = [requests[n] for n in owners]
        self._score(windows, options, instances, save, "windows of loglikelihood_rolling requests", disable_tqdm)
        return totals

    def _score(
        self,
        prepared: Sequence[LikelihoodRequest],
        options: LikelihoodOptions,
        instances: Sequence[Instance],
        save: Callable[[int, tuple[float, bool]], None],
        what: str,
        disable_tqdm: bool,
    ) -> None:
        """Scores requests, longest first and those with the same context together; `save(index, answer)` for each."""
        self._leave_what_is_told()
        truncated = [truncated_tokens(request, options, self.max_length) for request in prepared]
        self._warn_of_truncation(truncated)
        bar = tqdm(total=len(prepared), desc=f"Running {what}", disable=disable_tqdm or self.rank != 0)

        def length_and_context(n: int) -> tuple[int, list[int]]:
            request = prepared[n]
            return -len(request.context_ids) - len(request.continuation_ids), request.context_ids

        def run(chunk: list[int], batch_size: int) -> None:
            passes, canvases = self.denoiser.forward_passes, self.denoiser.canvases
            of_chunk = [instances[n] for n in chunk]
            with measured(self.device) as usage, self._autocast(), _naming_requests(of_chunk):
                answers = score(
                    self.denoiser,
                    [prepared[n] for n in chunk],
                    options,
                    batch_size=batch_size,
                    max_length=self.max_length,
                )
            used = self.denoiser.forward_passes - passes
            self.record.add_forward_passes((instances[n].task_name for n in chunk), used)
            for n, answer in zip(chunk, answers, strict=True):
                tokens = len(prepared[n].continuation_ids)
                masks = tokens if options.n_masks == "auto" else options.n_masks
                record = self.record.task(instances[n].task_name)
                record.add(truncated=truncated[n], masks=masks, continuation_tokens=tokens)
                record.cost.add(
                    canvases=(self.denoiser.canvases - canvases) / len(chunk),
                    seconds=usage.seconds / len(chunk),
                    peak_memory_bytes=usage.peak_memory_bytes,
                )
                save(n, answer)
            self.request_cache.save(self.record)
            bar.update(len(chunk))

        self.batches.run(
            sorted(range(len(prepared)), key=length_and_context),
            run,
            batches_per_call=_BATCHES_PER_SAVE,
            rows_of=lambda n: most_rows(prepared[n], options),
        )
        bar.close()

    # Batches and processes

    @cached_property
    def batches(self) -> Batches:
        """The batch size in use, shared by all requests of a run."""
        largest = self.max_batch_size if self.device.type != "cpu" else min(self.max_batch_size, _MAX_AUTO_BATCH_ON_CPU)
        return Batches(self.batch_size, largest)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(
            self.device.type, dtype=self.mixed_precision_dtype, enabled=self.mixed_precision_dtype is not None
        )

    def _warn_of_truncation(self, truncated: Sequence[int]) -> None:
        if cut := sum(tokens > 0 for tokens in truncated):
            logger.warning(
                "%d of %d prompts were longer than the model's context of %d tokens allows and lost tokens on the left",
                cut,
                len(truncated),
                self.max_length,
            )

    # What the results file and the request cache keep

    def get_model_info(self) -> dict[str, Any]:
        """lm-eval's own facts about the model, and under `mdlm` everything that a score depends on.

        Requests that come after it are those of another evaluation, and begin a record of their own.
        """
        self.is_told = True
        return super().get_model_info() | {"mdlm": provenance(self, self.batches.size)}

    def _leave_what_is_told(self) -> None:
        if self.is_told:
            self.start_record()

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuses, with an OptionError, a request cache that another model or other options filled."""
        if cache_hook.dbdict is not None:
            claim_cache(cache_hook.dbdict, fingerprint(self), path=cache_hook.dbdict.filename)
        self._leave_what_is_told()
        self.request_cache = RequestCache(cache_hook.dbdict)
        self.record = self.request_cache.resume() or self.record
        self.records = [self.record]
        super().set_cache_hook(cache_hook)
