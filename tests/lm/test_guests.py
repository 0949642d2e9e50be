"""Functions of others' that generate: called as their authors call them, checked, counted and recorded."""

import hashlib
import random
import shutil
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import dynamic_module_utils

from mdlm_lm_eval import DecodingOptions, decode, registry
from mdlm_lm_eval.decoding.canvas import seed_of
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results import load
from tests.conftest import choice, data, edit_json, evaluate, generation, tiny_model
from tests.sweep.test_sweep import stored, sweep

FILES = Path(__file__).parents[1] / "authors"
LLADA = f"{FILES}/sampler.py:generate"  # LLaDA's signature


def lm(checkpoint: Path, **arguments: Any) -> MDLM:
    return MDLM(str(checkpoint), device="cpu", batch_size=2, **arguments)


def copied(checkpoint: Path, folder: Path, **config: Any) -> Path:
    """With other entries in its config."""
    shutil.copytree(checkpoint, folder)
    edit_json(folder / "config.json", **config)
    return folder


def requests(n_tokens: int = 8) -> list[Any]:
    texts = ("red", "a longer prompt", "x")
    return [generation(text, doc=n, max_gen_toks=n_tokens, until=[]) for n, text in enumerate(texts)]


def test_an_authors_loop_gives_the_engines_answers_and_costs(checkpoint: Path, task_folder: Path) -> None:
    """Through lm-eval; the record names the guest and its file."""
    settings: dict[str, Any] = {"n_masks": 8, "steps": 8, "block_length": 4}
    guest = lm(checkpoint, sampler=LLADA, **settings)
    own = lm(checkpoint, early_exit=False, **settings)
    found, expected = (evaluate(each, ["tiny_generate"], task_folder, limit=3) for each in (guest, own))
    strings = [
        [one["resps"] for one in sorted(each["samples"]["tiny_generate"], key=lambda one: one["doc_id"])]
        for each in (found, expected)
    ]
    assert strings[0] == strings[1]
    facts = [each["config"]["mdlm"] for each in (found, expected)]
    costs = [each["tasks"]["tiny_generate"]["cost"] for each in facts]
    for name in ("forward_passes", "denoising_steps", "layer_tokens", "written_tokens", "answer_tokens"):
        assert costs[0][name] == costs[1][name]
    digest = hashlib.sha256((FILES / "sampler.py").read_bytes()).hexdigest()
    (plugin,) = facts[0]["plugins"]
    assert plugin["sha256"] == digest
    assert plugin["guest"]
    assert facts[0]["decoding"]["sampler"] == "sampler.py:generate"
    assert facts[1]["plugins"] == []


def test_whole_blocks_are_asked_for_and_cut(checkpoint: Path) -> None:
    """Two of four for six tokens."""
    model = lm(checkpoint, sampler=LLADA, block_length=4)
    model.generate_until(requests(6), True)
    ranges = model.record.tasks["task"].ranges
    assert (ranges["asked_masks"], ranges["masks"], ranges["returned_tokens"]) == ((6, 6), (8, 8), (6, 6))
    assert ranges["steps"] == (8, 8)  # one for each token that it is asked for
    assert model.record.tasks["task"].cost["written_tokens"] == 18


def test_random_numbers_are_those_of_the_request(checkpoint: Path) -> None:
    """Whatever was drawn before, and nobody else's change; a file beside the function is found and recorded."""
    alone = MDLM(str(checkpoint), device="cpu", batch_size=1, sampler=f"{FILES}/others.py:draws")
    before = torch.random.get_rng_state(), random.getstate()
    first = alone.generate_until(requests(), True)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()
    assert alone.generate_until(requests()[::-1], True) == first[::-1]
    assert len({*first}) == 3
    (plugin,) = alone.get_model_info()["mdlm"]["plugins"]
    assert plugin["files"].keys() == {"others.py", "beside.py"}


def test_a_method_is_put_before_the_model() -> None:
    """As Dream's, whose class has no network; the model's second choice comes back."""
    model = tiny_model()
    denoiser = Denoiser(model, mask_token_id=2, pad_token_id=0)
    options = DecodingOptions(
        sampler=f"{FILES}/others.py:Owner.diffusion_generate", n_masks=4, steps=4, unmasking="maskgit_plus"
    )
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 2, 2, 2, 2]])).logits
    assert decode(denoiser, [[5, 6]], options) == logits[:, 2:].topk(2).indices[..., 1].tolist()


