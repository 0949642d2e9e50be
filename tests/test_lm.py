"""MDLM on a tiny random model: requests, options, seeds, records and the request cache."""

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.caching.cache
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.tasks import TaskManager
from peft import LoraConfig, get_peft_model
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval import diffusion_hflm
from mdlm_lm_eval.decoding.completion import Completion, Cost
from mdlm_lm_eval.likelihood import rolling_windows, score
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.devices import Usage
from mdlm_lm_eval.model.text import Ending, _is_cut, encode_infill, encode_without_masks
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.requests import RequestSeeds, parse_gen_kwargs
from mdlm_lm_eval.results.cost import TaskCost
from tests.conftest import tiny_model, tiny_tokenizer

MASK = 2


@pytest.fixture(scope="module")
def lm(checkpoint: Path) -> MDLM:
    return MDLM(str(checkpoint), device="cpu", batch_size=4)


def generation(text: str, task: str = "task", doc: int | None = None, **gen_kwargs: Any) -> Instance:
    return Instance("generate_until", doc={}, arguments=(text, gen_kwargs), idx=0, metadata=(task, doc, 1))


def choice(context: str, continuation: str) -> Instance:
    return Instance("loglikelihood", doc={}, arguments=(context, continuation), idx=0, metadata=("choice", 0, 1))


def test_a_tokenizer_without_a_mask_token_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    del model.config.mask_token_id
    tokenizer.mask_token = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = []
    monkeypatch.setattr(diffusion_hflm.families, "load_model", lambda *_, **__: loaded.append(True))
    with pytest.raises(OptionError, match="mask_token_id"):
        MDLM(str(tmp_path))
    assert not loaded


def test_an_adapter_for_another_model_is_refused_and_its_own_loads(checkpoint: Path, tmp_path: Path, lm: MDLM) -> None:
    get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], r=2)).save_pretrained(tmp_path / "own")
    wider = LlamaForCausalLM(LlamaConfig(**tiny_model().config.to_dict() | {"hidden_size": 64}))
    get_peft_model(wider, LoraConfig(target_modules=["q_proj"], r=2)).save_pretrained(tmp_path / "other")
    adapted = MDLM(str(checkpoint), peft=str(tmp_path / "own"))
    assert adapted.model.get_input_embeddings().weight.shape[0] == 259
    request = generation("adapter", max_gen_toks=4)  # a fresh adapter changes nothing
    assert adapted.generate_until([request], disable_tqdm=True) == lm.generate_until([request], disable_tqdm=True)
    with pytest.raises(OptionError, match=r"peft=.*does not fit this model"):
        MDLM(str(checkpoint), peft=str(tmp_path / "other"))


# Requests


def test_one_request_gives_one_string_alone_in_any_batch_and_in_any_order(lm: MDLM) -> None:
    texts = ["short", "a somewhat longer prompt", "the longest prompt of all of them, by far", "mid one", "z"] * 4
    settings = {"max_gen_toks": 6, "until": []}
    requests = [generation(f"{n} {text}", doc=n, **settings) for n, text in enumerate(texts)]
    together = dict(zip([r.args[0] for r in requests], lm.generate_until(requests, disable_tqdm=True), strict=True))
    assert len(set(together.values())) > 5
    shuffled = random.Random(0).sample(requests, len(requests))
    again = dict(zip([r.args[0] for r in shuffled], lm.generate_until(shuffled, disable_tqdm=True), strict=True))
    assert again == together
    for request in requests[:4]:
        assert lm.generate_until([request], disable_tqdm=True) == [together[request.args[0]]]


def test_repeats_differ_at_temperature_1_and_are_reproducible(lm: MDLM) -> None:
    request = generation("same", doc=3, max_gen_toks=8, temperature=1.0, do_sample=True)
    first = lm.generate_until([request] * 4, disable_tqdm=True)
    assert len(set(first)) == 4
    assert lm.generate_until([request] * 4, disable_tqdm=True) == first
    other_document = generation("same", doc=4, max_gen_toks=8, temperature=1.0, do_sample=True)
    assert lm.generate_until([other_document], disable_tqdm=True) == first[:1]


