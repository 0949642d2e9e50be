"""What our commands take from lm-eval's command line, without importing the rest of lm-eval."""

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval._cli.utils import MergeDictAction, split_top_level

from mdlm_lm_eval.values import OptionError, must_be, shown, spells_number


class NamedValues(MergeDictAction):
    """`name=value,name=value` or JSON, read as lm-eval reads `--model_args`."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Ends the command with one sentence where JSON cannot be read."""
        try:
            super().__call__(parser, namespace, values, option_string)
            check_numbers(values, getattr(namespace, self.dest))
        except (ValueError, RecursionError) as error:
            parser.error(f"argument {option_string}: {error}")


def check_numbers(typed: Sequence[str], read: Mapping[str, object]) -> None:
    """Raises OptionError where lm-eval took 0x10, 1_0 or digits of another script for a number, or the last of two."""
    for text in typed:
        names = [pair.partition("=")[0].strip() for pair in split_top_level(text)]
        twice = next((name for name in names if names.count(name) > 1 and name), None)
        if twice and not text.lstrip().startswith("{"):
            raise OptionError(f"{twice} stands there twice in {shown(text)}; give it once")
    for pair in (pair for text in typed for pair in split_top_level(text)):
        name, _, text = pair.partition("=")
        number = read.get(name)
        # Of nan and inf the option itself says more.
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) < math.inf
        if is_number and not spells_number(text.strip()):
            raise must_be(name, "typed in plain digits", text)
