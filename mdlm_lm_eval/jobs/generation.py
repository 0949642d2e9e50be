"""Generation: decodes the canvases of many requests to strings, in groups that may share a batch."""

import logging
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import Any

from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.decoding.batch import columns_of
from mdlm_lm_eval.decoding.canvas import Canvas, Completion, DecodingCall, FirstToken
from mdlm_lm_eval.decoding.engine import completions_of, with_prefixes
from mdlm_lm_eval.decoding.way import Way
from mdlm_lm_eval.jobs.memory import RowSize, most_rows
from mdlm_lm_eval.jobs.shared import Context, PreparedRequest, in_drawn_order, least_saved, measured, task_of
from mdlm_lm_eval.model.devices import Meter
from mdlm_lm_eval.model.prefix_store import most_held
from mdlm_lm_eval.model.text import Ending
from mdlm_lm_eval.options import OptionError, shown
from mdlm_lm_eval.record import Answer, OfFirstToken, TaskRecord
from mdlm_lm_eval.resolve import ResolvedRequest

logger = logging.getLogger(__name__)
REQUEST_TYPE = "generate_until"
_COLLAPSED = (
    "%s: with a temperature, confidence_threshold=%s decides nothing or all answers of a question are equal: %d of %d "
    "answers are distinct, and a pass writes %.2f tokens of a block of %d"
)
_ALPHABETS = ("ABCDEFGHIJ", "abcdefghij", "123456789", "XYZ")
# Lanes are refilled from this many batches of similar lengths, which are planned together.
_BATCHES_PER_RUN = 64


@dataclass(frozen=True)
class Labels:
    """The labels that an answer may be, and the right one; "" if it is not known."""

    names: tuple[str, ...]
    answer: str

    @classmethod
    def of(cls, document: Any) -> "Labels":
        """Returns the labels of a task's document: its `labels`, or the letters of its `options`; none if it has none.

        Letters count only if `answer` is one of them, as other tasks may use these keys for anything.
        """
        if not isinstance(document, Mapping):
            return NO_LABELS
        answer, options, labels = (document.get(name) for name in ("answer", "options", "labels"))
        if isinstance(labels, Sequence) and labels and all(isinstance(one, str) for one in labels):
            return cls(tuple(labels), answer if isinstance(answer, str) and answer in labels else "")
        if not isinstance(options, Collection) or not isinstance(answer, str):
            return NO_LABELS
        names = (tuple(alphabet[: len(options)]) for alphabet in _ALPHABETS)
        return next((cls(some, answer) for some in names if answer in some), NO_LABELS)


NO_LABELS = Labels((), "")


