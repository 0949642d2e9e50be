"""MDLM on a tiny random model: requests, options, seeds, records and the request cache."""

import itertools
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.utils import postprocess_generated_text
from tokenizers import Tokenizer, decoders, models, normalizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.likelihood.requests import rolling_windows
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.text import Ending, closes_thinking, encode_infill
from mdlm_lm_eval.options import LikelihoodOptions, OptionError
from mdlm_lm_eval.provenance import in_words
from tests.conftest import (
    choice,
    data,
    evaluate,
    generation,
    random_llama,
    rolling,
    small_memory,
    tasks_of,
    tiny_model,
    tiny_tokenizer,
)

MASK = 2


@pytest.fixture(scope="module")
def lm(checkpoint: Path) -> MDLM:
    return MDLM(str(checkpoint), device="cpu", batch_size=4)


def test_a_tokenizer_without_a_mask_token_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    del model.config.mask_token_id
    tokenizer.mask_token = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(checkpoints, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    with pytest.raises(OptionError, match="mask_token_id"):
        MDLM(str(tmp_path))


@pytest.mark.parametrize("block_length", [None, 4])
def test_strings_and_costs_depend_neither_on_the_batch_nor_on_the_order(block_length: int | None) -> None:
    """Rows of unequal length, most of which end early; of two tasks, whose shares of the slots are told apart."""
    model = tiny_model()
    if block_length is not None:
        model.config.diffusion_family, model.config.block_length = "sdar", block_length
    settings: dict[str, Any] = {"confidence_threshold": 0.2, "tokenizer": tiny_tokenizer()}
    settings |= {} if block_length else {"block_length": 4}
    lengths, until = [4, 8, 12, 16], ["e", "\x00"]
    requests = [
        generation(f"{n} " * (n % 7 + 1), f"task {n % 2}", n, max_gen_toks=lengths[n % 4], until=until)
        for n in range(14)
    ]

    def run(batch_size: int, asked: list[Instance]) -> tuple[dict[str, str], dict[str, Any]]:
        lm = MDLM(model, batch_size=batch_size, **settings)
        strings = zip([one.args[0] for one in asked], lm.generate_until(asked, disable_tqdm=True), strict=True)
        return dict(strings), {name: facts["cost"] for name, facts in lm.get_model_info()["mdlm"]["tasks"].items()}

    (alone, cost_alone), (together, cost) = run(1, requests), run(5, random.Random(0).sample(requests, len(requests)))
    assert together == alone
    assert len(set(together.values())) > 5
    for name, of_task in cost.items():
        for key in ("forward_passes", "layer_tokens", "answer_tokens"):
            assert of_task[key] == cost_alone[name][key]
        assert of_task["seconds"] > 0
        assert 0.5 < of_task["batch_occupancy"] <= 1 == cost_alone[name]["batch_occupancy"]
    lm = MDLM(model, **settings)
    lm.loglikelihood([choice("a", " b")], disable_tqdm=True)
    assert lm.get_model_info()["mdlm"]["tasks"]["choice"].get("block_length") == (block_length and [4, 4])


def test_processes_add_up_what_they_ran_and_take_the_time_of_the_slowest(
    lm: MDLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, costs = [], []
    for length in (4, 9):
        lm.start_record()
        lm.generate_until([generation("same", "task", max_gen_toks=length)], disable_tqdm=True)
        records.append(lm.record)
        costs.append(lm.record.tasks["task"].cost.as_dict())
    monkeypatch.setattr(lm, "_world_size", 2)
    monkeypatch.setattr(
        torch.distributed, "all_gather_object", lambda gathered, _: gathered.__setitem__(slice(2), records)
    )
    lm.barrier()
    cost = lm.get_model_info()["mdlm"]["tasks"]["task"]["cost"]
    assert cost["forward_passes"] == costs[0]["forward_passes"] + costs[1]["forward_passes"]
    assert cost["seconds"] == max(each["seconds"] for each in costs) < sum(each["seconds"] for each in costs)


def test_options_without_effect_are_said(caplog: pytest.LogCaptureFixture) -> None:
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), block_length=8, confidence_threshold=0.9, steps=2)
    short, long = (generation(text, max_gen_toks=n, filler="!", num_beams=3) for text, n in (("a", 4), ("b", 16)))
    lm.generate_until([short, long], disable_tqdm=True)
    said = {record.message for record in caplog.records if record.name == "mdlm_lm_eval.lm"}
    assert said == {
        "steps=2 has no effect with confidence_threshold=0.9",
        "filler=! has no effect without n_fillers",
        "Ignored, as masked diffusion has no use for them: num_beams",
        "block_length is longer than 1 of 2 canvases, which are one block each; the shortest has 4 masks",
    }


