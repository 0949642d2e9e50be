"""Masked LMs of transformers with [CLS] and [SEP], no BOS or EOS; and models whose code comes with their checkpoint."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    BertConfig,
    BertForMaskedLM,
    FNetConfig,
    FNetForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    dynamic_module_utils,
)

from mdlm_lm_eval import DecodingOptions, LikelihoodOptions, decode, log_likelihood
from mdlm_lm_eval.analyses.__main__ import analyse
from mdlm_lm_eval.check.__main__ import _parser, check
from mdlm_lm_eval.checkpoints import checkpoint_digest, load, load_denoiser
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.text import closing_ids, encode_infill, prompt_ids
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.provenance import fingerprint, in_words
from tests.conftest import choice, edit_json, generation, rolling, tiny_model
from tests.support.local_tasks import local_task

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(40)))
SHAPE = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LONG = " ".join(f"w{n % 40}" for n in range(100))


def word_tokenizer(words: Sequence[str] = WORDS, **named: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names | named)


@pytest.fixture
def bert_folder(tmp_path: Path) -> Path:
    """A checkpoint of BERT and its tokenizer."""
    config = BertConfig(**SHAPE, intermediate_size=32, max_position_embeddings=64, pad_token_id=0)
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    word_tokenizer().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


OTHER_TOKENIZERS = [
    (word_tokenizer((*WORDS, "new")), "it has ids up to 45 and the model an embedding of 45 tokens"),
    (word_tokenizer(WORDS[:20]), r"it has ids up to 19 \(are its files missing\?\)"),
    (None, r"it has ids up to 4 \(are its files missing\?\)"),  # transformers makes a tokenizer of five tokens
    (word_tokenizer(mask_token="w1"), "the tokenizer's mask token is 6 and the config's 4: .* mask_token_id="),
]


@pytest.mark.parametrize(("tokenizer", "said"), OTHER_TOKENIZERS)
def test_another_models_tokenizer_is_refused(
    bert_folder: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerFast | None, said: str
) -> None:
    """Beside the weights, as an argument, and as an object; before weights are read."""
    edit_json(bert_folder / "config.json", mask_token_id=4)
    (other := tmp_path / "other").mkdir()
    shutil.copy(bert_folder / "config.json", other)
    if tokenizer is not None:
        tokenizer.save_pretrained(other)
        with pytest.raises(OptionError, match=said):
            MDLM(str(bert_folder), tokenizer=tokenizer)
    for refused in (lambda: MDLM(str(bert_folder), tokenizer=str(other)), lambda: load(str(other))):
        with pytest.raises(OptionError, match=said):
            refused()
    if tokenizer is not None and tokenizer.mask_token == "w1":
        assert load(str(bert_folder), mask_token_id=6)[0].mask_token_id == 6


def test_unknown_tokens_are_counted(bert_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    bert = MDLM(str(bert_folder), mc_num=2)
    with caplog.at_level(logging.WARNING):
        prompts = (("w1 w2 w3", "known"), ("W1 w2 W3", "unknown"))
        bert.generate_until([generation(*each, max_gen_toks=2) for each in prompts], disable_tqdm=True)
        bert.loglikelihood([choice("w1", " w2"), choice("w1 W", " w2")], disable_tqdm=True)
    found = {name: task["unknown_share"] for name, task in bert.get_model_info()["mdlm"]["tasks"].items()}
    assert found == {"known": 0, "unknown": 2 / 5, "choice": 1 / 7}  # with [CLS]; answers with [SEP]
    said = [record.getMessage() for record in caplog.records if "unknown" in record.getMessage()]
    assert [each.partition(" are")[0] for each in said] == [
        "unknown: 40.0% of the tokens of its texts",
        "choice: 14.3% of the tokens of its texts",
    ]


def test_mdlm_check_finds_a_tokenizer_that_knows_no_word(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is another one than that of the right tokenizer, with the same weights and vocabulary."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mdlm_lm_eval.check.__main__.TEXTS", ("W1 W2 W3 w4",))
    given = _parser().parse_args([str(bert_folder), "--gen_toks", "4", "--requests", "0"])
    found = check(given)
    assert found["verdict"] == "fault: 60% of the prompts' tokens are unknown to the tokenizer"
    assert found["noise_floor"]["left_out"].startswith("the tokenizer does not know English; ")
    edit_json(bert_folder / "tokenizer.json", normalizer={"type": "Lowercase"})
    assert check(given)["verdict"] == "no fault, compared nothing"
    assert len([*(tmp_path / "cache").rglob("*.json")]) == 2


def test_a_closing_token_is_found_in_a_vocabulary_of_few_letters() -> None:
    """Such as DNA's, whose tokenizer leaves out what it does not know."""
    letters = Tokenizer(models.BPE(vocab={name: n for n, name in enumerate((*WORDS[:5], *"ACGT"))}, merges=[]))
    letters.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "CLS", "SEP", "MASK")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, **names)
    assert tokenizer.encode("a", add_special_tokens=False) == []
    assert closing_ids(tokenizer) == [3]
    assert prompt_ids(tokenizer, "GATTACA", 4)[-2:] == tokenizer.encode("CA", add_special_tokens=False)


