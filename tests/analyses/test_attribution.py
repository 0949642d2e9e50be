"""Prompts of analyses are those that lm-eval scores; gradients agree with finite differences in double precision."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mdlm_lm_eval import load_denoiser
from mdlm_lm_eval.analyses import inputs, runs
from mdlm_lm_eval.analyses.inputs import Prompt, build_prompts, examples_of, load_model, load_tasks
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import generation, random_llama, tiny_model

MASK, PAD = 2, 0
STEP = 1e-5


def bert() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertForMaskedLM(BertConfig(vocab_size=259, initializer_range=0.3, **sizes)).eval()


def adapted() -> nn.Module:
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "embed_tokens"], init_lora_weights=False)
    return get_peft_model(tiny_model(), config).eval()


MODELS: dict[str, Callable[[], Denoiser]] = {
    "built-in": lambda: load_denoiser("built-in", dtype="float64"),
    "shifted": lambda: Denoiser(tiny_model().double(), mask_token_id=MASK, pad_token_id=PAD, shift=True),
    "autoregressive": lambda: Denoiser(
        random_llama(259, is_causal=True).double(), mask_token_id=PAD, pad_token_id=PAD, shift=True
    ),
    "adapter": lambda: Denoiser(adapted().double(), mask_token_id=MASK, pad_token_id=PAD),
    "bert": lambda: Denoiser(bert().double(), mask_token_id=MASK, pad_token_id=PAD),
}


@pytest.fixture
def double_precision_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' RMSNorm rounds to single precision, whose noise a finite difference would multiply by 100,000."""

    def forward(norm: LlamaRMSNorm, hidden: Tensor) -> Tensor:
        return norm.weight * hidden * (hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


@pytest.fixture(params=MODELS)
def denoiser(request: pytest.FixtureRequest, double_precision_norms: None) -> Denoiser:
    return MODELS[request.param]()


def canvas(denoiser: Denoiser, length: int, n_masks: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A prompt of mixed tokens with masks behind it, [1, T], what of it is real, its answer's place and its length."""
    ids = torch.tensor([[(7 * n + length) % 250 + 3 for n in range(length)] + [denoiser.mask_token_id] * n_masks])
    return ids, torch.ones_like(ids), torch.tensor([length]), torch.tensor([length])


def answer_logit(denoiser: Denoiser, embeddings: Tensor, position: int, token: int) -> Tensor:
    """[B] for input embeddings [B, T, H], by the model itself."""
    source = position - 1 if denoiser.shift else position
    with torch.no_grad():
        return denoiser.model(inputs_embeds=embeddings).logits[:, source, token]


def slopes(denoiser: Denoiser, embeddings: Tensor, directions: Tensor, position: int, token: int) -> Tensor:
    """Central differences [T] of the logit, moving the embedding of one position after the other along [T, H]."""
    moves = STEP * torch.diag_embed(directions.T).permute(1, 2, 0)  # [T, T, H], one position a row
    ahead = answer_logit(denoiser, embeddings + moves, position, token)
    behind = answer_logit(denoiser, embeddings - moves, position, token)
    return (ahead - behind) / (2 * STEP)


def test_the_gradient_agrees_with_finite_differences(denoiser: Denoiser) -> None:
    length = 20
    ids, *others = canvas(denoiser, length, 5)
    gradient, predicted = runs.embedding_gradient(denoiser, (ids, *others), denoiser.mask_token_id)
    norms = gradient.norm(dim=-1)[0]
    embeddings = denoiser.model.get_input_embeddings()(ids).detach()
    token = int(predicted)
    # Along its own direction the slope is the norm; along any other it is the projection.
    uphill = gradient[0] / norms.clamp_min(1e-300)[:, None]
    torch.testing.assert_close(slopes(denoiser, embeddings, uphill, length, token), norms, rtol=1e-5, atol=1e-7)
    elsewhere = torch.randn(gradient[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    elsewhere = nn.functional.normalize(elsewhere, dim=-1)
    projected = (gradient[0] * elsewhere).sum(-1)
    torch.testing.assert_close(slopes(denoiser, embeddings, elsewhere, length, token), projected, rtol=1e-4, atol=1e-6)


def test_the_predicted_token_is_the_likeliest_that_is_allowed() -> None:
    denoiser = MODELS["shifted"]()
    ids, attended, answer, lengths = canvas(denoiser, 12, 2)
    ranked = denoiser.logits(ids, attended, answer)[0].argsort(descending=True)
    for excluded, expected in ((None, ranked[0]), (int(ranked[0]), ranked[1])):
        _, predicted = runs.embedding_gradient(denoiser, (ids, attended, answer, lengths), excluded)
        assert int(predicted) == int(expected)


def prompt(denoiser: Denoiser, length: int, n_masks: int) -> Prompt:
    ids, *_ = canvas(denoiser, length, n_masks)
    masks = list(range(length, length + n_masks))
    return Prompt(ids[0].tolist(), length, masks, list(range(length)), [range(2), range(3, 7)], "A", length)


@pytest.mark.usefixtures("double_precision_norms")
def test_neighbours_in_the_batch_and_padding_change_nothing() -> None:
    denoiser = MODELS["adapter"]()
    prompts = [prompt(denoiser, length, n_masks) for length, n_masks in ((20, 5), (9, 1), (14, 30))]
    for of_prompt, (values, token) in zip(prompts, runs.attribute(denoiser, prompts), strict=True):
        ((alone, token_alone),) = runs.attribute(denoiser, [of_prompt])
        assert token == token_alone
        assert len(values) == len(of_prompt.token_ids)
        assert float(values.max()) == 1.0
        torch.testing.assert_close(values, alone, rtol=1e-9, atol=1e-12)
    assert all(weight.grad is None for weight in denoiser.model.parameters())
    assert not denoiser.model.get_input_embeddings()._forward_hooks


def test_nothing_behind_the_answers_block_acts_on_it() -> None:
    attention = AttentionPattern(4, blocks_from="prompt_end")
    denoiser = Denoiser(tiny_model().double(), mask_token_id=MASK, pad_token_id=PAD, attention=attention)
    lengths = (9, 20)
    for length, (values, _) in zip(
        lengths, runs.attribute(denoiser, [prompt(denoiser, n, 6) for n in lengths]), strict=True
    ):
        assert [n for n, value in enumerate(values.tolist()) if value > 0] == list(range(length + 4))


def test_gradients_that_vanish_are_an_error() -> None:
    denoiser = MODELS["shifted"]()
    nn.init.zeros_(denoiser.model.get_output_embeddings().weight)
    with pytest.raises(OptionError, match=r"gradients in dtype=torch.float64 are not finite or vanish"):
        runs.attribute(denoiser, [prompt(denoiser, 9, 2)])


def test_groups_and_examples_are_means_over_their_positions() -> None:
    values = torch.cat([torch.full((10,), 0.1), torch.full((50,), 0.4), torch.tensor([1.0, 0.7, 0.7])]).double()
    of_masks = Prompt([9] * 63, 60, [60, 61, 62], list(range(60)), [range(2), range(8, 12)], "A", 60)
    expected = {"masks": 0.8, "other masks": 0.7, "last 50 non-masks": 0.4, "all non-masks": 0.35}
    assert runs.group_means(values, of_masks) == pytest.approx(expected)
    assert runs.example_means(values, of_masks) == pytest.approx([0.1, 0.25])
    of_none = Prompt([9] * 63, 62, [], list(range(62)), [], "A", 62)
    assert runs.group_means(values, of_none).keys() == {"last 50 non-masks", "all non-masks"}


# Prompts and confidences


OPEN, SLOT, LEFT = "mdlm_animal_smallest", "mdlm_animal_smallest_slot", "mdlm_animal_smallest_left_pos10"


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return load_tasks([OPEN, SLOT, LEFT], {"fewshot_relevant": 4, "fewshot_distractors": 10})


@pytest.fixture(scope="module")
def bytewise(long_checkpoint: Path) -> Any:
    return load_model("mdlm", {"pretrained": str(long_checkpoint)}, "cpu")


@pytest.mark.parametrize("pretrained", ["built-in", "built-in-block"])
@pytest.mark.parametrize(("name", "n_masks"), [(OPEN, 1), (OPEN, 9), (SLOT, None)])
def test_predictions_are_lm_evals(pretrained: str, name: str, n_masks: int | None, tasks: dict[str, Any]) -> None:
    model, task = load_model("mdlm", {"pretrained": pretrained}, "cpu"), tasks[name]
    prompts = build_prompts(task, model, n_masks, limit=8, chat=False)
    predicted = [model.tokenizer.decode([token]) for token, *_ in runs.predict(model.denoiser, prompts)]
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
    tokens, confidence, entropy = runs.confidence_and_entropy(logits, MASK)
    assert tokens[1:].tolist() == [1, 3]
    assert confidence.tolist() == pytest.approx([0.25, 1.0, 0.75])
    assert entropy.tolist() == pytest.approx([math.log(4), 0.0, math.log(4) - 0.75 * math.log(3)], abs=1e-6)
    assert logits[0, MASK] == 50.0
    # Half precision is summed in single.
    _, confidence, entropy = runs.confidence_and_entropy(torch.zeros(1, 100_001, dtype=torch.bfloat16), MASK)
    assert (confidence.item(), entropy.item()) == pytest.approx((1e-5, math.log(100_000)), rel=1e-4)


def test_predictions_are_what_decoding_writes_first_in_blocks_from_the_prompts_end() -> None:
    attention = AttentionPattern(4, "prompt_end")
    denoiser = Denoiser(tiny_model(), mask_token_id=MASK, pad_token_id=0, attention=attention, shift=True)
    texts = [[n % 250 + 3 for n in range(length)] for length in (9, 14)]
    prompts = [Prompt(ids + [MASK] * 6, n := len(ids), [*range(n, n + 6)], [*range(n)], [], "A", n) for ids in texts]
    answers = decode(denoiser, texts, DecodingOptions(n_masks=6, steps_per_block=1))
    assert [token for token, *_ in runs.predict(denoiser, prompts)] == [answer[0] for answer in answers]


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


def test_an_answers_first_token_follows_the_tasks_delimiter() -> None:
    task = SimpleNamespace(doc_to_target=str, config=SimpleNamespace(target_delimiter=" "))
    for encode, first in ((lambda text, **_: [text], "cold"), (lambda text, **_: [*text], "c")):
        tokenizer = SimpleNamespace(encode=encode, decode="".join)
        assert {inputs.first_token(task, "cold", tokenizer, chat=chat) for chat in (False, True)} == {first}  # type: ignore[arg-type]


def test_a_masked_model_is_no_autoregressive_one(long_checkpoint: Path) -> None:
    with pytest.raises(OptionError, match="is no autoregressive model; use --model mdlm"):
        load_model("hf", {"pretrained": str(long_checkpoint)}, "cpu")