def test_escape_until_lets_answers_go_on_behind_stop_strings(lm: MDLM, checkpoint: Path) -> None:
    (whole,) = lm.generate_until([generation("red is", max_gen_toks=8)], disable_tqdm=True)
    stopped = [generation("red is", max_gen_toks=8, until=[whole[2]])]
    assert lm.generate_until(stopped, disable_tqdm=True) != [whole]
    escaping = MDLM(str(checkpoint), device="cpu", escape_until="true")
    assert escaping.generate_until(stopped, disable_tqdm=True) == [whole]


def test_a_limit_that_is_typed_replaces_the_one_that_lm_eval_fills_in(
    lm: MDLM, task_folder: Path, tmp_path: Path
) -> None:
    yaml = (task_folder / "tiny_generate.yaml").read_text().partition("generation_kwargs:")[0]
    (tmp_path / "bare.yaml").write_text(yaml.replace("tiny_generate", "bare"))
    for name in ("max_new_tokens", "max_tokens"):
        config = evaluate(lm, ["bare"], tmp_path, gen_kwargs={name: 6}, limit=1)["config"]["mdlm"]
        assert config["tasks"]["bare"]["returned_tokens"] == [6, 6]


def test_long_prompts_are_cut_on_the_left_and_counted(lm: MDLM, caplog: pytest.LogCaptureFixture) -> None:
    tail = "the end"
    long, short = "x" * 400 + tail, "x" * (256 - 4 - len(tail)) + tail
    strings = lm.generate_until(
        [generation(long, task="cut", max_gen_toks=4), generation(short, task="cut", max_gen_toks=4)], disable_tqdm=True
    )
    assert strings[0] == strings[1]
    record = lm.get_model_info()["mdlm"]["tasks"]["cut"]
    assert (record["truncated_prompts"], record["truncated_tokens"]) == (1, 400 + len(tail) - 252)
    assert sum("1 of 2 prompts" in entry.message and "252 of 407" in entry.message for entry in caplog.records) == 1


# Text


def test_no_string_becomes_a_mask_token(lm: MDLM) -> None:
    text = "a <|mask|> b<|mask|>"
    ids = lm.tok_encode(text)
    assert MASK not in ids
    assert lm.tokenizer.decode(ids) == text
    lm.generate_until([generation(text, task="literal", max_gen_toks=3)], disable_tqdm=True)
    assert lm.get_model_info()["mdlm"]["tasks"]["literal"]["masks"] == [3, 3]


def test_a_prompt_ends_without_the_tokenizers_closing_token() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|pad|> $A <|eos|>", special_tokens=[("<|pad|>", 0), ("<|eos|>", 1)]
    )
    lm = MDLM(tiny_model(), tokenizer=tokenizer)
    assert lm.tok_encode("ab") == [0, *tokenizer.encode("ab", add_special_tokens=False)]


def test_results_count_what_became_of_answers(lm: MDLM, monkeypatch: pytest.MonkeyPatch) -> None:
    lm.start_record()
    free = lm.generate_until([generation(f"text {n}", max_gen_toks=12) for n in range(6)], disable_tqdm=True)
    ends = [min(string) for string in free]
    requests = [generation(f"text {n}", "stop", max_gen_toks=12, until=[ends[n]]) for n in range(3)]
    requests += [generation("text 3", "stop", max_gen_toks=12, until=[free[3][0]])]
    lm.generate_until(requests, disable_tqdm=True)
    monkeypatch.setattr(lm, "end_of_turn_ids", frozenset(range(3, 259)))  # any token is the end of a turn
    lm.generate_until([generation("text", "end", max_gen_toks=12)], disable_tqdm=True)
    tasks = lm.get_model_info()["mdlm"]["tasks"]
    endings = {name: {how: n for how, n in facts["endings"].items() if n} for name, facts in tasks.items()}
    n_empty = sum(free[n].startswith(ends[n]) for n in range(3)) + 1
    assert endings == {
        "task": {"cut": 6},
        "stop": {"ended_by_stop": 4, "empty": n_empty},
        "end": {"ended_by_eos": 1, "empty": 1, "at_once": 1},
    }
    # The token that ends an answer is no part of it.
    assert [facts["cost"].get("answer_tokens", 0) for facts in (tasks["task"], tasks["end"])] == [6 * 12, 0]


