"""Masked LMs of transformers with tokenizers of their own kind: [CLS] and [SEP], no BOS or EOS."""

from pathlib import Path

import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from mdlm_lm_eval import DecodingOptions, decode
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(40)))
SHAPE = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LONG = " ".join(f"w{n % 40}" for n in range(100))


def word_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def request(kind: str, *arguments: object) -> Instance:
    return Instance(kind, {}, arguments, 0, metadata=("task", 0, 1))


@pytest.fixture
def bert(tmp_path: Path) -> MDLM:
    config = BertConfig(**SHAPE, intermediate_size=32, max_position_embeddings=32, pad_token_id=0)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    return MDLM(str(tmp_path), batch_size=2, mc_num=8)


def test_bert_answers_every_kind_of_request(bert: MDLM) -> None:
    prompts = [request("generate_until", text, {"max_gen_toks": 3}) for text in ("w1", "w2 w3 w4")]
    together = bert.generate_until(prompts, disable_tqdm=True)
    assert together == [bert.generate_until([prompt], disable_tqdm=True)[0] for prompt in prompts]
    assert bert.prefix_token_id == WORDS.index("[CLS]")
    (without_context,) = bert.loglikelihood([request("loglikelihood", "", "w1 w2")], disable_tqdm=True)
    assert without_context[0] < 0
    assert bert.loglikelihood_rolling([request("loglikelihood_rolling", LONG)], disable_tqdm=True)[0] < 0


def test_robertas_positions_begin_behind_its_padding(tmp_path: Path) -> None:
    config = RobertaConfig(**SHAPE, intermediate_size=32, max_position_embeddings=34, pad_token_id=1)
    RobertaForMaskedLM(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    lm = MDLM(str(tmp_path), mc_num=8)
    assert lm.max_length == 32
    lm.generate_until([request("generate_until", LONG, {"max_gen_toks": 3})], disable_tqdm=True)
    with pytest.raises(OptionError, match="32"):
        MDLM(str(tmp_path), n_masks=32).generate_until([request("generate_until", LONG, {})], disable_tqdm=True)
    (answer,) = decode(lm.denoiser, [[5] * 40], DecodingOptions(n_masks=2))
    assert len(answer) == 2
