"""The built-in models: what they were trained on, what lies in the package, and their names."""

import hashlib
import json
import random
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from mdlm_lm_eval import load_denoiser, load_tokenizer
from mdlm_lm_eval.checkpoints import checkpoint_digest, files_digest
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.models import BUILT_IN, MODEL_FOLDERS, model_path
from mdlm_lm_eval.tasks import prompts, questions, rule_sets
from training import corpus, lists, walks
from training.batches import Batch, Noiser
from training.curriculum import STAGES, documents
from training.model import block_causal_mask, build_model, logits_at_masks
from training.tokenizer import build_tokenizer

DATA_SHA256 = "9a4557febf59ef6b8b8b20dc7d42e56aa824d3de8d41b1646948fe9a710d1336"


@pytest.mark.parametrize("name", [*MODEL_FOLDERS])
def test_the_card_names_the_weights(name: str) -> None:
    digest = hashlib.sha256((Path(model_path(name)) / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (Path(model_path(BUILT_IN)) / "README.md").read_text(encoding="utf-8")


def test_training_data_are_the_same_everywhere() -> None:
    rng, tokenizer = random.Random(0), build_tokenizer()
    drawn = [one for stage in STAGES[1:] for one in documents(stage, 540, 0.1, rng)]
    drawn += [*(corpus.word_fact(rng) for _ in range(20)), *(walks.random_walk(60, rng) for _ in range(4))]
    drawn += [one for stage in lists.STAGES for batch in lists.batches(stage, rng, tokenizer) for one in batch]
    digest = hashlib.sha256(json.dumps([(one.pieces, list(one.answers)) for one in drawn]).encode())
    assert digest.hexdigest() == DATA_SHA256


def test_no_test_question_is_in_the_training_data() -> None:
    rng = random.Random(5)
    seen: set[tuple[str, ...]] = set()
    for stage in STAGES[1:]:
        for document in documents(stage, 9 * 600, 0.1, rng):
            pieces = document.pieces
            starts = [index for index, piece in enumerate(pieces) if piece.endswith("Options: (A) ")]
            seen |= {(pieces[index + 1], pieces[index + 3], pieces[index + 5]) for index in starts}
    words = {triple for triple in seen if not triple[0].isdigit()}
    assert len(words) > 2_000
    assert not any(questions.is_reserved_for_tests(questions.Question(triple, 0)) for triple in words)  # type: ignore[arg-type]


def test_a_question_is_nine_tokens_and_every_text_survives_the_tokenizer() -> None:
    tokenizer = build_tokenizer()
    document = corpus.few_shot("country", 10, 40, random.Random(0))
    text = "".join(document.pieces)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == document.pieces
    assert len(ids) == 50 * 9
    for rule in questions.WRONG_CATEGORIES:
        for triple in rule_sets.triples_of(rule):
            for one in rule_sets.example_sets(triple, "largest", 10):
                assert len(tokenizer(prompts.TEMPLATES[0].solved(one.question(rule)))["input_ids"]) == 9
    for string in ("Héllo wörld, 日本!\t", "1000000", "<0x41>", "Options: (A) cat"):
        assert tokenizer.decode(tokenizer(string)["input_ids"]) == string


def test_noising_masks_what_it_weighs() -> None:
    noiser = Noiser(build_tokenizer())
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    found = [corpus.few_shot("verb", 10, 4, rng) for _ in range(8)]
    answers = noiser.answers_masked(found, 0.7, generator)
    masked = answers.weights > 0
    assert ((answers.noisy == noiser.mask_id) == masked).all()
    assert (answers.noisy[~masked] == answers.clean[~masked]).all()
    assert masked.any(dim=1).all()
    assert all(set(row.nonzero()[:, 0].tolist()) <= set(one.answers) for row, one in zip(masked, found, strict=True))
    assert answers.weights.sum().item() == pytest.approx(1.0)

    walk = [walks.random_walk(719, rng) for _ in range(4)]
    batches = [noiser.everything_masked(walk, generator) for _ in range(50)]
    assert all(((batch.noisy == noiser.mask_id) == (batch.weights > 0)).all() for batch in batches)
    total = sum(batch.weights.sum().item() for batch in batches)
    assert total / 50 == pytest.approx(1.0, abs=0.1)  # E[1/t over the masked] / tokens


def test_no_list_of_a_task_is_trained_on() -> None:
    tokenizer = build_tokenizer()
    asked = lists.reserved("remove_index")
    assert len(asked) == 100
    rng = random.Random("mdlm parallel remove_index short")  # the task's own, so that the first draw is its question
    drawn = ["".join(lists.document("remove_index", range(3, 7), rng, tokenizer, n_shots=1).pieces) for _ in range(20)]
    assert asked.isdisjoint(re.sub("(?<=Answer:).*", "", question) for text in drawn for question in text.split("\n\n"))


def test_in_blocks_the_clean_and_noisy_copies_score_each_block_as_if_alone() -> None:
    """Block diffusion's one pass over both copies equals a pass per block: clean blocks before it, the noisy one."""
    tokenizer = build_tokenizer()
    noiser, block_length = Noiser(tokenizer), 8
    model = build_model(tokenizer, block_length, seed=0)
    clean = torch.randint(300, 900, (1, 30), generator=torch.Generator().manual_seed(1))
    masked = torch.rand(clean.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    batch = Batch(clean, clean.masked_fill(masked, noiser.mask_id), masked.float())
    with torch.no_grad():
        logits = logits_at_masks(model, batch, block_length)
        expected = []
        for first in range(0, 30, block_length):
            end = min(first + block_length, 30)
            canvas = torch.cat([clean[:, :first], batch.noisy[:, first:end]], dim=1)
            alone = model(input_ids=canvas, attention_mask=block_causal_mask(end, block_length)).logits[:, first:]
            expected.append(alone[batch.weights[:, first:end] > 0])
    torch.testing.assert_close(logits, torch.cat(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODEL_FOLDERS)
def test_what_lies_in_the_package(name: str) -> None:
    folder = MODEL_FOLDERS[name]
    assert (folder / "model.safetensors").stat().st_size <= 15 * 1024 * 1024
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert config.is_causal is False
    assert config.to_dict().get("block_length") == (8 if name == "built-in-block" else None)
    assert config.mask_token_id == tokenizer.mask_token_id
    assert config.vocab_size == len(tokenizer)
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()


def test_no_token_sees_another_one_that_is_masked() -> None:
    tokenizer = build_tokenizer()
    noiser, model = Noiser(tokenizer), build_model(tokenizer, None, seed=0)
    batch = noiser.answers_masked(
        [corpus.few_shot("verb", 10, 2, random.Random(0))], 1.0, torch.Generator().manual_seed(1)
    )
    masked = (batch.weights[0] > 0).nonzero()[:, 0]
    assert len(masked) > 1
    text = batch.weights[0] == 0
    text[masked[0]] = True  # the first answer, behind a text without the other masked ones, which cannot see it
    visible = text.repeat(int(text.sum()), 1)
    visible[:, masked[0]] = torch.arange(len(text))[text] == masked[0]
    with torch.no_grad():
        ids, positions = batch.noisy[:, text], torch.arange(len(text))[text][None]
        expected = model(ids, position_ids=positions, attention_mask=visible[:, text][None, None]).logits
        logits = logits_at_masks(model, batch, None)[0]
    torch.testing.assert_close(logits, expected[0, int(text[: masked[0]].sum())], atol=1e-5, rtol=0)


def test_the_built_in_model_has_a_name_and_needs_none() -> None:
    by_folder = load_denoiser(model_path("built-in"))
    ids = torch.tensor([[5, by_folder.mask_token_id]])
    for denoiser in (load_denoiser(), load_denoiser("built-in")):
        torch.testing.assert_close(denoiser.model(ids).logits, by_folder.model(ids).logits, atol=0, rtol=0)
    assert load_tokenizer().get_vocab() == load_tokenizer("built-in").get_vocab()
    assert files_digest("built-in") == files_digest(model_path("built-in")) is not None


def test_a_commit_or_all_files_identify_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (refs := tmp_path / "models--org--name/refs").mkdir(parents=True)
    found = set()
    for commit, revision in (("a" * 40, "main"), ("b" * 40, "main"), ("c" * 40, "v1")):
        (refs / revision).write_text(commit)
        folder = shutil.copytree(model_path("built-in"), refs.parent / "snapshots" / commit)
        (folder / "config.json").write_text(commit)
        assert checkpoint_digest("org/name", revision=revision) == commit
        found |= {files_digest(str(folder)), checkpoint_digest(str(folder))}
    assert len(found) == 4  # the weights are the same


def test_it_is_the_same_model_to_lm_eval() -> None:
    facts = [MDLM(**arguments).get_model_info()["mdlm"] for arguments in ({}, {"pretrained": "built-in"})]
    assert facts[0] == facts[1]
    assert facts[0]["pretrained"] == "built-in"
    assert MDLM(tokenizer="built-in").tokenizer.get_vocab() == load_tokenizer().get_vocab()


def test_a_result_names_the_weights_that_were_loaded_from_a_subfolder(tmp_path: Path) -> None:
    shutil.copytree(model_path("built-in"), tmp_path / "checkpoint-500")
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    whole, loaded = (of(str(tmp_path), "checkpoint-500") for of in (files_digest, checkpoint_digest))
    assert whole == files_digest("built-in")
    lm = MDLM(str(tmp_path), subfolder="checkpoint-500", device="cpu")
    shutil.rmtree(tmp_path / "checkpoint-500")
    assert lm.get_model_info()["mdlm"]["weights"] == loaded != whole


def test_training_of_a_few_modules_changes_the_digest_of_a_large_file(tmp_path: Path) -> None:
    (path := tmp_path / "model.safetensors").write_bytes(bytes(2**25))
    before = files_digest(str(tmp_path))
    with path.open("r+b") as file:
        file.seek(2**23 - 2**20)
        file.write(b"\1" * 2**22)
    assert files_digest(str(tmp_path)) != before


def test_their_batch_size_is_auto_unless_one_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch_size(given: int | str | None, **arguments: str) -> int | str:
        size: int | str = MDLM.create_from_arg_obj(dict(arguments), {"batch_size": given, "device": "cpu"}).batch_size
        return size

    assert MDLM().batch_size == batch_size(None) == batch_size(None, pretrained="built-in-lists") == "auto"
    assert MDLM(batch_size=1).batch_size == batch_size(1) == 1
    assert int(batch_size(4)) == int(batch_size(2, batch_size="4")) == 4
    # The command hands over the number 1 where nothing is typed, and text where something is.
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", sys)
    assert batch_size(1) == "auto"
    assert int(batch_size("1")) == int(batch_size(1, batch_size="1")) == 1
    shutil.copytree(model_path("built-in-block"), tmp_path, dirs_exist_ok=True)
    assert int(batch_size(1, pretrained=str(tmp_path))) == 1