def test_the_function_of_the_page_decodes(checkpoint: Path, tmp_path: Path) -> None:
    """docs/guests.md: one mask a pass, as the engine does."""
    page = (Path(__file__).parents[2] / "docs" / "guests.md").read_text()
    (tmp_path / "mine.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    mine = lm(checkpoint, sampler=f"{tmp_path}/mine.py:generate", n_masks=8)
    assert mine.generate_until(requests(), True) == lm(checkpoint, n_masks=8).generate_until(requests(), True)


@pytest.mark.parametrize(("fault", "said"), data("guests.json")["faults"])
def test_a_fault_names_the_request(fault: str, said: str, checkpoint: Path) -> None:
    model = lm(checkpoint, sampler=f"{FILES}/others.py:faulty", sampler_args=f"fault={fault}")
    with pytest.raises(OptionError, match=rf"^sampler=others.py:faulty {said}.* \(task task, document 0\)$"):
        model.generate_until(requests()[:1], True)


def test_an_end_of_text_may_come_early(checkpoint: Path) -> None:
    model = lm(checkpoint, sampler=f"{FILES}/others.py:faulty", sampler_args="fault=early")
    (answer,) = model.generate_until(requests()[:1], True)
    assert answer == model.tokenizer.decode([60])


@pytest.mark.parametrize(("arguments", "said"), data("guests.json")["refused"])
def test_options_that_do_not_reach_it_are_refused(arguments: dict[str, Any], said: str, checkpoint: Path) -> None:
    given = {"sampler": "others.py:faulty"} | arguments
    with pytest.raises(OptionError, match=said):
        lm(checkpoint, **given | {"sampler": f"{FILES}/{given['sampler']}"})


def test_neither_a_task_nor_slots_may_have_one(checkpoint: Path) -> None:
    model, named = lm(checkpoint), f"{FILES}/others.py:draws"
    with pytest.raises(OptionError, match="only the user can"):
        model.generate_until([generation("a", sampler=named)], True)
    model.use_options({"sampler": named})
    with pytest.raises(OptionError, match="infill=true does not work"):
        model.generate_until([generation("a <|mask|>", infill=True)], True)
    assert model.loglikelihood([choice("a", " b")], True) == lm(checkpoint).loglikelihood([choice("a", " b")], True)


def test_finished_answers_are_kept(checkpoint: Path, task_folder: Path, tmp_path: Path) -> None:
    """Of five requests the last one fails; the next run asks for that one alone, in the sixth call."""
    arguments = {"sampler": f"{FILES}/others.py:faulty", "sampler_args": "fault=fifth", "seed": 1}
    with pytest.raises(OptionError, match="no such luck"):
        evaluate(lm(checkpoint, **arguments), ["tiny_generate"], task_folder, use_cache=str(tmp_path / "cache"))
    model = lm(checkpoint, **arguments)
    found = evaluate(model, ["tiny_generate"], task_folder, use_cache=str(tmp_path / "cache"))
    answers = sorted(one["resps"][0][0][0] for one in found["samples"]["tiny_generate"])
    assert answers == sorted(model.tokenizer.decode([50 + n]) for n in (0, 1, 2, 3, 5))
    (tmp_path / "others.py").write_text((FILES / "others.py").read_text() + "# another version")
    shutil.copy(FILES / "beside.py", tmp_path)
    newer = lm(checkpoint, **arguments | {"sampler": f"{tmp_path}/others.py:faulty"})
    with pytest.raises(OptionError, match=r"\(plugins was"):
        evaluate(newer, ["tiny_generate"], task_folder, use_cache=str(tmp_path / "cache"))


def test_the_authors_network_decodes(checkpoint: Path) -> None:
    """It gives the tiny model's tokens, and no likelihoods; one for another transformers fails with its own error."""
    guest = {"sampler": f"{FILES}/own_network.py:Network.choose", "modeling": f"{FILES}/own_network.py:Network"}
    model = lm(checkpoint, **guest)
    assert type(model.model).__name__ == "Network"
    prompt = model.tok_encode("red")
    with torch.no_grad():
        logits = tiny_model()(torch.tensor([[*prompt, *[2] * 8]]), use_cache=False).logits
    expected = (logits[0, -8:, 3:].argmax(-1) + 3).tolist()
    assert model.generate_until(requests()[:1], True) == [model.tokenizer.decode(expected)]
    assert model.record.tasks["task"].cost["layer_tokens"] == len(prompt) + 8
    assert [each["name"] for each in model.get_model_info()["mdlm"]["plugins"]] == ["own_network.py"] * 2
    with pytest.raises(OptionError, match="only generates"):
        model.loglikelihood([choice("a", " b")], True)
    older = guest | {"modeling": f"{FILES}/own_network.py:Older"}
    with pytest.raises(ImportError):
        lm(checkpoint, **older)
    with pytest.raises(OptionError, match=r"needs sampler=FILE\.py:FUNCTION"):
        lm(checkpoint, modeling="remote")


@pytest.mark.parametrize("function", ["block_diffusion_generate", "WithGenerate.generate"])
def test_authors_samplers_of_blocks_decode(function: str, checkpoint: Path, tmp_path: Path) -> None:
    """SDAR's function over our network, and LLaDA2's method of theirs, in the blocks of the checkpoint."""
    file, settings = FILES / "blocks.py", {"confidence_threshold": 0.1}
    folder = copied(checkpoint, tmp_path / "model", diffusion_family="sdar", block_length=4)
    modeling = {"modeling": f"{file}:WithGenerate"} if "." in function else {}
    guest = lm(folder, sampler=f"{file}:{function}", **settings, **modeling)
    own = lm(folder, early_exit=False, **settings)
    assert guest.generate_until(requests(10), True) == own.generate_until(requests(10), True)


def test_the_checkpoints_own_network_decodes(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = copied(checkpoint, tmp_path / "model", auto_map={"AutoModel": "network.Network"})
    for name in ("network", "beside"):
        shutil.copy(FILES / f"{name}.py", folder)
    sampler = {"sampler": LLADA, "n_masks": 8, "block_length": 4, "steps": 8}
    guest = lm(folder, modeling="remote", trust_remote_code=True, shift_logits=False, **sampler)
    assert type(guest.model).__module__.startswith("transformers_modules.")
    assert guest.generate_until(requests(), True) == lm(checkpoint, **sampler).generate_until(requests(), True)


def test_a_model_of_uniform_noise_decodes_by_its_own_method(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/examples/sumi.py, as it is written for Sumi."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    file = Path(__file__).parents[2] / "docs" / "examples" / "sumi.py"
    auto_map = {"AutoConfig": "uniform.UniformConfig", "AutoModelForMaskGeneration": "uniform.Uniform"}
    folder = copied(checkpoint, tmp_path / "model", auto_map=auto_map, model_type="uniform")
    shutil.copy(FILES / "uniform.py", folder)
    own_code = {"modeling": "remote", "trust_remote_code": True, "shift_logits": False, "mask_token_id": 2}
    guest = lm(folder, sampler=f"{file}:generate", n_masks=6, steps=9, **own_code)
    answers = [decode(guest.denoiser, [ids], guest.settings.decoding)[0] for ids in ([5, 6, 7], [8, 9])]
    for ids, answer in zip(([5, 6, 7], [8, 9]), answers, strict=True):
        settings = {"num_denoising_steps": 9, "sampler": "adaptive", "temperature": 0.7, "trim_at_eos": False}
        seed = seed_of(f"{guest.settings.decoding.seed} 0 {ids}")
        own = guest.model.generate(torch.tensor([ids]), max_new_tokens=6, seed=seed, **settings).sequences
        assert answer == own[0, len(ids) : len(ids) + 6].tolist()
    guest.generate_until(requests()[:2], True)
    cost = guest.get_model_info()["mdlm"]["tasks"]["task"]["cost"]
    assert (cost["forward_passes"], cost["written_tokens"]) == (18, 12)


def test_an_installed_guest_has_a_name(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "acme-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[mdlm_lm_eval.guest]\nours = acme_sampler:generate\n")
    shutil.copy(FILES / "sampler.py", tmp_path / "acme_sampler.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_all_entry_points", entry_points)
    installed, file = (lm(checkpoint, sampler=each) for each in ("ours", LLADA))
    assert installed.generate_until(requests(), True) == file.generate_until(requests(), True)
    (plugin,) = installed.get_model_info()["mdlm"]["plugins"]
    assert (plugin["name"], plugin["guest"]) == ("acme_sampler", True)
    assert plugin["sha256"] == hashlib.sha256((FILES / "sampler.py").read_bytes()).hexdigest()


def test_logits_that_are_not_finite_are_the_models_fault(checkpoint: Path) -> None:
    """Whether the function goes on with them or not."""
    for sampler, more in ((LLADA, {}), (f"{FILES}/others.py:faulty", {"sampler_args": "fault=runs raises"})):
        model = lm(checkpoint, sampler=sampler, **more)
        with torch.no_grad():
            model.model.lm_head.weight[7] = torch.nan
        with pytest.raises(OptionError, match=r"^the model's logits are not finite .* task task, document 0: its weig"):
            model.generate_until(requests()[:1], True)


@pytest.mark.parametrize("what", ["class", "method", "hook", "weight"])
def test_what_a_guest_patches_does_not_reach_the_next_cell(
    what: str, checkpoint: Path, task_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "grids.yaml").write_text(
        f"grids: [{{sampler: '{FILES}/others.py:patched', sampler_args: what={what}}}, {{sampler: built-in}}]"
    )
    common = ("--limit=2", "--n_masks=4", "--steps=2")
    done = sweep(tmp_path / "after", checkpoint, task_folder, *common, f"--config={tmp_path / 'grids.yaml'}")
    assert done.code == 0, done.err
    assert ("changed the model, which is loaded again" in done.err) == (what != "class")
    assert sweep(tmp_path / "alone", checkpoint, task_folder, *common, "--sampler=built-in").code == 0
    after, (alone,) = stored(tmp_path / "after"), stored(tmp_path / "alone").values()
    (own,) = (each for name, each in after.items() if "built-in" in name)
    assert own["results"] == alone["results"]
    assert own["config"]["mdlm"]["tasks"] == alone["config"]["mdlm"]["tasks"]
    (guest,) = (each for name, each in after.items() if "built-in" not in name)
    assert guest["config"]["mdlm"]["plugins"][0]["guest"]


def test_a_sweep_compares_a_guest_on_its_own_network(checkpoint: Path, task_folder: Path, tmp_path: Path) -> None:
    guest = f"{{sampler: '{FILES}/own_network.py:remembered', modeling: '{FILES}/own_network.py:Network'}}"
    (tmp_path / "grids.yaml").write_text(f"grids: [{guest}, {{sampler: built-in}}]")
    done = sweep(
        tmp_path / "out", checkpoint, task_folder, "--limit=2", "--n_masks=4", f"--config={tmp_path / 'grids.yaml'}"
    )
    assert done.code == 0, done.err
    assert len(stored(tmp_path / "out")) == 2


def test_one_command_compares_guests_with_the_engine(checkpoint: Path, task_folder: Path, tmp_path: Path) -> None:
    """A row each in the table that the sweep prints; the same command again has nothing to do."""
    samplers = f"--sampler={LLADA},{FILES}/others.py:draws,built-in"
    more = (samplers, "--limit=2", "--n_masks=4")
    done = sweep(tmp_path, checkpoint, task_folder, *more)
    assert done.code == 0
    rows = [line for line in done.out.splitlines() if line.startswith("|") and "tiny_generate" in line]
    assert len(rows) == 3
    assert [row.count("(guest)") for row in rows] == [1, 1, 0]
    assert "positions per token" in done.out
    settings = load(tmp_path)["setting"].tolist()
    assert sum("(guest, sampler.py " in words for words in settings) == 1
    assert "3 of 3 cells are done" in sweep(tmp_path, checkpoint, task_folder, *more).err


@pytest.mark.parametrize(("name", "arguments", "said"), data("guests.json")["decoders"])
def test_a_checkpoint_for_another_decoder_is_recognised(
    name: str, arguments: dict[str, Any], said: str, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).symlink_to(checkpoint)
    lm(tmp_path / name, **arguments).generate_until(requests(2)[:1], True)
    warnings = [one.message for one in caplog.records if "trained for a decoder" in one.message]
    assert [said in each for each in warnings] == [True] * bool(said)
