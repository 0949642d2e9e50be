"""Settings behind published scores: `--model_args pretrained=...,preset=llada-8b-instruct/gsm8k`.

A preset is a YAML file <model>/<benchmark>.yaml of decoding or likelihood options; docs/benchmarks.md lists the score,
source and command of each.
"""

from pathlib import Path

import yaml

from mdlm_lm_eval.options import OptionError, did_you_mean

_FOLDER = Path(__file__).parent


def preset_names() -> list[str]:
    """All presets, as `preset=` takes them."""
    return sorted(path.relative_to(_FOLDER).with_suffix("").as_posix() for path in _FOLDER.glob("*/*.yaml"))


def load_preset(name: str) -> dict[str, object]:
    """The options of a preset by name. Raises OptionError for an unknown one, naming the nearest."""
    names = preset_names()
    if name not in names:
        hint = f"{did_you_mean(name, names) or ''} `python -m mdlm_lm_eval.presets` lists them all".strip()
        raise OptionError(f"unknown preset={name!r}; {hint}")
    options: dict[str, object] = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return options
