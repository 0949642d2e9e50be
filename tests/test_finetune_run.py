"""A recipe becomes an adapter folder that loads with its model."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainingArguments

from mdlm_finetune.arguments import FinetuneArguments, read_arguments
from mdlm_finetune.evaluation import Score
from mdlm_finetune.model_card import fill_in_scores
from mdlm_finetune.objective import Objective
from mdlm_finetune.recipe import Actions
from mdlm_finetune.run import finetune
from mdlm_finetune.trainer import DiffusionTrainer
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.locks import Claimed, claim
from tests.conftest import random_llama, tiny_model, tiny_tokenizer

GOLDEN = Path(__file__).parent / "golden"
Settings = tuple[FinetuneArguments, Objective, Actions]


def settings(output: Path, *changes: str) -> Settings:
    small = ["max_steps=2", "per_device_train_batch_size=1", "max_train_samples=4", "max_length=2600", "lora_r=4"]
    flags = [f"--{change}" for change in (*small, "disable_tqdm=true", f"output_dir={output}", *changes)]
    return read_arguments(["--config=built-in-ce-tv", *(word for flag in flags for word in flag.split())])


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With room for the generated texts, of which each character is a token here."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model = tiny_model()
    model.config.max_position_embeddings = 2600
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "one", "response": "two"}\n' * 4)
    return path


def test_an_adapter_with_a_card(tmp_path: Path, checkpoint: Path) -> None:
    adapter = tmp_path / "adapter"
    finetune(*settings(adapter, f"model_name_or_path={checkpoint}"))
    assert load_denoiser(str(checkpoint), peft=str(adapter)).mask_token_id == 2
    card = (adapter / "README.md").read_text()
    assert f"base_model: {checkpoint.name}\n" in card
    assert str(tmp_path) not in card
    assert ModelCard.load(adapter / "README.md").data.model_name == "MA (CE + TV), seed 0"
    assert "learning_rate: 0.001\n" in card
    assert "Not evaluated yet" in card
    scores = [Score(adapted, n, {"a": a, "b": b, "c": c}, 150) for adapted, n, a, b, c in (
        (False, 1, 0.7, 0.8, 0.9), (False, 200, 0.5, 0.5, 0.8),
        (True, 1, 0.8, 0.9, 1.0), (True, 200, 0.8, 0.9, 1.0))]  # fmt: skip
    fill_in_scores(adapter, scores, "mdlm-sweep ...")
    for _ in range(2):
        card = (adapter / "README.md").read_text()
        # Drops of 20, 30 and 10 points in the tasks, gains of 30, 40 and 20 at 200 masks: t(2) * 10 / sqrt(3) = 24.8.
        assert "| before | 80.0 | 60.0 | 20.0 ± 24.8 |\n| after | 90.0 | 90.0 | 0.0 ± 0.0 |\n" in card
        assert "| gain | 10.0 ± 0.0 | 30.0 ± 24.8 |  |\n" in card
        assert "150 questions over 3 tasks" in card
        assert "Not evaluated yet" not in card
        assert card.count("## Training") == 1
        data = ModelCard.load(adapter / "README.md").data
        assert data.model_name == "MA (CE + TV), seed 0"
        assert [result.metric_value for result in data.eval_results] == [90.0, 90.0]
        fill_in_scores(adapter, scores, "mdlm-sweep ...")


@pytest.mark.parametrize("family", ["llada", "dream", "llada_moe"])
def test_merged_is_the_adapted_model(family: str, tmp_path: Path, prompts: Path) -> None:
    pretrained, adapter = tmp_path / family, tmp_path / "adapter"
    shutil.copytree(GOLDEN / family, pretrained)
    vocabulary = {"<|unk|>": 0, "<|eos|>": 1, "one": 2, "two": 3}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|eos|>").save_pretrained(pretrained)
    changes = [f"model_name_or_path={pretrained}", f"train_file={prompts}", "max_length=64", "learning_rate=0.1"]
    finetune(*settings(adapter, *changes, "merge"))
    input_ids = load_file(pretrained / "golden.safetensors")["logits.input_ids"]
    base, adapted, merged = (
        load_denoiser(str(folder), dtype="float32", peft=peft).model(input_ids).logits
        for folder, peft in ((pretrained, None), (pretrained, str(adapter)), (f"{adapter}.merged", None))
    )
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(base, adapted, atol=1e-3)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_merged_where_head_and_embedding_are_tied(target: str, tmp_path: Path, prompts: Path) -> None:
    pretrained, adapter = tmp_path / "tied", tmp_path / "adapter"
    random_llama(259, mask_token_id=2, tie_word_embeddings=True).save_pretrained(pretrained)
    tiny_tokenizer().save_pretrained(pretrained)
    changes = [f"model_name_or_path={pretrained}", f"train_file={prompts}", "max_length=64", "learning_rate=0.1"]
    finetune(*settings(adapter, *changes, f"lora_target_modules={target}", "merge"))
    adapted, merged = (
        load_denoiser(str(folder), dtype="float32", peft=peft).model(torch.arange(10, 30)[None]).logits
        for folder, peft in ((pretrained, str(adapter)), (f"{adapter}.merged", None))
    )
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [("q_proj", {"q_proj"}), ("q_proj v_proj", {"q_proj", "v_proj"}), (r".*1\..*[kv]_proj", {"k_proj", "v_proj"})],
)
def test_lora_target_modules(targets: str, adapted: set[str], tmp_path: Path, checkpoint: Path, prompts: Path) -> None:
    changes = [f"model_name_or_path={checkpoint}", f"train_file={prompts}", f"lora_target_modules {targets}"]
    finetune(*settings(tmp_path / "adapter", *changes))
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in weights} == adapted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lora_target_modules=nothing_here", "lora_target_modules=nothing_here: "),
        ("lora_target_modules q_proj r_proj", "no module is named r_proj"),
        ("lora_target_modules=(", r"lora_target_modules=\(: "),
        ("max_length=5000", "max_length must be at most 2600, the context of"),
        ("eval_strategy=steps", "eval_strategy"),
    ],
)
def test_what_the_model_or_the_trainer_refuses(change: str, message: str, tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(OptionError, match=message):
        finetune(*settings(tmp_path / "adapter", f"model_name_or_path={checkpoint}", change))
    assert not (tmp_path / "adapter").exists()
    assert not list(tmp_path.glob("adapter.checkpoints/checkpoint-*"))


def test_a_tokenizer_without_eos_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    pretrained = shutil.copytree(checkpoint, tmp_path / "endless")
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(pretrained)
    with pytest.raises(OptionError, match="endless: its tokenizer has no EOS token"):
        finetune(*settings(tmp_path / "adapter", f"model_name_or_path={pretrained}"))


def test_the_built_in_model_is_named_without_its_folder(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    finetune(*settings(tmp_path / "adapter", "max_steps=1", "max_length=1024", "lora_target_modules=q_proj"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "mdlm-lm-eval built-in model"
    assert not [warning for warning in recwarn if "renamed" in str(warning.message)]


def test_one_process_has_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(OptionError, match="one process with 2 GPUs is not allowed; start one a GPU, torchrun"):
        finetune(*settings(tmp_path / "adapter"))


def test_folders_of_another_run_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    adapter = tmp_path / "adapter"
    given = settings(adapter, f"model_name_or_path={checkpoint}")
    finetune(*given)
    before = load_file(adapter / "adapter_model.safetensors")
    with pytest.raises(OptionError, match=r"output_dir=\S+adapter exists already.*--overwrite"):
        finetune(*given)
    with pytest.raises(OptionError, match="exists already"):
        finetune(*given[:2], Actions(resume=True))
    adapter.rename(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="holds another run; continue it with --resume"):
        finetune(*given)
    with pytest.raises(OptionError, match=r"seed=3 is not allowed with --resume: .* holds a run with seed=its default"):
        finetune(*settings(tmp_path / "adapter", f"model_name_or_path={checkpoint}", "seed=3", "resume"))
    finetune(*settings(adapter, f"model_name_or_path={checkpoint}", "seed=3", "overwrite"))
    after = load_file(adapter / "adapter_model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_killed_before_the_adapter_was_written(
    tmp_path: Path, checkpoint: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = tmp_path / "adapter"
    given = settings(
        adapter, f"model_name_or_path={checkpoint}", f"train_file={prompts}", "max_steps=3", "save_steps=2"
    )
    finetune(*given)
    adapter.rename(tmp_path / "undisturbed")
    text = prompts.read_text()
    prompts.write_text(text.replace("two", "three"))
    with pytest.raises(OptionError, match=r"train_file_sha256=\w+ is not allowed with --resume"):
        finetune(*given[:2], Actions(resume=True))
    prompts.write_text(text)
    assert not list(tmp_path.rglob("training_args.bin"))  # a pickle that holds hub_token
    monkeypatch.setattr(DiffusionTrainer, "train", None)  # nothing is left to train
    finetune(*given[:2], Actions(resume=True))
    cards = [(tmp_path / name / "README.md").read_text() for name in ("undisturbed", "adapter")]
    assert cards[0] == cards[1]
    undisturbed, resumed = (load_file(tmp_path / n / "adapter_model.safetensors") for n in ("undisturbed", "adapter"))
    for name, weight in undisturbed.items():
        assert torch.equal(weight, resumed[name]), name


def test_gradient_checkpointing_learns_the_same(tmp_path: Path, checkpoint: Path) -> None:
    weights = []
    for name, value in (("plain", "false"), ("checkpointed", "true")):
        finetune(*settings(tmp_path / name, f"model_name_or_path={checkpoint}", f"gradient_checkpointing={value}"))
        weights.append(load_file(tmp_path / name / "adapter_model.safetensors"))
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name])


def test_two_runs_do_not_share_a_folder(tmp_path: Path, checkpoint: Path) -> None:
    adapter = tmp_path / "adapter"
    with claim(adapter), pytest.raises(Claimed, match=rf"adapter is being written by process {os.getpid()} on \S+"):
        finetune(*settings(adapter, f"model_name_or_path={checkpoint}"))
    assert not adapter.exists()
