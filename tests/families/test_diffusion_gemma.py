"""DiffusionGemma: transformers' own generation behind lm-eval's requests."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    Gemma4VisionConfig,
)

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.checkpoints import load_denoiser
from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.jobs.memory import RowSize
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.provenance import fingerprint
from tests.conftest import choice, evaluate, instance_of, rolling, tiny_tokenizer

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
# As published: layers that see the whole text have fewer and wider heads of keys than those with a window.
GLOBAL = {
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "layer_types": ["sliding_attention", "full_attention"],
}
STEPS = 4


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("gemma")
    experts = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    text = DiffusionGemmaTextConfig(
        **SHAPE,
        **GLOBAL,
        **experts,
        vocab_size=len(tiny_tokenizer()),
        intermediate_size=32,
        max_position_embeddings=4096,
    )
    vision = Gemma4VisionConfig(**SHAPE, intermediate_size=16)
    torch.manual_seed(1)  # whose answers to slots are letters and not parts of them
    config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=8)
    model = DiffusionGemmaForBlockDiffusion(config)
    model.model.decoder.embed_tokens.weight.data *= 30  # peaked enough for answers that noise does not change
    model.generation_config.max_denoising_steps = STEPS
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def lm(gemma: str) -> MDLM:
    return MDLM(gemma, device="cpu", batch_size=64)


def generation(text: str, document: int = 0, **gen_kwargs: object) -> Instance:
    return instance_of("generate_until", (text, {"max_gen_toks": 11} | gen_kwargs), "task", document)


def test_answers_do_not_depend_on_the_batch_nor_on_other_random_numbers(lm: MDLM) -> None:
    requests = [generation(text) for text in ("a", "a longer prompt", "another")]
    together = lm.generate_until(requests, disable_tqdm=True)
    torch.manual_seed(1)
    assert together == [lm.generate_until([request], disable_tqdm=True)[0] for request in requests]
    repeated = lm.generate_until([generation("a"), generation("a")], disable_tqdm=True)
    assert repeated[0] == together[0] != repeated[1]
    assert "steps" not in lm.get_model_info()["mdlm"]["tasks"]["task"]  # its generation config decides them


def test_it_is_transformers_own_generation_under_a_seed(lm: MDLM, gemma: str) -> None:
    generate, prompt, eos = family_of(lm.config).generate, lm.tok_encode("abc"), lm.tokenizer.eos_token_id
    assert generate is not None
    settings: dict[str, Any] = {"n_tokens": 11, "end_ids": [eos], "pad_token_id": 0, "seed": 7}
    found, passes, n_written = generate(lm.model, prompt, DecodingOptions(), **settings)
    torch.manual_seed(7)
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(gemma)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=11, eos_token_id=eos, pad_token_id=0)
    assert found == expected.sequences[0, 3:14].tolist()
    assert passes * float(expected.tokens_per_forward) == pytest.approx(n_written)
    assert n_written == int((expected.sequences[0, 3:] != 0).sum())
    bounded = DecodingOptions(steps_per_block=1, entropy_bound=0.3)
    assert generate(lm.model, prompt, bounded, **settings)[1] == 2  # one pass for each canvas of 8


def test_a_request_cache_knows_the_generation_config(lm: MDLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(lm, lm.record_of_all)
    monkeypatch.setattr(lm.model.generation_config, "max_denoising_steps", 1)
    assert fingerprint(lm, lm.record_of_all) != before


def test_transformers_own_generation_is_a_guest_too(lm: MDLM, gemma: str) -> None:
    named = "transformers:DiffusionGemmaForBlockDiffusion.generate"
    guest = MDLM(gemma, device="cpu", sampler=named, seed=torch.initial_seed() % 2**63)
    requests = [generation(text) for text in ("a", "a longer prompt")]
    assert guest.generate_until(requests, disable_tqdm=True) == lm.generate_until(requests, disable_tqdm=True)


def test_each_layers_own_heads_are_remembered(lm: MDLM) -> None:
    row = RowSize(length=10, n_logits=0, is_cached=True)
    cache = lm.model.model.encoder(input_ids=torch.tensor([list(range(10))])).past_key_values
    assert row.remembered(lm.config, 4) == sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.parametrize("option", [{"n_masks": 16}, {"temperature": 0.5}, {"steps": 4}, {"cfg_scale": 1.0}])
def test_options_without_counterpart_are_refused(lm: MDLM, gemma: str, option: dict[str, Any]) -> None:
    ((name, value),) = option.items()
    sentence = f"{name}={value} does not work with the family diffusion_gemma.*steps_per_block and entropy_bound"
    with pytest.raises(OptionError, match=sentence):
        lm.generate_until([generation("a", **option)], disable_tqdm=True)
    if name != "n_masks":  # which requests with slots take
        with pytest.raises(OptionError, match=sentence):
            MDLM(gemma, device="cpu", **option)


def expected_log_probs(lm: MDLM, prompt: list[int], canvases: list[list[int]], slot: int) -> torch.Tensor:
    """Log-probabilities [K, V] at one slot of K canvases, by transformers' own forward with a prompt for each."""
    with torch.no_grad():
        prompts, noisy = torch.tensor([prompt] * len(canvases)), torch.tensor(canvases)
        return lm.model(input_ids=prompts, decoder_input_ids=noisy).logits[:, slot].log_softmax(-1)


