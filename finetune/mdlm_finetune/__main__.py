"""Fine-tune a masked diffusion language model with the mask-agnostic loss: a recipe -> a LoRA adapter.

mdlm-finetune --config finetune/recipes/built-in-ce-tv.yaml --set output=out/adapter
lm_eval --model mdlm --model_args peft=out/adapter,n_masks=200 --tasks mdlm_context
"""

import argparse
import os
import shlex
import subprocess
import sys
import warnings
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
    parser.add_argument(
        "--evaluate", action="store_true", help="do not train: score (and --merge) the adapter that is there"
    )
    given = parser.parse_args()
    if given.resume + given.overwrite + given.evaluate > 1:
        parser.error("--resume, --overwrite and --evaluate exclude one another")
    # Heavy imports wait until the command line is known to be right.
    from mdlm_finetune.evaluation import evaluate, sweep_arguments
    from mdlm_finetune.folders import check_adapter, check_merged, merged_folder
    from mdlm_finetune.merge import write_merged
    from mdlm_finetune.model_card import fill_in_scores
    from mdlm_finetune.options import read_recipe
    from mdlm_finetune.run import finetune

    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # peft's own call
    is_main = os.environ.get("RANK", "0") == "0"
    try:
        options = read_recipe(given.config, given.set)
        if not given.evaluate:
            finetune(options, resume=given.resume, overwrite=given.overwrite, merge=given.merge)
        elif options.evaluation_limit == 0 and not given.merge:
            raise OptionError("evaluation_limit=0 is not allowed with --evaluate: there are no questions to score")
        else:
            check_adapter(options)
            if given.merge and is_main:
                check_merged(options, overwrite=False)
                write_merged(options)
        if options.evaluation_limit > 0 and is_main:
            command = shlex.join(["mdlm-sweep", *sweep_arguments(options)])
            fill_in_scores(Path(options.output), evaluate(options), command)
        if is_main:
            print(f"adapter: {options.output}", f"card: {options.output}/README.md", sep="\n")
            if given.merge:
                print(f"merged model: {merged_folder(options)}")
    except (OptionError, FloatingPointError) as error:
        sys.exit(f"mdlm-finetune: {error}")
    except KeyboardInterrupt:
        sys.exit("mdlm-finetune: stopped; --resume goes on with the training, --evaluate scores a finished adapter")
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"mdlm-finetune: the adapter is in {options.output}; its evaluation failed (status {error.returncode})"
        )


if __name__ == "__main__":
    main()
