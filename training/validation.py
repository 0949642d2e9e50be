"""Measures whether a model reads its examples, on sets outside the tests that are asked under each of three rules.

    python -m training.validation MODEL_FOLDER

Prints percentages, and ends with an error unless the model may be released (`GATE`).
"""

import argparse
import json
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

from mdlm_lm_eval.tasks import questions, rule_sets
from training import corpus
from training.batches import Noiser
from training.model import block_causal_mask

_BATCH_SIZE = 16
#: Measure -> its allowed range for a released model, in percent.
GATE = {"2 masks": (80.0, 100.0), "2 masks, flips": (75.0, 100.0), "2 masks, no examples": (31.0, 35.0)}


def validation_prompts(noiser: Noiser, n_sets: int, n_relevant: int) -> tuple[Tensor, Tensor, list[str]]:
    """Open-ended prompts with 40 distractors, three for each of N sets: ids [3 N, T], answers [3 N] and rules."""
    rng = Random("validation 0")
    triples = questions.in_turn(rule_sets.TRIPLES, rng)
    prompts, answers, rules = [], [], []
    for _ in range(n_sets):
        order = questions.shuffled(next(triples), rng)
        one = rule_sets.RuleSet(corpus.draw_options(order, rng), (order[0], order[1], order[2]))
        for rule in one.rules:
            examples = corpus.few_shot(rule, n_relevant, 40, rng).pieces
            asked = corpus.question_pieces(one.question(rule), first=False)
            prompts.append([noiser.ids[piece] for piece in [*examples, *asked[:-2]]])
            answers.append(noiser.ids[asked[-2]])
            rules.append(rule)
    return torch.tensor(prompts), torch.tensor(answers), rules


@torch.no_grad()
def measure(model: LlamaForCausalLM, noiser: Noiser, n_sets: int) -> dict[str, float]:
    """Percent of right answers in one denoising step, for several endings of the prompt, and without examples.

    Endings are appended masks, or a slot, with masks or dots after it. "flips" is the share of pairs of questions of a
    set (two rules, the same options) that are both right.
    """
    mask, closing, dot = noiser.mask_id, noiser.ids["]."], noiser.ids["."]
    endings = {f"{n} masks": [mask] * n for n in (2, 200)} | {"200 dots": [mask, *[dot] * 199], "slot": [mask, closing]}
    endings |= {f"slot, 200 {n}": [mask, closing, *[token] * 200] for n, token in (("masks", mask), ("dots", dot))}
    prompts, answers, rules = validation_prompts(noiser, n_sets, 10)
    right = {name: _right(model, prompts, answers, ending) for name, ending in endings.items()}
    found = {name: float(100 * one.float().mean()) for name, one in right.items()}
    n_right = right["2 masks"].view(-1, 3).sum(1)  # of a set
    found["2 masks, pair accuracy"] = float(100 * (n_right == 3).float().mean())
    found["2 masks, flips"] = float(100 * ((n_right == 3) + (n_right == 2) / 3).mean())
    prompts, answers, _ = validation_prompts(noiser, n_sets, 0)
    found["2 masks, no examples"] = float(100 * _right(model, prompts, answers, endings["2 masks"]).float().mean())
    for rule in questions.WRONG_CATEGORIES:
        of_rule = torch.tensor([one == rule for one in rules])
        lost = right["2 masks"][of_rule].float().mean() - right["200 masks"][of_rule].float().mean()
        found[f"lost by {rule}"] = float(100 * lost)
    return {name: round(value, 1) for name, value in found.items()}


def _right(model: LlamaForCausalLM, prompts: Tensor, answers: Tensor, ending: list[int]) -> Tensor:
    """Whether each answer is right if `ending` follows the prompts, [N] bool."""
    at = prompts.shape[1]
    block_length = getattr(model.config, "block_length", None)
    mask = None if block_length is None else block_causal_mask(at + len(ending), block_length)
    right = []
    for start in range(0, len(prompts), _BATCH_SIZE):
        rows = prompts[start : start + _BATCH_SIZE]
        ids = torch.cat([rows, torch.tensor(ending).expand(len(rows), -1)], dim=1)
        hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, at]  # [B, H]
        right.append(model.lm_head(hidden).argmax(-1) == answers[start : start + _BATCH_SIZE])
    return torch.cat(right)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sets", type=int, default=320, help="each is asked three times")
    arguments = parser.parse_args()
    model = LlamaForCausalLM.from_pretrained(arguments.model, attn_implementation="plain_sdpa")
    found = measure(model, Noiser(AutoTokenizer.from_pretrained(arguments.model)), arguments.sets)
    print(json.dumps(found, indent=1))
    failed = [name for name, (least, most) in GATE.items() if not least <= found[name] <= most]
    if failed:
        raise SystemExit(f"not to be released: {', '.join(failed)}")


if __name__ == "__main__":
    main()
