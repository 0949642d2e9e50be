"""Decoding and log-likelihoods of texts, or of token ids, for use from Python."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.arguments import check_family
from mdlm_lm_eval.checkpoints import end_of_turn_ids, eos_ids, ids_after_answers, reserved_positions
from mdlm_lm_eval.decoding.canvas import (
    Canvas,
    Completion,
    DecodingCall,
    build_canvas,
    build_infill_canvas,
    repetitions,
    seed_of,
    seed_of_request,
)
from mdlm_lm_eval.decoding.engine import completions_of, with_prefixes
from mdlm_lm_eval.decoding.trace import filled
from mdlm_lm_eval.decoding.way import Way, check_decoding, way_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, truncated_tokens
from mdlm_lm_eval.likelihood.scoring import longest_first, score, with_shared_contexts
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.text import Ending, closes_thinking, encode_infill, prefix_id, prompt_ids
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError

T = TypeVar("T", DecodingOptions, LikelihoodOptions)
Prompt = str | Sequence[int]
Progress = Callable[[int, int], object]


def decode(
    denoiser: Denoiser,
    prompts: Prompt | Iterable[Prompt],
    options: DecodingOptions | None = None,
    *,
    return_completions: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_gen_toks: int | None = None,
    batch_size: int | None = None,
    seeds: Sequence[int] | None = None,
    progress: Progress | None = None,
    stop_ids: Collection[int] = (),
    end_think_ids: Sequence[int] = (),
    token_frequencies: Tensor | None = None,
    **settings: Any,
) -> list[Any]:
    """Decodes prompts, and returns their answers in the same order.

    - `denoiser`: the model, as `load` returns it.
    - `prompts`: a list of texts, or of lists of token ids. A single prompt counts as a list of one.
    - `options`: the decoding options. Other keywords are single options, such as `n_masks=4`, which replace those of
      `options`.
    - `return_completions`: whether to return `Completion` objects, which also tell when each token was filled.
    - `tokenizer`: the tokenizer, as `load` returns it. Without a tokenizer, prompts and answers are lists of token ids.
      With a tokenizer, answers are texts.
    - `max_gen_toks`: how many tokens of an answer to return. By default, the tokens of all masks are returned.
    - `batch_size`: how many prompts run at a time. By default, all prompts run together.
    - `seeds`: one random seed for each prompt, instead of the option `seed`. Without `seeds`, equal prompts are
      repetitions, which get different random numbers.
    - `progress`: a function that is called as `progress(done, total)` after each answer.
    - `stop_ids`: ids of tokens that end an answer, besides the end tokens of the tokenizer.
    - `end_think_ids`: the token ids of the option `end_think`, if there is no tokenizer.
    - `token_frequencies`: a tensor [V], instead of the file that the option of this name gives.

    Raises OptionError for wrong arguments, for options that the model does not support, and for prompts that are too
    long. Raises NonFiniteLogitsError if logits are NaN or infinite.
    """
    way = _checked(denoiser, options, settings, tokenizer, is_traced=return_completions, in_slots=False)
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise OptionError(f"batch_size must be a whole number from 1 or None, not {batch_size!r}")
    listed = _listed(prompts, tokenizer)
    ids = [prompt_ids(tokenizer, one, denoiser.mask_token_id) if isinstance(one, str) else list(one) for one in listed]
    closing_ids = () if tokenizer is None else ids_after_answers(tokenizer, denoiser.model.config)
    _check_thinking(listed, way.options, tokenizer)
    canvases = [
        _canvas(
            build_canvas,
            denoiser,
            prompt,
            way,
            request_gen_toks=max_gen_toks,
            filler_ids=[*_filler_ids(tokenizer, way.options), *closing_ids],
            seed=seed,
        )
        for prompt, seed in zip(ids, _seeds(ids, way.options, seeds), strict=True)
    ]
    call = DecodingCall(
        denoiser,
        canvases,
        way,
        eos_ids=stop_ids,
        end_think_ids=end_think_ids,
        token_frequencies=token_frequencies,
        batch_size=batch_size,
    )
    completions = _decoded(call, tokenizer, progress)
    if return_completions:
        return completions
    return [one.token_ids if tokenizer is None else one.text for one in completions]


def fill(
    denoiser: Denoiser,
    texts: str | Iterable[str],
    options: DecodingOptions | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase,
    **settings: Any,
) -> list[str]:
    """Fills the slots of texts, and returns for each text the tokens of its slots, joined to one text.

    - `texts`: a list of texts, or a single text. `<|mask|>` is a slot of one token, and `<|mask:8|>` a slot of eight.
    - `denoiser`, `options`, `tokenizer` and other keywords are those of `decode`, and so are the errors.
    """
    way = _checked(denoiser, options, settings, tokenizer, is_traced=False, in_slots=True)
    listed = _listed(texts, tokenizer)
    if not all(isinstance(text, str) for text in listed):
        raise OptionError("fill() takes texts with <|mask|> in them, not token ids")

    def encode(piece: str, first: bool) -> list[int]:
        return list(tokenizer.encode(piece, add_special_tokens=first))

    canvases = [
        _canvas(
            build_infill_canvas,
            denoiser,
            encode_infill(tokenizer, text, denoiser.mask_token_id, encode),
            way,
            filler_ids=_filler_ids(tokenizer, way.options),
            seed=seed,
        )
        for text, seed in zip(listed, _seeds(listed, way.options, None), strict=True)
    ]
    return [str(one.text) for one in _decoded(DecodingCall(denoiser, canvases, way), tokenizer, in_text=True)]


def _checked_options(denoiser: Denoiser, options: T | None, kind: type[T], settings: Mapping[str, Any]) -> T:
    """The options, by default those of `kind`, with `settings` in place of theirs.

    Raises OptionError for arguments of another type, unknown settings and wrong values.
    """
    if not isinstance(denoiser, Denoiser):
        raise OptionError(f"denoiser must be what load() or load_denoiser() returns, not {type(denoiser).__name__}")
    options = kind() if options is None else options
    if not isinstance(options, kind):
        raise OptionError(f"options must be {kind.__name__}(...), not {type(options).__name__}")
    return replace(options, **settings)


def _checked(
    denoiser: Denoiser,
    options: DecodingOptions | None,
    settings: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    is_traced: bool,
    in_slots: bool,
) -> Way:
    """The way of decoding, with a trace if `is_traced`. Raises OptionError for arguments that `decode` cannot use."""
    options = _checked_options(denoiser, options, DecodingOptions, settings)
    if options.n_fillers and tokenizer is None:
        raise OptionError(f"n_fillers={options.n_fillers} is not allowed without a tokenizer; allowed is 0")
    if options.trace and not is_traced:
        raise OptionError("trace=true is not allowed without return_completions=True, as answers alone hold no trace")
    if options.unfinished_thinking == "empty":
        raise OptionError("unfinished_thinking=empty is for lm_eval's tasks, as it needs lm_eval's think_end_token")
    way = way_of(replace(options, trace=is_traced), denoiser.attention)
    check_family(way, denoiser.model.config, in_slots=in_slots)
    check_decoding(way, edits=denoiser.edits)
    return way


def _listed(prompts: Any, tokenizer: PreTrainedTokenizerBase | None) -> list[Any]:
    """The prompts as a list of texts and lists of token ids. Raises OptionError for anything else."""
    found = [prompts] if isinstance(prompts, str) or not isinstance(prompts, Iterable) else list(prompts)
    if found and all(type(each) is int for each in found) and isinstance(prompts, Iterable):
        found = [found]
    for one in found:
        if not (isinstance(one, str) or (isinstance(one, Sequence) and all(type(each) is int for each in one))):
            raise OptionError(f"a prompt must be a text or a list of token ids, not {type(one).__name__}")
        if isinstance(one, str) and tokenizer is None:
            raise OptionError("a text cannot be decoded without a tokenizer; give tokenizer=, or prompts as token ids")
    return found


def _seeds(prompts: Sequence[Any], options: DecodingOptions, given: Sequence[int] | None) -> list[int]:
    """A seed for each prompt. Raises OptionError if `given` are not as many whole numbers."""
    if given is None:
        rows = zip([options.seed] * len(prompts), repetitions(map(str, prompts)), prompts, strict=True)
    elif len(given) == len(prompts) and all(type(seed) is int for seed in given):
        rows = zip(given, [0] * len(prompts), prompts, strict=True)
    else:
        raise OptionError(f"seeds must be {len(prompts)} whole numbers, one for each prompt, not {given!r}")
    return [seed_of(f"{seed} {repetition} {prompt}") for seed, repetition, prompt in rows]


def _canvas(
    build: Callable[..., tuple[Canvas, int]], denoiser: Denoiser, prompt: Any, way: Way, **facts: Any
) -> Canvas:
    """The canvas that `build` makes of a prompt. Raises OptionError if it would be cut, of which `lm_eval` warns."""
    most = denoiser.max_length - reserved_positions(denoiser.model.config)
    canvas, cut = build(prompt, way, mask_token_id=denoiser.mask_token_id, max_length=most, **facts)
    if cut:
        raise OptionError(f"a prompt is {cut} tokens too long for the model's context of {most} tokens")
    return canvas


def _check_thinking(
    prompts: Sequence[Any], options: DecodingOptions, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Raises OptionError for prompts that close thinking, with an option that would write its end into the answer."""
    if tokenizer is None or not (options.end_think_boost or options.max_thinking_tokens is not None):
        return
    ends = tokenizer.convert_ids_to_tokens(sorted(end_of_turn_ids(tokenizer) | eos_ids(tokenizer, None)))
    if any(isinstance(one, str) and closes_thinking(one, options.end_think, ends) for one in prompts):
        raise OptionError(
            "end_think_boost and max_thinking_tokens do not work with prompts that end thinking themselves"
        )