def test_early_exit_changes_no_string(lm: MDLM) -> None:
    settings = {"max_gen_toks": 24, "n_masks": 24, "block_length": 2}

    def run(**more: Any) -> tuple[str, int]:
        before = lm.denoiser.forward_passes
        (string,) = lm.generate_until([generation("to be stopped", **settings, **more)], disable_tqdm=True)
        return string, lm.denoiser.forward_passes - before

    free, all_passes = run()
    assert all_passes == 24
    until = [free[3:4]]
    complete, passes = run(until=until, early_exit=False)
    assert (complete, passes) == (free[: free.index(until[0])], 24)
    early, fewer_passes = run(until=until)
    assert early == complete
    assert fewer_passes < 24


def test_a_bad_request_is_refused_before_the_first_forward_pass(lm: MDLM) -> None:
    passes = lm.denoiser.forward_passes
    good = generation("good", max_gen_toks=2)
    for gen_kwargs, named in [
        ({"stepps": 3}, "did you mean steps?"),
        ({"steps": 0}, "steps"),
        ({"max_gen_toks": 0}, "1"),
    ]:
        with pytest.raises(OptionError, match=named):
            lm.generate_until([good, generation("bad", **gen_kwargs)], disable_tqdm=True)
    assert lm.denoiser.forward_passes == passes


def test_meaningless_keys_give_one_warning(lm: MDLM, caplog: pytest.LogCaptureFixture) -> None:
    requests = [generation(str(n), max_gen_toks=1, num_beams=3, repetition_penalty=1.1) for n in range(3)]
    lm.generate_until(requests, disable_tqdm=True)
    assert [record.message for record in caplog.records if "num_beams, repetition_penalty" in record.message] != []
    assert sum("num_beams" in record.message for record in caplog.records) == 1


def test_an_argument_without_effect_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    MDLM(tiny_model(), tokenizer=tiny_tokenizer(), truncation=True)
    assert "truncation has no effect with --model mdlm" in [record.message for record in caplog.records]


def test_long_prompts_are_cut_on_the_left_and_counted(lm: MDLM, caplog: pytest.LogCaptureFixture) -> None:
    tail = "the end"
    long, short = "x" * 400 + tail, "x" * (256 - 4 - len(tail)) + tail
    strings = lm.generate_until(
        [generation(long, task="cut", max_gen_toks=4), generation(short, task="cut", max_gen_toks=4)], disable_tqdm=True
    )
    assert strings[0] == strings[1]
    record = lm.get_model_info()["mdlm"]["tasks"]["cut"]
    assert (record["truncated_prompts"], record["truncated_tokens"]) == (1, 400 + len(tail) - 252)
    assert sum("1 of 2 prompts" in entry.message for entry in caplog.records) == 1


# Precedence


def test_precedence_of_sampling_and_diffusion_options() -> None:
    request = {"temperature": 0.7, "do_sample": True, "steps": 3, "until": "stop"}
    silent = parse_gen_kwargs(request, DecodingOptions(), frozenset())
    assert (silent.options.temperature, silent.options.steps, silent.until) == (0.7, 3, ("stop",))
    set_by_user = DecodingOptions().override({"temperature": 0.2, "steps": 9})
    merged = parse_gen_kwargs(request, set_by_user, frozenset({"temperature", "steps"}))
    assert (merged.options.temperature, merged.options.steps) == (0.2, 3)


