"""What requests begin with is run once: the same strings and likelihoods, and the passes of a brute-force trie."""

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import MASK
from mdlm_lm_eval.decoding.batch import columns_of
from mdlm_lm_eval.decoding.canvas import Canvas, Completion, build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases, with_prefixes
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.jobs.memory import RowSize, most_rows
from mdlm_lm_eval.jobs.shared import Batches
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score, with_shared_contexts
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model import compiled, devices, prefix_store
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.prefix_store import MOST_RUN, PrefixStore, most_held, shared_prefixes, sort_key_of
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.provenance import fingerprint
from mdlm_lm_eval.record import RunRecord
from tests.conftest import choice, generation, tiny_model, tiny_tokenizer
from tests.decoding.test_memory import EnoughError
from tests.decoding.test_memory import denoiser_of as large_denoiser
from tests.pretended_gpu import PretendedGpu
from tests.pretended_gpu.settings import (
    BLOCKS,
    DECODING,
    END_OF_THINKING,
    EOS,
    LIKELIHOOD,
    Setting,
    answer,
    denoiser_of,
    is_decided,
    model_of,
    rounded,
)

LEAST = 8  # few tokens are worth sharing between tiny prompts


def shares(setting: Setting) -> bool:
    """Whether rows of a setting may share anything: blocks that see nothing after them, and a cache."""
    whole = setting.attention.whole_prompt and not (
        setting.attention.causal_context and setting.options.get("causal_context", True)
    )
    return setting.attention.is_block_causal and setting.options.get("cache") != "none" and not whole


def prompts(n: int, draw: Random) -> list[list[int]]:
    """Examples of two subjects with questions, a prompt that is all examples, shorter ones, one with nothing common."""

    def text(length: int) -> list[int]:
        return draw.choices(range(40), k=length)

    examples, subjects = text(29), [text(15), text(18)]
    found = [examples + subjects[k % 2] + text(draw.randrange(12)) for k in range(n)]
    return [*found, text(9), examples + subjects[0], examples[:3], examples[:28]]


def canvases_of(denoiser: Denoiser, options: DecodingOptions, rows: list[list[int]], returned: Any = 9) -> list[Canvas]:
    where: dict[str, Any] = {"max_length": denoiser.max_length, "mask_token_id": denoiser.mask_token_id}
    way = way_of(options, denoiser.attention)
    return [build_canvas(row, way, seed=seed, request_gen_toks=returned, **where)[0] for seed, row in enumerate(rows)]


def decoded(denoiser: Denoiser, canvases: list[Canvas], options: DecodingOptions, batch_size: int) -> list[Completion]:
    return decode_canvases(
        denoiser,
        canvases,
        options,
        eos_ids=[] if options.trace else [EOS],
        end_think_ids=[END_OF_THINKING],
        is_decided=None if options.trace else is_decided,
        batch_size=batch_size,
    )


# Which prefixes


def brute_force(rows: list[tuple[int, ...]], step: int) -> int:
    """Tokens that a trie over rows holds, whose nodes are the blocks that may be shared."""
    nodes = {(len(row) % step, row[:end]): end for row in rows for end in range(len(row), 0, -step)}
    return sum(min(step, end) for end in nodes.values())


def nodes_of(prefixes: list[Any]) -> set[Any]:
    """All prefixes that are run."""
    return {node for prefix in set(prefixes) - {None} for node in prefix.path()}


def cost(rows: list[tuple[int, ...]], prefixes: list[Any]) -> int:
    """Tokens that are run where every prefix is run once, after its own."""
    nodes = nodes_of(prefixes)
    of_nodes = sum(len(node) - len(node.parent or ()) for node in nodes)
    return of_nodes + sum(len(row) - len(prefix or ()) for row, prefix in zip(rows, prefixes, strict=True))


