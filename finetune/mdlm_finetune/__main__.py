"""Fine-tune a masked diffusion language model with the mask-agnostic loss: a recipe -> a LoRA adapter.

mdlm-finetune --config finetune/recipes/built-in-ce-tv.yaml --set output=out/adapter
lm_eval --model mdlm --model_args peft=out/adapter,n_masks=200 --tasks mdlm_context
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from mdlm_lm_eval.options import OptionError


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="mdlm-finetune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, help="a recipe; finetune/README.md lists its keys")
    parser.add_argument(
        "--set", nargs="*", default=[], action="extend", metavar="key=value", help="instead of the recipe's"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint of this very recipe")
    parser.add_argument("--overwrite", action="store_true", help="replace the adapter and checkpoints of another run")
    parser.add_argument("--merge", action="store_true", help="also write the model with the adapter folded in")
    parser.add_argument("--evaluate", action="store_true", help="do not train: score the adapter and fill in its card")
    given = parser.parse_args()
    if given.resume and given.overwrite:
        parser.error("--resume and --overwrite exclude each other")
    # Heavy imports wait until the command line is known to be right.
    from mdlm_finetune.evaluation import evaluate, sweep_arguments
    from mdlm_finetune.model_card import fill_in_scores
    from mdlm_finetune.options import read_recipe
    from mdlm_finetune.run import finetune

    try:
        options = read_recipe(given.config, given.set)
        if not given.evaluate:
            finetune(options, resume=given.resume, overwrite=given.overwrite, merge=given.merge)
        elif not Path(options.output).is_dir():
            raise OptionError(f"output={options.output} is no folder, so that there is no adapter to evaluate")
        if options.evaluation_limit > 0 and os.environ.get("RANK", "0") == "0":
            command = shlex.join(["mdlm-sweep", *sweep_arguments(options)])
            fill_in_scores(Path(options.output), evaluate(options), command)
    except (OptionError, FloatingPointError) as error:
        sys.exit(f"mdlm-finetune: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"mdlm-finetune: the adapter is in {options.output}; its evaluation failed (status {error.returncode})"
        )


if __name__ == "__main__":
    main()
