"""What a sweep refuses before its first cell: options that the model cannot do, and cells that differ in name alone."""

from dataclasses import replace
from typing import Any

from mdlm_lm_eval.lm import config_of, settings_of
from mdlm_lm_eval.options import OWN_NAMES, DecodingOptions, OptionError
from mdlm_lm_eval.resolve import without_effect
from mdlm_lm_eval.sweep.plan import Cell, Sweep


def check_cells(sweep: Sweep) -> None:
    """Reads the model's config and nothing else of it. Raises OptionError for the first cell that is refused."""
    if sweep.model != "mdlm":
        return
    config = config_of(sweep.model_args.get("pretrained"), sweep.model_args)
    seen: dict[Any, tuple[Cell, DecodingOptions]] = {}
    for cell in sweep.cells:
        try:
            settings = settings_of(config, cell.arguments)
        except OptionError as error:
            raise OptionError(f"{cell.name}: {error}") from error
        idle = without_effect(settings.decoding, settings.attention)
        effective = replace(settings.decoding, **{name: DecodingOptions.declared[name].default for name in idle})
        others = {name: value for name, value in cell.arguments.items() if name not in OWN_NAMES}
        bare = replace(cell, arguments=others)
        first, of_first = seen.setdefault(
            (repr(bare), effective, settings.likelihood, settings.model), (cell, settings.decoding)
        )
        if first is not cell:
            differ = [name for name in idle if getattr(of_first, name) != getattr(settings.decoding, name)]
            why = "; ".join(f"{name} has no effect {idle[name]}" for name in differ) or "their options are the same"
            raise OptionError(f"{first.name} and {cell.name} would be the same: {why}")