class LabelTokens:
    """The tokens that decode to the labels; the vocabulary may store them with a space in front.

    names: token id -> label. Labels that no single token spells are left out.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Collection[int],
        end_of_turn_ids: Collection[int],
    ) -> None:
        self.names: dict[int, str] = {}
        for name in names:
            encoded = [tokenizer.encode(text, add_special_tokens=False) for text in (name, f" {name}")]
            own = tokenizer.convert_tokens_to_ids(name)  # SentencePiece encodes no text as the letter alone
            for ids in (*encoded, [] if own is None else [own]):
                if len(ids) == 1 and tokenizer.decode(ids) == name:
                    self.names[ids[0]] = name
        self.eos_ids, self.end_of_turn_ids = eos_ids, end_of_turn_ids

    def letter(self, first: FirstToken, answer: str) -> str:
        """Returns a letter for the likeliest token.

        R: the right label; W: a wrong label; L: any label, if the answer is not known; E: end of text; T: end of turn;
        O: any other token. E, T and O are in lower case if the likeliest label is wrong.
        """
        if first.token in self.names:
            return "L" if not answer else "R" if self.names[first.token] == answer else "W"
        kind = "E" if first.token in self.eos_ids else "T" if first.token in self.end_of_turn_ids else "O"
        return kind if not answer or self.names[first.label] == answer else kind.lower()


@dataclass(kw_only=True)
class Generation(PreparedRequest):
    """One generation request, and its answer.

    labels: the labels of a single-token answer, as far as they are known.
    repetition: 0 for the first of several equal requests of a document, then 1, 2, ...
    is_audited: whether the request is also decoded exactly.
    string: the answer; None before it is decoded.
    """

    request: ResolvedRequest
    canvas: Canvas
    ending: Ending
    labels: Labels
    repetition: int
    is_audited: bool = False
    string: str | None = None


class GenerationJob:
    """The generation requests of one call. Requests with the same settings are decoded in one run of lanes."""

    def __init__(self, context: Context, generations: Sequence[Generation], *, shows_progress: bool) -> None:
        self.context, self.generations = context, generations
        total, title = sum(one.canvas.steps for one in generations), f"Running {REQUEST_TYPE} requests"
        self.bar = tqdm(total=total, desc=title, unit=" steps", disable=not shows_progress)

    def run(self) -> list[str]:
        """Returns the answers to all requests. Also decodes those that `cache_audit` chooses exactly, to compare them.

        Raises OptionError if sampled requests are to be audited.
        """
        for one in self.generations:
            one.string = one.saved_sample(self.context.request_cache)
        if wanted := self.context.settings.model.cache_audit:
            self._choose_for_audit(wanted)
        batches = self.context.batches
        for group in self._groups():
            asked, least = [one.canvas for one in group], least_saved(self.context)
            canvases, order, self.store = with_prefixes(self.context.denoiser, asked, group[0].request, least=least)
            for one, canvas in zip(group, canvases, strict=True):
                one.canvas = canvas
            most = self._most_lanes(group) if batches.automatic else 1
            in_order = [group[index] for index in order]
            batches.run(in_order, self._run_part, batches_per_call=_BATCHES_PER_RUN, most=most)
            self.store.clear()
        self.bar.close()
        self._count_distinct()
        return [str(one.string) for one in self.generations]

    def _count_distinct(self) -> None:
        """Records how many answers to repeated requests are distinct; warns if temperature disables a threshold."""
        by_task: dict[str, dict[Hashable, list[Generation]]] = {}
        for one in self.generations:
            asked = by_task.setdefault(task_of(one.instance), {})
            asked.setdefault((one.instance.doc_id, one.instance.idx), []).append(one)
        for name, asked in by_task.items():
            record, first = self.context.record.tasks[name], next(iter(asked.values()))[0]
            n_answers = sum(map(len, asked.values()))
            n_distinct = sum(len({one.string for one in answers}) for answers in asked.values())
            if n_answers > len(asked):
                record.repeated = Counter(questions=len(asked), answers=n_answers, distinct=n_distinct)
            threshold, block = first.request.options.confidence_threshold, max(first.canvas.block_lengths)
            if threshold is None or not first.request.sampled or block < 2:
                continue
            per_pass = record.cost.as_dict().get("written_tokens_per_forward", 0.0)
            if not 1.05 < per_pass < 0.95 * block or n_distinct == len(asked) < n_answers:
                logger.warning(_COLLAPSED, name, threshold, n_distinct, n_answers, per_pass, block)

    def _choose_for_audit(self, wanted: float) -> None:
        """Marks the requests that are also decoded exactly.

        wanted: up to 1, a share of the requests; above 1, a number per task, which is divided among processes.
        """
        context, candidates = self.context, [one for one in self.generations if one.request.options.is_approximate]
        for one in candidates:
            if one.request.sampled:
                temperature = shown(one.request.options.temperature)
                raise OptionError(
                    f"cache_audit={shown(wanted)} does not work with temperature={temperature}: sampled answers differ "
                    "without a cache too"
                )
        count = int(wanted) // context.world_size + (context.rank < int(wanted) % context.world_size)
        drawn = in_drawn_order([(task_of(one.instance), one.canvas.seed) for one in candidates], "cache_audit")
        for of_task in drawn.values():
            for n, (number, index) in enumerate(of_task):
                candidates[index].is_audited = number < wanted if wanted <= 1 else n < count

    def _groups(self) -> list[list[Generation]]:
        """Returns groups of unanswered requests that may share a batch.

        The longest canvases come first, so that memory runs out early if at all.
        """
        groups: dict[Hashable, list[Generation]] = {}
        for one in self.generations:
            if one.string is None:
                key = one.request.alike, one.labels.names
                groups.setdefault(key, []).append(one)
        for group in groups.values():
            group.sort(key=lambda one: (-len(one.canvas.token_ids), one.canvas.token_ids))
        return list(groups.values())

    def _most_lanes(self, group: Sequence[Generation]) -> int:
        """Returns how many lanes fit into memory if all canvases are as long as the longest of the group."""
        request, canvases = group[0].request, [one.canvas for one in group]
        options, attention = request.options, request.attention
        is_cached, needs = request.cache.remembers, request.needs
        block = max(max(canvas.block_lengths) for canvas in canvases)
        n_slots = max(len(canvas.slots) for canvas in canvases)
        length = columns_of(max(len(canvas.token_ids) for canvas in canvases), is_padded=is_cached)
        n_run = length + block * needs.hindsight
        runs_prompts = attention.is_block_causal and is_cached  # and later blocks alone
        if runs_prompts and not needs.later_blocks:
            longest = max(canvas.prompt_length - len(canvas.prefix or ()) for canvas in canvases)
            n_run = columns_of(longest, is_padded=True)
        row = RowSize(
            length=length,
            n_run=n_run,
            n_logits=n_slots if needs.earlier_blocks or needs.later_blocks else block * (2 if needs.history else 1),
            n_kept=n_slots + 1 if needs.history else 0,
            is_cached=is_cached,
            is_ahead=runs_prompts,
            is_guided=options.cfg_scale > 0.0,
        )
        return most_rows(self.context, row, n_shared=most_held([canvas.prefix for canvas in canvases]))

    def _run_part(self, part: list[Generation], batch_size: int) -> None:
        """Decodes the requests of a part that have no answer yet; some have one if memory ran out before."""
        unanswered = [one for one in part if one.string is None]
        self.bar.update(sum(one.canvas.steps for one in self.generations if one.string is not None) - self.bar.n)
        if audited := [one for one in unanswered if one.is_audited and one.exact is None]:
            self._decode(audited, batch_size, is_audit=True)
        self._decode(unanswered, batch_size, is_audit=False)

    def _decode(self, part: Sequence[Generation], batch_size: int, *, is_audit: bool) -> None:
        """Decodes requests of one way in one run of lanes; records and saves as many answers at a time as it has lanes.

        is_audit: whether they are decoded without a cache, only to compare the answers with those of a later run.
        Raises OptionError if a request's logits are not finite.
        """
        context, request, denoiser = self.context, part[0].request, self.context.denoiser
        way = replace(request, options=replace(request.options, cache="none")) if is_audit else request
        # The family's own method and guests decode one row at a time, with their own cache.
        is_alone = denoiser.generate is not None or way.options.guest is not None
        cache = way.options.cache if is_alone else way.cache_name
        n_lanes, before = 1 if is_alone else min(batch_size, len(part)), denoiser.forward_passes
        labels = LabelTokens(part[0].labels.names, context.tokenizer, context.eos_ids, context.end_of_turn_ids)
        with measured(context, [one.instance for one in part]) as meter:
            completions = self._completions(part, way, labels, batch_size, shows_steps=not is_audit)
            while group := [(part[index], completion) for index, completion in islice(completions, n_lanes)]:
                n_passes = denoiser.forward_passes - before
                before += n_passes
                costs = self._costs([completion for _, completion in group], n_passes, n_lanes, meter)
                for (one, completion), cost in zip(group, costs, strict=True):
                    string, ending = one.ending.of(completion.token_ids)
                    answer = Answer(string, completion.token_ids, cost)
                    if is_audit:
                        one.exact = answer
                        continue
                    one.string = string
                    self.bar.update(one.canvas.steps - completion.cost.steps)  # the steps that early exit saved
                    self._record(one, completion, answer, ending, labels).caches.add(cache)
                if not is_audit:
                    self._save([one for one, _ in group], n_passes)

    def _completions(
        self, part: Sequence[Generation], way: Way, labels: LabelTokens, batch_size: int, *, shows_steps: bool
    ) -> Iterator[tuple[int, Completion]]:
        """The numbers of the requests with their completions, as rows are done."""
        context = self.context
        call = DecodingCall(
            context.denoiser,
            [one.canvas for one in part],
            way,
            eos_ids=context.eos_ids,
            end_of_turn_ids=context.end_of_turn_ids,
            end_think_ids=context.tokenizer.encode(way.options.end_think, add_special_tokens=False),
            label_ids=[*labels.names],
            is_decided=part[0].ending.is_decided,
            advance=self.bar.update if shows_steps else (lambda _steps: None),
            batch_size=batch_size,
        )
        return completions_of(call)

    def _save(self, answered: Sequence[Generation], n_passes: int) -> None:
        """Records the passes of these answers, and saves both to the request cache."""
        self.context.record.forward_passes += n_passes
        if (cache := self.context.request_cache) is not None:
            answers = ((one.instance.args, one.string, one.own_seed) for one in answered)
            cache.save(REQUEST_TYPE, answers, self.context.record)

    def _costs(
        self, completions: Sequence[Completion], n_passes: int, n_lanes: int, meter: Meter
    ) -> Iterator[dict[str, float]]:
        """The cost of each completion of a group. Time and slots since the last group are divided by passes."""
        seconds, peak_memory = meter.read()
        n_positions, n_of_prefixes, _ = self.store.spent()
        row_passes = sum(completion.cost.forward_passes for completion in completions)
        ends = self.context.eos_ids | self.context.end_of_turn_ids
        for completion in completions:
            ids, cost = completion.token_ids, completion.cost
            share = cost.forward_passes / row_passes if row_passes else 1 / len(completions)
            yield {
                "forward_passes": cost.forward_passes,
                "denoising_steps": cost.steps,
                "layer_tokens": cost.tokens + n_positions,  # the group's prefixes count for its first request
                "shared_tokens": cost.shared,
                "written_tokens": completion.n_written,
                "answer_tokens": len(ids) - (bool(ids) and ids[-1] in ends),
                "slot_passes": share * n_lanes * (n_passes - n_of_prefixes),
                "seconds": share * seconds,
                "peak_memory_bytes": peak_memory,
            }
            n_positions = 0

    def _record(
        self, one: Generation, completion: Completion, answer: Answer, ending: str, labels: LabelTokens
    ) -> TaskRecord:
        """Records an answer with its cost, its ending and its trace, and the model's answer at the first slot.

        Returns the record of its task.
        """
        task = one.add_to(self.context.record, REQUEST_TYPE, answer.cost, answer)
        is_empty, is_closed = answer.cost["answer_tokens"] == 0, not one.request.thinks
        counts = {"empty": not answer.string.strip(), "at_once": is_empty, "thinking_closed": is_closed}
        if one.ending.think_end_token is None:  # the answer's string may have lost the end of thinking
            said = self.context.tokenizer.decode(completion.token_ids)
            counts["thinking_kept"] = one.request.in_thought or one.request.options.end_think in said
        task.endings.update({ending: 1, **counts})
        if completion.events and completion.token_ids:
            about = {"doc_id": one.instance.doc_id, "repetition": one.repetition, "ending": ending}
            about["prompt_hash"] = sha256(one.instance.args[0].encode()).hexdigest()  # as lm-eval's samples have it
            task.trace(about, answer, one.canvas, completion.events, self.context.tokenizer)
        if completion.first is not None:
            first = OfFirstToken(
                doc_id=one.instance.doc_id,
                of_set=str(one.instance.doc.get("set", "")),
                letter=labels.letter(completion.first, one.labels.answer),
                entropy=completion.first.entropy,
            )
            task.first_tokens.append(first)
        return task
