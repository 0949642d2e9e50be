"""The built-in model: what it was trained on and what lies in the package."""

import hashlib
import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from mdlm_lm_eval.tasks import questions
from transformers import AutoConfig, AutoTokenizer

import mdlm_lm_eval
from mdlm_lm_eval.default_model import BUILT_IN, model_path
from mdlm_lm_eval.default_model.training import corpus, walks
from mdlm_lm_eval.default_model.training.batches import Noiser
from mdlm_lm_eval.default_model.training.curriculum import STAGES, draw_document, draw_from
from mdlm_lm_eval.default_model.training.model import block_causal_mask, build_model, logits_at_masks
from mdlm_lm_eval.default_model.training.tokenizer import build_tokenizer


def test_the_card_names_the_weights_that_lie_beside_it() -> None:
    folder = Path(model_path(BUILT_IN))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (folder / "README.md").read_text(encoding="utf-8")


def questions_of(document: corpus.Document) -> set[tuple[str, ...]]:
    """The option triples of a document's questions."""
    triples: set[tuple[str, ...]] = set()
    for index, piece in enumerate(document.pieces):
        if piece.endswith("Options: (A) "):
            triples.add((document.pieces[index + 1], document.pieces[index + 3], document.pieces[index + 5]))
    return triples


def test_no_test_question_is_in_the_training_data() -> None:
    tests = {
        question.options
        for rule in questions.WRONG_CATEGORIES
        for distractor in questions.DISTRACTOR_RULES
        for question in questions.test_questions(rule, distractor)
    }
    assert len(tests) > 10_000
    assert all(questions.is_reserved_for_tests(questions.Question(options, 0)) for options in tests)

    rng = random.Random(5)
    seen: set[tuple[str, ...]] = set()
    for stage in STAGES:
        for _ in range(500):
            seen |= questions_of(draw_from(stage, rng))
    assert len(seen) > 10_000
    words = {triple for triple in seen if not triple[0].isdigit()}
    assert not any(questions.is_reserved_for_tests(questions.Question(triple, 0)) for triple in words)  # type: ignore[arg-type]
    assert not seen & tests


def test_a_question_is_nine_tokens_and_every_text_survives_the_tokenizer() -> None:
    tokenizer = build_tokenizer()
    document = corpus.few_shot(10, 40, random.Random(0), named=False)
    text = "".join(document.pieces)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == document.pieces
    assert len(ids) == 50 * 9
    for string in ("Héllo wörld, 日本!\t", "1000000", "<0x41>", "Options: (A) cat"):
        assert tokenizer.decode(tokenizer(string)["input_ids"]) == string


def test_noising_masks_what_it_weighs() -> None:
    noiser = Noiser(build_tokenizer())
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    clean, is_answer = noiser.windows(lambda: draw_document(STAGES, rng), 8, 480)
    for batch in (
        noiser.everything_masked(clean, generator),
        noiser.answers_masked(clean, is_answer, 0.7, generator),
    ):
        masked = batch.weights > 0
        assert (batch.noisy[masked] == noiser.mask_id).all()
        assert (batch.noisy[~masked] == clean[~masked]).all()
        # E[sum of 1/t over the masked] / tokens = 1, whatever t is drawn
        assert 0.5 < batch.weights.sum().item() < 1.5
    assert masked.any(dim=1).all()
    assert (is_answer | ~masked).all()


def test_a_walk_takes_each_step_to_a_successor_and_the_likeliest_most_often() -> None:
    rng = random.Random(0)
    steps = [step for _ in range(10) for step in pairwise(walks.random_walk(rng).pieces)]
    ranks = [walks.successors()[before].index(after) for before, after in steps]
    shares = [ranks.count(rank) / len(ranks) for rank in range(4)]
    assert shares == pytest.approx(walks.SUCCESSOR_PROBABILITIES, abs=0.05)


def test_only_the_last_answer_of_number_questions_is_masked() -> None:
    noiser = Noiser(build_tokenizer())
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    weights = torch.zeros(20 * 9 + 1)
    for _ in range(50):
        batch = noiser.response_masked([corpus.number_questions(20, rng) for _ in range(8)], generator)
        assert ((batch.noisy == noiser.mask_id) == (batch.weights > 0)).all()
        weights += batch.weights.sum(0)
    assert (weights[:-3] == 0).all()
    assert weights.sum().item() / 50 == pytest.approx(1.0, abs=0.15)  # E[1/t over the masked] / tokens


def test_in_blocks_the_clean_and_noisy_copies_score_each_block_as_if_alone() -> None:
    """Block diffusion's one pass over both copies equals a pass per block: clean blocks before it, the noisy one."""
    tokenizer = build_tokenizer()
    noiser, block_length = Noiser(tokenizer), 8
    model = build_model(tokenizer, block_length, seed=0)
    clean = torch.randint(300, 900, (1, 30), generator=torch.Generator().manual_seed(1))
    batch = noiser.everything_masked(clean, torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = logits_at_masks(model, batch, block_length)
        expected = []
        for first in range(0, 30, block_length):
            end = min(first + block_length, 30)
            canvas = torch.cat([clean[:, :first], batch.noisy[:, first:end]], dim=1)
            with torch.autocast("cpu", torch.bfloat16):
                alone = model(input_ids=canvas, attention_mask=block_causal_mask(end, block_length)).logits[:, first:]
            expected.append(alone[batch.weights[:, first:end] > 0].float())
    torch.testing.assert_close(logits, torch.cat(expected), atol=2e-2, rtol=0)


@pytest.mark.parametrize(("name", "block_length"), [("default_model", None), ("default_model_block", 8)])
def test_what_lies_in_the_package(name: str, block_length: int | None) -> None:
    folder = Path(mdlm_lm_eval.__file__).parent / name
    assert (folder / "model.safetensors").stat().st_size <= 15 * 1024 * 1024
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert config.is_causal is False
    assert config.to_dict().get("block_length") == block_length
    assert config.mask_token_id == tokenizer.mask_token_id
    assert config.vocab_size == len(tokenizer)
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
