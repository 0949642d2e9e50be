"""A recipe becomes an adapter folder that loads with its model."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mdlm_finetune.evaluation import Score
from mdlm_finetune.model_card import fill_in_scores
from mdlm_finetune.options import FinetuneOptions, read_recipe
from mdlm_finetune.run import finetune
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import OptionError

GOLDEN = Path(__file__).parent / "golden"
RECIPE = Path(__file__).parents[1] / "finetune" / "recipes" / "built-in-ce-tv.yaml"


def options(output: Path, *changes: str) -> FinetuneOptions:
    small = ["steps=2", "batch_size=1", "n_examples=4", "max_length=2000", "lora_rank=4", "trainer.disable_tqdm=true"]
    return read_recipe(RECIPE, [*small, f"output={output}", *changes])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "one", "response": "two"}\n' * 4)
    return path


def test_an_adapter_with_a_card(tmp_path: Path, checkpoint: Path) -> None:
    adapter = tmp_path / "adapter"
    finetune(options(adapter, f"pretrained={checkpoint}"))
    assert load_denoiser(str(checkpoint), peft=str(adapter)).mask_token_id == 2
    card = (adapter / "README.md").read_text()
    assert f"base_model: {checkpoint}" in card
    assert "| `learning_rate` |" in card
    assert "Not evaluated yet" in card
    scores = [Score(adapted, n, accuracy, 16, 800) for adapted, n, accuracy in
              ((False, 1, 0.8), (False, 200, 0.6), (True, 1, 0.9), (True, 200, 0.9))]  # fmt: skip
    fill_in_scores(adapter, scores, "mdlm-sweep ...")
    for _ in range(2):
        card = (adapter / "README.md").read_text()
        assert "| before | 80.0 | 60.0 | 25.0 |\n| after | 90.0 | 90.0 | 0.0 |" in card
        assert "Not evaluated yet" not in card
        assert card.count("## Training") == 1
        fill_in_scores(adapter, scores, "mdlm-sweep ...")


@pytest.mark.parametrize("family", ["llada", "dream", "llada_moe"])
def test_merged_is_the_adapted_model(family: str, tmp_path: Path, prompts: Path) -> None:
    pretrained, adapter = tmp_path / family, tmp_path / "adapter"
    shutil.copytree(GOLDEN / family, pretrained)
    vocabulary = {"<|unk|>": 0, "<|eos|>": 1, "one": 2, "two": 3}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|eos|>").save_pretrained(pretrained)
    finetune(
        options(adapter, f"pretrained={pretrained}", f"data={prompts}", "masks_end=50", "learning_rate=0.1"),
        merge=True,
    )
    input_ids = load_file(pretrained / "golden.safetensors")["logits.input_ids"]
    base, adapted, merged = (
        load_denoiser(str(folder), dtype="float32", peft=peft).model(input_ids).logits
        for folder, peft in ((pretrained, None), (pretrained, str(adapter)), (f"{adapter}.merged", None))
    )
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(base, adapted, atol=1e-3)


def test_a_lora_target_without_a_module_is_refused_before_training(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(OptionError, match="lora_targets=nothing_here is not allowed"):
        finetune(options(tmp_path / "adapter", f"pretrained={checkpoint}", "lora_targets=nothing_here"))
    assert not (tmp_path / "adapter").exists()


def test_folders_of_another_run_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    adapter = tmp_path / "adapter"
    given = options(adapter, f"pretrained={checkpoint}")
    finetune(given)
    before = load_file(adapter / "adapter_model.safetensors")
    with pytest.raises(OptionError, match=r"output=\S+adapter exists already.*--overwrite"):
        finetune(given)
    with pytest.raises(OptionError, match="exists already"):
        finetune(given, resume=True)
    adapter.rename(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="holds another run; continue it with --resume"):
        finetune(given)
    with pytest.raises(OptionError, match=r"seed=3 is not allowed with --resume: .* holds a run with seed=0"):
        finetune(options(tmp_path / "adapter", f"pretrained={checkpoint}", "seed=3"), resume=True)
    finetune(options(adapter, f"pretrained={checkpoint}", "seed=3"), overwrite=True)
    after = load_file(adapter / "adapter_model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_gradient_checkpointing_learns_the_same(tmp_path: Path, checkpoint: Path) -> None:
    weights = []
    for name, value in (("plain", "false"), ("checkpointed", "true")):
        finetune(options(tmp_path / name, f"pretrained={checkpoint}", f"trainer.gradient_checkpointing={value}"))
        weights.append(load_file(tmp_path / name / "adapter_model.safetensors"))
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name])
