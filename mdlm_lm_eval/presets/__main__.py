"""Lists the presets: `python -m mdlm_lm_eval.presets`."""

import argparse

from mdlm_lm_eval.command_line import ending_well
from mdlm_lm_eval.presets import preset_names

if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m mdlm_lm_eval.presets", description=__doc__).parse_args()
    with ending_well("presets", after_stop="run it again"):
        print("\n".join(preset_names()))
