"""What a sweep refuses before its first cell: options that the model cannot do, and cells that differ in name alone."""

from dataclasses import replace
from typing import Any

from mdlm_lm_eval.lm import config_of, settings_of
from mdlm_lm_eval.options import DecodingOptions, OptionError, defaults_of, own_names
from mdlm_lm_eval.resolve import without_effect
from mdlm_lm_eval.sweep.plan import Cell, Sweep


def check_cells(sweep: Sweep) -> None:
    """Reads the model's config and nothing else of it. Raises OptionError for the first cell that is refused."""
    if sweep.model != "mdlm":
        return
    config = config_of(sweep.model_args.get("pretrained"), sweep.model_args)
    defaults, own = defaults_of(DecodingOptions), own_names()
    seen: dict[Any, tuple[Cell, DecodingOptions]] = {}
    for cell in sweep.cells:
        try:
            settings = settings_of(config, cell.arguments)
        except OptionError as error:
            raise OptionError(f"{cell.name}: {error}") from error
        idle = without_effect(settings.decoding, settings.attention)
        effective = settings.decoding.override({name: defaults[name] for name in idle})
        others = {name: value for name, value in cell.arguments.items() if name not in own}
        bare = replace(cell, arguments=others)
        first, of_first = seen.setdefault(
            (repr(bare), effective, settings.likelihood, settings.model), (cell, settings.decoding)
        )
        if first is not cell:
            theirs, ours = of_first.as_dict(), settings.decoding.as_dict()
            differ = [name for name in idle if theirs[name] != ours[name]]
            why = "; ".join(f"{name} has no effect {idle[name]}" for name in differ) or "their options are the same"
            raise OptionError(f"{first.name} and {cell.name} would be the same: {why}")
