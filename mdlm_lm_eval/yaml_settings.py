"""Settings in YAML, with numbers as the command line takes them, and each key once."""

from collections import Counter
from typing import Any

import yaml

from mdlm_lm_eval.values import OptionError, must_be, spells_number


class _Strict(yaml.SafeLoader):
    """YAML 1.1 takes 010 for 8, 0x10 for 16 and 12:30 for 750, and PyYAML the last of two equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        times = Counter(key.value for key, _value in node.value if isinstance(key, yaml.ScalarNode))
        for name, given in times.items():
            if given > 1:
                raise OptionError(f"{name} stands there {given} times; give it once")
        return super().construct_mapping(node, deep)


def _whole(_loader: _Strict, node: yaml.ScalarNode) -> int:
    if not spells_number(node.value):
        raise must_be(f"the number in line {node.start_mark.line + 1}", "typed in plain digits", node.value)
    return int(node.value)


_Strict.add_constructor("tag:yaml.org,2002:int", _whole)


def read_yaml(text: str) -> Any:
    """What a file of settings holds. Raises OptionError for numbers in other digits and keys given twice."""
    return yaml.load(text, _Strict)