def test_do_sample() -> None:
    assert (
        parse_gen_kwargs({"do_sample": False, "temperature": 0.9}, DecodingOptions(), frozenset()).options.temperature
        == 0
    )
    assert parse_gen_kwargs({"do_sample": True}, DecodingOptions(), frozenset()).options.temperature == 1
    greedy = {"do_sample": False, "top_k": 1, "top_p": 0.5}  # at top_k=1 every confidence would be 1
    assert parse_gen_kwargs(greedy, DecodingOptions(), frozenset()).options == DecodingOptions()
    assert parse_gen_kwargs(greedy, DecodingOptions(top_k=3), frozenset({"top_k"})).options == DecodingOptions(top_k=3)
    all_tokens = parse_gen_kwargs({"do_sample": True, "top_k": 0}, DecodingOptions(), frozenset()).options
    assert all_tokens == DecodingOptions(temperature=1.0)
    with pytest.raises(OptionError, match="do_sample must be true or false, not perhaps"):
        parse_gen_kwargs({"do_sample": "perhaps"}, DecodingOptions(), frozenset())


def test_of_the_names_of_one_limit_lm_evals_first_counts() -> None:
    limits = {"max_completion_tokens": 2, "max_tokens": 3, "max_new_tokens": 4, "max_gen_toks": 5}
    for expected in (5, 4, 3, 2):
        assert parse_gen_kwargs(limits, DecodingOptions(), frozenset()).max_gen_toks == expected
        limits.popitem()


def test_seeds_depend_on_content_and_repetition_only() -> None:
    seeds, others = RequestSeeds(), RequestSeeds()
    arguments = ("text", {"steps": 1})
    first, second = seeds.next(0, arguments, "doc"), seeds.next(0, arguments, "doc")
    others.next(0, ("something else", {}), "doc")
    assert first != second
    assert others.next(0, arguments, "another document") == first
    assert others.next(0, arguments, "a third document") == first
    assert others.next(1, arguments, "doc") != first


# Text


def test_no_string_becomes_a_mask_token(lm: MDLM) -> None:
    text = "a <|mask|> b<|mask|>"
    ids = lm.tok_encode(text)
    assert MASK not in ids
    assert lm.tokenizer.decode(ids) == text
    lm.generate_until([generation(text, task="literal", max_gen_toks=3)], disable_tqdm=True)
    assert lm.record.task("literal").ranges["masks"] == (3, 3)
    context, continuation = lm._encode_pair(text, " <|mask|>")
    assert MASK not in context + continuation


def test_a_prompt_ends_without_the_tokenizers_closing_token() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|pad|> $A <|eos|>", special_tokens=[("<|pad|>", 0), ("<|eos|>", 1)]
    )
    lm = MDLM(tiny_model(), tokenizer=tokenizer)
    assert lm.tok_encode("ab") == [0, *tokenizer.encode("ab", add_special_tokens=False)]
    context, continuation = lm._encode_pair("ab", " c")
    assert context + continuation == lm.tok_encode("ab c")


def test_infill_fills_each_marker(lm: MDLM) -> None:
    request = generation("one <|mask|> two <|mask|>. three", task="infill", infill=True)
    (string,) = lm.generate_until([request], disable_tqdm=True)
    assert lm.record.task("infill").ranges["masks"] == (2, 2)
    assert lm._encode_slots("one <|mask|> two <|mask|>") == [lm.tok_encode("one "), lm.tok_encode(" two "), []]
    assert isinstance(string, str)


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


def test_a_tokenizer_that_cannot_split_its_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer()
    plain = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, split_special_tokens=False, **rest: plain(text, **rest))
    ids = encode_without_masks(tokenizer, "a <|mask|> b", MASK, lambda piece, first: plain(piece))
    assert MASK not in ids
    assert tokenizer.decode(ids) == "a <|mask|> b"


def test_infill_with_a_mask_token_without_a_name() -> None:
    tokenizer = tiny_tokenizer()

    def encode(piece: str, first: bool) -> list[int]:
        return tokenizer.encode(piece, add_special_tokens=False)

    assert encode_infill(tokenizer, "one <|mask|> two", len(tokenizer), encode) == [
        encode("one ", True),
        encode(" two", False),
    ]


def test_too_few_steps_for_a_shifted_models_cache_are_refused_before_the_first_pass(checkpoint: Path) -> None:
    lm = MDLM(str(checkpoint), device="cpu", shift_logits=True, n_masks=8, block_length=4, cache="dual")
    with pytest.raises(OptionError, match="one step a block of 4 tokens"):
        lm.generate_until([generation("one", max_gen_toks=8), generation("two", max_gen_toks=1)])
    assert lm.denoiser.forward_passes == 0


