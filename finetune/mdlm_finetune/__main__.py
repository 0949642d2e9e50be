"""Fine-tune a masked diffusion language model: a recipe -> a LoRA adapter with a card.

mdlm-finetune --config built-in-ce-tv --output_dir out/adapter
lm_eval --model mdlm --model_args peft=out/adapter,n_masks=200 --tasks mdlm_context
"""

import os
import sys

from mdlm_finetune.recipe import help_text
from mdlm_lm_eval import __version__
from mdlm_lm_eval.ending import ending_well, importing
from mdlm_lm_eval.options import OptionError

COMMAND = "mdlm-finetune"


def main() -> None:
    """The command line."""
    words = sys.argv[1:]
    with ending_well(COMMAND, after_stop="--resume goes on with a training, --evaluate with its scores"):
        if not words or {"-h", "--help"} & set(words):
            print(help_text(__doc__))
        elif "--version" in words:
            print(f"{COMMAND} {__version__}")
        else:
            _run(words)


def _run(words: list[str]) -> None:
    """Raises OptionError for whatever the user can mend."""
    with importing(COMMAND):
        import subprocess
        import warnings

        import torch

        from mdlm_finetune.arguments import long_help, read_arguments
        from mdlm_finetune.evaluation import evaluate, shown_command
        from mdlm_finetune.folders import check_adapter, check_merged, merged_folder, writing
        from mdlm_finetune.merge import write_merged
        from mdlm_finetune.model_card import fill_in_scores
        from mdlm_finetune.run import finetune
        from mdlm_lm_eval.results.locks import Claimed
        from mdlm_lm_eval.results.sentences import one_line

    # peft's own call, and the name of checkpointing that transformers 5.0 knows.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    warnings.filterwarnings("ignore", "`gradient_checkpointing", FutureWarning)
    if "--help-all" in words:
        print(long_help([word for word in words if word != "--help-all"]))
        return
    arguments, objective, actions = read_arguments(words)
    is_main = os.environ.get("RANK", "0") == "0"
    try:
        if not actions.evaluate:
            finetune(arguments, objective, actions)
        elif arguments.evaluation_limit == 0 and not actions.merge:
            raise OptionError("evaluation_limit=0 is not allowed with --evaluate: there are no questions to score")
        else:
            check_adapter(arguments)
            if actions.merge and is_main:
                check_merged(arguments, overwrite=False)
                with writing(arguments):
                    write_merged(arguments)
        if arguments.evaluation_limit > 0 and is_main:
            scores = evaluate(arguments)
            with writing(arguments):
                fill_in_scores(arguments.folder, scores, shown_command(arguments))
    except (FloatingPointError, Claimed) as error:
        raise OptionError(str(error)) from error
    except torch.OutOfMemoryError as error:
        raise OptionError(
            f"out of memory: {one_line(error)} Try gradient_checkpointing, or a smaller per_device_train_batch_size"
        ) from error
    except subprocess.CalledProcessError as error:
        raise OptionError(
            f"the adapter is in {arguments.folder}; its evaluation failed (status {error.returncode})"
        ) from error
    if is_main:
        merged = f", merged model {merged_folder(arguments)}" if actions.merge else ""
        print(f"written: adapter {arguments.folder}, card {arguments.folder}/README.md{merged}")


if __name__ == "__main__":
    main()
