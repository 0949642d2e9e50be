"""Gradient attribution against finite differences, in double precision, for every kind of model."""

from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mdlm_lm_eval import load_denoiser
from mdlm_lm_eval.analyses.inputs import Prompt
from mdlm_lm_eval.analyses.runs import attribute, embedding_gradient, example_means, group_means
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from tests.conftest import random_llama, tiny_model

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


@pytest.fixture(autouse=True)
def double_precision_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' RMSNorm rounds to single precision, whose noise a finite difference would multiply by 100,000."""

    def forward(norm: LlamaRMSNorm, hidden: Tensor) -> Tensor:
        return norm.weight * hidden * (hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


@pytest.fixture(params=MODELS)
def denoiser(request: pytest.FixtureRequest) -> Denoiser:
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
    gradient, predicted = embedding_gradient(denoiser, (ids, *others), denoiser.mask_token_id)
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
        _, predicted = embedding_gradient(denoiser, (ids, attended, answer, lengths), excluded)
        assert int(predicted) == int(expected)


def prompt(denoiser: Denoiser, length: int, n_masks: int) -> Prompt:
    ids, *_ = canvas(denoiser, length, n_masks)
    masks = list(range(length, length + n_masks))
    return Prompt(ids[0].tolist(), length, masks, list(range(length)), [range(2), range(3, 7)], "A", length)


def test_neighbours_in_the_batch_and_padding_change_nothing() -> None:
    denoiser = MODELS["adapter"]()
    prompts = [prompt(denoiser, length, n_masks) for length, n_masks in ((20, 5), (9, 1), (14, 30))]
    for of_prompt, (values, token) in zip(prompts, attribute(denoiser, prompts), strict=True):
        ((alone, token_alone),) = attribute(denoiser, [of_prompt])
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
        lengths, attribute(denoiser, [prompt(denoiser, n, 6) for n in lengths]), strict=True
    ):
        assert [n for n, value in enumerate(values.tolist()) if value > 0] == list(range(length + 4))


def test_gradients_that_vanish_are_an_error() -> None:
    denoiser = MODELS["shifted"]()
    nn.init.zeros_(denoiser.model.get_output_embeddings().weight)
    with pytest.raises(OptionError, match=r"gradients in dtype=torch.float64 are not finite or vanish"):
        attribute(denoiser, [prompt(denoiser, 9, 2)])


def test_groups_and_examples_are_means_over_their_positions() -> None:
    values = torch.cat([torch.full((10,), 0.1), torch.full((50,), 0.4), torch.tensor([1.0, 0.7, 0.7])]).double()
    of_masks = Prompt([9] * 63, 60, [60, 61, 62], list(range(60)), [range(2), range(8, 12)], "A", 60)
    expected = {"masks": 0.8, "other masks": 0.7, "last 50 non-masks": 0.4, "all non-masks": 0.35}
    assert group_means(values, of_masks) == pytest.approx(expected)
    assert example_means(values, of_masks) == pytest.approx([0.1, 0.25])
    of_none = Prompt([9] * 63, 62, [], list(range(62)), [], "A", 62)
    assert group_means(values, of_none).keys() == {"last 50 non-masks", "all non-masks"}