@pytest.mark.parametrize(
    ("text", "until", "think_end", "expected"),
    [
        ("one stop two", ("stop",), None, "one "),
        ("one b two a", ("a", "b"), None, "one "),
        ("stop <t> one stop two", ("stop",), "<t>", "one "),
        ("one", (), None, "one"),
    ],
)
def test_ending(text: str, until: tuple[str, ...], think_end: str | None, expected: str) -> None:
    tokenizer = tiny_tokenizer()
    ending = Ending(tokenizer, {1}, until, think_end)
    ids = tokenizer.encode(text)
    assert ending.text(ids) == expected
    assert ending.text([*ids, 1, *tokenizer.encode("after the end")]) == expected


def test_ending_is_decided_only_when_nothing_can_change_it() -> None:
    tokenizer = tiny_tokenizer()
    ending = Ending(tokenizer, {1}, ("abc", "b"), None)
    assert not ending.is_decided(tokenizer.encode("ab"))  # "abc" would begin earlier
    assert ending.is_decided(tokenizer.encode("abcd"))
    assert ending.is_decided([*tokenizer.encode("x"), 1])
    assert not Ending(tokenizer, {1}, ("b",), "<t>").is_decided(tokenizer.encode("bb"))


def test_overlapping_stop_strings_decide_only_where_no_later_text_changes_lm_evals_cut() -> None:
    tokenizer = tiny_tokenizer()
    ending = Ending(tokenizer, {1}, ("\n\n", ".\n"), None)
    assert not ending.is_decided(tokenizer.encode("foo.\n"))  # a second line end would make it `foo.`
    assert ending.is_decided(tokenizer.encode("foo.\nb"))
    stops = ["a", "ab", "ba", "aab", "bb", "bab"]
    texts = ["".join(text) for n in range(7) for text in itertools.product("ab", repeat=n)]
    constant = decided = 0
    later = ["".join(text) for n in range(4) for text in itertools.product("abc", repeat=n)]
    for until in itertools.permutations(stops, 2):
        for text in texts:
            cuts = {postprocess_generated_text(text + more, list(until), None) for more in later}
            constant += len(cuts) == 1
            decided += _is_cut(text, until)
            assert len(cuts) == 1 or not _is_cut(text, until), (until, text)
    assert decided > 0.9 * constant


def test_half_a_character_decides_nothing() -> None:
    tokenizer = tiny_tokenizer()
    ending = Ending(tokenizer, {1}, ("\ufffd", "x"), None)
    assert not ending.is_decided(tokenizer.encode("é")[:1])


def test_integer_think_end_token() -> None:
    tokenizer = tiny_tokenizer()
    (marker,) = tokenizer.encode("|")
    ending = Ending(tokenizer, {1}, ("!",), marker)
    for thought in ("thought!", "thought! | and another"):
        assert ending.text(tokenizer.encode(f"{thought} | answer! more")) == "answer"


# Likelihood


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("generate_until", ("a \ud800", {"max_gen_toks": 1})),
        ("generate_until", ("a <|mask|> \ud800", {"infill": True})),
        ("loglikelihood", ("a", "\ud800")),
        ("loglikelihood", ("\udc00", "a")),
        ("loglikelihood_rolling", ("\ud800",)),
    ],
)
def test_half_a_character_in_a_request_is_refused(lm: MDLM, kind: str, arguments: tuple[Any, ...]) -> None:
    request = Instance(kind, {}, arguments, 0, metadata=("task", 0, 1))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"a text must hold whole characters, not half of one: '\\ud[8c]00'"):
        getattr(lm, kind)([request])