def test_a_task_that_is_a_class_has_its_config_in_its_names_place(lm: MDLM) -> None:
    lm.start_record()
    mine: Any = {"task": "mine", "num_fewshot": 0}
    lm.generate_until([generation("a", mine, max_gen_toks=2)], disable_tqdm=True)
    lm.loglikelihood([choice("a", "b", task=mine)], disable_tqdm=True)
    assert lm.get_model_info()["mdlm"]["tasks"].keys() == {"mine"}


def test_answers_that_end_before_thinking_does_are_counted_and_may_be_empty(caplog: pytest.LogCaptureFixture) -> None:
    def answers(lm: MDLM, **kwargs: str) -> list[str]:
        requests = [generation(f"text {n}", max_gen_toks=12, **kwargs) for n in range(6)]
        return lm.generate_until(requests, disable_tqdm=True)

    def endings(lm: MDLM) -> dict[str, int]:
        return {how: n for how, n in lm.get_model_info()["mdlm"]["tasks"]["task"]["endings"].items() if n}

    free = answers(MDLM(tiny_model(), tokenizer=tiny_tokenizer(), batch_size=6))
    end = next(sign for sign in "".join(free) if 0 < sum(sign in text for text in free) < len(free))
    unfinished = [text for text in free if end not in text]
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), batch_size=6, think_end_token=end)
    assert answers(lm) == [text.rpartition(end)[2].lstrip() if end in text else text for text in free]
    assert endings(lm)["unfinished_thinking"] == len(unfinished)
    said = f"{len(unfinished)} of 6 answers end before think_end_token={end} (unfinished_thinking=kept)"
    assert said in caplog.text
    lm.start_record()
    stopped = answers(lm, unfinished_thinking="empty", until=unfinished[0][0])
    assert [text for text, before in zip(stopped, free, strict=True) if end not in before] == [""] * len(unfinished)
    assert endings(lm)["unfinished_thinking"] == len(unfinished), "stop strings are no end of thinking"
    assert f"{len(unfinished)} of 6 answers end before think_end_token={end} (unfinished_thinking=empty)" in caplog.text


def test_a_prompt_that_closes_thinking_leaves_whole_answers_and_no_end_to_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The template closes it before a `gen_prefix`, as Qwen3's does, although the user asks for it."""
    model, tokenizer, folder = random_llama(260), tiny_tokenizer(), tasks_of("tasks", tmp_path)
    tokenizer.add_tokens(["</think>"], special_tokens=True)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ '<think></think>' if m.role == 'assistant' }}{{ m.content }}<|eos|>"
        "{% endfor %}{{ '<assistant>' if add_generation_prompt }}"
    )
    model.config.mask_token_id, model.config.quantization_config = MASK, {"quant_method": "gptq", "bits": 4}
    (folder / "prefixed.yaml").write_text("{include: tiny_generate.yaml, task: prefixed, gen_prefix: The answer is}")

    def answers(task: str, **arguments: Any) -> tuple[list[str], dict[str, int], str]:
        lm = MDLM(model, tokenizer=tokenizer, batch_size=5, **arguments)
        results = evaluate(lm, [task], folder, apply_chat_template=True, log_samples=True)
        facts = results["config"]["mdlm"]
        strings = [sample["resps"][0][0] for sample in results["samples"][task]]
        return strings, facts["tasks"][task]["endings"], in_words(facts)["settings"]

    plain, _, _ = answers("prefixed")
    asked: dict[str, Any] = {"think_end_token": "</think>", "enable_thinking": True, "unfinished_thinking": "empty"}
    for end in ({}, {"max_thinking_tokens": 2}, {"end_think_boost": 1000}):
        caplog.clear()
        found, endings, line = answers("prefixed", **asked, **end)
        assert found == plain
        assert (endings["thinking_closed"], endings["unfinished_thinking"]) == (5, 0)
        assert "5 prompts close thinking" in line
        assert "5 of 5 prompts end thinking before it begins" in caplog.text
    found, endings, line = answers("tiny_generate", **asked)
    assert endings["unfinished_thinking"] == found.count("") > 0
    assert (endings["thinking_closed"], "close th" in line, f"{found.count('')} empty" in line) == (0, False, True)
    _, endings, line = answers("tiny_generate", max_thinking_tokens=2)
    assert (endings["thinking_kept"], "5 answers with their thinking" in line, "by gptq" in line) == (5, True, True)
    tokenizer.chat_template = tokenizer.chat_template.replace("<assistant>' if", "<assistant><think>' if")
    _, endings, line = answers("tiny_generate")
    assert (endings["thinking_kept"], "5 answers with their thinking" in line) == (5, True)
    with pytest.raises(OptionError, match="tiny_choice: the prompts leave thinking open"):
        answers("tiny_choice")
    lm = MDLM(model, tokenizer=tokenizer)
    del model.config.quantization_config  # as transformers does where it has no kernels for it
    assert "quantised by gptq (dequantised)" in in_words(lm.get_model_info()["mdlm"])["settings"]