def test_the_closing_token_ends_a_text_that_holds_the_mask_tokens_name() -> None:
    tokenizer, mask, closing = word_tokenizer(), WORDS.index("[MASK]"), WORDS.index("[SEP]")
    assert closing not in prompt_ids(tokenizer, "w1 [MASK] w2", mask)
    encode = lambda piece, first: tokenizer.encode(piece, add_special_tokens=first)  # noqa: E731
    begin, end = encode_infill(tokenizer, "w1 [MASK] w2 <|mask|> w3", mask, encode)
    assert closing not in begin
    assert end == [WORDS.index("w3"), closing]


def test_an_encoders_answer_is_followed_by_its_closing_token(bert_folder: Path) -> None:
    """As in training: [CLS] w1 w2 [MASK] [SEP]."""
    denoiser, tokenizer = load(str(bert_folder))
    text, closing = tokenizer.encode("w1 w2"), WORDS.index("[SEP]")
    logits = denoiser.model(torch.tensor([[*text[:-1], denoiser.mask_token_id, closing]])).logits[0, 3].detach()
    log_prob = float(logits.log_softmax(-1)[WORDS.index("w3")])
    logits[denoiser.mask_token_id] = -torch.inf
    lm = MDLM(str(bert_folder), n_masks=1)
    assert decode(denoiser, ["w1 w2"], DecodingOptions(n_masks=1), tokenizer=tokenizer) == [WORDS[logits.argmax()]]
    assert lm.generate_until([generation("w1 w2")], disable_tqdm=True) == [WORDS[logits.argmax()]]
    assert lm.loglikelihood([choice("w1 w2", " w3")], disable_tqdm=True)[0][0] == pytest.approx(log_prob)
    assert lm.loglikelihood_rolling([rolling(LONG)], disable_tqdm=True)[0] < 0
    with pytest.raises(OptionError, match="eos_after must be false for an encoder"):
        MDLM(str(bert_folder), eos_after=True).loglikelihood([choice("w1", " w3")], disable_tqdm=True)


@pytest.mark.parametrize("context", ["", "w5 w6"])
def test_a_pseudo_likelihood_masks_each_token_alone(bert_folder: Path, context: str) -> None:
    lm = MDLM(str(bert_folder), likelihood="pseudo", batch_size=2)
    tokenizer, options = lm.tokenizer, LikelihoodOptions(likelihood="pseudo")
    ids = tokenizer.encode(f"{context} w1 w2 w3")
    expected = []
    for place in range(len(ids) - 4, len(ids) - 1):
        canvas = torch.tensor([ids])
        canvas[0, place] = lm.mask_token_id
        expected.append(float(lm.model(canvas).logits[0, place].detach().log_softmax(-1)[ids[place]]))
    asked = choice(context, " w1 w2 w3" if context else "w1 w2 w3")
    assert lm.loglikelihood([asked], disable_tqdm=True)[0][0] == pytest.approx(sum(expected), abs=1e-5)
    (found,) = log_likelihood(lm.denoiser, *asked.args[:1], [asked.args[1]], options, tokenizer=tokenizer)
    assert found.by_token == pytest.approx(expected, abs=1e-5)
    assert found.per_token == pytest.approx(sum(expected) / 3, abs=1e-5)
    words = in_words(lm.get_model_info()["mdlm"])["settings"]
    assert "likelihood=pseudo (ranks answers, no likelihood)" in words
    with pytest.raises(OptionError, match="likelihood=pseudo is no likelihood of a text"):
        lm.loglikelihood_rolling([rolling(LONG)], disable_tqdm=True)


