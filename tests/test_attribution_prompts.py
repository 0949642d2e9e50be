"""The prompts that analyses look at are those that lm-eval scores, and every position is told apart."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from mdlm_lm_eval.analyses import inputs
from mdlm_lm_eval.analyses.confidence import predict
from mdlm_lm_eval.analyses.inputs import Model, Prompt, build_prompts, examples_of, load_model, load_tasks
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError

OPEN, SLOT, LEFT = "mdlm_animal_smallest", "mdlm_animal_smallest_slot", "mdlm_animal_smallest_left_pos10"


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return load_tasks([OPEN, SLOT, LEFT], {"fewshot_relevant": 4, "fewshot_distractors": 10})


@pytest.fixture(scope="module")
def bytewise(long_checkpoint: Path) -> Model:
    return load_model("mdlm", {"pretrained": str(long_checkpoint)}, "cpu")


def first(task: Any, model: Model, n_masks: int | None, *, chat: bool = False) -> Prompt:
    return build_prompts(task, model, n_masks, limit=1, chat=chat)[0]


@pytest.mark.parametrize("pretrained", ["built-in", "built-in-block"])
@pytest.mark.parametrize(("name", "n_masks"), [(OPEN, 1), (OPEN, 9), (SLOT, None)])
def test_predictions_are_the_answers_that_lm_eval_scores(
    pretrained: str, name: str, n_masks: int | None, tasks: dict[str, Any]
) -> None:
    model, task = load_model("mdlm", {"pretrained": pretrained}, "cpu"), tasks[name]
    prompts = build_prompts(task, model, n_masks, limit=8, chat=False)
    predicted = [model.lm.tokenizer.decode([token]) for token, *_ in predict(model.denoiser, prompts)]
    masks = {} if n_masks is None else {"n_masks": n_masks}
    lm = MDLM(pretrained=pretrained, device="cpu", steps=1, **masks)
    texts = [task.fewshot_context(document, 0) for document in task.test_docs().select(range(8))]
    settings = task.config.generation_kwargs
    requests = [Instance("generate_until", {}, (text, settings), n, (name, n, 1)) for n, text in enumerate(texts)]
    assert predicted == lm.generate_until(requests, disable_tqdm=True)
    if name == OPEN:
        prompt, of_lm = prompts[0], lm.tok_encode(texts[0])
        assert prompt.others == list(range(len(of_lm)))
        assert prompt.token_ids == of_lm + [model.mask_token_id] * len(prompt.masks)
        assert (prompt.answer_at, prompt.masks[0]) == (len(of_lm), len(of_lm))


@pytest.mark.parametrize("name", [OPEN, SLOT, LEFT])
@pytest.mark.parametrize("chat", [False, True])
def test_each_example_is_where_its_tokens_say(name: str, chat: bool, tasks: dict[str, Any], bytewise: Model) -> None:
    task = tasks[name]
    prompt = first(task, bytewise, 2 if name == OPEN else None, chat=chat)
    between = "<assistant>" if chat else "\n"
    decode = bytewise.lm.tokenizer.decode
    if name != OPEN:
        assert prompt.masks == [prompt.answer_at]
        assert decode(prompt.token_ids[: prompt.answer_at]).endswith("<assistant>Answer:[" if chat else "\nAnswer:[")
        assert decode(prompt.token_ids[prompt.answer_at :]).startswith("<|mask|>].")
    said = [decode(prompt.token_ids[tokens.start : tokens.stop]) for tokens in prompt.examples]
    texts = [*map(task.template.solved, examples_of(task))]
    assert said == [between.join(text.split("\n")) for text in texts]


def test_reorderings_shuffle_the_same_examples_each_in_its_own_way() -> None:
    task = load_tasks([OPEN], {})[OPEN]
    original, relevant = examples_of(task), inputs.relevant_examples(task)
    orders = []
    for reordering in (0, 1, 2, 1):
        inputs.reorder_examples(task, 0, reordering)
        orders.append(examples_of(task))
    assert all(sorted(order, key=repr) == sorted(original, key=repr) for order in orders)
    assert orders[1] == orders[3]
    assert len({tuple(order) for order in [original, *orders]}) == 4
    assert sum(example in relevant for example in original) == 10
    assert all(option.isdigit() for example in original if example not in relevant for option in example.options)


def test_what_cannot_be_analysed_is_refused(long_checkpoint: Path) -> None:
    with pytest.raises(OptionError, match="fewshot_relevent=3; did you mean fewshot_relevant"):
        load_tasks([OPEN], {"fewshot_relevent": 3})
    with pytest.raises(OptionError, match="cfg_scale=1 has no effect on an analysis"):
        load_model("mdlm", {"cfg_scale": 1}, None)
    with pytest.raises(OptionError, match="is no autoregressive model; use --model mdlm"):
        load_model("hf", {"pretrained": str(long_checkpoint)}, "cpu")