@pytest.mark.parametrize(("prompt", "think_end", "expected"), data("cases.json")["closed thinking"])
def test_only_the_last_turn_closes_thinking(prompt: str, think_end: str, expected: bool | None) -> None:
    assert closes_thinking(prompt, think_end, ["<|im_end|>", "</s>"]) is expected


def test_slots_keep_the_spaces_that_sentencepiece_adds_and_drops() -> None:
    backend = Tokenizer(models.BPE({"<mask>": 0, "<0x0A>": 1, "▁": 2, "t": 3, "<0xF0>": 4}, [], byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    of_bytes = [decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), *of_bytes, decoders.Strip(" ", 1, 0)])
    llama = PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="<mask>")
    encode = partial(llama.encode, add_special_tokens=False)
    first, *rest = encode_infill(llama, "t\n<|mask like   t\n|>  t", 0, lambda piece, _: encode(piece))
    whole = encode("t\n  t\n  t")
    slot = whole[len(first) : len(first) + len(rest)]
    assert [*first, *slot, *rest[-1]] == whole
    assert Ending(llama, (), (), None, in_text=True).of(slot)[0] == "  t\n"
    assert Ending(llama, (), ("\n",), None).of([3, 1, 4]) == ("t", "ended_by_stop"), "with and without early exit"


def test_infill_with_a_mask_token_of_another_name() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "<|mdm_mask|>"})
    mask = tokenizer.mask_token_id

    def encode(piece: str, first: bool) -> list[int]:
        return [0] * first + tokenizer.encode(piece, add_special_tokens=False)

    plain = encode_infill(tokenizer, "one <|mask|> two", mask, encode)
    assert plain == [encode("one ", True), encode(" two", False)]
    literal = encode_infill(tokenizer, "<|mdm_mask|> <|mask|> two", mask, encode)
    assert mask not in literal[0]
    assert tokenizer.decode(literal[0]) == "<|pad|><|mdm_mask|> "
    assert literal[1:] == [encode(" two", False)]


@pytest.mark.parametrize(("text", "until", "think_end", "expected"), data("cases.json")["endings"])
def test_ending(text: str, until: list[str], think_end: str | int | None, expected: str) -> None:
    tokenizer = tiny_tokenizer()
    ending = Ending(tokenizer, {1}, until, think_end)
    ids = tokenizer.encode(text)
    assert ending.of(ids)[0] == expected
    assert ending.of([*ids, 1, *tokenizer.encode("after the end")])[0] == expected
    assert ending.of([*ids, 1])[1] in ("ended_by_eos", "ended_by_stop")