def _filler_ids(tokenizer: PreTrainedTokenizerBase | None, options: DecodingOptions) -> list[int]:
    """The tokens of all fillers."""
    return [] if tokenizer is None else tokenizer.encode(options.filler, add_special_tokens=False) * options.n_fillers


def _decoded(
    call: DecodingCall,
    tokenizer: PreTrainedTokenizerBase | None,
    progress: Progress | None = None,
    *,
    in_text: bool = False,
) -> list[Completion]:
    """Completions with text, ending, and how each token came to be. Canvases that share a prefix follow each other.

    in_text: as of `Ending`.
    """
    denoiser, canvases, way = call.denoiser, call.canvases, call.way
    shared, order, store = with_prefixes(denoiser, canvases, way)
    call = replace(call, canvases=[shared[index] for index in order])
    if tokenizer is not None:
        generation = getattr(denoiser.model, "generation_config", None)  # encoders have none
        call = replace(
            call,
            eos_ids={*call.eos_ids, *eos_ids(tokenizer, generation and generation.eos_token_id)},
            end_of_turn_ids=end_of_turn_ids(tokenizer),
            end_think_ids=tokenizer.encode(way.options.end_think, add_special_tokens=False),
        )
    found: dict[int, Completion] = {}
    try:
        for number, one in completions_of(call):
            slots = call.canvases[number].slots[: len(one.token_ids)]
            found[order[number]] = replace(
                one,
                text=tokenizer and Ending(tokenizer, call.end_ids, (), None, in_text=in_text).of(one.token_ids)[0],
                filled=filled(one.events, slots, denoiser.mask_token_id) if one.events else (),
                finish_reason="cut" if call.end_ids.isdisjoint(one.token_ids[-1:]) else "ended_by_eos",
            )
            if progress is not None:
                progress(len(found), len(canvases))
    except NonFiniteLogitsError as error:
        raise NonFiniteLogitsError(order[error.index]) from error
    finally:
        store.clear()
    return [found[index] for index in range(len(canvases))]


