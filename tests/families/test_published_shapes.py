"""Every published shape loads, generates and is scored as lm-eval asks, and is recognised for what it is."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from mdlm_lm_eval.check.__main__ import _parser, check
from mdlm_lm_eval.checkpoints import end_of_turn_ids, eos_ids, load_config, load_tokenizer
from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.text import Ending
from tests.conftest import edit_json, evaluate
from tests.support.published_shapes import NAMES, build, shape, shrunk_config, tensors_of

pytestmark = pytest.mark.slow

# Of the many passes that published settings take.
FEW: dict[str, Any] = {"mc_num": 2}
FEW_OF: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {"steps_per_block": 1},
    "llada22": FEW | {"max_steps_per_block": 1, "max_post_steps": 1, "n_masks": 32},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each shape's checkpoint, under a name like the published one."""
    return {name: build(name, tmp_path_factory.mktemp("published") / shape(name)["checkpoint"]) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_list_of_tensors_is_the_published_one(name: str) -> None:
    """Their number, and their bytes at the published widths, as the published index counts them."""
    index, tensors = shape(name)["index"], tensors_of(name, shape(name)["config.json"])
    total = sum(math.prod(size) * dtype.itemsize for size, dtype in tensors.values())
    assert index["tensors"] in (None, len(tensors))
    assert index["total_size"] in (None, total)


@pytest.mark.parametrize("name", NAMES)
def test_lm_eval_runs_on_a_published_shape(name: str, folders: dict[str, Path], task_folder: Path) -> None:
    """Generation, choices and, where the family has likelihoods, texts; the first with a chat template, too."""
    known = shape(name)["recognised"]
    family = family_of(load_config(str(folders[name])))
    options = FEW_OF.get(name, FEW)
    lm = MDLM(str(folders[name]), device="cpu", batch_size=4, **options)
    found = {
        "family": family.name,
        "mask_token_id": None if family.generate else lm.mask_token_id,
        "eos_ids": sorted(lm.eos_ids),
        "end_of_turn_ids": sorted(lm.end_of_turn_ids),
        "context_length": lm.max_length,
        "shift": lm.denoiser.shift,
        "block_length": lm.denoiser.attention.block_length,
        "prompt": lm.apply_chat_template([{"role": "user", "content": "Hello"}]),
    }
    assert found == known
    assert str(lm.model.dtype) == f"torch.{shape(name)['dtype']}"
    assert evaluate(lm, ["tiny_generate"], task_folder, limit=1)["results"].keys() == {"tiny_generate"}
    chat = evaluate(lm, ["tiny_generate"], task_folder, limit=1, apply_chat_template=True)
    (sample,) = chat["samples"]["tiny_generate"]
    ((prompt, _),) = sample["arguments"]
    before, after = known["prompt"].split("Hello")
    assert prompt.startswith(before)
    assert prompt.endswith(after)
    tasks = ["tiny_choice", *([] if family.generate else ["tiny_rolling"])]
    lm.use_options(options | shape(name).get("scored_with", {}))
    scores = evaluate(lm, tasks, task_folder, limit=1)["results"]
    assert scores.keys() == {*tasks}
    assert family.generate or 1 < scores["tiny_rolling"]["word_perplexity,none"] < math.inf


def saved_again(published: dict[str, Any]) -> dict[str, Any]:
    """As transformers 5 saves a config that it has read: rotary settings in one place, and a shorter name of the dtype.

    It leaves an attribute of the authors' class where it was.
    """
    if "rope_parameters" in published:
        return published
    rotary = {name: published[name] for name in ("rope_theta", "partial_rotary_factor") if published.get(name, 1) != 1}
    gone = {"rope_theta", "rope_scaling", "torch_dtype"}
    kept = {name: value for name, value in published.items() if name not in gone}
    dtype = published.get("torch_dtype") or published.get("dtype")
    return kept | {
        "rope_parameters": {"rope_type": "default", **rotary},
        "dtype": dtype,
        "transformers_version": "5.23.0",
    }


def loaded(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return dict(load_config(str(folder)).to_dict())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "diffusion_gemma"])
def test_a_config_that_transformers_5_saved_again_means_the_same(name: str, tmp_path: Path) -> None:
    folder, published = tmp_path / shape(name)["checkpoint"], shape(name)["config.json"]
    assert loaded(saved_again(published), folder) == loaded(published, folder)
    if name in ("llada", "llada2"):  # `rope_parameters` beside the published keys count
        expected = loaded(published, folder)["rope_parameters"]
        assert loaded(saved_again(published) | {"rope_theta": 1.0}, folder)["rope_parameters"] == expected


def test_diffusion_gemma_saved_again_has_its_heads(tmp_path: Path) -> None:
    """By layer, and no longer under their published names."""
    published = shrunk_config("diffusion_gemma")
    (tmp_path / "config.json").write_text(json.dumps(published))
    config = load_config(str(tmp_path))
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["text_config"]
    assert "num_global_key_value_heads" not in saved
    heads = [layer.num_key_value_heads for layer in load_config(str(tmp_path)).text_config.per_layer_config]
    assert heads == [published["text_config"][key] for key in ("num_key_value_heads", "num_global_key_value_heads")]


