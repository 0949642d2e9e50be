"""What our commands take from lm-eval's command line, without importing the rest of lm-eval."""

import argparse
from typing import Any

from lm_eval._cli.utils import MergeDictAction


class NamedValues(MergeDictAction):
    """`name=value,name=value` or JSON, read as lm-eval reads `--model_args`."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Ends the command with one sentence where JSON cannot be read."""
        try:
            super().__call__(parser, namespace, values, option_string)
        except (ValueError, RecursionError) as error:
            parser.error(f"argument {option_string}: {error}")
