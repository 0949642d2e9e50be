# ruff: noqa: RUF009 - `option` returns a dataclass field
"""Declares every option of decoding, likelihood and model once: type, default, bounds, choices, one line of help.

    DecodingOptions(n_masks="200", unmasking="entropy")

Help texts, docs/options.md, sweep axes, fingerprints and the leaderboard's columns read these declarations. Samplers
and row decoders declare theirs in their own files; `declared` lists all together. This module imports nothing heavy,
so that every command parses its arguments at once.
"""

import difflib
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, ClassVar, Literal, get_args

from mdlm_lm_eval.registry import SAMPLERS, UNMASKING, guest_of
from mdlm_lm_eval.results.files import UnusableFile, read_json
from mdlm_lm_eval.results.redaction import redacted_value

Auto = Literal["auto"]


class OptionError(ValueError):
    """An option that cannot be used. The message names the option, its value and the possible values."""


@dataclass(frozen=True)
class Option:
    """The declaration of an option.

    least, most: the smallest and the largest value; above: values must be greater than this.
    none_below: whether a value below `least` means that the option is not set.
    choices: returns the allowed values.
    llada, dream: the option's name in LLaDA's and Dream's own scripts, if it differs; also: its names in other scripts,
        with blanks between. All are accepted.
    same: other names of choices -> the choice.
    beside: returns the meaning of a value that is no choice; None if the value is not allowed.
    silent: whether no value of the option changes a score.
    name, default: of the dataclass field; kinds: the types that its annotation allows.
    """

    help: str
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    none_below: bool = False
    choices: Callable[[], Sequence[str]] | None = None
    same: Mapping[str, str] = field(default_factory=dict)
    beside: Callable[[str], str | None] = lambda _value: None
    llada: str = ""
    dream: str = ""
    also: str = ""
    silent: bool = False
    name: str = ""
    default: Any = None
    kinds: tuple[Any, ...] = ()

    @property
    def requirement(self) -> str:
        """The allowed values in words, such as "auto or a whole number from 1"."""
        if self.choices is not None:
            return f"one of {', '.join(self.choices())}"
        if bool in self.kinds:
            return "true or false"
        if str in self.kinds:
            return "a text of at least one character"
        bounds = [("from", self.least), ("above", self.above), ("up to", self.most)]
        words = [f"{word} {shown(bound)}" for word, bound in bounds if math.isfinite(bound)]
        number = " ".join(["a whole number" if int in self.kinds else "a number", *words])
        return " or ".join([*["auto"] * (Auto in self.kinds), *["none"] * (NoneType in self.kinds), number])

    def parse(self, value: Any) -> Any:
        """Returns `value` in the option's type, or None if it says that the option is not set.

        Raises OptionError for a value that is not allowed.
        """
        if value is None or (str(value).lower() == "none" and (NoneType in self.kinds or str not in self.kinds)):
            return None
        if bool in self.kinds:
            return parse_flag(self.name, value)
        if str in self.kinds:
            return self._text(value)
        return value if Auto in self.kinds and value == "auto" else self._number(value)

    def _text(self, value: Any) -> str:
        text = self.same.get(str(value), str(value))
        if self.choices is not None and text not in self.choices() and (other := self.beside(text)) is not None:
            return other
        if isinstance(value, (dict, list)) or text not in (self.choices() if self.choices else {text} - {""}):
            raise must_be(self.name, self.requirement, value)
        return text

    def _number(self, value: Any) -> float | None:
        try:
            number = (float if float in self.kinds else int)(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if isinstance(value, bool) or (isinstance(value, float) and number != value):  # 2.5 is no whole number
            number = math.nan
        if self.none_below and number < self.least:
            return None
        if not (math.isfinite(number) and self.least <= number <= self.most and number > self.above):
            raise must_be(self.name, self.requirement, value)
        return number


def option(default: Any, help: str, **facts: Any) -> Any:
    """Returns the dataclass field of an option. `facts` are fields of `Option`."""
    return field(default=default, metadata={"option": Option(help, default=default, **facts)})


class Options:
    """A frozen dataclass whose fields are options. It parses and checks their values.

    exclusive: groups of option names; at most one option of a group can be set.
    """

    exclusive: ClassVar[tuple[tuple[str, ...], ...]] = ()
    _declared: ClassVar[dict[str, Option]] = {}

    def __init_subclass__(cls) -> None:
        own: dict[str, Option] = {}
        for name, kind in inspect.get_annotations(cls, eval_str=True).items():
            if isinstance(each := vars(cls).get(name), Field) and "option" in each.metadata:
                own[name] = replace(each.metadata["option"], name=name, kinds=get_args(kind) or (kind,))
        cls._declared = cls._declared | own
        helps = [f"- {name}={each.default!r}: {each.help}" for name, each in own.items()]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", *helps])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.changes().items())})"

    def __post_init__(self) -> None:
        for name, each in self._declared.items():
            if (value := getattr(self, name)) is not each.default:
                parsed = each.parse(value)
                object.__setattr__(self, name, each.default if parsed is None else parsed)
        for names in self.exclusive:
            given = [name for name in names if getattr(self, name) not in (None, "auto")]
            if len(given) > 1:
                settings = " and ".join(f"{name}={shown(getattr(self, name))}" for name in given)
                raise OptionError(f"{settings} exclude each other")

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Returns the declaration of every option by name."""
        return cls._declared

    def as_dict(self) -> dict[str, Any]:
        """Returns the value of every option by name."""
        return {name: getattr(self, name) for name in self._declared}

    def changes(self) -> dict[str, Any]:
        """Returns the value of every option that differs from its default, by name."""
        return {name: value for name, each in self._declared.items() if (value := getattr(self, name)) != each.default}


def is_random(unmasking: str) -> bool:
    """Returns whether an unmasking rule draws its order at random."""
    return UNMASKING.get(unmasking).is_random


_UNMASKING: dict[str, Any] = {
    "choices": lambda: UNMASKING.names(),
    "same": {"low_confidence": "confidence", "maskgit_plus": "confidence", "topk_margin": "margin"},
    "llada": "remasking",
    "dream": "alg",
}
CACHES = ("dual", "exact", "none", "prefix")
# Those that keep keys and values from before other tokens were filled in, so that answers may change.
APPROXIMATE_CACHES = ("dual", "prefix")
# Options that let a step fill more masks than the schedule plans.
PARALLEL_RULES = ("confidence_threshold", "parallel_factor", "entropy_bound")
SCHEDULES = ("linear", "llada2", "dream", "cosine", "bd3lm", "maskgit_linear", "maskgit_cosine", "maskgit_pow2")
# Beginnings of bitsandbytes' arguments, which transformers checks.
BITSANDBYTES = ("load_in_", "bnb_4bit_", "llm_int8_")
# The sampler in effect if no option asks for another one.
DEFAULT_SAMPLER = "schedule"
# Ways in which a model that is also causal decodes and scores.
MODES = ("diffusion", "ar", "linear_spec")
# Estimators whose sums rank answers, and are neither a likelihood nor a bound of one.
RANKINGS = ("pseudo", "confidence", "read")
_NOISE_NUM = "Number of random draws that are averaged for each slot or choice (DiffusionGemma)"


@dataclass(frozen=True, init=False, repr=False)
class DecodingOptions(Options):
    """The options of decoding, such as `DecodingOptions(n_masks=4, steps=2)`.

    Lengths are in tokens, and None means that an option is not set. Options of single samplers, such as
    `kl_threshold=0.1`, are keywords as well.
    """

    exclusive = (("mask_ratio", "n_masks"), ("steps_per_block", "steps"), PARALLEL_RULES)

    n_masks: int | Auto = option(
        "auto",
        "Number of masks to append after the prompt. auto: one for each token that the task asks for",
        least=1,
        llada="gen_length",
        dream="max_new_tokens",
    )
    mask_ratio: float | None = option(None, "Number of masks per token of the prompt, instead of n_masks", above=0)
    max_gen_toks: int | None = option(
        None, "Tokens to return if the task sets no number. Default: n_masks, otherwise 256", least=1
    )
    steps: int | Auto = option(
        "auto", "Denoising steps over the whole canvas. auto: one per returned token", least=1, dream="diffusion_steps"
    )
    steps_per_block: int | None = option(
        None, "Denoising steps per block, instead of steps", least=1, also="denoising_steps"
    )
    block_length: int | None = option(
        None, "Number of tokens per block. Blocks are decoded one after the other", least=1, also="block_size bd_size"
    )
    small_block_length: int | None = option(
        None, "Number of tokens per sub-block (Fast-dLLM v2)", least=1, also="small_block_size"
    )
    unmasking: str = option("confidence", "Which masks a step fills first", **_UNMASKING)
    position_decay: float = option(
        0.25, "How fast priority falls with the position in the block (unmasking=position_calibrated)", least=0
    )
    calibration_cap: float = option(10.0, "Maximum of confidence × rareness (unmasking=position_calibrated)", above=0)
    token_frequencies: str | None = option(
        None, "Safetensors file with each token's share of a background text (unmasking=position_calibrated)"
    )
    schedule: str = option("linear", "How many masks each step fills", choices=lambda: SCHEDULES)
    confidence_threshold: float | None = option(
        None,
        "Fill every mask whose confidence reaches this threshold (in block diffusion: exceeds it), and at least one",
        above=0,
        most=1,
        also="threshold",
    )
    parallel_factor: float | None = option(
        None,
        "Fill the n surest masks if the n-th has a confidence of at least 1 - parallel_factor / (n + 1) (Fast-dLLM)",
        above=0,
    )
    entropy_bound: float | None = option(
        None,
        "Fill the surest masks while their summed entropy, without the largest, is at most this (EB-sampler)",
        least=0,
    )
    sampler: str = option(
        "auto",
        "How answers are decoded. auto: by the sampler whose own option is set, otherwise by schedule. "
        "FILE.py:FUNCTION or module:FUNCTION: by your function",
        choices=lambda: ("auto", *SAMPLERS.names()),
        same={"none": "auto", "built-in": "auto"},
        beside=guest_of,
    )
    sampler_args: str | None = option(
        None, "For sampler=FILE.py:FUNCTION: its arguments, as NAME=VALUE, separated by semicolons"
    )
    append_blocks: bool = option(
        False, "Append blocks one by one until one ends the text, with at most n_masks masks in all (iLLaDA)"
    )
    mode: str = option(
        "diffusion",
        "How Nemotron-Labs-Diffusion decodes. linear_spec drafts blocks, and gives the same tokens as ar",
        choices=lambda: MODES,
    )
    causal_context: bool = option(
        True,
        "Prompt and finished blocks attend causally and predict the next block's first token (Nemotron-Labs-Diffusion)",
    )
    end_think: str = option("</think>", "Text that ends thinking, for end_think_boost and max_thinking_tokens")
    end_think_boost: float = option(
        0.0,
        "Make thinking end sooner: at a block's leftmost mask, raise the logit of end_think by "
        "end_think_boost * (the mask's place in the answer / n_masks)^end_think_power",
        least=0,
    )
    end_think_power: float = option(1.0, "Exponent in the formula of end_think_boost", above=0)
    max_thinking_tokens: int | None = option(
        None, "Write end_think after this many tokens without it. end_think must then be one token", least=0
    )
    temperature: float = option(0.0, "Sampling temperature. 0 decodes greedily", least=0)
    top_p: float | None = option(None, "Sample from the likeliest tokens of this total probability", above=0, most=1)
    top_k: int | None = option(None, "Sample from this many of the likeliest tokens", least=1, none_below=True)
    cfg_scale: float = option(0.0, "Strength of classifier-free guidance", least=0, llada="cfg")
    cache: str = option(
        "auto",
        "Key-value cache to use between steps. auto: only exact caches",
        choices=lambda: ("auto", *CACHES),
    )
    filler: str = option(".", "Neutral text to append after the masks, n_fillers times")
    n_fillers: int = option(0, "How often to append filler", least=0)
    suppress_eos: bool = option(False, "Never fill in an end-of-text token", llada="logits_eos_inf")
    escape_until: bool = option(False, "Ignore the task's stop strings (named as in Dream's script)")
    unfinished_thinking: str = option(
        "kept",
        "How to return an answer that ends before think_end_token: as it is (kept), or empty",
        choices=lambda: ("kept", "empty"),
    )
    eos_last: bool = option(False, "Fill in end-of-text and end-of-turn tokens last", llada="confidence_eos_eot_inf")
    early_exit: bool = option(True, "Remove a request from the batch once its answer is decided", silent=True)
    batch_invariant: bool = option(
        False, "Compute each answer so that the other requests of its batch cannot change it, in any dtype"
    )
    trace: bool = option(False, "Record when each token was filled in, and how sure the model was", silent=True)
    noise_num: int = option(8, _NOISE_NUM, least=1)
    seed: int = option(0, "Random seed. lm_eval replaces the default by its --seed, 1234", least=0)

    # Options of samplers and row decoders that were set. `way_of` checks them with their sampler.
    of_ways: tuple[tuple[str, Any], ...] = ()
    # The names of all options that were set, if there is a guest, whose defaults may differ; otherwise empty.
    given: frozenset[str] = frozenset()

    def __init__(self, **given: Any) -> None:
        given.setdefault("given", frozenset(given) if guest_of(given.get("sampler")) else frozenset())
        of_ways = dict(given.pop("of_ways", ()))
        for each in fields(self):
            object.__setattr__(self, each.name, given.pop(each.name, each.default))
        set_ = {name: value for name, value in sorted((of_ways | given).items()) if value is not None}
        object.__setattr__(self, "of_ways", tuple(set_.items()))
        self.__post_init__()

    def as_dict(self) -> dict[str, Any]:
        """Returns the value of every option by name. Options of single samplers are included only if they are set."""
        return super().as_dict() | dict(self.of_ways)

    def changes(self) -> dict[str, Any]:
        """Returns the value of every option that differs from its default, by name."""
        return super().changes() | dict(self.of_ways)

    @property
    def guest(self) -> str | None:
        """The name of the user's function that decodes, as given in `sampler`; None if one of our samplers decodes."""
        return self.sampler if ":" in self.sampler else None

    @cached_property
    def is_approximate(self) -> bool:
        """Whether the KV cache may change an answer."""
        return self.cache in APPROXIMATE_CACHES

    @cached_property
    def is_parallel(self) -> bool:
        """Whether the number of masks that a step fills depends on the model's confidence."""
        return any(getattr(self, name) is not None for name in PARALLEL_RULES)


@dataclass(frozen=True, repr=False)
class LikelihoodOptions(Options):
    """The options of `log_likelihood`, which estimates log p(continuation | context)."""

    likelihood: str = option(
        "auto", "The estimator", choices=lambda: ("auto", "mc", "chain", "duel", "pseudo", "confidence", "read")
    )
    mode: str = option(
        "diffusion",
        "How Nemotron-Labs-Diffusion scores. ar and linear_spec are exact, from left to right",
        choices=lambda: MODES,
    )
    eos_after: bool = option(
        False, "Put one end-of-text token after the continuation. It is not scored", llada="padd_eos"
    )
    mc_num: int = option(128, "Number of Monte Carlo samples per request", least=1)
    noise_num: int = option(8, _NOISE_NUM, least=1)
    n_masks: int | Auto = option(
        "auto", "Total length of the continuation and the masks after it. auto: no masks", least=1
    )
    unmasking: str = option("confidence", "For likelihood=duel: which masks a step fills first", **_UNMASKING)
    tokens_per_step: int = option(1, "For likelihood=duel: how many masks a step fills", least=1)
    confidence_threshold: float | None = option(
        None,
        "For likelihood=duel: also fill every mask whose confidence reaches this (in block diffusion: exceeds it)",
        above=0,
        most=1,
    )
    cfg_scale: float = option(0.0, "Strength of classifier-free guidance", least=0, llada="cfg")
    check_greedy: bool = option(
        True, "Also check whether greedy decoding gives the continuation", llada="is_check_greedy"
    )
    seed: int = option(0, "Random seed. lm_eval replaces the default by its --seed, 1234", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.likelihood == "duel" and is_random(self.unmasking):
            raise OptionError(
                f"unmasking={self.unmasking} has no likelihood=duel: its order is drawn, and many orders lead to one "
                "text; use confidence, margin, entropy or left_to_right"
            )
        if self.likelihood != "duel" and self.tokens_per_step != 1:
            raise OptionError(f"tokens_per_step={self.tokens_per_step} is an option of likelihood=duel alone")
        if self.likelihood != "read" and self.noise_num != type(self).noise_num:
            raise OptionError(f"noise_num={self.noise_num} is an option of likelihood=read alone")


@dataclass(frozen=True)
class ModelOptions(Options):
    """This package's model arguments besides those of decoding and likelihood."""

    preset: str | None = option(
        None, "Name of the published score whose settings are used. Options that you set override them"
    )
    plugins: str | None = option(None, "Python files and modules of your own to load first, separated by colons")
    modeling: str | None = option(
        None, "The authors' network for your own sampler: FILE.py:CLASS, or remote for the code in the checkpoint"
    )
    mask_token_id: int | None = option(None, "Id of the mask token, for models that name none", least=0, also="mask_id")
    shift_logits: bool | None = option(
        None, "For unknown models: whether logits predict the next position, as in Dream"
    )
    ignore_weights: str | None = option(
        None,
        "Leave out unexpected weights, such as further heads, if this regular expression matches their whole names",
    )
    diffusion_family: str | None = option(None, "The family to use if the config fits several families")
    cuda_graphs: bool = option(
        True, "On a GPU, run small passes as CUDA graphs if the model can be captured", silent=True
    )
    compile: bool = option(False, "Compile the layers with torch.compile", silent=True)
    fused: bool = option(False, "On a GPU, run small operations in kernels of liger-kernel and our own", silent=True)
    share_prefix: bool = option(
        True,
        "Compute the common beginning of prompts only once, where this is exact (block diffusion models)",
        silent=True,
    )
    cache_audit: float | None = option(
        None,
        "With cache=prefix or dual: requests per task (up to 1: a share) to decode again without it",
        above=0,
    )
    log_likelihood_draws: str | None = option(
        None, "Folder for Parquet files with each token's log-probability in each draw of a likelihood", silent=True
    )
    check: str | None = option(
        None, "mdlm-check report to cite in results. Default: the saved report of this model", silent=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore_weights is not None:
            try:
                re.compile(self.ignore_weights)
            except re.error as error:
                raise must_be("ignore_weights", f"a regular expression ({error})", self.ignore_weights) from error
        if self.check is not None and not os.path.isfile(self.check):
            raise OptionError(f"check={self.check}: there is no such file; mdlm-check writes it")
        if self.check is not None:
            from mdlm_lm_eval.results.recorded import CHECK_RECORD, check_types  # takes long to import

            try:
                check_types(read_json(Path(self.check)), CHECK_RECORD)
            except UnusableFile as error:
                raise OptionError(f"check={self.check}: the file {error}; mdlm-check writes one") from error


def short_name(guest: str) -> str:
    """Returns FILE.py:FUNCTION without the file's folder."""
    return PurePath(guest).name


OPTION_KINDS = (DecodingOptions, LikelihoodOptions, ModelOptions)


_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def dtype_name(dtype: str) -> str:
    """Returns torch's name of a dtype: `bfloat16` for `bf16` and `torch.bfloat16`."""
    name = dtype.removeprefix("torch.")
    return _DTYPES.get(name, name)


# Values


def must_be(name: str, what: str, value: object) -> OptionError:
    """Returns the error for a value that cannot be used: "n_masks must be auto or a whole number from 1, not -1"."""
    return OptionError(f"{name} must be {what}, not {shown(redacted_value(name, value))}")


def shown(value: object) -> str:
    """Returns a value as a user would type it, cut to 100 characters."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return f"{value:.15g}"
    text = value if isinstance(value, str) and value.isprintable() and value.strip() == value != "" else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def parse_flag(name: str, value: object) -> bool:
    """Returns a flag as a bool. Raises OptionError for anything but true, false, 1 and 0, as values or words."""
    flags = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in flags:
        raise must_be(name, "true or false", value)
    return flags[str(value).lower()]


def parse_whole(name: str, value: object, *, least: int = 0, most: float = math.inf) -> int:
    """Returns a whole number, which may be given as text. Raises OptionError for anything else."""
    declared = Option("", least=least, most=most, name=name, kinds=(int,))
    number = declared.parse(value)
    if number is None:
        raise must_be(name, declared.requirement, value)
    return int(number)


def check_names(what: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raises OptionError for all unknown names among the given ones, each with the nearest known one."""
    unknown = sorted(given.keys() - {*known})
    if len(unknown) == 1:
        raise unknown_option(what, unknown[0], given[unknown[0]], known, "docs/options.md lists all of them")
    if unknown:
        said = (_with_hint(name, given[name], known) for name in unknown)
        raise OptionError(f"unknown {what}s: " + ", ".join(f"{one} ({hint})" if hint else one for one, hint in said))


def unknown_option(what: str, name: object, value: object, known: Iterable[str], listed: str = "") -> OptionError:
    """Returns the error for an unknown name. It names a known one that is spelt or meant alike, else where all are."""
    said, hint = _with_hint(name, value, known)
    return OptionError("; ".join(filter(None, (f"unknown {what} {said}", hint or listed))))


def _with_hint(name: object, value: object, known: Iterable[str]) -> tuple[str, str | None]:
    """An option as it was typed, without secrets, and the question for the known name that is alike."""
    value = redacted_value(str(name), value)
    return f"{shown(name)}={shown(value)}" if value != "" else shown(name), did_you_mean(str(name), sorted(known))


def aliases_in(declared: Iterable[Option]) -> dict[str, str]:
    """Returns a dictionary from these options' names in the families' scripts to our names."""
    return {alias: each.name for each in declared for alias in (each.llada, each.dream, *each.also.split()) if alias}


_ALIKE, _ALIKE_IF_SHORT = 0.75, 0.6  # of the letters


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Returns the question "did you mean ...?" for an unknown name; None if no known name is near."""
    names = list(known)
    meant = _MEANT.get(name, aliases_in(each for kind in OPTION_KINDS for each in kind.declared().values()).get(name))
    alike = _ALIKE if len(name) > 4 else _ALIKE_IF_SHORT
    nearest = [meant] if meant in names else difflib.get_close_matches(name, names, n=1, cutoff=alike)
    return f"did you mean {nearest[0]}?" if nearest else None


# Names in other software -> the option of ours that they stand for, where another one looks more similar.
_MEANT = {
    **dict.fromkeys(("model", "model_path", "model_name_or_path", "model_dir", "path", "checkpoint"), "pretrained"),
    **dict.fromkeys(("adapter", "lora", "lora_path"), "peft"),
    "use_dual_cache": "cache",
    "num_steps": "steps",
    "do_sample": "temperature",
    **dict.fromkeys(("factor", "factor_value"), "parallel_factor"),
    "eb_threshold": "entropy_bound",
    "right_shift_logits": "shift_logits",
    "remasking": "sampler",
    "max_tokens": "max_gen_toks",
    "stop": "until",
}