def test_a_read_is_the_mean_over_noise_within_its_standard_error(lm: MDLM) -> None:
    """Against all canvases that there are, of one slot with a text behind it."""
    lm.use_options({"noise_num": 400, "eos_after": True})
    prompt, eos = lm.tok_encode("a context"), lm.tokenizer.eos_token_id
    all_canvases = [[token, eos] for token in range(len(lm.tokenizer))]
    expected = expected_log_probs(lm, prompt, all_canvases, 0)
    answers = ["b", "c"]
    pairs = [choice("a context", answer) for answer in answers]
    scores = lm.loglikelihood(pairs, disable_tqdm=True)
    (facts,) = lm.get_model_info()["mdlm"]["tasks"].values()
    errors = []
    for answer, (found, greedy) in zip(answers, scores, strict=True):
        (token,) = lm.tok_encode(answer)
        errors.append(float(expected[:, token].std()) / 400**0.5)
        assert abs(found - float(expected[:, token].mean())) < 4 * errors[-1]
        assert greedy == (int(expected.mean(0).argmax()) == token)
    assert facts["standard_error"] == pytest.approx([min(errors), max(errors)], rel=0.2)
    (setting,) = lm.get_model_info()["mdlm"]["settings"]
    assert (setting["options"]["likelihood"], setting["options"]["noise_num"]) == ("read", 400)


def test_choices_share_draws_whatever_the_batch(gemma: str) -> None:
    found = []
    for batch_size in (1, 3):
        lm = MDLM(gemma, device="cpu", batch_size=batch_size, noise_num=4)
        pairs = [choice("a context", answer) for answer in ("b", "c", "longer", "an")]
        found += [lm.loglikelihood(pairs, disable_tqdm=True), lm.loglikelihood(pairs[2:], disable_tqdm=True)]
        assert lm.denoiser.canvas_count == 3 * 4 + 2 * 4  # one for each length of answer
    together, two, *others = [[score for score, _ in scores] for scores in found]
    assert together[2:] == pytest.approx(two, abs=1e-4)
    assert others == [pytest.approx(together, abs=1e-4), pytest.approx(two, abs=1e-4)]