@pytest.mark.parametrize("name", NAMES)
def test_a_quantised_copy_keeps_its_quantisation(name: str, tmp_path: Path) -> None:
    """Its weights need the method's own kernels; here, the config reaches transformers whole."""
    folder, published = tmp_path / shape(name)["checkpoint"], shape(name)["config.json"]
    quantised = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
    found = loaded(published | {"quantization_config": quantised}, folder)
    assert found.pop("quantization_config") == quantised
    without = loaded(published, folder)
    assert without.pop("quantization_config", None) is None
    assert found == without


@pytest.mark.parametrize("name", ["llada", "sdar"])
def test_a_template_may_lie_in_either_file(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Some copies have it in a file of its own, others in the tokenizer's config."""
    for place in ("chat_template.jinja", "tokenizer_config.json"):
        folder = tmp_path / place / shape(name)["checkpoint"]
        shutil.copytree(folders[name], folder, ignore=shutil.ignore_patterns("*.safetensors", "*.jinja"))
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        template = settings.pop("chat_template")
        if place == "chat_template.jinja":
            (folder / place).write_text(template)
            path.write_text(json.dumps(settings))
        tokenizer = load_tokenizer(str(folder))
        messages = [{"role": "user", "content": "Hello"}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert prompt == shape(name)["recognised"]["prompt"]


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_fast_and_slow_tokenizers_are_one(name: str, folders: dict[str, Path]) -> None:
    text = "A text, with <|im_end|>, <|eot_id|> and é."
    fast, slow = (load_tokenizer(str(folders[name]), use_fast_tokenizer=fast) for fast in (True, False))
    assert fast(text)["input_ids"] == slow(text)["input_ids"]
    assert fast.decode(fast(text)["input_ids"]) == text
    assert len(fast(text)["input_ids"]) > 20


@pytest.mark.parametrize("name", ["llada", "sdar"])
def test_without_a_generation_config_the_tokenizer_says_what_ends_a_text(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / shape(name)["checkpoint"]
    shutil.copytree(folders[name], folder, ignore=shutil.ignore_patterns("generation_config.json"))
    lm = MDLM(str(folder), device="cpu")
    known = shape(name)["recognised"]
    assert (sorted(lm.eos_ids), sorted(lm.end_of_turn_ids)) == (known["eos_ids"], known["end_of_turn_ids"])


@pytest.mark.parametrize("class_name", ["DreamTokenizer", "DreamTokenizerFast"])
def test_dreams_tokenizers_need_no_remote_code(class_name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "Dream"
    shutil.copytree(folders["dream"], folder, ignore=shutil.ignore_patterns("*.safetensors"))
    edit_json(folder / "tokenizer_config.json", tokenizer_class=class_name)
    tokenizer = load_tokenizer(str(folder))
    assert (tokenizer.mask_token_id, tokenizer("é<|im_end|>")["input_ids"][-1]) == (151666, 151645)


def test_diffucoders_filling_ends_a_text(folders: dict[str, Path], tmp_path: Path) -> None:
    """It has Dream's config, and a padding token of its own behind its answers."""
    folder = tmp_path / "DiffuCoder-7B-cpGRPO"
    shutil.copytree(folders["dream"], folder, ignore=shutil.ignore_patterns("*.safetensors"))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"pad_token": "<|dlm_pad|>"}
    settings["added_tokens_decoder"]["151667"] = {"content": "<|dlm_pad|>", "special": True}
    path.write_text(json.dumps(settings))
    for file in ("added_tokens.json", "special_tokens_map.json"):
        (folder / file).unlink()
    tokenizer = load_tokenizer(str(folder))
    ends = eos_ids(tokenizer, 151643) | end_of_turn_ids(tokenizer)
    assert ends == {151643, 151645, 151667}
    answer = [*tokenizer("return x")["input_ids"], 151667, *tokenizer("more")["input_ids"]]
    assert Ending(tokenizer, ends, (), None).of(answer) == ("return x", "ended_by_eos")


def test_a_thinking_template_answers_at_once_where_it_is_asked_to(folders: dict[str, Path]) -> None:
    messages, known = [{"role": "user", "content": "Hello"}], shape("sdar")["recognised"]["prompt"]
    lm = MDLM(str(folders["sdar"]), device="cpu", enable_thinking=False)
    assert lm.apply_chat_template(messages) == f"{known}<think>\n\n</think>\n\n"
    lm = MDLM(str(folders["sdar"]), device="cpu", chat_template_args={"enable_thinking": False})
    assert lm.apply_chat_template(messages) == f"{known}<think>\n\n</think>\n\n"


@pytest.mark.parametrize("name", ["diffusion_gemma", "llada22", "nemotron_labs_diffusion"])
def test_mdlm_check_runs_where_a_family_decodes_in_its_own_way(
    name: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdlm_lm_eval.check.__main__.TEXTS", ("Hello",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where its findings are kept
    few = [f"{option}={value}" for option, value in FEW_OF.get(name, FEW).items()]
    words = [str(folders[name]), "--gen_toks", "4", "--requests", "0", "--model_args", *few]
    found = check(_parser().parse_args(words))
    assert found["verdict"] == "no fault, compared nothing"
    assert found["recognised"]["family"] == shape(name)["recognised"]["family"]