def test_a_special_token_among_the_stop_strings_ends_an_answer(checkpoint: Path) -> None:
    """A decoded text does not show it, but `--model hf` stops there."""
    tokenizer = tiny_tokenizer()
    lm = MDLM(str(checkpoint), device="cpu", tokenizer=tokenizer, unmasking="left_to_right")
    (whole,) = lm.generate_until([generation("red is", max_gen_toks=8)], disable_tqdm=True)
    named = next(letter for letter in whole[2:] if letter.isalnum())  # a token of its own
    tokenizer.add_special_tokens({"extra_special_tokens": [named]})
    asked = [generation("red is", max_gen_toks=8, until=until) for until in ([], [named])]
    without, ended = lm.generate_until(asked, disable_tqdm=True)
    assert (without, ended) == (whole.replace(named, ""), whole.partition(named)[0])
    assert ended != without


def test_ending_is_decided_only_when_nothing_can_change_it() -> None:
    tokenizer = tiny_tokenizer()
    ending = Ending(tokenizer, {1}, ("abc", "b"), None)
    assert not ending.is_decided(tokenizer.encode("ab"))  # "abc" would begin earlier
    assert ending.is_decided(tokenizer.encode("abcd"))
    assert ending.is_decided([*tokenizer.encode("x"), 1])
    assert not Ending(tokenizer, {1}, ("b",), "<t>").is_decided(tokenizer.encode("bb"))


def test_overlapping_stop_strings_decide_only_where_no_later_text_changes_lm_evals_cut() -> None:
    tokenizer = tiny_tokenizer()
    stops = ["a", "ab", "ba", "aab", "bb", "bab"]
    texts = ["".join(text) for n in range(6) for text in itertools.product("ab", repeat=n)]
    constant = decided = 0
    later = ["".join(text) for n in range(4) for text in itertools.product("abc", repeat=n)]
    for until in itertools.permutations(stops, 2):
        for text in texts:
            cuts = {postprocess_generated_text(text + more, list(until), None) for more in later}
            constant += len(cuts) == 1
            is_decided = Ending(tokenizer, {1}, until, None).is_decided(tokenizer.encode(text))
            decided += is_decided
            assert len(cuts) == 1 or not is_decided, (until, text)
    assert decided > 0.9 * constant


# Likelihood


