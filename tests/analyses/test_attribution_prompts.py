"""The prompts that analyses look at are those that lm-eval scores, what they read there, and every position's part."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mdlm_lm_eval.analyses import inputs
from mdlm_lm_eval.analyses.inputs import Prompt, build_prompts, examples_of, load_model, load_tasks
from mdlm_lm_eval.analyses.runs import confidence_and_entropy, predict
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import generation, tiny_model

MASK = 2
OPEN, SLOT, LEFT = "mdlm_animal_smallest", "mdlm_animal_smallest_slot", "mdlm_animal_smallest_left_pos10"


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return load_tasks([OPEN, SLOT, LEFT], {"fewshot_relevant": 4, "fewshot_distractors": 10})


@pytest.fixture(scope="module")
def bytewise(long_checkpoint: Path) -> Any:
    return load_model("mdlm", {"pretrained": str(long_checkpoint)}, "cpu")


@pytest.mark.parametrize("pretrained", ["built-in", "built-in-block"])
@pytest.mark.parametrize(("name", "n_masks"), [(OPEN, 1), (OPEN, 9), (SLOT, None)])
def test_predictions_are_the_answers_that_lm_eval_scores(
    pretrained: str, name: str, n_masks: int | None, tasks: dict[str, Any]
) -> None:
    model, task = load_model("mdlm", {"pretrained": pretrained}, "cpu"), tasks[name]
    prompts = build_prompts(task, model, n_masks, limit=8, chat=False)
    predicted = [model.tokenizer.decode([token]) for token, *_ in predict(model.denoiser, prompts)]
    masks = {} if n_masks is None else {"n_masks": n_masks}
    lm = MDLM(pretrained=pretrained, device="cpu", steps=1, **masks)
    texts = [task.fewshot_context(document, 0) for document in task.test_docs().select(range(8))]
    settings = task.config.generation_kwargs
    requests = [generation(text, name, n, **settings) for n, text in enumerate(texts)]
    assert predicted == lm.generate_until(requests, disable_tqdm=True)
    if name == OPEN:
        prompt, of_lm = prompts[0], lm.tok_encode(texts[0])
        assert prompt.others == list(range(len(of_lm)))
        assert prompt.token_ids == of_lm + [model.mask_token_id] * len(prompt.masks)
        assert (prompt.answer_at, prompt.masks[0]) == (len(of_lm), len(of_lm))


@pytest.mark.parametrize("name", [OPEN, SLOT, LEFT])
@pytest.mark.parametrize("chat", [False, True])
def test_each_example_is_where_its_tokens_say(name: str, chat: bool, tasks: dict[str, Any], bytewise: Any) -> None:
    task = tasks[name]
    (prompt,) = build_prompts(task, bytewise, 2 if name == OPEN else None, limit=1, chat=chat)
    between = "<assistant>" if chat else "\n"
    decode = bytewise.tokenizer.decode
    if name != OPEN:
        assert prompt.masks == [prompt.answer_at]
        assert decode(prompt.token_ids[: prompt.answer_at]).endswith("<assistant>Answer:[" if chat else "\nAnswer:[")
        assert decode(prompt.token_ids[prompt.answer_at :]).startswith("<|mask|>].")
    said = [decode(prompt.token_ids[tokens.start : tokens.stop]) for tokens in prompt.examples]
    texts = [*map(task.template.shown, examples_of(task, task.test_docs()[0]))]
    assert said == [between.join(text.split("\n")) for text in texts]


def test_known_distributions_without_the_mask_token() -> None:
    even = torch.zeros(5)
    even[MASK] = 50.0  # the likeliest of all, and yet out of the question
    certain = torch.tensor([0.0, 1e4, 0.0, 0.0, 0.0])
    one_to_three = torch.tensor([0.0, -torch.inf, 0.0, math.log(3.0), -torch.inf])
    logits = torch.stack([even, certain, one_to_three])
    tokens, confidence, entropy = confidence_and_entropy(logits, MASK)
    assert tokens[1:].tolist() == [1, 3]
    assert confidence.tolist() == pytest.approx([0.25, 1.0, 0.75])
    assert entropy.tolist() == pytest.approx([math.log(4), 0.0, math.log(4) - 0.75 * math.log(3)], abs=1e-6)
    assert logits[0, MASK] == 50.0
    # Half precision is summed in single.
    _, confidence, entropy = confidence_and_entropy(torch.zeros(1, 100_001, dtype=torch.bfloat16), MASK)
    assert (confidence.item(), entropy.item()) == pytest.approx((1e-5, math.log(100_000)), rel=1e-4)


def test_predictions_are_what_decoding_writes_first_in_blocks_from_the_prompts_end() -> None:
    attention = AttentionPattern(4, "prompt_end")
    denoiser = Denoiser(tiny_model(), mask_token_id=MASK, pad_token_id=0, attention=attention, shift=True)
    texts = [[n % 250 + 3 for n in range(length)] for length in (9, 14)]
    prompts = [
        Prompt(
            ids + [MASK] * 6, len(ids), list(range(len(ids), len(ids) + 6)), list(range(len(ids))), [], "A", len(ids)
        )
        for ids in texts
    ]
    answers = decode(denoiser, texts, DecodingOptions(n_masks=6, steps_per_block=1))
    assert [token for token, *_ in predict(denoiser, prompts)] == [answer[0] for answer in answers]


def test_reorderings_shuffle_the_same_examples_each_in_its_own_way() -> None:
    task = load_tasks([OPEN], {})[OPEN]
    document = task.test_docs()[0]
    original = examples_of(task, document)
    orders = []
    for reordering in (0, 1, 2, 1):
        inputs.reorder_examples(task, 0, reordering)
        orders.append(examples_of(task, document))
    assert all(sorted(order, key=repr) == sorted(original, key=repr) for order in orders)
    assert orders[1] == orders[3]
    assert len({tuple(order) for order in [original, *orders]}) == 4
    assert sum(example.is_relevant for example in original) == 10
    distractors = [example.question for example in original if not example.is_relevant]
    assert all(option.isdigit() for question in distractors for option in question.options)


def test_a_masked_model_is_no_autoregressive_one(long_checkpoint: Path) -> None:
    with pytest.raises(OptionError, match="is no autoregressive model; use --model mdlm"):
        load_model("hf", {"pretrained": str(long_checkpoint)}, "cpu")
