"""A recipe becomes an adapter folder that loads with its model; and what the trainer sums and stops at."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainingArguments

from mdlm_finetune import Collator, DiffusionTrainer, Example, card
from mdlm_finetune.card import N_MASKS, Scored, evaluate, fill_in_scores
from mdlm_finetune.objective import Objective
from mdlm_finetune.objectives.sft import Sft
from mdlm_finetune.recipe import Run, read_arguments
from mdlm_finetune.run import check_base, finetune, write_merged
from mdlm_lm_eval import load_denoiser
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.names import adapter_recipe
from mdlm_lm_eval.results.statistics import score_of_tasks
from tests.conftest import edit_json, random_llama, tiny_model, tiny_tokenizer
from tests.support.leaderboard_files import suite_file
from tests.support.reference import GOLDEN, tensors_of


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "one", "response": "two"}\n' * 4)
    return path


def small(output: Path, checkpoint: Path, prompts: Path, *changes: str) -> Run:
    flags = ["max_steps=2", "per_device_train_batch_size=1", "max_length=64", "lora_r=4", "disable_tqdm=true"]
    flags += [f"output_dir={output}", f"model_name_or_path={checkpoint}", f"train_file={prompts}", *changes]
    return read_arguments(["--config=built-in-ce-tv", *(word for flag in flags for word in f"--{flag}".split())])


def weights(adapter: Path) -> dict[str, Tensor]:
    return load_file(adapter / "adapter_model.safetensors")


def test_an_adapter_with_a_card(tmp_path: Path, checkpoint: Path, prompts: Path) -> None:
    adapter = tmp_path / "adapter"
    finetune(small(adapter, checkpoint, prompts, "per_device_train_batch_size=3"))
    assert not list(tmp_path.rglob("training_args.bin"))  # a pickle with paths of this machine
    assert load_denoiser(str(checkpoint), peft=str(adapter)).mask_token_id == 2
    with pytest.raises(OptionError, match=f"was trained on {checkpoint.name}; model_name_or_path is built-in"):
        check_base(small(adapter, Path("built-in"), prompts).recipe)
    text = (adapter / "README.md").read_text()
    assert f"base_model: {checkpoint.name}\n" in text
    assert str(tmp_path) not in text
    assert ModelCard.load(adapter / "README.md").data.model_name == "adapter, seed 0"
    assert re.search(r"Data: 4 examples of `data.jsonl`.*learning_rate: 0.001\n", text, re.DOTALL)
    assert "Not evaluated yet" in text
    of_tasks = ((0.7, 0.8, 0.9), (0.5, 0.5, 0.8), (0.8, 0.9, 1.0))
    few, most, better = (score_of_tasks(scores, [50, 50, 50]) for scores in of_tasks)
    before, after = {2: Scored(few), 200: Scored(most)}, {2: Scored(better), 200: Scored(better)}
    for _ in range(2):
        fill_in_scores(adapter, before, after, 50, "mdlm-sweep ...")
        text = (adapter / "README.md").read_text()
        # Of 150 questions: 1.96 * sqrt(0.2 * 0.8 / 150 + 0.23 * 0.77 / 150) = 0.1.
        assert "| before | 80.0 | 60.0 | 20.0 (10.0 to 30.0) |\n" in text
        assert "| after | 90.0 | 90.0 | 0.0, not significant (95%): between -6.8 and +6.8 |\n" in text
        assert "| gain | 10.0 (2.0 to 18.0) | 30.0 (20.9 to 39.1) |  |\n" in text
        assert "Not evaluated yet" not in text
        assert text.count("## Training") == 1
        data = ModelCard.load(adapter / "README.md").data
        assert data.model_name == "adapter, seed 0"
        assert [result.metric_value for result in data.eval_results] == [90.0, 90.0]


def test_a_card_tells_seeds_of_one_recipe_from_other_runs(tmp_path: Path, checkpoint: Path, prompts: Path) -> None:
    def made(name: str, *changes: str) -> tuple[Any, str]:
        finetune(small(tmp_path / name, checkpoint, prompts, *changes))
        found = ModelCard.load(tmp_path / name / "README.md").data
        return found.model_name, found.recipe_digest

    (name, digest), again = made("first"), made("again", "seed=1", "save_steps=1")
    assert (name, again) == ("first, seed 0", ("again, seed 1", digest)), "overridden, so named after their folders"
    assert adapter_recipe(str(tmp_path / "again")) == digest
    assert made("short", "max_steps=1")[1] != digest
    prompts.write_text(prompts.read_text().replace("two", "three"))
    assert made("others")[1] != digest
    as_it_is = ["--config=built-in-ce", "--seed=3", "--output_dir=out/seed3", "--evaluation_limit=0"]
    assert read_arguments(as_it_is).overridden == []
    assert read_arguments([*as_it_is, "--max_steps=20"]).overridden == ["max_steps"]


def test_the_cards_table_is_of_a_sweep_in_the_order_of_its_mask_counts(
    tmp_path: Path,
    checkpoint: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    adapter = tmp_path / "adapter"
    run = small(adapter, checkpoint, prompts, "attn_implementation=eager", "evaluation_limit=5")
    finetune(run)

    def sweep(command: list[str], **_: Any) -> Any:
        words = dict(word.removeprefix("--").split("=", 1) for word in command if word.startswith("--"))
        assert words["model_args"] == f"pretrained={checkpoint},dtype=float32,attn_implementation=eager"
        assert (words["peft"], words["limit"], words["steps"]) == (f"none,{adapter}", "5", "1")
        for n in map(int, words["n_masks"].split(",")):
            for name in (None, "/home/someone/a"):
                path = Path(words["output_path"], f"{n} {bool(name)}", "results_cell.json")
                path.parent.mkdir(parents=True)
                accuracy = 0.9 - 0.001 * n if name is None else 0.9
                record = {"first_token": {"letters": "RRWEe" if name is None else "RRRRR", "entropy": 0.5}}
                facts: dict[str, Any] = {"adapter": name, "limit": 5, "task_record": record}
                path.write_text(json.dumps(suite_file(group="mdlm_rules", n_masks=n, accuracy=accuracy, **facts)))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(card.subprocess, "run", sweep)
    capsys.readouterr()
    evaluate(run.recipe)
    assert "12 cells of 5 questions per task of mdlm_rules" in capsys.readouterr().err
    text = (adapter / "README.md").read_text()
    assert f"| n_masks | {' | '.join(map(str, N_MASKS))} | loss |" in text
    assert "| before | 89.9 | 89.8 | 89.0 | 85.0 | 80.0 | 70.0 | 19.8" in text
    assert f"| before, among letters |{' 60.0 |' * 6}  |\n| after, among letters |{' 100.0 |' * 6}  |\n" in text
    assert f"| before, EOS |{' 40.0 |' * 6}  |\n| after, EOS |{' 0.0 |' * 6}  |\n" in text
    shown = re.search("Made by `(.*)`", text)
    assert shown
    assert str(tmp_path) not in shown[1]
    counts = [result.dataset_config for result in ModelCard.load(adapter / "README.md").data.eval_results]
    assert counts == [f"n_masks={n}" for n in N_MASKS]
    monkeypatch.setattr(card.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 3))
    with pytest.raises(OptionError, match=r"its evaluation failed \(status 3\)"):
        evaluate(run.recipe)


def test_a_curriculum_that_is_longer_than_the_run_is_said(
    tmp_path: Path, checkpoint: Path, prompts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for n_passes, said in ((4, False), (5000, True)):
        caplog.clear()
        finetune(small(tmp_path / str(n_passes), checkpoint, prompts, "max_steps=4", f"curriculum_passes={n_passes}"))
        sentence = "the 4 passes of this run are fewer than curriculum_passes=5000: the number of masks grows only to 1"
        assert (sentence in caplog.text) == said


def assert_merged(pretrained: Path, adapter: Path, input_ids: Tensor) -> None:
    """Merging rounds W + BA once, and CPUs sum in different orders: both errors grow with what the adapter changed."""
    base, adapted, merged = (
        load_denoiser(str(folder), dtype="float32", peft=peft).model(input_ids).logits
        for folder, peft in ((pretrained, None), (pretrained, str(adapter)), (f"{adapter}.merged", None))
    )
    change = float((adapted - base).abs().max())
    assert change > 0.1
    assert float((merged - adapted).abs().max()) < 1e-3 * change


@pytest.mark.parametrize("family", ["llada", "dream", "llada_moe"])
def test_merged_is_the_adapted_model(family: str, tmp_path: Path, prompts: Path) -> None:
    pretrained, adapter = tmp_path / family, tmp_path / "adapter"
    shutil.copytree(GOLDEN / family, pretrained)
    tiny_tokenizer(160).save_pretrained(pretrained)
    finetune(small(adapter, pretrained, prompts, "learning_rate=0.1", "merge"))
    assert_merged(pretrained, adapter, tensors_of(family)["logits.input_ids"])


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_merged_where_head_and_embedding_are_tied(target: str, tmp_path: Path, prompts: Path) -> None:
    pretrained, adapter = tmp_path / "tied", tmp_path / "adapter"
    random_llama(259, mask_token_id=2, tie_word_embeddings=True).save_pretrained(pretrained)
    tiny_tokenizer().save_pretrained(pretrained)
    run = small(adapter, pretrained, prompts, "learning_rate=0.1", f"lora_target_modules={target}")
    finetune(run)
    write_merged(run.recipe)
    trained_on = torch.tensor([tiny_tokenizer()("one two")["input_ids"]])  # other tokens' embeddings do not change
    assert_merged(pretrained, adapter, trained_on)


def test_the_default_length_is_at_most_the_models_context(tmp_path: Path, checkpoint: Path, prompts: Path) -> None:
    words = ["max_steps=1", "per_device_train_batch_size=1", "gradient_accumulation_steps=1", "disable_tqdm=true"]
    words += [f"model_name_or_path={checkpoint}", f"train_file={prompts}", f"output_dir={tmp_path / 'adapter'}"]
    trainer = finetune(read_arguments([f"--{word}" for word in words]))
    assert trainer.collator.max_length == 256
    assert "max_length: 256\n" in (tmp_path / "adapter" / "README.md").read_text()


def test_a_model_that_cannot_be_trained_is_refused(tmp_path: Path, checkpoint: Path, prompts: Path) -> None:
    model = shutil.copytree(checkpoint, tmp_path / "model")
    edit_json(model / "tokenizer_config.json", eos_token=None)
    with pytest.raises(OptionError, match=r"names no end-of-text token.*\[SEP\]"):
        finetune(small(tmp_path / "adapter", model, prompts))
    causal = shutil.copytree(GOLDEN / "nemotron_labs_diffusion", tmp_path / "causal")
    tiny_tokenizer(160).save_pretrained(causal)
    with pytest.raises(OptionError, match="a block sees finished ones causally"):
        finetune(small(tmp_path / "adapter", causal, prompts))


def test_folders_of_another_run_are_refused(tmp_path: Path, checkpoint: Path, prompts: Path) -> None:
    adapter = tmp_path / "adapter"

    def run(*changes: str) -> None:
        finetune(small(adapter, checkpoint, prompts, "save_steps=1", *changes))

    def refused(message: str, *changes: str) -> None:
        with pytest.raises(OptionError, match=message):
            run(*changes)

    with FileLock(tmp_path / "adapter.lock"):
        refused("output_dir=.*adapter: another process trains it now")
    run()
    before = weights(adapter)
    refused(r"adapter exists already; choose another output_dir, or replace it with --overwrite")
    refused("exists already", "resume")
    adapter.rename(tmp_path / "undisturbed")
    refused("holds another run; continue it with --resume, or replace it with --overwrite")
    refused("seed=3 is not allowed with --resume: .* holds a run with seed=its default", "seed=3", "resume")
    text = prompts.read_text()
    prompts.write_text(text.replace("two", "three"))
    refused(r"train_file_sha256=\w+ is not allowed with --resume", "resume")
    prompts.write_text(text)
    run("seed=3", "overwrite", "merge")
    assert any(not torch.equal(weight, weights(adapter)[name]) for name, weight in before.items())
    refused("adapter exists already", "merge")
    refused(r"adapter.merged is of an earlier adapter; merge the new one, too \(--merge\)", "overwrite")
    shutil.rmtree(adapter)
    adapter.mkdir()  # somebody's own
    refused("adapter cannot be replaced: it holds no adapter_config.json", "overwrite")
    assert adapter.exists()


def test_killed_after_the_last_step(
    tmp_path: Path, checkpoint: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, undisturbed = tmp_path / "adapter", tmp_path / "undisturbed"
    finetune(small(adapter, checkpoint, prompts))
    adapter.rename(undisturbed)
    half = tmp_path / "adapter.checkpoints" / "checkpoint-9"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global_st')
    monkeypatch.setattr(DiffusionTrainer, "train", None)  # nothing is left to train
    finetune(small(adapter, checkpoint, prompts, "resume"))
    assert (undisturbed / "README.md").read_text() == (adapter / "README.md").read_text()
    for name, weight in weights(undisturbed).items():
        assert torch.equal(weight, weights(adapter)[name]), name


# The trainer

EXAMPLES = [Example(id, [10 + id, 20, 30], [40 + id, 50]) for id in range(10)]


def trainer(output: Path, objective: Objective, **changes: int | float | str) -> DiffusionTrainer:
    settings = {"save_strategy": "no", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    settings |= {"learning_rate": 1e-2, "logging_steps": 1, "disable_tqdm": True, "report_to": "none", "use_cpu": True}
    args = TrainingArguments(output_dir=str(output), **settings | changes)
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0)
    return DiffusionTrainer(denoiser, args, EXAMPLES, Collator(objective, 2, 1, max_length=32))


def test_a_step_of_unequal_passes_is_the_mean_over_its_examples(tmp_path: Path) -> None:
    """Passes of 4, 4 and 2 examples make the step that one pass of 10 makes."""
    gradients, losses = [], []
    for size, passes in ((4, 3), (10, 1)):
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": passes}
        one_step = trainer(tmp_path / str(size), _Whole(), max_steps=1, max_grad_norm=0.0, optim="sgd", **sizes)
        before = {name: weight.clone() for name, weight in one_step.denoiser.model.state_dict().items()}
        one_step.train()
        gradients.append({n: before[n] - weight for n, weight in one_step.denoiser.model.state_dict().items()})
        losses.append(one_step.state.log_history[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))


class _Whole(Sft):
    """Masks the whole answer, so that the pass that an example is in changes nothing."""

    def noise(self, text, maskable, noising):  # type: ignore[no-untyped-def]
        noised = super().noise(text, maskable, noising)
        views = (text.masked_fill(maskable, noising.mask_token_id),)
        return type(noised)(views, maskable, 1.0)


def test_training_lowers_the_loss_and_stops_where_it_is_not_finite(tmp_path: Path) -> None:
    training = trainer(tmp_path, Sft(), max_steps=20, per_device_train_batch_size=5)
    training.train()
    losses = [entry["loss"] for entry in training.state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    with torch.no_grad():
        training.denoiser.model.model.norm.weight.fill_(float("nan"))
    training.state.global_step = 0
    with pytest.raises(OptionError, match=r"the loss is nan in step 1, on the examples \[\d, \d, \d, \d, \d\]"):
        training.train()
