"""How settings are typed in a command."""

import json
from collections.abc import Mapping
from typing import Any


def typed_pairs(arguments: Mapping[str, Any]) -> str:
    """`name=value,name=value`, or JSON where a value would not survive that."""
    if any(isinstance(value, (dict, list)) or set(str(value)) & set(",={") for value in arguments.values()):
        return json.dumps(arguments)
    return ",".join(f"{name}={value}" for name, value in arguments.items())
