"""Fine-tune a masked diffusion language model by a recipe, and write a LoRA adapter with a model card.

mdlm-finetune --config built-in-ce-tv --output_dir out/adapter
lm_eval --model mdlm --model_args peft=out/adapter,n_masks=200 --tasks mdlm_rules
"""

import sys

from mdlm_finetune.recipe import help_text, read_arguments
from mdlm_lm_eval import __version__
from mdlm_lm_eval.command_line import ending_well

COMMAND = "mdlm-finetune"


def main() -> None:
    """The command line."""
    words = sys.argv[1:]
    with ending_well(COMMAND, after_stop="--resume continues a training, --evaluate its scores"):
        if not words or {"-h", "--help"} & set(words):
            print(help_text(__doc__))
        elif "--version" in words:
            print(f"{COMMAND} {__version__}")
        else:
            _run(words)


def _run(words: list[str]) -> None:
    from mdlm_finetune.card import evaluate
    from mdlm_finetune.run import check_base, finetune, write_merged

    run = read_arguments(words)
    recipe = run.recipe
    if not recipe.evaluate:
        finetune(run)
    if run.training.process_index > 0:
        return
    if recipe.evaluate:
        check_base(recipe)
        if recipe.merge:
            write_merged(recipe)
    if recipe.evaluation_limit > 0:
        evaluate(recipe)
    print("written:", recipe.folder, *([recipe.beside("merged")] if recipe.merge else []))


if __name__ == "__main__":
    main()