def test_loglikelihood_of_a_one_token_choice_is_exact(lm: MDLM) -> None:
    (one,) = lm.loglikelihood([choice("context", "a")], disable_tqdm=True)
    input_ids = torch.tensor([[*lm.tok_encode("context"), MASK]])
    with torch.no_grad():
        logits = lm.model(input_ids=input_ids).logits[0, -1].float()
    (target,) = lm.tok_encode("a")
    assert one[0] == pytest.approx(float(logits.log_softmax(-1)[target]), abs=1e-4)
    assert one[1] == (int(logits.argmax()) == target)


def test_loglikelihood_does_not_depend_on_neighbours(lm: MDLM) -> None:
    requests = [choice("context " * n, continuation) for n in (1, 5, 9) for continuation in (" yes", " no way")]
    together = lm.loglikelihood(requests, disable_tqdm=True)
    for request, (value, greedy) in zip(requests, together, strict=True):
        alone = lm.loglikelihood([request], disable_tqdm=True)[0]
        assert alone == (pytest.approx(value, abs=1e-4), greedy)


def test_a_context_of_spaces_is_the_beginning_of_the_text(lm: MDLM) -> None:
    pairs = [choice("\n", "abc"), choice("", "\nabc")]
    (spaces, _), (nothing, _) = lm.loglikelihood(pairs, disable_tqdm=True)
    assert spaces == pytest.approx(nothing, abs=1e-4)


def test_a_text_that_begins_with_the_prefix_token_has_it_once(lm: MDLM) -> None:
    beginning = lm.tokenizer.decode([lm.prefix_token_id])
    expected = [lm.prefix_token_id], lm.tok_encode("ab")
    assert lm._context_and_continuation("", f"{beginning}ab") == lm._context_and_continuation("", "ab") == expected


def test_rolling_is_the_sum_over_windows(checkpoint: Path) -> None:
    lm = MDLM(str(checkpoint), device="cpu", batch_size=2, max_length=8, mc_num=4)
    texts = ("some text to score", "another")
    requests = [Instance("loglikelihood_rolling", {}, (text,), 0, metadata=("r", n, 1)) for n, text in enumerate(texts)]
    for text, bound in zip(texts, lm.loglikelihood_rolling(requests, disable_tqdm=True), strict=True):
        seed = RequestSeeds().next(lm.likelihood.seed, (text,), 0)
        windows = rolling_windows(lm.tok_encode(text), max_length=8, prefix_token_id=lm.prefix_token_id, seed=seed)
        answers = score(lm.denoiser, windows, lm.likelihood, batch_size=1, max_length=8)
        assert len(windows) == {"another": 1}.get(text, 3)
        assert bound == pytest.approx(sum(value for value, _ in answers), abs=1e-4)


def test_a_broken_model_ends_the_run_and_names_the_request(checkpoint: Path) -> None:
    lm = MDLM(pretrained=str(checkpoint), device="cpu", batch_size=2)
    lm.model.model.norm.weight.data.fill_(torch.nan)
    for run, request in (
        (lm.generate_until, generation("a prompt", max_gen_toks=4)),
        (lm.loglikelihood, choice("context", "a")),
    ):
        with pytest.raises(OptionError, match=f"not finite .* task {request.task_name}, document {request.doc_id}"):
            run([request], disable_tqdm=True)


# Models, batches, records