@dataclass(frozen=True)
class LogLikelihood:
    """The log-likelihood of a continuation after its context, in nats.

    - `total`: the log-likelihood.
    - `by_token`: the part of the total that each token adds. It is empty for `likelihood=read`.
    - `token_ids`: the tokens of the continuation.
    - `is_greedy`: whether greedy decoding gives the continuation.
    - `standard_error`: the standard error of a total that is estimated from samples. It is None for an exact total.
    """

    total: float
    by_token: list[float]
    token_ids: list[int]
    is_greedy: bool
    standard_error: float | None

    @property
    def per_token(self) -> float:
        """The mean of the log-likelihood over the tokens."""
        return self.total / len(self.token_ids)


def log_likelihood(
    denoiser: Denoiser,
    contexts: str | Sequence[str] | Sequence[Sequence[int]],
    continuations: str | Sequence[str] | Sequence[Sequence[int]],
    options: LikelihoodOptions | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    batch_size: int = 16,
    **settings: Any,
) -> list[LogLikelihood]:
    """Computes the log-likelihood of each continuation after its context, as `lm_eval` does for the same request.

    - `denoiser`: the model, as `load` returns it.
    - `contexts`: a list with the context of each continuation, or one text for all continuations. An empty context is
      replaced by the first token of the tokenizer.
    - `continuations`: a list of continuations, or a single text. Contexts and continuations are both texts, or both
      lists of token ids.
    - `options`: the likelihood options. Other keywords are single options, such as `mc_num=8`.
    - `tokenizer`: the tokenizer, which texts need.
    - `batch_size`: how many inputs run at a time.

    Raises OptionError for wrong arguments, for options that the model does not support, and for texts that are too
    long.
    """
    options = _checked_options(denoiser, options, LikelihoodOptions, settings)
    listed: list[Any] = [continuations] if isinstance(continuations, str) else list(continuations)
    before: list[Any] = [contexts] * len(listed) if isinstance(contexts, str) else list(contexts)
    if len(before) != len(listed):
        raise OptionError(f"there must be as many contexts as continuations, not {len(before)} and {len(listed)}")
    requests = [
        _likelihood_request(denoiser, *pair, options.seed, tokenizer) for pair in zip(before, listed, strict=True)
    ]
    max_length = denoiser.max_length - reserved_positions(denoiser.model.config)
    if cut := max((truncated_tokens(one, options, max_length) for one in requests), default=0):
        raise OptionError(f"a context is {cut} tokens too long for the model's context of {max_length} tokens")
    shared, store = with_shared_contexts(denoiser, requests, options, max_length)
    order = sorted(range(len(shared)), key=lambda n: longest_first(shared[n]))
    try:
        scores = score(denoiser, [shared[n] for n in order], options, batch_size=batch_size, max_length=max_length)
    except NonFiniteLogitsError as failure:
        raise NonFiniteLogitsError(order[failure.index]) from failure
    finally:
        store.clear()
    score_of = dict(zip(order, scores, strict=True))
    found = []
    for index, request in enumerate(requests):
        total, is_greedy, error, terms = score_of[index]
        by_token = [0.0] * len(request.continuation_ids) if terms else []
        for term in terms:
            by_token[term.position] += term.weight * term.log_prob
        found.append(LogLikelihood(total, by_token, request.continuation_ids, is_greedy, error))
    return found


