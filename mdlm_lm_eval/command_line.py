"""What our commands take from lm-eval's command line, without importing the rest of lm-eval."""

import argparse
import math
from collections.abc import Sequence
from typing import Any, get_args

from lm_eval._cli.utils import MergeDictAction, handle_cli_value_string, split_top_level

from mdlm_lm_eval.options import OPTION_KINDS, TEXT_ARGUMENTS, options_of
from mdlm_lm_eval.values import OptionError, must_be, shown, spells_number

_TEXTS = {"pretrained", "tokenizer", *TEXT_ARGUMENTS} | {
    each.name for kind in OPTION_KINDS for each in options_of(kind) if str in (each.type, *get_args(each.type))
}


class NamedValues(MergeDictAction):
    """`name=value,name=value` or JSON, read as lm-eval reads `--model_args`."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Ends the command with one sentence where JSON cannot be read."""
        try:
            super().__call__(parser, namespace, values, option_string)
            check_typed(values)
        except (ValueError, RecursionError) as error:
            parser.error(f"argument {option_string}: {error}")


def check_typed(typed: Sequence[str]) -> None:
    """Raises OptionError where lm-eval makes of one option's words something else than what was typed.

    It takes 0x10, 1_0 and digits of another script for numbers, a text such as 1.10 for the number 1.1, the last of two
    values, and of several words the first alone where that is JSON.
    """
    if len(typed) > 1 and typed[0].lstrip().startswith("{"):
        raise OptionError(f"{shown(typed[1])} has no effect behind JSON; put it into the JSON")
    for text in typed:
        names = [pair.partition("=")[0].strip() for pair in split_top_level(text)]
        twice = next((name for name in names if names.count(name) > 1 and name), None)
        if twice and not text.lstrip().startswith("{"):
            raise OptionError(f"{twice} stands there twice in {shown(text)}; give it once")
    for pair in (pair for text in typed for pair in split_top_level(text)):
        name, _, text = pair.partition("=")
        number = handle_cli_value_string(text)
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            continue
        if name in _TEXTS and str(number) != text:
            raise OptionError(
                f"{name}={text} would be read as {number}; type it with both pairs of quotes: '{name}=\"{text}\"'"
            )
        # Of nan and inf the option itself says more.
        if abs(number) < math.inf and not spells_number(text.strip()):
            raise must_be(name, "typed in plain digits", text)
