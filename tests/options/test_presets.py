"""Presets: each parses and runs, is listed, and is a whole run for a sweep."""

from functools import cache
from pathlib import Path

import pytest

from mdlm_lm_eval.declared import declarations
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.presets import load_preset, preset_names, run_of
from mdlm_lm_eval.resolve import resolve
from mdlm_lm_eval.sweep.__main__ import settings_of
from mdlm_lm_eval.sweep.plan import plan
from tests.conftest import choice, data, generation, tiny_model, tiny_tokenizer
from tests.support.commands import run

PRESET = "llada-8b-base/gsm8k-256"
# Families whose attention is block-causal. The mixture sdar_moe decodes as sdar does.
BLOCK_FAMILIES = {"llada2", "llada21", "sdar", "fast_dllm_v2", "a2d-qwen3", "a2d-qwen2"}


@pytest.mark.parametrize("name", preset_names())
def test_the_options_of_a_preset_are_valid_and_explicit(name: str) -> None:
    preset = load_preset(name)
    settings = resolve({"preset": name})
    assert settings.explicit == preset.keys() <= {*declarations(DecodingOptions), *LikelihoodOptions.declared()}
    options = (settings.likelihood if "likelihood" in preset else settings.decoding).as_dict()
    assert preset.items() <= options.items()


def family_of(name: str) -> str | None:
    """A block-causal family, if the preset is one's."""
    family = run_of(name).family.removesuffix("_moe")
    return family if family in BLOCK_FAMILIES else None


# The first of those with the same options and family.
DISTINCT = {repr((family_of(name), sorted(load_preset(name).items()))): name for name in reversed(preset_names())}
tokenizer_of_all = cache(tiny_tokenizer)


