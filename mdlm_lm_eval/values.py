"""Reads values as they are typed, and says in one sentence what a value must be."""

import difflib
import re
from argparse import ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path

LARGEST = 2**64  # and no option's value reaches it
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST_NUMBER = 400  # characters


class OptionError(ValueError):
    """An option that cannot be used; the message names it, its value and what is possible."""


def must_be(name: str, what: str, value: object) -> OptionError:
    """The error about a value that cannot be used: "n_masks must be auto or a whole number from 1, not -1"."""
    return OptionError(f"{name} must be {what}, not {shown(value)}")


def shown(value: object) -> str:
    """A value as it was typed, cut short where it is long."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST:
        return str(int(value))
    text = value if isinstance(value, str) and value.isprintable() and value.strip() == value != "" else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The question about a name that nobody knows, None where none that is known is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {nearest[0]}?" if nearest else None


def parse_flag(name: str, value: object) -> bool:
    """True or False. Raises OptionError for anything but these and the words for them."""
    if str(value).lower() not in ("true", "false"):
        raise must_be(name, "true or false", value)
    return str(value).lower() == "true"


def parse_whole(name: str, value: object, *, least: int = 0, most: int | None = None) -> int:
    """A whole number, which may be typed. Raises OptionError for anything else."""
    number = whole_of(value)
    if number is None or number < least or (most is not None and number > most):
        raise must_be(name, f"a whole number from {least}" + ("" if most is None else f" up to {most}"), value)
    return number


def parse_limit(name: str, value: object) -> float:
    """Questions a task, or their share below 1. Raises OptionError for anything else."""
    limit = number_of(value)
    if limit is None or limit <= 0 or (limit > 1 and limit != int(limit)):
        raise must_be(name, "a whole number from 1, or a share below 1", value)
    return int(limit) if limit == int(limit) else limit


def check_batch_size(size: object) -> None:
    """Raises OptionError for anything but what lm-eval's `--batch_size` takes."""
    if size is not None and not re.fullmatch(r"auto(:[0-9]+(\.[0-9]+)?)?|0*[1-9][0-9]{0,8}", str(size)):
        raise must_be("batch_size", "auto or a whole number from 1 up to 999999999", size)


def spells_number(text: str) -> bool:
    """Whether a text is a number in plain digits, unlike nan, 0x10 and 1_000."""
    return len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text) is not None


def number_of(value: object) -> int | float | None:
    """The number that a value is or spells; None where it is none."""
    if isinstance(value, str):
        if not spells_number(value):
            return None
        value = float(value) if set(value) & set(".eE") else int(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) < LARGEST else None  # type: ignore[arg-type,return-value]


def whole_of(value: object) -> int | None:
    """The same of whole numbers, which lm-eval hands on as floats where a sign or an exponent was typed."""
    number = number_of(value)
    return int(number) if number is not None and number == int(number) else None


def typed_folder(name: str) -> Path:
    """A folder's path, as argparse's `type`; an empty one would be the folder where the command runs."""
    if not name:
        raise ArgumentTypeError("must be the name of a folder, not empty")
    return Path(name)
