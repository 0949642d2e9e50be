"""Every option of decoding and likelihood, declared once: type, default, bounds, choices and one line of help.

    DecodingOptions().override({"n_masks": "200", "unmasking": "entropy"})

Validation, `mdlm-sweep --help` and its axes, docs/options.md, README's table and the leaderboard's defaults read these
declarations. Nothing heavy is imported here, so that every command can parse its arguments at once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from types import NoneType
from typing import Any, Literal, Self, get_args

from mdlm_lm_eval.decoding.rules import unmasking_names
from mdlm_lm_eval.values import OptionError, did_you_mean, must_be, number_of, parse_flag, shown, whole_of

Auto = Literal["auto"]
# Of transformers' arguments. `revision=1234567` and a folder `5` arrive as numbers.
TEXT_ARGUMENTS = ("peft", "revision", "subfolder", "variant")
LARGEST_SEED = 2**63 - 1
LARGEST_NUMPY_SEED = 2**32 - 1
LM_EVAL_SEEDS = (0, 1234, 1234, 1234)  # its defaults, of Python, numpy, torch and few-shot samples


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its type and default, which its field tells.

    least, most: the smallest and the largest value; `above` itself is too small, and `zero` is possible although it is.
    llada, dream: what LLaDA's and Dream's own scripts call it.
    silent: no value of it changes a score.
    """

    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    zero: bool = False
    choices: Callable[[], Sequence[str]] | None = None
    llada: str = ""
    dream: str = ""
    silent: bool = False


def option(help: str, **facts: Any) -> Mapping[str, Option]:
    """The metadata of an option's field."""
    return {"option": Option(help, **facts)}


class Options:
    """A frozen dataclass whose fields are options: it reads and checks what a command line or a file says of them."""

    def __post_init__(self) -> None:
        for declared in options_of(type(self)):
            value = _parse(declared, getattr(self, declared.name))
            object.__setattr__(self, declared.name, value)

    def override(self, changes: Mapping[str, object]) -> Self:
        """These options with `changes`, whose values may be strings as typed on a command line.

        Raises OptionError for a name that is no option (naming the nearest) and for a value that cannot be used.
        """
        known = {declared.name for declared in options_of(type(self))}
        for name, value in changes.items():
            if name not in known:
                raise unknown_option("option", name, value, known)
        return replace(self, **changes)  # type: ignore[type-var]


# Caches that hold what they computed before other tokens were filled.
APPROXIMATE_CACHES = ("prefix", "dual")
# Options that let a step fill more masks than its schedule says.
PARALLEL_RULES = ("confidence_threshold", "parallel_factor", "entropy_bound")
# Of each of these, one option at most can be set.
EXCLUSIVE_NAMES = (("mask_ratio", "n_masks"), ("steps_per_block", "steps"), PARALLEL_RULES)


