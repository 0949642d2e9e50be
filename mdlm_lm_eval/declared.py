"""All options that a user can set: those of `options`, and those that samplers and row decoders declare.

Listing the latter imports every sampler and row decoder, of this package and of plug-ins; none of them imports torch.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import NoneType
from typing import Any

from mdlm_lm_eval.options import (
    DEFAULT_SAMPLER,
    OPTION_KINDS,
    DecodingOptions,
    LikelihoodOptions,
    Option,
    OptionError,
    Options,
    aliases_in,
    short_name,
    shown,
)
from mdlm_lm_eval.registry import ROW_DECODERS, SAMPLERS, Registry

# Names that no option of a sampler or row decoder can have.
_CORE = frozenset(name for kind in OPTION_KINDS for name in kind.declared())


def options_of(*registries: Registry) -> dict[str, Option]:
    """Returns the options of all samplers or row decoders by name. The help of a sampler's option names the sampler.

    Raises ValueError if two different options have the same name.
    """
    return _options_of(*((registry.kind, tuple(sorted(registry.all().items()))) for registry in registries))


@cache  # called for each setting of each result file
def _options_of(*registered: tuple[str, tuple[tuple[str, type[Options]], ...]]) -> dict[str, Option]:
    found: dict[str, Option] = {}
    samplers: dict[str, list[str]] = {}
    for room, ways in registered:
        for kind, way in ways:
            for name, each in way.declared().items():
                if name in _CORE or found.setdefault(name, each) != each:
                    raise ValueError(f"the {room} {kind} declares {name}, which is another option already")
                if room == SAMPLERS.kind:
                    samplers.setdefault(name, []).append(kind)
    chosen = {name: f" (sampler={'|'.join(kinds)})" for name, kinds in samplers.items()}
    return {name: replace(each, help=each.help + chosen.get(name, "")) for name, each in found.items()}


def declarations(kind: type[Options]) -> dict[str, Option]:
    """Returns the declarations of a class's options by name; of decoding, also those of samplers and row decoders."""
    return kind.declared() | (options_of(SAMPLERS, ROW_DECODERS) if kind is DecodingOptions else {})


def defaults_of(kind: type[Options]) -> dict[str, Any]:
    """Returns the default of every option of a class, by name."""
    return {name: each.default for name, each in declarations(kind).items()}


def own_names() -> frozenset[str]:
    """Returns the names of all options."""
    return frozenset(name for kind in OPTION_KINDS for name in declarations(kind))


def built_in_names() -> set[str]:
    """Returns the names of decoding options that the package declares, whether or not a plug-in also does."""
    ways = (way for each in (SAMPLERS, ROW_DECODERS) for name, way in each.all().items() if name not in each.guests)
    return {*DecodingOptions.declared()}.union(*(way.declared() for way in ways))


def silent_names() -> frozenset[str]:
    """Returns the names of options that never change a score."""
    return frozenset(name for kind in OPTION_KINDS for name, each in declarations(kind).items() if each.silent)


def aliases() -> dict[str, str]:
    """Returns a dictionary from names in the families' scripts to our option names."""
    return aliases_in(each for kind in OPTION_KINDS for each in declarations(kind).values())


def parsed(kind: type[Options], given: Mapping[str, object]) -> dict[str, Any]:
    """Returns the options of this kind in `given` with parsed values, without those that are not set.

    Raises OptionError for a value that cannot be used.
    """
    declared = declarations(kind)
    values = {name: each.parse(given[name]) for name, each in declared.items() if name in given}
    # If an option allows None, None is a value: it switches off what a preset or a family sets.
    return {name: value for name, value in values.items() if value is not None or NoneType in declared[name].kinds}


# Samplers


def asked_sampler(given: Mapping[str, Any]) -> str | None:
    """Returns the sampler that options ask for, by `sampler` or by an option that chooses one; None if they do not.

    Raises OptionError if they ask for two.
    """
    if given.get("sampler") not in (None, "auto"):
        return str(given["sampler"])
    # An inherited `asked_by` does not count: a subclass of a sampler is asked for by its name or an option of its own.
    asked = {name: vars(kind).get("asked_by") for name, kind in sorted(SAMPLERS.all().items())} if given else {}
    found = {name: option for name, option in asked.items() if option and given.get(option) is not None}
    if len(found) > 1:
        settings = " and ".join(f"{option}={shown(given[option])}" for option in found.values())
        raise OptionError(f"{settings} exclude each other: they choose sampler={' and sampler='.join(found)}")
    return next(iter(found), None)


def sampler_of(options: DecodingOptions) -> str:
    """Returns the name of the sampler in effect, of the default one for a guest."""
    return asked_sampler({"sampler": options.sampler, **dict(options.of_ways)}) or DEFAULT_SAMPLER


def as_record(options: DecodingOptions | LikelihoodOptions) -> dict[str, Any]:
    """Returns what results record: every option, but those of plug-ins that are neither set nor of the sampler in use.

    So the record does not depend on what else is installed on a machine.
    """
    if isinstance(options, LikelihoodOptions):
        return options.as_dict()
    own = {} if options.guest else SAMPLERS.get(sampler_of(options)).declared()
    kept = built_in_names() | {*dict(options.of_ways), *own}
    of_guest = {} if options.guest is None else {"sampler": short_name(options.guest)}
    values = {**defaults_of(DecodingOptions), **options.as_dict(), **of_guest}
    return {name: value for name, value in values.items() if name in kept}