@pytest.mark.parametrize("step", [1, 4, 5])
def test_a_trie_by_brute_force_runs_as_many_tokens(step: int) -> None:
    store = PrefixStore(denoiser_of(model_of(Setting()), Setting()), BLOCKS, is_guided=False)
    for seed in range(30):
        draw = Random(seed)
        few = [tuple(draw.choices(range(2), k=draw.randrange(25))) for _ in range(draw.randrange(1, 30))]
        like_tasks = [tuple(prompt) for prompt in prompts(draw.randrange(8), draw)]
        for rows in (few, like_tasks, few + few):
            prefixes = shared_prefixes(rows, step, store, least=1)
            assert cost(rows, prefixes) == brute_force(rows, step)
            for row, prefix in zip(rows, prefixes, strict=True):
                assert prefix is None or row[: len(prefix)] == prefix.token_ids
                assert prefix is None or (len(row) - len(prefix)) % step == 0
            # In their order, rows of a prefix follow each other, and so do those of what it begins with.
            order = sorted(range(len(rows)), key=lambda n: sort_key_of(prefixes[n], len(rows[n])))
            for node in nodes_of(prefixes):
                below = [prefixes[n] is not None and node in prefixes[n].path() for n in order]
                assert "".join("01"[each] for each in below).strip("0").count("0") == 0


def test_a_prefix_that_saves_little_is_not_shared_and_long_chains_do_no_harm() -> None:
    store = PrefixStore(denoiser_of(model_of(Setting()), Setting()), BLOCKS, is_guided=False)
    rows = [(1,) * 40 + (n,) * 8 for n in range(3)]
    assert {len(prefix) for prefix in shared_prefixes(rows, 4, store, least=80)} == {40}
    assert set(shared_prefixes(rows, 4, store, least=81)) == {None}
    assert shared_prefixes(rows[:1], 4, store, least=1) == [None]
    chain = [tuple(range(4 * n)) for n in range(1100)]  # more than Python nests calls
    assert cost(chain, shared_prefixes(chain, 4, store, least=1)) == 4 * 1099
    assert most_held(shared_prefixes(chain[:4], 4, store, least=1)) == 4 + 8  # of 4, 8 and 12 tokens


# Answers


