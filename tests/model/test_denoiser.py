"""Denoiser: the chosen positions' logits, whatever the family, padding, adapter, shift or guidance."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from tests.support import reference
from tests.support.reference import assert_close

MASK, PAD, VOCABULARY = 49, 48, 50
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def llama(**changes: object) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SIZES, is_causal=False, **changes))


def adapted_llama() -> nn.Module:
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    return get_peft_model(llama(), config)


MODELS = {
    "llama": llama,
    "tied llama": lambda: llama(tie_word_embeddings=True),
    "adapter": adapted_llama,
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SIZES)),
    "modernbert": lambda: ModernBertForMaskedLM(ModernBertConfig(**SIZES, cls_token_id=0, sep_token_id=1)),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def row(length: int) -> list[int]:
    return [(7 * n + length) % 47 for n in range(length - 2)] + [MASK, MASK]


def padded(side: str) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of 9 and 5 tokens as ids and attention mask, [2, 9] each, and the flat positions of their masks [4]."""
    input_ids, attention_mask, _ = reference.padded([torch.tensor(row(length)) for length in (9, 5)], side)
    return input_ids, attention_mask, (input_ids == MASK).flatten().nonzero().squeeze(1)


def plain_logits(model: nn.Module, ids: list[int]) -> Tensor:
    """[T, V] of one unpadded row, without the code under test."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(model: nn.Module, side: str) -> None:
    expected = torch.cat([plain_logits(model, row(9))[-2:], plain_logits(model, row(5))[-2:]])
    denoiser = Denoiser(model, mask_token_id=MASK, pad_token_id=PAD)
    input_ids, attention_mask, positions = padded(side)
    before = model.config.to_dict()
    for order in ([0, 1, 2, 3], [3, 0, 2, 2]):  # any order, and one position more than once
        actual = denoiser.logits(input_ids, attention_mask, positions[order])
        assert_close(actual, expected[order])
    assert denoiser.forward_passes == 2
    assert model.config.to_dict() == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_blocks_under_eager_attention_are_those_of_sdpa(dtype: torch.dtype) -> None:
    input_ids, attention_mask, _ = padded("left")
    logits = []
    for implementation in ("eager", "sdpa"):
        torch.manual_seed(0)
        model = llama(attn_implementation=implementation).eval().to(dtype)
        denoiser = Denoiser(model, mask_token_id=MASK, pad_token_id=PAD, attention=AttentionPattern(4))
        logits.append(denoiser.logits(input_ids, attention_mask, attention_mask.flatten().nonzero().squeeze(1)))
    eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)  # eager attention takes softmax in float32
    tolerance = 4 * eps * float(logits[1].abs().max())
    torch.testing.assert_close(*logits, atol=tolerance, rtol=0.0)


def test_a_model_that_projects_with_its_input_embeddings_still_answers() -> None:
    class TiedByHand(LlamaForCausalLM):
        """As LLaDA's remote code does with `weight_tying`."""

        def get_output_embeddings(self) -> nn.Module:
            return self.model.embed_tokens

    torch.manual_seed(0)
    model = TiedByHand(LlamaConfig(**SIZES, is_causal=False)).eval()
    denoiser = Denoiser(model, mask_token_id=MASK, pad_token_id=PAD)
    expected = torch.cat([plain_logits(model, row(9))[-2:], plain_logits(model, row(5))[-2:]])
    assert_close(denoiser.logits(*padded("left")), expected)
