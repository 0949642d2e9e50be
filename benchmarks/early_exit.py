"""Early exit on a generation task: the same strings as without it, and the share of denoising steps saved.

    python benchmarks/early_exit.py

Prompts are few-shot documents of the built-in model's own corpus; the model writes the next question and its answer
until the stop string "].", one token a step. One denoising step of one canvas counts as one, so that the share does not
depend on the batch size.
"""

import argparse
from random import Random
from typing import Any

from lm_eval.api.instance import Instance
from torch import nn

from mdlm_lm_eval.default_model.training.corpus import draw_rule, few_shot
from mdlm_lm_eval.lm import MDLM

STOP = "]."


def requests_of(count: int, examples: int, settings: dict[str, Any]) -> list[Instance]:
    """One request for each of `count` documents of `examples` answered questions."""
    rng = Random(0)
    documents = [
        "".join(few_shot(draw_rule(rng, 0.0), examples // 2, examples - examples // 2, rng).pieces)
        for _ in range(count)
    ]
    return [
        Instance("generate_until", {}, (text, {"until": [STOP], **settings}), 0, metadata=("early_exit", n, 1))
        for n, text in enumerate(documents)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="another model than the built-in one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--examples", type=int, default=20, help="answered questions in a prompt")
    parser.add_argument("--n_masks", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=8)
    arguments = parser.parse_args()

    model = {"pretrained": arguments.pretrained} if arguments.pretrained else {}
    lm = MDLM(**model, device=arguments.device, batch_size=arguments.batch_size)
    steps = 0

    def count_rows(_module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal steps
        steps += kwargs["input_ids"].shape[0]

    lm.model.register_forward_pre_hook(count_rows, with_kwargs=True)
    print(
        "| block length | same strings | stopped at the stop string | steps without | steps with early exit | saved |"
    )
    print("|---|---|---|---|---|---|")
    for block_length in (8, 32, arguments.n_masks):
        strings, counts = [], []
        for early_exit in (False, True):
            settings = {"n_masks": arguments.n_masks, "max_gen_toks": arguments.n_masks, "block_length": block_length}
            requests = requests_of(arguments.questions, arguments.examples, {**settings, "early_exit": early_exit})
            steps = 0
            strings.append(lm.generate_until(requests, disable_tqdm=True))
            counts.append(steps)
        same = sum(a == b for a, b in zip(*strings, strict=True))
        # A text that ran to the end of the canvas has that many tokens; any shorter one met the stop string or an EOS.
        ended = sum(len(lm.tokenizer.encode(text, add_special_tokens=False)) < arguments.n_masks for text in strings[0])
        name = "whole canvas" if block_length == arguments.n_masks else str(block_length)
        print(
            f"| {name} | {same} of {arguments.questions} | {ended} | {counts[0]} | {counts[1]} "
            f"| {100 * (1 - counts[1] / counts[0]):.0f}% |",
            flush=True,
        )
    print(f"\nFirst answer: {strings[0][0]!r}")


if __name__ == "__main__":
    main()
