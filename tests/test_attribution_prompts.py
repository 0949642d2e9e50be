"""The prompts that analyses look at are those that lm-eval scores, and every position is told apart."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from mdlm_lm_eval.analyses.models import PromptEncoding, read_encoding
from mdlm_lm_eval.analyses.options import AnalysisOptions
from mdlm_lm_eval.analyses.prompts import Prompt, build_prompt
from mdlm_lm_eval.analyses.tasks import examples_of, load_tasks, relevant_examples, reorder_examples
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_tokenizer

OPEN, SLOT, LEFT = "mdlm_animal_smallest", "mdlm_animal_smallest_slot", "mdlm_animal_smallest_left_pos10"
MASK = 2


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return load_tasks([OPEN, SLOT, LEFT], {})


@pytest.fixture(scope="module")
def built_in() -> MDLM:
    return MDLM(device="cpu")


@pytest.fixture(scope="module")
def encoding(built_in: MDLM) -> PromptEncoding:
    return PromptEncoding(built_in.tokenizer, built_in.mask_token_id, built_in.tokenizer.pad_token_id, 2048)


def bytewise(mask_token_id: int | None = MASK) -> PromptEncoding:
    return PromptEncoding(tiny_tokenizer(), mask_token_id, 0, 8192)


def first(task: Any, encoding: PromptEncoding, n_masks: int | None, *, chat: bool = False) -> Prompt:
    return build_prompt(task, task.test_docs()[0], encoding, n_masks, apply_chat_template=chat)


def lines(task: Any) -> list[str]:
    """Every example's two lines."""
    return [line for example in examples_of(task) for line in example.text(slot="ABC"[example.answer]).split("\n")]


def test_open_ended_tokens_are_the_lms_own(tasks: dict[str, Any], built_in: MDLM, encoding: PromptEncoding) -> None:
    task = tasks[OPEN]
    of_lm = built_in.tok_encode(task.fewshot_context(task.test_docs()[0], 0))
    prompt = first(task, encoding, 3)
    assert prompt.token_ids == of_lm + [built_in.mask_token_id] * 3
    assert prompt.masks == [len(of_lm), len(of_lm) + 1, len(of_lm) + 2]
    assert prompt.answer_at == len(of_lm)
    assert prompt.others == list(range(len(of_lm)))


@pytest.mark.parametrize(("name", "n_masks"), [(OPEN, 1), (SLOT, None)])
def test_block_diffusion_canvases_are_the_lms_own(
    name: str, n_masks: int | None, tasks: dict[str, Any], tmp_path: Path
) -> None:
    lm = MDLM("built-in-block", device="cpu", n_masks="auto" if n_masks is None else n_masks)
    task = tasks[name]
    arguments = task.fewshot_context(task.test_docs()[0], 0), task.config.generation_kwargs
    (generation,) = lm._prepare([Instance("generate_until", {}, arguments, 0, (name, 0, 1))])
    encoding = read_encoding(
        AnalysisOptions("", "mdlm", {"pretrained": "built-in-block"}, (name,), {}, (), 1, "1", None, False, tmp_path)
    )
    prompt = first(task, encoding, n_masks)
    assert (prompt.token_ids, prompt.masks) == (list(generation.canvas.token_ids), list(generation.canvas.slots))
    assert prompt.length == generation.canvas.prompt_length
    if name == OPEN:
        assert len(prompt.token_ids) % 8 == 0, "masks to the end of the block"


@pytest.mark.parametrize("name", [SLOT, LEFT])
def test_fixed_slots_hold_the_masks_among_the_text(name: str, tasks: dict[str, Any], encoding: PromptEncoding) -> None:
    tokenizer = encoding.tokenizer
    prompt = first(tasks[name], encoding, None)
    assert prompt.masks == [prompt.answer_at]
    assert prompt.token_ids[prompt.answer_at] == encoding.mask_token_id
    assert tokenizer.decode(prompt.token_ids[: prompt.answer_at]).endswith("\nAnswer:[")
    assert tokenizer.decode(prompt.token_ids[prompt.answer_at + 1 :]).startswith("].")
    assert sorted(prompt.masks + prompt.others) == list(range(len(prompt.token_ids)))


@pytest.mark.parametrize("name", [OPEN, SLOT, LEFT])
@pytest.mark.parametrize("chat", [False, True])
def test_each_example_is_where_its_tokens_say(name: str, chat: bool, tasks: dict[str, Any]) -> None:
    task, encoding = tasks[name], bytewise()
    prompt = first(task, encoding, None if task.is_fixed_slot else 2, chat=chat)
    between = "<assistant>" if chat else "\n"
    said = [encoding.tokenizer.decode(prompt.token_ids[tokens.start : tokens.stop]) for tokens in prompt.examples]
    of_task = lines(task)
    assert said == [between.join(pair) for pair in zip(of_task[::2], of_task[1::2], strict=True)]


def test_an_autoregressive_prompt_ends_with_what_keeps_the_answers_place(tasks: dict[str, Any]) -> None:
    prompt = first(tasks[OPEN], bytewise(None), None)
    assert prompt.masks == []
    assert prompt.answer_at == len(prompt.token_ids) - 1 == len(prompt.others)
    assert tiny_tokenizer().decode(prompt.token_ids[:-1]).endswith("Answer:[")


def test_reorderings_shuffle_the_same_examples_each_in_its_own_way(tasks: dict[str, Any]) -> None:
    task = load_tasks([OPEN], {})[OPEN]
    original = examples_of(task)
    orders = []
    for reordering in (0, 1, 2, 1):
        reorder_examples(task, 0, reordering)
        orders.append(examples_of(task))
    assert all(sorted(order, key=repr) == sorted(original, key=repr) for order in orders)
    assert orders[1] == orders[3]
    assert len({tuple(order) for order in [original, *orders]}) == 4
    relevant = relevant_examples(task)
    assert sum(example in relevant for example in original) == 10
    assert all(option.isdigit() for example in original if example not in relevant for option in example.options)


@pytest.mark.parametrize(
    ("name", "encoding", "n_masks", "chat", "sentence"),
    [
        (OPEN, bytewise(), 9000, False, "9000 masks and 0 filler tokens do not fit"),
        (OPEN, bytewise(), 8000, False, "n_masks=8000 takes 1.* tokens, but the model's context has 8192"),
        (OPEN, bytewise(), None, False, "needs n_masks, as its prompts hold no mask"),
        (SLOT, bytewise(None), None, False, "is not for model=hf: its prompts hold a mask"),
    ],
)
def test_what_cannot_be_a_prompt_is_said(
    name: str, encoding: PromptEncoding, n_masks: int | None, chat: bool, sentence: str, tasks: dict[str, Any]
) -> None:
    with pytest.raises(OptionError, match=sentence):
        first(tasks[name], encoding, n_masks, chat=chat)


def test_a_chat_template_must_be_there(tasks: dict[str, Any], encoding: PromptEncoding) -> None:
    with pytest.raises(OptionError, match="apply_chat_template needs a chat template"):
        first(tasks[OPEN], encoding, 1, chat=True)


@pytest.mark.parametrize(
    ("name", "metadata", "sentence"),
    [
        ("mdlm_sst2", {}, "tasks=mdlm_sst2: must be one of the few-shot suite's tasks and groups"),
        ("no_such_task", {}, "tasks=no_such_task: must be one of"),
        (OPEN, {"fewshot_relevent": 3}, "fewshot_relevent=3; did you mean fewshot_relevant"),
    ],
)
def test_tasks_that_are_not_the_suites_are_refused(name: str, metadata: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        load_tasks([name], metadata)