@dataclass(frozen=True)
class DecodingOptions(Options):
    """How answers are decoded. Lengths are tokens; None means "not set"."""

    n_masks: int | Auto = field(
        default="auto",
        metadata=option(
            "masks appended after the prompt; auto = the tokens that the task asks for",
            least=1,
            llada="gen_length",
            dream="max_new_tokens",
        ),
    )
    mask_ratio: float | None = field(
        default=None, metadata=option("instead of n_masks: that share of the prompt's tokens", above=0, most=1000)
    )
    max_gen_toks: int | None = field(
        default=None, metadata=option("tokens returned where the task does not say; else n_masks, else 256", least=1)
    )
    steps: int | Auto = field(
        default="auto",
        metadata=option(
            "denoising steps over the whole canvas; auto = the tokens returned",
            least=1,
            llada="steps",
            dream="diffusion_steps",
        ),
    )
    steps_per_block: int | None = field(
        default=None, metadata=option("instead of steps: denoising steps of every block", least=1)
    )
    block_length: int | None = field(
        default=None,
        metadata=option("tokens of a block; blocks are decoded one after the other", least=1, llada="block_length"),
    )
    small_block_length: int | None = field(
        default=None, metadata=option("tokens of the parts in which a block is decoded (Fast-dLLM v2)", least=1)
    )
    unmasking: str = field(
        default="confidence",
        metadata=option("which masks a step fills", choices=unmasking_names, llada="remasking", dream="alg"),
    )
    schedule: str = field(
        default="linear",
        metadata=option("how many masks a step fills", choices=lambda: ("linear", "dream", "cosine", "bd3lm")),
    )
    confidence_threshold: float | None = field(
        default=None,
        metadata=option(
            "instead of a schedule: every mask whose confidence reaches this (block diffusion: exceeds it), one a step "
            "at least",
            above=0,
            most=1,
        ),
    )
    parallel_factor: float | None = field(
        default=None, metadata=option("instead of a schedule: Fast-dLLM's factor rule", above=0, most=1000)
    )
    entropy_bound: float | None = field(
        default=None,
        metadata=option(
            "instead of a schedule: the surest tokens while their entropies sum to no more (EB-sampler)",
            least=0,
            most=1000,
        ),
    )
    editing_threshold: float | None = field(
        default=None,
        metadata=option("how sure a model that edits (LLaDA2.1) must be to change a token", least=0, most=1),
    )
    max_post_steps: int | None = field(
        default=None, metadata=option("passes that may edit a block once it holds no mask", least=0)
    )
    temperature: float = field(
        default=0.0,
        metadata=option(
            "of sampling; 0 takes the likeliest token",
            least=1e-6,
            most=1000,
            zero=True,
            llada="temperature",
            dream="temperature",
        ),
    )
    top_p: float | None = field(
        default=None,
        metadata=option("samples from the likeliest tokens of that probability", above=0, most=1, dream="top_p"),
    )
    top_k: int | None = field(
        default=None, metadata=option("samples from that many of the likeliest tokens", least=1, dream="top_k")
    )
    cfg_scale: float = field(default=0.0, metadata=option("classifier-free guidance", least=0, most=1000, llada="cfg"))
    cache: str = field(
        default="auto",
        metadata=option(
            "keys and values that are remembered between steps; auto = those that change no answer",
            choices=lambda: ("auto", "none", "prefix", "dual"),
        ),
    )
    filler: str = field(default=".", metadata=option("a neutral text, repeated after the masks"))
    n_fillers: int = field(default=0, metadata=option("how many fillers", least=0, most=1_000_000))
    suppress_eos: bool = field(
        default=False, metadata=option("never fills in an end-of-text token", llada="logits_eos_inf")
    )
    eos_last: bool = field(
        default=False,
        metadata=option(
            "fills in end-of-text and end-of-turn tokens last, where the model's confidence decides",
            llada="confidence_eos_eot_inf",
        ),
    )
    early_exit: bool = field(
        default=True,
        metadata=option("a row whose answer is decided leaves the batch; the answer is the same", silent=True),
    )
    seed: int = field(
        default=0, metadata=option("of every random choice; --seed of lm_eval if not set", least=0, most=LARGEST_SEED)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for names in EXCLUSIVE_NAMES:
            given = {name: getattr(self, name) for name in names if getattr(self, name) not in (None, "auto")}
            if len(given) > 1:
                raise OptionError(
                    f"{' and '.join(f'{name}={value}' for name, value in given.items())} exclude each other"
                )

    @property
    def is_approximate(self) -> bool:
        """Whether what is remembered between steps may change an answer."""
        return self.cache in APPROXIMATE_CACHES

    @property
    def is_parallel(self) -> bool:
        """Whether what a step fills depends on how sure the model is, and not on a schedule alone."""
        return any(getattr(self, name) is not None for name in PARALLEL_RULES)


@dataclass(frozen=True)
class LikelihoodOptions(Options):
    """How log p(continuation | context) is estimated."""

    likelihood: str = field(
        default="auto", metadata=option("the estimator", choices=lambda: ("auto", "mc", "chain", "duel"))
    )
    mc_num: int = field(
        default=128,
        metadata=option(
            "Monte-Carlo samples a request, each at most one pass", least=1, most=1_000_000, llada="mc_num"
        ),
    )
    n_masks: int | Auto = field(
        default="auto",
        metadata=option("the whole canvas after the context, continuation included; auto adds no masks", least=1),
    )
    unmasking: str = field(
        default="confidence", metadata=option("of likelihood=duel: which masks a step fills", choices=unmasking_names)
    )
    tokens_per_step: int = field(default=1, metadata=option("of likelihood=duel: how many masks a step fills", least=1))
    confidence_threshold: float | None = field(
        default=None,
        metadata=option(
            "of likelihood=duel: a step also fills every mask whose confidence reaches this (block diffusion: exceeds "
            "it)",
            above=0,
            most=1,
        ),
    )
    cfg_scale: float = field(default=0.0, metadata=option("classifier-free guidance", least=0, most=1000, llada="cfg"))
    check_greedy: bool = field(
        default=True,
        metadata=option("also tells whether greedy decoding gives the continuation", llada="is_check_greedy"),
    )
    seed: int = field(
        default=0, metadata=option("of every random choice; --seed of lm_eval if not set", least=0, most=LARGEST_SEED)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.likelihood == "duel" and self.unmasking == "random":
            raise without_duel(self.unmasking)
        if self.likelihood != "duel" and self.tokens_per_step != 1:
            raise OptionError(f"tokens_per_step={self.tokens_per_step} is an option of likelihood=duel alone")


@dataclass(frozen=True)
class ModelOptions(Options):
    """What is ours among the model arguments beside decoding and likelihood."""

    preset: str | None = field(
        default=None, metadata=option("the settings behind a published score; any other option wins over it")
    )
    mask_token_id: int | None = field(default=None, metadata=option("of a model that names no mask token", least=0))
    shift_logits: bool | None = field(
        default=None, metadata=option("whether a model that we do not know predicts the next position, as Dream does")
    )
    compile: bool = field(default=False, metadata=option("torch.compile of the model's layers", silent=True))
    cache_audit: float | None = field(
        default=None,
        metadata=option(
            "of cache=prefix and dual: the share of each task's requests (up to 1), or how many, decoded exactly too",
            above=0,
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache_audit is not None and self.cache_audit > 1 and self.cache_audit != int(self.cache_audit):
            raise must_be("cache_audit", "a share up to 1 or a whole number", self.cache_audit)


def options_of(kind: type[Options]) -> tuple[Field[Any], ...]:
    """The fields of a class of options, in the order in which they are declared."""
    return fields(kind)  # type: ignore[arg-type]


def about(declared: Field[Any]) -> Option:
    """What is known of an option beside its type and default."""
    return declared.metadata["option"]


def defaults_of(kind: type[Options]) -> dict[str, Any]:
    """Name -> default of every option of a class."""
    return {declared.name: declared.default for declared in options_of(kind)}


def silent_names() -> frozenset[str]:
    """Options of which no value changes a score."""
    return frozenset(each.name for kind in OPTION_KINDS for each in options_of(kind) if about(each).silent)


OPTION_KINDS = (DecodingOptions, LikelihoodOptions, ModelOptions)
DECODING_NAMES, LIKELIHOOD_NAMES, MODEL_NAMES = (frozenset(defaults_of(kind)) for kind in OPTION_KINDS)


def requirement(declared: Field[Any]) -> str:
    """What an option must be: "auto or a whole number from 1"."""
    kinds = get_args(declared.type) or (declared.type,)
    known = about(declared)
    if known.choices is not None:
        return f"one of {', '.join(known.choices())}"
    if bool in kinds:
        return "true or false"
    if str in kinds:
        return "a text of at least one character"
    what = "a whole number" if int in kinds else "a number"
    bounds = [f"from {shown(known.least)}"] if known.least is not None else []
    bounds += [f"above {shown(known.above)}"] if known.above is not None else []
    bounds += [f"up to {shown(known.most)}"] if known.most is not None else []
    words = [word for word, fits in (("auto", Auto in kinds), ("none", NoneType in kinds), ("0", known.zero)) if fits]
    return " or ".join([*words, " ".join([what, *bounds])])


def without_duel(unmasking: str) -> OptionError:
    """The error about an unmasking rule that draws its order."""
    return OptionError(
        f"unmasking={unmasking} has no likelihood=duel: its order is drawn, and many orders lead to one text; "
        "use confidence, margin, entropy or left_to_right"
    )


def unknown_option(
    what: str, name: object, value: object, known: Iterable[str], *, listed: Collection[str] = ()
) -> OptionError:
    """The error about a name that is no option: the nearest that is, or all `listed` ones where none is near."""
    names = sorted(known)
    ours = next((ours for ours in _names_elsewhere(str(name)) if ours in names), str(name))
    hint = did_you_mean(ours, names) or f"the options are {', '.join(sorted(listed) or names)}"
    return OptionError(f"unknown {what} {shown(name)}={shown(value)}; {hint}")


def _parse(declared: Field[Any], value: object) -> Any:
    """`value` as an option's type. Raises OptionError where it cannot be used."""
    kinds = get_args(declared.type) or (declared.type,)
    known = about(declared)
    if NoneType in kinds and (value is None or str(value).lower() == "none"):
        return None
    if bool in kinds:
        return parse_flag(declared.name, value)
    if str in kinds:
        fits = str(value) in known.choices() if known.choices is not None else str(value) != ""
        if value is None or not fits or isinstance(value, (dict, list)):
            raise must_be(declared.name, requirement(declared), value)
        return str(value)
    if Auto in kinds and value == "auto":
        return value
    number = number_of(value) if float in kinds else whole_of(value)
    if number is None or not _in_bounds(number, known):
        raise must_be(declared.name, requirement(declared), value)
    return number


def _in_bounds(number: float, known: Option) -> bool:
    return (known.zero and number == 0) or (
        (known.above is None or number > known.above)
        and (known.least is None or number >= known.least)
        and (known.most is None or number <= known.most)
    )


def _names_elsewhere(name: str) -> list[str]:
    """Our names of an option of LLaDA's or Dream's scripts."""
    declared = (*options_of(DecodingOptions), *options_of(LikelihoodOptions))
    return [each.name for each in declared if name and name in (about(each).llada, about(each).dream)]
