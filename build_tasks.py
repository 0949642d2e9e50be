"""Puts `tasks/` into the wheel's package; an editable install reads it from the checkout."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PackagedTasks(BuildHookInterface[Any]):
    """hatchling's own `force-include` would copy the folder in an editable install too, and edits would not be seen."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["tasks"] = "mdlm_lm_eval/tasks"