@pytest.mark.parametrize("name", sorted(DISTINCT.values()))
def test_a_preset_runs(name: str) -> None:
    """Scaled down to eight masks in blocks of four; the family's own defaults count where the preset says nothing."""
    preset, model, family = load_preset(name), tiny_model(), family_of(name)
    scale: dict[str, object] = {"n_masks": 8} | ({"block_length": 4} if family or "block_length" in preset else {})
    if family:
        model.config.diffusion_family, model.config.block_length = family, 4
    for length in ("steps", "steps_per_block", "small_block_length"):
        scale |= {length: min(int(str(preset[length])), 8 // 2)} if length in preset else {}
    if "small_block_length" in scale:
        scale["small_block_length"] = 2
    if "likelihood" in preset:
        lm = MDLM(model, tokenizer=tokenizer_of_all(), batch_size=32, preset=name)
        [(logprob, greedy)] = lm.loglikelihood([choice("question", " yes")], disable_tqdm=True)
        assert logprob < 0.0
        # The greedy check takes as many passes as there are tokens; all presets leave it out.
        assert not greedy
        assert 0 < lm.denoiser.forward_passes <= 8
    else:
        lm = MDLM(model, tokenizer=tokenizer_of_all(), preset=name, early_exit=False, **scale)
        assert len(lm.generate_until([generation("question", until=[])], disable_tqdm=True)) == 1
        recorded = lm.get_model_info()["mdlm"]
        assert (preset | scale).items() <= recorded["decoding"].items()
        assert recorded["tasks"]["task"]["asked_masks"] == [8, 8]
    assert lm.get_model_info()["mdlm"]["preset"] == name


def test_presets_are_listed_by_the_command_that_errors_name() -> None:
    assert run("mdlm_lm_eval.presets").stdout.split() == [*preset_names()]
    shown = run("mdlm_lm_eval.presets", "show", PRESET)
    assert shown.stdout.splitlines() == [
        "# published: 70.0 (EVAL.md, generation tasks)",
        f"# repeated: 70.7 (dllm/{PRESET})",
        "# source: https://github.com/ML-GSAI/LLaDA (b7e6c35), 2026-06-25",
        "# differs: the authors ran lm-eval 0.4.8",
        "# texts: their answers continue after an end-of-text token up to the next stop string; ours stop at it",
        "# options: n_masks=256,steps=256,temperature=0.0,unmasking=confidence",
        f"lm_eval --model mdlm --model_args pretrained=GSAI-ML/LLaDA-8B-Base,preset={PRESET},dtype=bfloat16 "
        "--tasks gsm8k --num_fewshot 5 --batch_size auto --output_path results",
    ]


def test_what_differs_from_the_authors_run_is_said() -> None:
    runs = {name: run_of(name) for name in preset_names()}
    changed_by_lm_eval = {"bbh", "minerva_math", "gpqa_main_n_shot"}
    assert not [name for name, one in runs.items() if one.is_target and one.value("--tasks") in changed_by_lm_eval]
    assert all(one.dated.startswith("20") and "http" in one.source for one in runs.values())
    dtypes = {name: "dtype=float16" in one.flags[1].split(",") for name, one in runs.items()}
    assert [name for name, is_float16 in dtypes.items() if is_float16] == [n for n in runs if n.startswith("sdar")]
    shown = run("mdlm_lm_eval.presets", "show", "dream-7b-instruct/ifeval", "dream-7b-instruct/gpqa").stdout
    assert shown.count("# texts: theirs keep <|im_end|>") == 1  # of the one that generates
    assert run("mdlm_lm_eval.presets", "show", "llada-8b-instruct/ifeval").stdout.startswith("# published: no score (")


@pytest.mark.parametrize(("name", "family", "task", "sentences"), data("cases.json")["preset mismatches"])
def test_a_preset_of_another_family_or_task_is_told(
    name: str, family: str, task: str, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model()
    model.config.diffusion_family = family
    lm = MDLM(model, tokenizer=tiny_tokenizer(), preset=name, n_masks=8, mc_num=2)
    lm.loglikelihood([choice("question", " yes", task=task)], disable_tqdm=True)
    found = lm.get_model_info()["mdlm"]["preset_mismatches"]
    assert len(found) == len(sentences)
    assert all(map(str.startswith, found, sentences))
    assert all(sentence in caplog.text for sentence in found)


def test_a_preset_is_a_whole_run_of_which_each_part_can_be_set() -> None:
    def commands(*words: str) -> list[str]:
        planned = plan(settings_of(["--preset", *words]))
        return [f"{cell.name}: {planned.command(cell)}" for cell in planned.cells]

    of_preset = f"preset={PRESET},dtype=bfloat16"
    assert commands(PRESET) == [
        "GSAI-ML__LLaDA-8B-Base/gsm8k,num_fewshot=5,preset=llada-8b-base__gsm8k-256: lm_eval --model mdlm --model_args "
        f"pretrained=GSAI-ML/LLaDA-8B-Base,{of_preset} --tasks gsm8k --num_fewshot 5 --batch_size auto"
    ]
    typed = ["--steps", "64,128", "--model_args", "pretrained=mine", "--num_fewshot", "0", "--batch_size", "4"]
    assert [command.partition(": ")[2] for command in commands(PRESET, *typed)] == [
        f"lm_eval --model mdlm --model_args pretrained=mine,{of_preset},steps={n} --tasks gsm8k --num_fewshot 0 "
        "--batch_size 4"
        for n in (64, 128)
    ]
    [command] = commands("dream-7b-instruct/mmlu", "--max_gen_toks", "8")
    assert "max_gen_toks=8 " in command
    assert "--fewshot_as_multiturn false" in command
    [command] = commands("llada2.1-mini/bbh-speed", "--max_gen_toks", "8")
    assert "--gen_kwargs" not in command
    assert "diffusion_family=llada21" in command


def test_a_file_of_a_sweep_may_name_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"preset: {PRESET}\nmodel_args: {{dtype: float32}}\ngrids: [{{num_fewshot: 2}}]\n"
    )
    planned = plan(settings_of(["--config", str(tmp_path / "mine.yaml")]))
    assert planned.model_args == {"pretrained": "GSAI-ML/LLaDA-8B-Base", "preset": PRESET, "dtype": "float32"}
    assert [(cell.task, cell.num_fewshot) for cell in planned.cells] == [("gsm8k", 2)]
