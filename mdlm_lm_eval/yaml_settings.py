"""Settings in YAML, with numbers as the command line takes them."""

from typing import Any

import yaml

from mdlm_lm_eval.values import must_be, spells_number


class _PlainNumbers(yaml.SafeLoader):
    """YAML 1.1 takes 010 for 8, 0x10 for 16 and 12:30 for 750."""


def _whole(_loader: _PlainNumbers, node: yaml.ScalarNode) -> int:
    if not spells_number(node.value):
        raise must_be(f"the number in line {node.start_mark.line + 1}", "typed in plain digits", node.value)
    return int(node.value)


_PlainNumbers.add_constructor("tag:yaml.org,2002:int", _whole)


def read_yaml(text: str) -> Any:
    """What a file of settings holds. Raises OptionError for numbers in other than plain digits, YAMLError as yaml."""
    return yaml.load(text, _PlainNumbers)
