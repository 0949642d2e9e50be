"""Few-shot accuracy while training, on questions of the suite's rules that are neither test questions nor memorable."""

from random import Random

import torch
from transformers import LlamaForCausalLM

from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.default_model.training.batches import Noiser
from mdlm_lm_eval.default_model.training.suite import questions

N_QUESTIONS = 120
_BATCH_SIZE = 20


def validation_rows(
    noiser: Noiser, n_relevant: int, n_distractors: int, n_masks: int, seed: int
) -> tuple[list[list[int]], list[int]]:
    """Open-ended prompts of the suite's rules in turn with `n_masks` masks appended, and the ids of their letters."""
    rng = Random(f"validation {seed}")
    rows, answers = [], []
    rules = list(questions.WRONG_CATEGORIES)
    for index in range(N_QUESTIONS):
        right = rules[index % len(rules)]
        wrong = questions.WRONG_CATEGORIES[right]
        distractor = questions.DISTRACTOR_RULES[index % 2]
        kinds = [True] * n_relevant + [False] * n_distractors
        rng.shuffle(kinds)
        examples = [corpus.training_question(right if kind else distractor, wrong, rng) for kind in kinds]
        test = corpus.training_question(right, wrong, rng)
        pieces: list[str] = []
        for question in [*examples, test]:
            pieces += corpus.question_pieces(question, first=not pieces)
        rows.append([noiser.ids[piece] for piece in pieces[:-2]] + [noiser.mask_id] * n_masks)
        answers.append(noiser.ids[questions.LETTERS[test.answer]])
    return rows, answers


@torch.no_grad()
def accuracy(
    model: LlamaForCausalLM, noiser: Noiser, n_relevant: int, n_distractors: int, n_masks: int, *, seed: int
) -> float:
    """Share of the letters that the model predicts in one step."""
    rows, answers = validation_rows(noiser, n_relevant, n_distractors, n_masks, seed)
    n_right = 0
    for start in range(0, len(rows), _BATCH_SIZE):
        ids = torch.tensor(rows[start : start + _BATCH_SIZE], device=model.device)
        with torch.autocast(model.device.type, torch.bfloat16):
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, -n_masks]  # [B, H]
            predicted = model.lm_head(hidden).argmax(-1).tolist()
        n_right += sum(p == a for p, a in zip(predicted, answers[start : start + _BATCH_SIZE], strict=True))
    return n_right / len(rows)