def _likelihood_request(
    denoiser: Denoiser, context: Any, continuation: Any, seed: int, tokenizer: PreTrainedTokenizerBase | None
) -> LikelihoodRequest:
    """The request that lm-eval makes of two texts. Raises OptionError for anything but texts or token ids."""
    seed = seed_of_request(seed, (context, continuation))
    after_ids = () if tokenizer is None else ids_after_answers(tokenizer, denoiser.model.config)
    if not (isinstance(context, str) and isinstance(continuation, str)):
        for one in (context, continuation):
            if not isinstance(one, Sequence) or not all(type(each) is int for each in one):
                kind = type(one).__name__
                raise OptionError(f"contexts and continuations must both be texts or lists of token ids, not {kind}")
        return LikelihoodRequest(list(context), list(continuation), seed, after_ids)
    if tokenizer is None:
        raise OptionError("a text cannot be scored without a tokenizer; give tokenizer=, or token ids")
    kept, mask = context.rstrip(), denoiser.mask_token_id
    if kept:  # blanks at the context's end belong to the continuation's first token
        ids, of_context = prompt_ids(tokenizer, context + continuation, mask), prompt_ids(tokenizer, kept, mask)
        return LikelihoodRequest(of_context, ids[len(of_context) :], seed, after_ids)
    prefix = prefix_id(tokenizer)
    ids = prompt_ids(tokenizer, context + continuation, mask, add_special_tokens=False)
    return LikelihoodRequest([prefix], ids[1:] if ids[:1] == [prefix] else ids, seed, after_ids)