def test_slots_are_read_off_the_canvas_that_begins_with_them(lm: MDLM) -> None:
    lm.use_options({"noise_num": 1024, "n_fillers": 2})
    request = generation("some text<|mask|> and more", infill=True)
    (found,) = lm.generate_until([request], disable_tqdm=True)
    right, noise = lm.tok_encode(" and more", add_special_tokens=False), range(len(lm.tokenizer))
    canvases = [[token, *right, *lm.tok_encode("..", add_special_tokens=False)] for token in noise]
    of_noise = expected_log_probs(lm, lm.tok_encode("some text"), canvases, 0)
    expected, (answer,) = of_noise.mean(0), lm.tok_encode(found)
    assert expected.max() - expected[answer] < 4 * of_noise[:, answer].std() / 32 < (expected.max() - expected).median()
    other = expected_log_probs(lm, lm.tok_encode("some text"), [[token, *right] for token in noise], 0).mean(0)
    assert (expected - other).abs().max() > 0.1  # what stands behind a slot matters
    (facts,) = lm.get_model_info()["mdlm"]["tasks"].values()
    assert (facts["masks"], facts["steps"], facts["cost"]["forward_passes"]) == ([1, 1], [1, 1], 1024)


def test_tasks_with_slots_and_choices_run_on_it(gemma: str, task_folder: Path) -> None:
    folders = [task_folder, *(tasks_path() / name for name in ("slot", "locality"))]
    lm = MDLM(gemma, device="cpu", noise_num=2, n_masks=6)
    tasks = ["tiny_choice", "mdlm_animal_largest_slot", "mdlm_animal_largest_left_pos0"]
    results = evaluate(lm, tasks, *folders, limit=1)
    facts = results["config"]["mdlm"]["tasks"]
    assert facts["tiny_choice"]["masks"] == [6, 6]  # the whole canvas
    assert all(facts[name]["masks"] == [7, 7] for name in tasks[1:])  # the slot, and noise behind the text
    assert facts[tasks[1]]["prompt_tokens"][0] > 2000


def test_what_a_read_is_not(lm: MDLM, gemma: str, checkpoint: Path) -> None:
    for options in ({"likelihood": "mc"}, {"cfg_scale": 1.0}, {"noise_num": 4, "likelihood": "chain"}):
        with pytest.raises(OptionError, match=r"likelihood|cfg_scale"):
            MDLM(gemma, device="cpu", **options).loglikelihood([choice("a", "b")], disable_tqdm=True)
    lm.use_options({})
    with pytest.raises(OptionError, match="likelihood=read is no likelihood of a text"):
        lm.loglikelihood_rolling([rolling("a text")], disable_tqdm=True)
    with pytest.raises(OptionError, match="text before the first slot"):
        lm.generate_until([generation("<|mask|> a", infill=True)], disable_tqdm=True)
    with pytest.raises(OptionError, match=r"mdlm_lm_eval\.MDLM"):
        load_denoiser(gemma)
    masks = MDLM(str(checkpoint), device="cpu", likelihood="read")
    with pytest.raises(OptionError, match="likelihood must be another one"):
        masks.loglikelihood([choice("a", "b")], disable_tqdm=True)
    with pytest.raises(OptionError, match="noise_num=4 is of models that denoise random tokens"):
        masks.generate_until([generation("a", noise_num=4)], disable_tqdm=True)


def test_it_needs_no_mask_token_and_generates_beside_reads(gemma: str, tmp_path: Path) -> None:
    lm = MDLM(gemma, device="cpu", noise_num=2)
    answers = lm.generate_until([generation("a")], disable_tqdm=True)
    checkpoint = shutil.copytree(gemma, tmp_path / "without_mask")
    for file in ("config.json", "tokenizer_config.json"):
        settings = json.loads((checkpoint / file).read_text())
        (checkpoint / file).write_text(json.dumps({k: v for k, v in settings.items() if not k.startswith("mask")}))
    lm = MDLM(str(checkpoint), device="cpu", noise_num=2)
    assert lm.tokenizer.mask_token_id is None
    assert lm.generate_until([generation("a")], disable_tqdm=True) == answers
    assert len(lm.generate_until([generation("some text<|mask|> more", infill=True)], disable_tqdm=True)) == 1
