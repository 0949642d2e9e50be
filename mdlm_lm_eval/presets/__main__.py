"""Lists the presets: `python -m mdlm_lm_eval.presets`."""

from mdlm_lm_eval.presets import preset_names

print("\n".join(preset_names()))
