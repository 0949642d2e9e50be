"""Few-shot accuracy while training, on questions of the suite's rules that are no test questions."""

from random import Random

import torch
from transformers import LlamaForCausalLM

from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.default_model.training.batches import Noiser
from mdlm_lm_eval.default_model.training.model import block_causal_mask
from mdlm_lm_eval.tasks import questions

MASKS = (2, 200)
DOTS = (0, 200)
_BATCH_SIZE = 16


def validation_prompts(noiser: Noiser, n_questions: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Open-ended prompts of the suite's tasks in turn, 10 relevant examples among 40: ids [N, T] and answers [N]."""
    rng = Random(f"validation {seed}")
    prompts, answers = [], []
    rules = list(questions.WRONG_CATEGORIES)
    for index in range(n_questions):
        right = rules[index % len(rules)]
        wrong = questions.WRONG_CATEGORIES[right]
        distractor = questions.DISTRACTOR_RULES[index // len(rules) % 2]
        is_relevant = [True] * 10 + [False] * 40
        rng.shuffle(is_relevant)
        examples = [corpus.training_question(right if relevant else distractor, wrong, rng) for relevant in is_relevant]
        pieces: list[str] = []
        for question in [*examples, corpus.training_question(right, wrong, rng)]:
            pieces += corpus.question_pieces(question, first=not pieces)
        prompts.append([noiser.ids[piece] for piece in pieces[:-2]])
        answers.append(noiser.ids[pieces[-2]])
    return torch.tensor(prompts), torch.tensor(answers)


@torch.no_grad()
def accuracies(
    model: LlamaForCausalLM, noiser: Noiser, block_length: int | None, n_questions: int, seed: int = 0
) -> dict[str, float]:
    """Percent of the answers right in one step: with masks appended, and in a fixed slot with dots behind it."""
    prompts, answers = validation_prompts(noiser, n_questions, seed)
    mask, closing, dot = noiser.mask_id, noiser.ids["]."], noiser.ids["."]
    endings = {f"{n} masks": [mask] * n for n in MASKS} | {f"{n} dots": [mask, closing, *[dot] * n] for n in DOTS}
    return {name: _accuracy(model, prompts, answers, ending, block_length) for name, ending in endings.items()}


def _accuracy(
    model: LlamaForCausalLM, prompts: torch.Tensor, answers: torch.Tensor, ending: list[int], block_length: int | None
) -> float:
    at = prompts.shape[1]
    mask = None
    if block_length is not None:
        mask = block_causal_mask(at + len(ending), block_length)
    n_right = 0
    for start in range(0, len(prompts), _BATCH_SIZE):
        rows = prompts[start : start + _BATCH_SIZE]
        ids = torch.cat([rows, torch.tensor(ending).expand(len(rows), -1)], dim=1)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, at]  # [B, H]
            predicted = model.lm_head(hidden).argmax(-1)
        n_right += int((predicted == answers[start : start + _BATCH_SIZE]).sum())
    return 100.0 * n_right / len(prompts)