def test_a_mask_tokens_string_in_a_prompt_is_named(bert_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lm = MDLM(str(bert_folder), n_masks=1, mc_num=2)
    lm.generate_until([generation("w1 [MASK] w2"), generation("w1")], disable_tqdm=True)
    lm.loglikelihood([choice("w1 [MASK]", " w2")], disable_tqdm=True)
    said = [one.getMessage() for one in caplog.records if "plain text" in one.getMessage()]
    hint = "hold [MASK] as plain text; for slots, write <|mask|> in a task with infill: true"
    assert said == [f"1 of 2 prompts {hint}", f"1 of 1 prompts {hint}"]


def test_a_task_of_the_users_is_analysed(
    bert_folder: Path, task_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    documents = [{"q": f"w1 <|mask|> w{n} W", "a": f"w{n + 1}"} for n in range(3)]
    how = {"task": "own", "generation_kwargs": {"infill": True, "until": []}}
    local_task(tmp_path, task_folder / "tiny_generate.yaml", {"test": documents}, name="own", **how)
    model = f"--model_args=pretrained={bert_folder}"
    asked = [model, "--tasks=own", f"--include_path={tmp_path}", "--limit=2", f"--output_path={tmp_path}"]
    with caplog.at_level(logging.WARNING):
        groups = analyse(["groups", *asked, "--n_masks=3"])
    assert "own: 20.0% of the tokens of its texts are unknown" in caplog.text
    denoiser, tokenizer = load(str(bert_folder))
    assert [row["answer"] for row in groups.rows if row["group"] == "masks"] == ["w1", "w2"]
    assert {row["n_masks"] for row in groups.rows} == {4}
    confidence = analyse(["confidence", *asked, "--n_masks=3"])
    for row, document in zip(confidence.rows, documents, strict=False):
        ids = tokenizer.encode(document["q"].replace("<|mask|>", "[MASK]")) + [denoiser.mask_token_id] * 3
        logits = denoiser.model(torch.tensor([ids])).logits[0, 2].detach()
        logits[denoiser.mask_token_id] = -torch.inf
        assert row["predicted"] == WORDS[logits.argmax()]
        assert row["confidence"] == pytest.approx(float(logits.softmax(-1).max()), rel=1e-4)
    with pytest.raises(OptionError, match="tasks=own: must be one of the few-shot suite's"):
        analyse(["groups", model, "--tasks=own", f"--output_path={tmp_path}"])


def test_a_model_that_ignores_padding_runs_each_row_alone(bert_folder: Path, tmp_path: Path) -> None:
    """FNet mixes all columns, whatever the attention mask says."""
    config = FNetConfig(**SHAPE, intermediate_size=32, max_position_embeddings=64, type_vocab_size=1, pad_token_id=0)
    FNetForMaskedLM(config).save_pretrained(tmp_path / "fnet")
    word_tokenizer().save_pretrained(tmp_path / "fnet")
    prompts = [generation(text, max_gen_toks=3) for text in ("w1", "w2 w3 w4", "w5 w6")]
    choices = [choice("w1", " w2 w3"), choice("w4 w5 w6 w7", " w2")]
    for path, is_alone in ((tmp_path / "fnet", True), (bert_folder, False)):
        lm = MDLM(str(path), batch_size=3, mc_num=4)
        together = lm.generate_until(prompts, disable_tqdm=True), lm.loglikelihood(choices, disable_tqdm=True)
        facts = lm.get_model_info()["mdlm"]
        assert (facts["rows_alone"], "each row alone" in in_words(facts)["settings"]) == (is_alone, is_alone)
        assert together[0] == [lm.generate_until([one], disable_tqdm=True)[0] for one in prompts]
        alone = [lm.loglikelihood([one], disable_tqdm=True)[0] for one in choices]
        assert [one for one, _ in together[1]] == pytest.approx([one for one, _ in alone], abs=1e-4)
        denoiser = load_denoiser(str(path))
        ids, real = torch.tensor([[5, 4, 7, 9], [8, 4, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        found = denoiser.logits(ids, real, torch.tensor([5, 1, 4]))
        (first, second) = (denoiser.model(row).logits[0] for row in (ids[:1], ids[1:, :2]))
        torch.testing.assert_close(found, torch.stack([second[1], first[1], second[0]]))


def test_albert_has_a_head_that_nothing_here_uses(tmp_path: Path) -> None:
    config = AlbertConfig(**SHAPE, embedding_size=16, intermediate_size=32, max_position_embeddings=32, pad_token_id=0)
    AlbertForPreTraining(config).save_pretrained(tmp_path)
    assert "sop_classifier.classifier.weight" in load_file(tmp_path / "model.safetensors")
    word_tokenizer().save_pretrained(tmp_path)
    albert = MDLM(str(tmp_path), device="cpu", mc_num=8)
    assert albert.loglikelihood([choice("w1", " w2")], disable_tqdm=True)[0][0] < 0


def test_robertas_positions_begin_behind_its_padding(tmp_path: Path) -> None:
    config = RobertaConfig(**SHAPE, intermediate_size=32, max_position_embeddings=34, pad_token_id=1)
    RobertaForMaskedLM(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    lm = MDLM(str(tmp_path), mc_num=8)
    assert lm.max_length == 32
    lm.generate_until([generation(LONG, max_gen_toks=3)], disable_tqdm=True)
    with pytest.raises(OptionError, match="32"):
        MDLM(str(tmp_path), n_masks=32).generate_until([generation(LONG)], disable_tqdm=True)
    (answer,) = decode(lm.denoiser, [[5] * 30], DecodingOptions(n_masks=2))
    assert len(answer) == 2


SETTINGS = {"trust_remote_code": True, "mask_token_id": 2, "shift_logits": False}


@pytest.fixture
def remote(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder; the copies of its code that transformers makes stay out of the user's home."""
    modules = tmp_path / "modules"
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(modules)
    folder = tmp_path / "doubling"
    shutil.copytree(checkpoint, folder)
    shutil.copy(Path(__file__).parents[1] / "authors" / "doubling.py", folder)
    auto_map = {"AutoConfig": "doubling.DoublingConfig", "AutoModelForCausalLM": "doubling.Doubling"}
    edit_json(folder / "config.json", model_type="doubling", auto_map=auto_map)
    return folder


def test_its_code_runs_and_answers_do_not_depend_on_the_batch(remote: Path) -> None:
    lm = MDLM(str(remote), device="cpu", batch_size=3, max_length=64, **SETTINGS)
    facts = lm.get_model_info()["mdlm"]
    assert (facts["family"], facts["rows_alone"]) == ("remote", False)
    canvas = torch.tensor([[5, 2, 6, 2]])
    found = lm.denoiser.logits(canvas, None, torch.tensor([1, 3]))
    torch.testing.assert_close(found, 2 * tiny_model()(canvas).logits[0, [1, 3]])
    texts = ("a", "a longer prompt", "the longest prompt of them")
    requests = [generation(text, doc=n, max_gen_toks=4) for n, text in enumerate(texts)]
    together = lm.generate_until(requests, disable_tqdm=True)
    assert together == [lm.generate_until([request], disable_tqdm=True)[0] for request in requests]
    (remote / "doubling.py").write_text("")
    assert fingerprint(lm, lm.record_of_all)["files"] == lm.weights != checkpoint_digest(str(remote))


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        ("trust_remote_code", "model_type='doubling' is not known.*trust_remote_code"),
        ("shift_logits", "shift_logits is not set"),
    ],
)
def test_what_must_be_said(remote: Path, left_out: str, named: str) -> None:
    settings: dict[str, Any] = {name: value for name, value in SETTINGS.items() if name != left_out}
    with pytest.raises(OptionError, match=named):
        load_denoiser(str(remote), **settings)
