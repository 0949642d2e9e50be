"""What a user may set about decoding and likelihood: frozen dataclasses that validate themselves."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import Any, Literal, Self, get_args

Auto = Literal["auto"]
UNMASKING_ORDERS = ("confidence", "margin", "entropy", "random", "left_to_right")
SCHEDULES = ("linear", "dream", "cosine")
LIKELIHOODS = ("auto", "mc", "chain")


class OptionError(ValueError):
    """An option that cannot be used; the message names it, its value and what is allowed."""


class _Options:
    """Parsing and checking that both option classes share."""

    def override(self, changes: Mapping[str, object]) -> Self:
        """These options with `changes`, whose values may be strings as typed on a command line.

        Raises OptionError for a name that is no option (naming the nearest) and for a value that is not allowed.
        """
        known = {field.name: field.type for field in fields(self)}  # type: ignore[arg-type]
        for name, value in changes.items():
            if name not in known:
                raise OptionError(f"unknown option {name}={value!r}; {_nearest(name, list(known))}")
        parsed = {name: _parse(name, value, known[name]) for name, value in changes.items()}
        return replace(self, **parsed)  # type: ignore[type-var]


@dataclass(frozen=True)
class DecodingOptions(_Options):
    """How answers are decoded. Lengths are tokens; None means "not set"."""

    n_masks: int | Auto = "auto"
    mask_ratio: float | None = None
    max_gen_toks: int | None = None
    steps: int | Auto = "auto"
    block_length: int | None = None
    unmasking: str = "confidence"
    schedule: str = "linear"
    confidence_threshold: float | None = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    cfg_scale: float = 0.0
    filler: str = "."
    n_fillers: int = 0
    suppress_eos: bool = False
    eos_last: bool = False
    early_exit: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        _check_whole(self, "n_masks", 1, auto=True)
        _check_whole(self, "max_gen_toks", 1)
        _check_whole(self, "steps", 1, auto=True)
        _check_whole(self, "block_length", 1)
        _check_whole(self, "top_k", 1)
        _check_whole(self, "n_fillers", 0)
        _check_whole(self, "seed", 0)
        _check_range(self, "mask_ratio", above=0.0)
        _check_range(self, "confidence_threshold", above=0.0, at_most=1.0)
        _check_range(self, "top_p", above=0.0, at_most=1.0)
        _check_range(self, "temperature", at_least=0.0)
        _check_range(self, "cfg_scale", at_least=0.0)
        _check_choice(self, "unmasking", UNMASKING_ORDERS)
        _check_choice(self, "schedule", SCHEDULES)
        if self.mask_ratio is not None and self.n_masks != "auto":
            raise OptionError(
                f"mask_ratio={self.mask_ratio} together with n_masks={self.n_masks} is not allowed; "
                "allowed is one of them"
            )
        if isinstance(self.n_masks, int) and self.block_length is not None and self.block_length > self.n_masks:
            raise OptionError(
                f"block_length={self.block_length} is not allowed with n_masks={self.n_masks}; "
                f"allowed are whole numbers from 1 to {self.n_masks}"
            )
        if not self.filler:
            raise OptionError("filler='' is not allowed; allowed is any text of at least one character")


@dataclass(frozen=True)
class LikelihoodOptions(_Options):
    """How log p(continuation | context) is estimated.

    likelihood: `mc` (LLaDA's Monte-Carlo bound), `chain` (exact left-to-right factorisation) or `auto` (one exact pass
        for one-token continuations, else `mc`).
    mc_num: Monte-Carlo samples a request, each at most one forward pass.
    n_masks: the whole canvas after the context in tokens, continuation included; `auto` adds no masks.
    check_greedy: also decode, to learn whether greedy decoding gives the continuation.
    """

    likelihood: str = "auto"
    mc_num: int = 128
    n_masks: int | Auto = "auto"
    cfg_scale: float = 0.0
    check_greedy: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        _check_choice(self, "likelihood", LIKELIHOODS)
        _check_whole(self, "mc_num", 1)
        _check_whole(self, "n_masks", 1, auto=True)
        _check_whole(self, "seed", 0)
        _check_range(self, "cfg_scale", at_least=0.0)


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"the options are {', '.join(sorted(known))}"


def _parse(name: str, value: object, kind: Any) -> Any:
    """`value` as the field's type where it is a string that says so; anything else is left to the checks."""
    if value is None or str(value).lower() == "none":
        if NoneType in get_args(kind):
            return None
        raise OptionError(f"{name}={value!r} is not allowed; this option needs a value")
    if kind is bool:
        if str(value).lower() not in ("true", "false"):
            raise OptionError(f"{name}={value!r} is not allowed; allowed are true and false")
        return str(value).lower() == "true"
    if kind is str:
        return str(value)
    if isinstance(value, str):
        for number in (int, float):
            try:
                return number(value)
            except ValueError:
                continue
    return value


def _check_whole(options: _Options, name: str, least: int, *, auto: bool = False) -> None:
    value = vars(options)[name]
    optional = auto and value == "auto"
    if optional or (value is None and not auto):
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        allowed = f"{'auto and ' if auto else ''}whole numbers from {least}"
        raise OptionError(f"{name}={value!r} is not allowed; allowed are {allowed}")


def _check_range(
    options: _Options,
    name: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> None:
    value = vars(options)[name]
    if value is None:
        return
    bounds = [
        f"above {above:g}" if above is not None else "",
        f"from {at_least:g}" if at_least is not None else "",
        f"up to {at_most:g}" if at_most is not None else "",
    ]
    fits = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
        and value != float("inf")
    )
    if not fits:
        raise OptionError(f"{name}={value!r} is not allowed; allowed are numbers {' '.join(filter(None, bounds))}")


def _check_choice(options: _Options, name: str, choices: tuple[str, ...]) -> None:
    value = vars(options)[name]
    if value not in choices:
        raise OptionError(f"{name}={value!r} is not allowed; allowed are {', '.join(choices)}")