def test_a_continuation_longer_than_n_masks_is_scored_at_its_own_length(
    lm: MDLM, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [choice("context", "a"), choice("context", "abc"), choice("other", "abcdefgh")]
    lm.use_options({"n_masks": "auto"})
    alone = lm.loglikelihood(pairs, disable_tqdm=True)
    lm.use_options({"n_masks": 3})
    short, exact, longer = lm.loglikelihood(pairs, disable_tqdm=True)
    assert (exact[0], longer[0]) == pytest.approx((alone[1][0], alone[2][0]), abs=1e-4)
    assert abs(short[0] - alone[0][0]) > 1e-3
    assert "1 of 3 continuations are longer than n_masks=3" in caplog.text
    record = lm.get_model_info()["mdlm"]["tasks"]["choice"]
    assert (record["longer_continuations"], record["masks"], record["asked_masks"]) == (1, [3, 8], [3, 8])
    lm.use_options({})


def test_a_context_of_spaces_is_the_beginning_of_the_text(lm: MDLM) -> None:
    pairs = [choice("\n", "abc"), choice("", "\nabc")]
    (spaces, _), (nothing, _) = lm.loglikelihood(pairs, disable_tqdm=True)
    assert spaces == pytest.approx(nothing, abs=1e-4)
    with pytest.raises(OptionError, match="a continuation has no token after"):
        lm.loglikelihood([choice("abc", ""), choice("abc", "d")], disable_tqdm=True)


def test_a_text_that_begins_with_the_prefix_token_has_it_once(lm: MDLM) -> None:
    beginning = lm.tokenizer.decode([lm.prefix_token_id])
    (twice, _), (once, _) = lm.loglikelihood([choice("", f"{beginning}ab"), choice("", "ab")], disable_tqdm=True)
    assert twice == pytest.approx(once, abs=1e-4)


@pytest.mark.parametrize("estimator", [{"likelihood": "chain"}, {"likelihood": "duel", "unmasking": "margin"}])
def test_rolling_is_the_sum_over_windows(checkpoint: Path, estimator: dict[str, str]) -> None:
    lm = MDLM(str(checkpoint), device="cpu", batch_size=2, max_length=8, **estimator)
    texts = ("some text to score", "another")
    requests = [rolling(text, n, "r") for n, text in enumerate(texts)]
    for text, bound in zip(texts, lm.loglikelihood_rolling(requests, disable_tqdm=True), strict=True):
        windows = rolling_windows(lm.tok_encode(text), max_length=8, prefix_token_id=lm.prefix_token_id)
        answers = score(lm.denoiser, windows, LikelihoodOptions(**estimator), batch_size=1, max_length=8)
        assert len(windows) == {"another": 1}.get(text, 3)
        assert bound == pytest.approx(sum(one.total for one in answers), abs=1e-4)


def test_a_broken_model_ends_the_run_and_names_the_request(checkpoint: Path) -> None:
    lm = MDLM(pretrained=str(checkpoint), device="cpu", batch_size=4)
    lm.model.get_input_embeddings().weight.data[lm.tok_encode("#")] = torch.nan
    fine, broken = generation("a prompt", doc=1, max_gen_toks=4), generation("#", doc=2, max_gen_toks=4)
    drawn = [generation(text, doc=n, max_gen_toks=1, temperature=1.0) for n, text in enumerate(("a prompt", "#"))]
    for run, requests in (
        (lm.generate_until, [fine, broken, fine]),
        (lm.generate_until, drawn),
        (lm.loglikelihood, [choice("context", "a"), choice("#", "a", doc=1)]),
    ):
        named = f"task {requests[1].task_name}, document {requests[1].doc_id}"
        with pytest.raises(OptionError, match=f"not finite .* {named}"):
            run(requests, disable_tqdm=True)
        assert not lm.record.tasks, "the next run is another evaluation"


def test_automatic_batch_size_halves_when_memory_runs_out(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = MDLM(str(checkpoint), device="cpu", batch_size="auto")
    sizes = small_memory(lm, 4, monkeypatch)
    requests = [generation(str(n), max_gen_toks=1) for n in range(10)]
    assert len(lm.generate_until(requests, disable_tqdm=True)) == 10
    assert sizes == [10, 8, 4, 4, 2]


def test_automatic_batch_size_begins_with_what_fits_beside_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "free_bytes", lambda device: int(4.5 * 2**30 / 0.9) + 722_000)
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), batch_size="auto")
    dual = {"cache": "dual", "block_length": 100}  # with padded canvases, and keys and values that are kept
    for length, size, how in ((60, 8, {}), (100, 4, {}), (100, 1, dual)):  # of a request of a byte
        asked = [generation(str(n), max_gen_toks=length, steps_per_block=1, **how) for n in range(9)]
        lm.generate_until(asked, disable_tqdm=True)
        assert lm.batches.size == size
    lm.loglikelihood([choice("x" * 100, "a")], disable_tqdm=True)
    assert lm.batches.size > 2


@pytest.mark.parametrize("is_object", [False, True])
def test_a_run_records_what_its_scores_depend_on(checkpoint: Path, task_folder: Path, is_object: bool) -> None:
    model = {"pretrained": str(checkpoint), "n_masks": 6, "steps": 3, "unmasking": "margin"}
    given = {"device": "cpu", "batch_size": 2}
    lm = MDLM(**model, **given) if is_object else "mdlm"
    settings = {"torch_random_seed": 77} | ({} if is_object else given | {"model_args": dict(model)})
    results = evaluate(lm, ["tiny_generate", "tiny_choice"], task_folder, **settings)
    info = json.loads(json.dumps(results["config"], default=str))["mdlm"]
    assert (info["decoding"]["n_masks"], info["decoding"]["steps"], info["decoding"]["unmasking"]) == (6, 3, "margin")
    assert info["decoding"]["seed"] == info["likelihood"]["seed"] == 77
    assert info["explicit_options"] == ["n_masks", "steps", "unmasking"]
    assert info["arguments"] == model
    assert info["pretrained"] == checkpoint.name
    assert info["dtype"] == "float32"
    assert info["tasks"]["tiny_generate"].pop("cost")["forward_passes"] == 5 * 3
    assert info["tasks"]["tiny_generate"] == data("cases.json")["record"]
    assert info["tasks"]["tiny_choice"]["masks"] == [6, 6]
    assert info["forward_passes"] > 3 * 3  # in batches of two, and those of the choices