@pytest.mark.parametrize("name", [name for name, setting in DECODING.items() if setting.attention.is_block_causal])
def test_answers_passes_and_traces_are_those_without_sharing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refill, early exit, guidance, edits, insertion, thinking, speculation and traces, in slots of three rows."""
    monkeypatch.setattr(prefix_store, "MOST_RUN", 16)  # prefixes are run in parts
    setting = DECODING[name]
    denoiser = denoiser_of(model_of(setting), setting)
    options = DecodingOptions(**setting.options)
    canvases = canvases_of(denoiser, options, prompts(4, Random(1)), setting.returned or 9)
    alone = decoded(denoiser, canvases, options, 3)
    shared, order, store = with_prefixes(denoiser, canvases, way_of(options, denoiser.attention), least=LEAST)
    assert any(canvas.prefix for canvas in shared) == shares(setting)
    for batch_size in (3, 20):
        found = decoded(denoiser, [shared[n] for n in order], options, batch_size)
        n_run, _, _ = store.spent()
        saved = sum(one.cost.shared for one in found)
        for n, one in zip(order, found, strict=True):
            assert answer(one.token_ids) == answer(alone[n].token_ids)
            assert rounded(one.events) == rounded(alone[n].events)
            assert one.cost.forward_passes == alone[n].cost.forward_passes
            assert one.cost.tokens + one.cost.shared == alone[n].cost.tokens
        nodes = nodes_of([canvas.prefix for canvas in shared])
        guided = 2 if options.cfg_scale else 1
        assert n_run == guided * sum(len(node) - len(node.parent or ()) for node in nodes)
        assert (saved > 2 * n_run) == shares(setting)
        store.clear()


@pytest.mark.parametrize("name", [name for name, setting in LIKELIHOOD.items() if setting.attention.is_block_causal])
def test_likelihoods_are_those_without_sharing(name: str) -> None:
    setting = LIKELIHOOD[name]
    denoiser = denoiser_of(model_of(setting), setting)
    options = LikelihoodOptions(**{"mc_num": 8, **setting.options})
    draw = Random(2)
    requests = [
        LikelihoodRequest(prompt, draw.choices(range(40), k=draw.choice([1, 1, 4, 7])), seed)
        for seed, prompt in enumerate(prompts(3, draw))
        for _ in range(2)
    ]
    for max_length in (300, 50):  # the latter cuts contexts on the left
        alone = score(denoiser, requests, options, batch_size=3, max_length=max_length)
        shared, store = with_shared_contexts(denoiser, requests, options, max_length, least=LEAST)
        assert any(request.prefix for request in shared)
        for batch_size in (3, 20):
            before = denoiser.token_count
            found = score(denoiser, shared, options, batch_size=batch_size, max_length=max_length)
            assert [one[0] for one in found] == pytest.approx([one[0] for one in alone], abs=1e-4)
            assert [one[1] for one in found] == [one[1] for one in alone]
            assert store.spent()[2] > 0
            assert denoiser.token_count > before


# Evaluations


def lm_of(*, in_blocks: bool = True, **settings: Any) -> MDLM:
    model = tiny_model()
    model.config.max_position_embeddings = 1024
    if in_blocks:
        model.config.diffusion_family, model.config.block_length = "sdar", 4
    return MDLM(model, **{"batch_size": 3, "tokenizer": tiny_tokenizer(), **settings})


def subjects() -> list[str]:
    """Questions of four subjects after their examples, in a chat; the first letters of questions differ."""
    draw = Random(4)

    def text(n: int) -> str:
        return "".join(draw.choices("abcdefghij ", k=n))

    tokenizer = tiny_tokenizer()
    found = []
    for subject in range(4):
        examples = f"{subject}" + text(90)
        for question in "KLMNO":
            messages = [{"role": "system", "content": "S" * 40}, {"role": "user", "content": examples + question * 9}]
            chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            found.append(str(chat))
    draw.shuffle(found)
    return found


def test_tasks_of_four_subjects_run_the_tokens_of_a_trie() -> None:
    texts = subjects()
    requests = [generation(text, f"subject {n % 3}", n, max_gen_toks=6) for n, text in enumerate(texts)]
    strings: dict[bool, list[str]] = {}
    costs: dict[bool, dict[str, float]] = {}
    for share in (True, False):
        lm = lm_of(share_prefix=share)
        strings[share] = lm.generate_until(requests, disable_tqdm=True)
        facts = lm.get_model_info()["mdlm"]
        assert facts["share_prefix"] is share
        of_tasks = [task["cost"] for task in facts["tasks"].values()]
        assert "shared_tokens" in of_tasks[0] or not share
        costs[share] = {
            name: sum(cost.get(name, 0) for cost in of_tasks)
            for name in ("layer_tokens", "shared_tokens", "forward_passes", "answer_tokens")
        }
    assert strings[True] == strings[False]
    on, off = costs[True], costs[False]
    assert {name: on[name] for name in ("forward_passes", "answer_tokens")} == {
        name: off[name] for name in ("forward_passes", "answer_tokens")
    }
    rows = [tuple(text.encode()) for text in texts]
    rows = [row[: len(row) // 4 * 4 - 4] for row in rows]
    in_trie = brute_force(rows, 4)
    assert off["layer_tokens"] - on["layer_tokens"] == sum(map(len, rows)) - in_trie
    assert off["shared_tokens"] == 0


def test_choices_are_scored_after_their_examples() -> None:
    """Each with its question in front, which is no prefix of its own: its choices are one row."""
    requests = [choice(text, c, n) for n, text in enumerate(subjects()) for c in ("A", "BC")]
    on, off = lm_of(), lm_of(share_prefix=False)
    found, alone = (lm.loglikelihood(requests, disable_tqdm=True) for lm in (on, off))
    assert [one[0] for one in found] == pytest.approx([one[0] for one in alone], abs=1e-4)
    of_on, of_off = (lm.get_model_info()["mdlm"]["tasks"]["choice"]["cost"] for lm in (on, off))
    assert of_on["layer_tokens"] < of_off["layer_tokens"] / 2
    assert of_on["canvases"] <= of_off["canvases"]
    assert of_on["shared_tokens"] > of_off.get("shared_tokens", 0)


def test_prompts_that_are_cut_and_audits_do_not_mix_what_they_share() -> None:
    texts = subjects()[:6]
    requests = [generation(text + "x" * n, "task", n, max_gen_toks=6) for n, text in enumerate(texts)]
    on, off = lm_of(max_length=130), lm_of(max_length=130, share_prefix=False)
    assert on.generate_until(requests, disable_tqdm=True) == off.generate_until(requests, disable_tqdm=True)
    assert fingerprint(on, RunRecord()) == fingerprint(off, RunRecord())  # a request cache of one serves the other
    full = lm_of(in_blocks=False, cache="dual", block_length=4, cache_audit=1.0)
    plain = lm_of(in_blocks=False, cache="dual", block_length=4)
    assert full.generate_until(requests, disable_tqdm=True) == plain.generate_until(requests, disable_tqdm=True)


# GPUs


@pytest.mark.parametrize(
    "name", ["blocks", "blocks, shifted, small blocks", "from the prompt, guided, random", "causal context"]
)
def test_a_gpu_waits_once_a_pass_and_never_copies_because_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "KEYS", 16)
    monkeypatch.setattr(devices, "POSITIONS", 16)
    monkeypatch.setattr(compiled, "PASSES_BEFORE", 1)
    setting = DECODING[name]
    options = DecodingOptions(**setting.options)

    def run(denoiser: Denoiser, batch_size: int) -> list[Any]:
        rows = canvases_of(denoiser, options, prompts(3, Random(1)))
        canvases, order, _ = with_prefixes(denoiser, rows, way_of(options, denoiser.attention), least=LEAST)
        found = decoded(denoiser, [canvases[n] for n in order], options, batch_size)
        assert sum(one.cost.shared for one in found) > 100
        return [answer(one.token_ids) for one in found]

    expected = run(denoiser_of(model_of(setting), setting), 3)
    for batch_size, with_graphs in ((3, False), (8, True)):
        with PretendedGpu() as gpu:
            denoiser = denoiser_of(gpu.move(model_of(setting)), setting, cuda_graphs=with_graphs)
            assert run(denoiser, batch_size) == expected
            assert gpu.report.waits.total() <= denoiser.forward_passes
            assert not gpu.report.blocking_copies


def test_a_stored_prefix_is_in_the_budget_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and values lie beside those of the rows, so that fewer rows fit."""
    n_rows, n_shared, n_own = 2, 4096, 15
    options = DecodingOptions(n_masks=256)
    with PretendedGpu() as gpu:
        denoiser = large_denoiser(gpu, "sdar-8b", 4)
        weights = gpu.report.live
        where: dict[str, Any] = {"mask_token_id": MASK, "max_length": 8192}
        way = way_of(options, denoiser.attention)
        rows = [build_canvas([7] * n_shared + [8 + n] * n_own, way, **where)[0] for n in range(n_rows)]
        canvases, *_ = with_prefixes(denoiser, rows, way)
        assert most_held([canvas.prefix for canvas in canvases]) == n_shared
        with pytest.raises(EnoughError):
            decode_canvases(denoiser, canvases, options, batch_size=n_rows)
        peak = gpu.report.peak - weights
    config, length = denoiser.model.config, columns_of(n_shared + n_own + 256, is_padded=True)
    row = RowSize(length=length, n_run=n_own, n_logits=4, is_cached=True)
    stored = RowSize(length=n_shared, n_run=MOST_RUN, n_logits=4, is_cached=True)
    of_rows = n_rows * row.total(config, 2)
    assert of_rows + stored.remembered(config, 2) <= peak <= of_rows + stored.total(config, 2)
    context: Any = SimpleNamespace(denoiser=denoiser, batches=Batches("auto", n_rows))
    budget = 9 * 2**29 + of_rows  # after what all passes need
    monkeypatch.setattr(devices, "free_bytes", lambda _device: int(budget / 0.9) + 2**10)
    assert [most_rows(context, row, n_shared=n) for n in (0, n_shared)] == [n_rows, n_rows // 2]


def test_passes_of_a_row_are_as_long_after_a_stored_prefix(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = MDLM(str(checkpoint), batch_size="auto")
    row = RowSize(length=512, n_run=512, n_logits=0, is_cached=True)
    budget = 9 * 2**29 + 8.5 * row.total(lm.model.config, 4)  # of eight rows, after what all passes need
    monkeypatch.setattr(devices, "free_bytes", lambda _device: int(budget / 0.9) + 2**10)
    assert [most_rows(lm, row, n_shared=n_shared) for n_shared in (0, 1)] == [8, 8]


# The record


def test_the_record_of_two_thousand_settings_is_the_one_of_the_page() -> None:
    root = Path(__file__).parents[2] / "benchmarks"
    record = json.loads((root / "shared_prefix.json").read_text(encoding="utf-8"))
    exact, rounded = record["float32"], record["bfloat16"]
    assert (exact["settings"], exact["strings_that_differ"]) == (2000, 0)
    assert exact["largest_difference_of_log_likelihoods"] < 0.00002
    words = f"changed {rounded['strings_that_differ']} of {rounded['strings']}, and another batch size changed"
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    assert f"{words} {rounded['strings_that_differ_between_batch_sizes']}." in said
    assert f"none of {exact['strings']:,} answers" in said