def test_a_masked_lm_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BertConfig(
        vocab_size=259, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, pad_token_id=0
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    bert = MDLM(str(tmp_path), batch_size=2)
    requests = [generation(text, max_gen_toks=4) for text in ("a", "a longer one")]
    together = bert.generate_until(requests, disable_tqdm=True)
    assert together == [bert.generate_until([request], disable_tqdm=True)[0] for request in requests]
    assert bert.get_model_info()["mdlm"]["family"] == "masked_lm"
    passes = bert.denoiser.forward_passes
    with pytest.raises(OptionError, match=r"cfg_scale=0.5 .*no unconditional form"):
        bert.generate_until([generation("guided", max_gen_toks=4, cfg_scale=0.5)], disable_tqdm=True)
    assert bert.denoiser.forward_passes == passes
    monkeypatch.setattr(diffusion_hflm.families, "load_model", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(OptionError, match=r"cfg_scale=1.5 .*family masked_lm"):
        MDLM(str(tmp_path), cfg_scale=1.5)


def test_automatic_batch_size_halves_when_memory_runs_out(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = MDLM(str(checkpoint), device="cpu", batch_size="auto")
    sizes = []
    generate = lm._generate

    def small_memory(batch: list[Any], advance: Any) -> list[Any]:
        sizes.append(len(batch))
        if len(batch) > 4:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return generate(batch, advance)

    monkeypatch.setattr(lm, "_generate", small_memory)
    requests = [generation(str(n), max_gen_toks=1) for n in range(10)]
    assert len(lm.generate_until(requests, disable_tqdm=True)) == 10
    assert sizes == [10, 8, 4, 4, 2]


def test_a_run_records_what_its_scores_depend_on(checkpoint: Path, task_folder: Path) -> None:
    results = lm_eval.simple_evaluate(
        model="mdlm",
        model_args={"pretrained": str(checkpoint), "n_masks": 6, "steps": 3, "unmasking": "margin"},
        tasks=["tiny_generate", "tiny_choice"],
        task_manager=TaskManager(include_path=str(task_folder), include_defaults=False),
        device="cpu",
        batch_size=2,
        torch_random_seed=77,
        bootstrap_iters=0,
    )
    info = json.loads(json.dumps(results["config"], default=str))["mdlm"]
    assert (info["decoding"]["n_masks"], info["decoding"]["steps"], info["decoding"]["unmasking"]) == (6, 3, "margin")
    assert info["decoding"]["seed"] == info["likelihood"]["seed"] == 77
    assert info["explicit_options"] == ["n_masks", "steps", "unmasking"]
    assert info["pretrained"] == checkpoint.name
    assert len(info["weights"]) == 64
    assert info["dtype"] == "float32"
    assert info["torch"] == torch.__version__
    assert info["tasks"]["tiny_generate"].pop("cost")["forward_passes"] > 0
    assert info["tasks"]["tiny_generate"] | {"forward_passes": 0, "prompt_tokens": 0} == {
        "requests": 5,
        "masks": [6, 6],
        "steps": [3, 3],
        "returned_tokens": [4, 4],
        "fillers": [0, 0],
        "prompt_tokens": 0,
        "forward_passes": 0,
        "truncated_prompts": 0,
        "truncated_tokens": 0,
    }
    assert info["tasks"]["tiny_choice"]["masks"] == [6, 6]
    assert 0 < info["tasks"]["tiny_generate"]["forward_passes"] < info["forward_passes"]


@pytest.mark.parametrize(("last", "n_answered"), [(1, 2), (70, 2), (71, 3)])
def test_a_request_costs_its_share_of_the_batch_and_the_token_that_ends_it_is_no_answer(
    lm: MDLM, monkeypatch: pytest.MonkeyPatch, last: int, n_answered: int
) -> None:
    monkeypatch.setattr(lm, "end_of_turn_ids", frozenset({70}))
    cost = TaskCost()
    lm._add_cost(cost, Completion([5, 6, last], Cost(3, 2, 30), 4), Usage(seconds=2.0, peak_memory_bytes=7), 8)
    assert cost == TaskCost(3, 2, 30, written_tokens=4, answer_tokens=n_answered, seconds=0.25, peak_memory_bytes=7)


def test_evaluations_of_one_object_have_records_of_their_own(lm: MDLM, task_folder: Path) -> None:
    lm.start_record()
    manager = TaskManager(include_path=str(task_folder), include_defaults=False)
    for n_masks in (4, 6):
        results = lm_eval.simple_evaluate(
            lm, tasks=["tiny_generate"], task_manager=manager, gen_kwargs={"n_masks": n_masks}, bootstrap_iters=0
        )
        told = results["config"]["mdlm"]
        assert told["tasks"]["tiny_generate"]["masks"] == [n_masks, n_masks]
        assert told["tasks"]["tiny_generate"]["requests"] == 5
        assert told["forward_passes"] == told["tasks"]["tiny_generate"]["forward_passes"]


@pytest.fixture
def built_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where lm-eval keeps built requests."""
    folder = tmp_path / "requests"
    folder.mkdir()
    monkeypatch.setattr(lm_eval.caching.cache, "PATH", str(folder))
    return folder


@pytest.mark.usefixtures("built_requests")
def test_prompts_built_by_another_chat_template_are_not_reused(task_folder: Path) -> None:
    manager = TaskManager(include_path=str(task_folder), include_defaults=False)
    prompts = []
    for name in ("one", "two"):
        lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer())
        lm.tokenizer.chat_template = {"one": "1 {{ messages[0].content }}", "two": "2 {{ messages[0].content }}"}
        lm.chat_template(name)
        results = lm_eval.simple_evaluate(
            lm,
            tasks=["tiny_generate"],
            task_manager=manager,
            apply_chat_template=name,
            cache_requests=True,
            bootstrap_iters=0,
            limit=1,
        )
        prompts.append(results["samples"]["tiny_generate"][0]["arguments"][0][0])
    assert prompts == ["1 red is", "2 red is"]


def test_requests_built_for_other_settings_are_not_reused(task_folder: Path, built_requests: Path) -> None:
    manager = TaskManager(include_path=str(task_folder), include_defaults=False)
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer())

    def asked(**settings: Any) -> list[Any]:
        results = lm_eval.simple_evaluate(
            lm, tasks=["tiny_generate"], task_manager=manager, cache_requests=True, bootstrap_iters=0, **settings
        )
        return [
            (sample["doc_id"], sample["arguments"][0][1]["max_gen_toks"])
            for sample in results["samples"]["tiny_generate"]
        ]

    for _ in range(2):
        assert asked(limit=1) == [(0, 4)]
        assert asked(limit=1, gen_kwargs={"max_gen_toks": 2}) == [(0, 2)]
        assert asked(samples={"tiny_generate": [3]}) == [(3, 4)]
    assert len(list(built_requests.iterdir())) == 3


def test_prompts_have_the_named_chat_template(checkpoint: Path) -> None:
    lm = MDLM(str(checkpoint), device="cpu")
    lm.tokenizer.chat_template = {"default": "of default", "plain": "{{ messages[0].content }}!"}
    turns = [{"role": "user", "content": "a"}]
    assert lm.apply_chat_template(turns) == "of default"
    assert lm.chat_template("plain") == "{{ messages[0].content }}!"
    assert lm.apply_chat_template(turns) == "a!"
    lm.chat_template(True)  # of a later evaluation
    assert lm.apply_chat_template(turns) == "of default"


def test_results_name_the_weights_that_were_loaded(checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    lm = MDLM(str(folder), device="cpu")
    digest = lm.get_model_info()["mdlm"]["weights"]
    shutil.rmtree(folder)
    assert digest is not None
    assert lm.get_model_info()["mdlm"]["weights"] == digest


@pytest.mark.parametrize(
    ("batch_size", "said"), [(3, "batch_size=3 does not fit"), ("auto", "a single request does not")]
)
def test_where_nothing_fits_into_memory_a_sentence_says_so(
    batch_size: int | str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr("mdlm_lm_eval.lm.decode_canvases", out_of_memory)
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), batch_size=batch_size)
    with pytest.raises(OptionError, match=said):
        lm.generate_until([generation(str(n), max_gen_toks=2) for n in range(5)], disable_tqdm=True)


def test_a_task_that_would_be_refused_is_so_before_any_request_is_run(task_folder: Path) -> None:
    lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), n_masks=4)
    manager = TaskManager(include_path=str(task_folder), include_defaults=False)
    with pytest.raises(OptionError, match=r"tiny_generate: n_masks must be .* not many"):
        lm_eval.simple_evaluate(
            lm, tasks=["tiny_choice", "tiny_generate"], task_manager=manager, gen_kwargs={"n_masks": "many"}
        )
    assert lm.denoiser.forward_passes == 0
