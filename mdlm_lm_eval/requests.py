"""What one generation request asks for: its `gen_kwargs` over the model arguments, by the design's precedence."""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.options import DECODING_NAMES, DecodingOptions, unknown_option
from mdlm_lm_eval.precedence import over
from mdlm_lm_eval.values import OptionError, must_be, number_of, parse_flag, parse_whole, shown

# lm-eval's four names for the same limit, by its own priority.
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING_NAMES = ("temperature", "top_p", "top_k")
# Keys of autoregressive generation that task files carry and that mean nothing here.
MEANINGLESS_NAMES = frozenset(
    {
        "diversity_penalty",
        "early_stopping",
        "encoder_repetition_penalty",
        "epsilon_cutoff",
        "eta_cutoff",
        "frequency_penalty",
        "length_penalty",
        "max_length",
        "min_length",
        "min_new_tokens",
        "min_p",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "pad_token_id",
        "penalty_alpha",
        "presence_penalty",
        "repetition_penalty",
        "skip_special_tokens",
        "typical_p",
        "use_cache",
    }
)
REQUEST_NAMES = frozenset({"until", "infill", "do_sample", *LENGTH_NAMES, *MEANINGLESS_NAMES})


@dataclass(frozen=True)
class GenerationSettings:
    """One request's settings. `max_gen_toks` is None where the request is silent."""

    options: DecodingOptions
    until: tuple[str, ...]
    max_gen_toks: int | None
    infill: bool
    ignored: frozenset[str]

    @property
    def sampled(self) -> bool:
        """Whether repetitions of the request differ."""
        return self.options.temperature > 0.0 or unmasking_rule(self.options.unmasking).is_random


def check_names(gen_kwargs: Mapping[str, Any]) -> None:
    """Raises OptionError for an unknown key."""
    known = REQUEST_NAMES | DECODING_NAMES
    for name, value in gen_kwargs.items():
        if name == "stop":  # as other models of lm-eval call it
            raise OptionError(f"unknown generation option stop={shown(value)}; did you mean until?")
        if name not in known:
            raise unknown_option("generation option", name, value, known, listed=DECODING_NAMES)


def parse_gen_kwargs(
    gen_kwargs: Mapping[str, Any],
    options: DecodingOptions,
    explicit: frozenset[str],
    typed: frozenset[str] = frozenset(),
) -> GenerationSettings:
    """Merges a request's `gen_kwargs` into `options`, of which the user set `explicit`, and typed `typed` himself.

    Diffusion options of the request win. Sampling keys, which task files written for autoregressive models carry
    anyway, win only over what the user did not set. Raises OptionError for an unknown key or a value that
    cannot be used.
    """
    check_names(gen_kwargs)
    changes = {
        name: value
        for name, value in gen_kwargs.items()
        if name in DECODING_NAMES and name not in (*SAMPLING_NAMES, *LENGTH_NAMES)
    }
    changes |= sampling(gen_kwargs, explicit)
    return GenerationSettings(
        options=_merged(options, changes, typed) if changes else options,
        until=_stop_strings(gen_kwargs.get("until")),
        max_gen_toks=_max_gen_toks(gen_kwargs),
        infill=parse_flag("infill", gen_kwargs.get("infill", False)),
        ignored=MEANINGLESS_NAMES & gen_kwargs.keys(),
    )


def sampling(gen_kwargs: Mapping[str, Any], explicit: Collection[str]) -> dict[str, Any]:
    """The sampling options of a request, of those that the user did not set.

    Raises OptionError for a value that cannot be used.
    """
    given = {name: gen_kwargs[name] for name in SAMPLING_NAMES if gen_kwargs.get(name) is not None}
    top_k = number_of(given.get("top_k"))
    if top_k is not None and top_k <= 0:
        del given["top_k"]  # the autoregressive way of saying "all tokens"
    DecodingOptions().override(given)  # do_sample=false leaves them out, whatever they are
    if gen_kwargs.get("do_sample") is not None:
        if not parse_flag("do_sample", gen_kwargs["do_sample"]):
            given = {"temperature": 0.0}
        else:
            given.setdefault("temperature", 1.0)
    return {name: value for name, value in given.items() if name not in explicit}


class RequestSeeds:
    """Seeds by content: the same request draws the same numbers in any batch, order and process.

    Equal requests of one document are repetitions (a task with `repeats`) and get seeds of their own.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def next(self, seed: int, arguments: object, document: object) -> int:
        """A seed below 2^63 for the next repetition of a request.

        `document` tells repetitions of one request from other documents' requests that happen to have the same text; it
        takes no part in the seed.
        """
        request = json.dumps([seed, arguments], sort_keys=True, default=str)
        key = f"{document!r} {request}"
        repetition = self.seen[key]
        self.seen[key] += 1
        return seed_of(f"{repetition} {request}")


def seed_of(text: str) -> int:
    """A seed below 2^63 that a text tells."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _merged(options: DecodingOptions, changes: dict[str, Any], typed: frozenset[str]) -> DecodingOptions:
    below = {name: value for name, value in vars(options).items() if name not in typed}
    above = {name: getattr(options, name) for name in typed} | changes
    # A block diffusion model keeps the blocks that it was loaded with, whether they are named here or not.
    return DecodingOptions().override(over(below, above, full_attention=True))


def _stop_strings(until: object) -> tuple[str, ...]:
    if until is None:
        return ()
    strings = [until] if isinstance(until, str) else until
    if not isinstance(strings, (list, tuple)) or not all(isinstance(string, str) for string in strings):
        raise must_be("until", "a string or a list of strings", until)
    return tuple(string for string in strings if string)


def _max_gen_toks(gen_kwargs: Mapping[str, Any]) -> int | None:
    for name in LENGTH_NAMES:
        value = gen_kwargs.get(name)
        if value is not None:
            return parse_whole(name, value, least=1)
    return None
