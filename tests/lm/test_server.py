"""`--model mdlm-server` against stand-in servers, and against a server around our own decoder."""

import importlib
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM

from benchmarks import serve
from benchmarks.serve import DIALECTS, DROP, FAULTS, Answer, StandIn, chat, completion, decoding, models
from mdlm_leaderboard.audit import audit
from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.checkpoints import load_denoiser, load_tokenizer
from mdlm_lm_eval.declared import declarations
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.suite import current_version
from mdlm_lm_eval.server import UNKNOWN, MDLMServer
from mdlm_lm_eval.serving import NoAnswerError
from mdlm_lm_eval.serving.conformance import PROMPTS, conformance
from tests.conftest import choice, data, generation, refused, tiny_tokenizer
from tests.support.commands import run
from tests.support.reference import GOLDEN

pytestmark = pytest.mark.slow

MODEL = "built-in-block"
STATED = {"confidence_threshold": 0.9}


def echo(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The prompt's length and last token, so that no two requests of a test have one answer."""
    prompt = payload["prompt"]
    return completion(f"answer {len(prompt)} {prompt[-1]}. rest", tokens=4)


def lm_of(server: StandIn, **arguments: Any) -> MDLMServer:
    return MDLMServer(**{"base_url": server.address, "pretrained": MODEL} | arguments)


def sglang(**changes: Any) -> dict[str, Any]:
    pages = DIALECTS["sglang"]
    return pages | {"/server_info": pages["/server_info"] | changes}


def facts_of(lm: MDLMServer) -> dict[str, Any]:
    return lm.get_model_info()["mdlm"]


def numbered(count: int, **gen_kwargs: Any) -> list[Instance]:
    return [generation("count " + "one " * n, doc=n, max_gen_toks=8, until=["."], **gen_kwargs) for n in range(count)]


# Dialects


@pytest.mark.parametrize("engine", DIALECTS)
def test_every_engine_gets_requests_that_it_takes(engine: str) -> None:
    with StandIn(echo, DIALECTS[engine]) as server:
        lm = lm_of(server, num_concurrent=2)
        (answer,) = lm.generate_until([generation("one two", max_gen_toks=8, until=[".", "<|pad|>"])])
        (sent,) = server.served
        facts = facts_of(lm)
    ids, ends = lm.tok_encode("one two"), sorted({*lm.end_ids, 3748})  # with <|pad|>, which no text shows
    base = {"model": "served", "stream": False, "max_tokens": 8, "stop": [".", "<|pad|>"]}
    seed, greedy = {"seed": sent.get("seed")}, {"temperature": 0.0}
    assert sent == base | {
        "sglang": {"prompt": ids, "stop_token_ids": ends, **greedy},
        "vllm": {"prompt": ids, "stop_token_ids": ends},
        "lmdeploy": {"prompt": "one two", **seed, **greedy},
        "openai": {"prompt": ids, **seed, **greedy},
    }.get(engine, {})
    assert answer == f"answer {len(sent['prompt'])} {sent['prompt'][-1]}"
    versions = {"sglang": "0.5.23", "vllm": "0.33.0"}
    assert (facts["server"]["engine"], facts["server"]["version"]) == (engine, versions.get(engine, UNKNOWN))
    assert "secret" not in json.dumps(facts)
    assert facts["tasks"]["task"].get("asked_masks") == (None if engine == "openai" else [8, 8])


def test_settings_are_said_stated_or_unknown() -> None:
    def unknown(pages: Mapping[str, Any], **arguments: Any) -> tuple[dict[str, Any], set[str]]:
        with StandIn(echo, pages) as server:
            lm = lm_of(server, **arguments)
            lm.generate_until(numbered(1))
            (setting,) = facts_of(lm)["settings"]
        assert setting["options"].keys() == declarations(DecodingOptions).keys()
        return setting["options"], {name for name, value in setting["options"].items() if value == UNKNOWN}

    options, missing = unknown(sglang())
    assert (options["confidence_threshold"], options["editing_threshold"], options["n_masks"]) == (0.95, None, "auto")
    assert missing == {"block_length", "seed"}
    assert unknown(sglang(), settings='{"block_length": 8}')[1] == {"seed"}
    options, missing = unknown(sglang(dllm_algorithm="JointThreshold", dllm_algorithm_config={"edit_threshold": 0.2}))
    assert [options[name] for name in ("confidence_threshold", "editing_threshold", "max_post_steps")] == [0.5, 0.2, 16]
    missing = unknown(sglang(dllm_algorithm_config="/there/config.yaml"))[1]
    assert missing == {"block_length", "confidence_threshold", "seed"}
    assert {"unmasking", "confidence_threshold"} < unknown(sglang(dllm_algorithm="Another"))[1]
    options, missing = unknown(DIALECTS["vllm"])
    assert options["block_length"] == 256
    assert {"temperature", "steps_per_block", "entropy_bound"} < missing
    options, missing = unknown(DIALECTS["lmdeploy"], settings=STATED)
    assert options["confidence_threshold"] == 0.9
    assert {"block_length", "unmasking", "steps"} < missing


def test_the_family_of_a_config_of_several_is_told(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "a2d_bd3lm", tmp_path / "model")
    tiny_tokenizer(160).save_pretrained(tmp_path / "model")
    with StandIn(echo, sglang()) as server:
        with pytest.raises(OptionError, match="is of a2d-qwen3 or a2d-qwen3-mdlm; say which with diffusion_family="):
            lm_of(server, pretrained=str(tmp_path / "model"))
        lm = lm_of(server, pretrained=str(tmp_path / "model"), diffusion_family="a2d-qwen3-mdlm")
    assert lm.family.name == "a2d-qwen3-mdlm"


def test_of_several_models_the_checkpoints_own_is_asked() -> None:
    with StandIn(echo, {"/v1/models": {"data": [{"id": "another"}, {"id": MODEL}]}}) as server:
        lm_of(server).generate_until(numbered(1))
        assert server.served[0]["model"] == MODEL
        with pytest.raises(OptionError, match="several, none of which is built-in: another, built-in-block"):
            lm_of(server, pretrained="built-in")
        with pytest.raises(OptionError, match="audit does not work with temperature"):
            lm_of(server, audit=1, temperature=1.0, device="cpu").generate_until(numbered(1))


def test_what_a_server_ignores_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with StandIn(echo, sglang()) as server:
        lm = lm_of(server)
        lm.generate_until([*numbered(2, temperature=0.7, repetition_penalty=1.2), *numbered(2, temperature=0.8)])
        assert not {"seed", "repetition_penalty"} & server.served[0].keys()
        assert {payload["temperature"] for payload in server.served} == {0.0}  # another version would sample at 1
    assert sum("Not sent to sglang" in record.message for record in caplog.records) == 1
    facts = facts_of(lm)
    assert set(facts["server"]["ignored"]) == {"temperature", "repetition_penalty"}
    assert {setting["options"]["temperature"] for setting in facts["settings"]} == {0.0}


def test_an_engine_samples_where_the_user_says_so() -> None:
    with StandIn(echo, sglang()) as server:
        lm = lm_of(server, sampling=True, top_p=0.9, seed=3)
        lm.generate_until([*numbered(2, temperature=0.7), *numbered(1)])
        one, other, greedy = sorted(server.served, key=lambda sent: (-sent["temperature"], len(sent["prompt"])))
        facts = facts_of(lm)
    renoising = StandIn(echo, sglang(dllm_algorithm="Gemma4Renoise"))
    with renoising, pytest.raises(OptionError, match="Gemma4Renoise samples by a schedule of its own"):
        lm_of(renoising, sampling="true")
    assert (one["temperature"], one["top_p"], greedy["temperature"]) == (0.7, 0.9, 0.0)
    assert one["seed"] != other["seed"]
    assert facts["server"]["ignored"] == {}
    assert {(each["options"]["temperature"], each["options"]["seed"]) for each in facts["settings"]} == {
        (0.7, 3),
        (0.0, 3),
    }


@pytest.mark.parametrize(("arguments", "sentence"), refused("mdlm-server"))
def test_wrong_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with StandIn(echo, sglang()) as server, pytest.raises(OptionError) as error:
        lm_of(server, **arguments)
    assert sentence in str(error.value)
    assert "tok7" not in str(error.value)


@pytest.mark.parametrize("package", ["aiohttp", "tenacity"])
def test_a_missing_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    for module in ("lm_eval.models.api_models", "lm_eval.models.openai_completions", "mdlm_lm_eval.server"):
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(OptionError, match=r"pip install 'mdlm-lm-eval\[server\]'"):
        importlib.import_module("mdlm_lm_eval.server")


def test_an_address_without_a_server_is_one_sentence() -> None:
    with StandIn(echo) as server:
        address = server.address
    for pasted in ("", "/", "/v1", "/v1/completions", "/v1/chat/completions"):
        with pytest.raises(OptionError, match=f"base_url={address}: no server answers .*refused.*; start one"):
            MDLMServer(address + pasted)


def test_what_a_server_cannot_be_asked_for_is_refused() -> None:
    with StandIn(echo, sglang()) as server:
        lm = lm_of(server)
        for gen_kwargs, sentence in [
            ({"infill": True}, "infill=true"),
            ({"confidence_threshold": 0.5}, "confidence_threshold=0.5"),
            ({"max_gen_toks": 4096}, "leaves no room"),
        ]:
            with pytest.raises(OptionError, match=sentence):
                lm.generate_until([generation("text", **gen_kwargs)])
        lm.generate_until([generation("text", max_gen_toks=2, confidence_threshold=0.95)])  # as the server has it
        with pytest.raises(OptionError, match="answers generation tasks"):
            lm.loglikelihood([choice("text", " a")])
        with pytest.raises(OptionError, match="answers generation tasks"):
            lm.loglikelihood_rolling([])
        assert len(server.served) == 1
    with StandIn(echo, DIALECTS["lmdeploy"]) as server:
        lm = lm_of(server)
        with pytest.raises(OptionError, match=r"a prompt holds <\|mask\|>, which lmdeploy would read as a mask"):
            lm.generate_until([generation("a <|mask|> b")])
    with StandIn(echo, sglang(dllm_algorithm=None)) as server, pytest.raises(OptionError, match="autoregressively"):
        lm_of(server)


def test_vllm_reads_canvases() -> None:
    def read(payload: Mapping[str, Any]) -> dict[str, Any]:
        (token,) = payload["logprob_token_ids"]  # the likeliest of all lies between the two that are asked for
        row = {f"token_id:{token}": -0.5 - token / 10**6, "token_id:0": -0.5 - (first + 0.5) / 10**6}
        return {"choices": [{"index": 0, "text": "", "logprobs": {"top_logprobs": [row]}}]}

    with StandIn(read, DIALECTS["vllm"]) as server:
        lm = lm_of(server)
        tokens = [lm.tok_encode(text, add_special_tokens=False)[-1] for text in "AB"]
        first = min(tokens)
        found = lm.loglikelihood([choice("Answer:[", "A"), choice("Answer:[", "B")])
        assert found == [(-0.5 - token / 10**6, token == min(tokens)) for token in tokens]
        one, other = (payload["vllm_xargs"] for payload in server.served)
        assert one == other
        assert len(one["diffusion_seed_canvas"]) == 256
        assert (one["diffusion_max_steps"], one["diffusion_read_only"]) == (1, True)
        assert not {"seed", "temperature"} & server.served[0].keys()
        with pytest.raises(OptionError, match="scores one token"):
            lm.loglikelihood([choice("Answer:", " a whole sentence")])
    (setting,) = facts_of(lm)["settings"]
    assert (setting["options"]["likelihood"], setting["options"]["n_masks"]) == ("read", 256)


def test_sglang_reads_the_choices_of_a_context_after_one_denoising() -> None:
    def read(payload: Mapping[str, Any]) -> dict[str, Any]:
        rows = [[-token / 100, token, None] for token in payload["token_ids_logprob"]]
        written = [-0.1, min(payload["token_ids_logprob"]), "x"]
        return {"meta_info": {"output_token_logprobs": [written], "output_token_ids_logprobs": [rows]}, "text": "x"}

    with StandIn(read, sglang(dllm_algorithm="Gemma4Renoise")) as server:
        lm = lm_of(server, settings={"block_length": 64})
        asked = [choice("One:[", "A"), choice("Another:[", "A", doc=1), choice("One:[", "B")]
        found = lm.loglikelihood(asked)
        a, b = (lm.tok_encode(text, add_special_tokens=False)[-1] for text in "AB")
        assert found == [(-a / 100, a < b), (-a / 100, True), (-b / 100, b < a)]
        one, other = sorted(server.served, key=lambda sent: -len(sent["token_ids_logprob"]))
        assert (one["token_ids_logprob"], other["token_ids_logprob"]) == (sorted((a, b)), [a])
        assert one == {
            "input_ids": lm.tok_encode("One:["),
            "token_ids_logprob": sorted((a, b)),
            "sampling_params": {"max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": -1,
        }
        facts = facts_of(lm)
        server.answer = lambda payload: {"meta_info": {"finish_reason": {"type": "abort", "message": "full"}}}
        with pytest.raises(NoAnswerError, match=r"document 0 of choice.*finish_reason.*abort"):
            lm_of(server, max_retries=1).loglikelihood(asked[:1])
    (setting,) = facts["settings"]
    assert [setting["options"][name] for name in ("likelihood", "n_masks", "seed")] == ["last_step", 64, UNKNOWN]
    assert facts["tasks"]["choice"]["requests"] == 3


# Failures


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm_eval.models.api_models.wait_exponential", lambda **_: lambda _: 0.01)


@pytest.mark.usefixtures("_no_waiting")
def test_retries_lose_and_double_nothing() -> None:
    with StandIn(echo, faults=[400, 429, 500, DROP] * 2, delay=0.05) as server:
        lm = lm_of(server, num_concurrent=4, max_retries=9)
        answers = lm.generate_until(numbered(12))
        by_length = sorted(server.served, key=lambda payload: len(payload["prompt"]))
        assert answers == [echo(payload)["choices"][0]["text"].split(".")[0] for payload in by_length]
        facts = facts_of(lm)
    assert len(set(answers)) == len(server.served) == facts["tasks"]["task"]["requests"] == 12
    assert facts["tasks"]["task"]["cost"]["answer_tokens"] == 48
    assert facts["server"]["concurrency"] == 4
    assert facts["server"]["tokens_per_second"] == pytest.approx(4 * facts["server"]["requests_per_second"])
    assert "forward_passes" not in facts["tasks"]["task"]["cost"]


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize(("body", "why"), data("cases.json")["no answers of a server"])
def test_what_is_no_answer_is_an_error_that_names_the_request(body: Any, why: str, tmp_path: Path) -> None:
    requests, path = numbered(3), str(tmp_path / "cache.db")
    with StandIn(echo) as server:
        last = lm_of(server).tok_encode(requests[2].args[0])
        server.answer = lambda payload: body if payload["prompt"] == last else echo(payload)
        with pytest.raises(NoAnswerError, match=f"did not answer document 2 of task .*one one .*{why}"):
            CachingLM(lm_of(server, max_retries=2), path).generate_until(requests)
        assert [payload["prompt"] for payload in server.served].count(last) == 2  # it was asked again
        server.answer, n_served = echo, len(server.served)
        lm = lm_of(server)
        assert len(set(CachingLM(lm, path).generate_until(requests))) == 3
        assert len(server.served) == n_served + 1
        assert facts_of(lm)["tasks"]["task"]["requests"] == 3
        server.answer = lambda payload: completion("", 1)
        assert lm_of(server).generate_until(requests[:1]) == [""]  # it ended at once


def test_what_a_server_leaves_out_is_recorded(checkpoint: Path) -> None:
    short = completion("half", 4, "length") | {"usage": {"prompt_tokens": 8, "completion_tokens": 4}}
    with StandIn(lambda _: short) as server:
        lm = lm_of(server)
        lm.generate_until(numbered(3))  # prompts of 6, 10 and 14 tokens, answers of 8
        task = facts_of(lm)["tasks"]["task"]
        assert [task[name] for name in ("truncated_prompts", "truncated_tokens", "short_answers")] == [2, 8, 3]
        thinking = {"message": {"content": None, "reasoning_content": "It is 4"}, "finish_reason": "stop"}
        server.answer = lambda _: {"choices": [thinking], "usage": {"completion_tokens": 4}}
        lm = lm_of(server, chat=True, pretrained=str(checkpoint))
        assert lm.generate_until(chats(*numbered(1))) == [""]
        assert facts_of(lm)["tasks"]["task"]["endings"]["unfinished_thinking"] == 1


@pytest.mark.usefixtures("_no_waiting")
def test_a_killed_server_is_asked_only_for_what_is_missing(tmp_path: Path) -> None:
    path, sampled = str(tmp_path / "cache.db"), numbered(2, temperature=1.0)
    requests = [*numbered(6), *sampled, *sampled]  # two repetitions
    answered: list[Mapping[str, Any]] = []

    def drawn(payload: Mapping[str, Any]) -> dict[str, Any]:
        return completion(f"answer {len(payload['prompt'])} {payload['seed']}", tokens=4)

    def until_killed(payload: Mapping[str, Any]) -> dict[str, Any]:
        if len(answered) == 5:
            raise ConnectionError
        answered.append(payload)
        return drawn(payload)

    with StandIn(until_killed) as server, pytest.raises(OptionError, match=r"the server is gone .* --use_cache"):
        CachingLM(lm_of(server, seed=1), path).generate_until(requests)
    with StandIn(drawn) as server:
        lm = lm_of(server, seed=1)
        answers = CachingLM(lm, path).generate_until(requests)
        assert len(server.served) == len(requests) - 5
        again = lm_of(server, seed=1)
        assert CachingLM(again, path).generate_until(requests) == answers
        assert len(server.served) == len(requests) - 5
    assert [answer.split()[1] for answer in answers] == [str(len(lm.tok_encode(one.args[0]))) for one in requests]
    assert len(set(answers)) == len(requests)  # repetitions draw numbers of their own
    for facts in (facts_of(lm), facts_of(again)):
        task = facts["tasks"]["task"]
        assert (task["requests"], task["cost"]["answer_tokens"]) == (10, 40)
    changes = "threshold was 'unknown' and is 0.95; .*server dtype was not set .*think_end_token was None and is '!'"
    with StandIn(echo, sglang()) as server, pytest.raises(OptionError, match=changes):
        CachingLM(lm_of(server, seed=1, think_end_token="!"), path)


# A real decoder behind the server


@pytest.fixture(scope="module")
def decoder() -> Callable[..., Answer]:
    denoiser, tokenizer = load_denoiser(MODEL, device="cpu"), load_tokenizer(MODEL)
    return lambda **options: decoding(denoiser, tokenizer, DecodingOptions(**options))


def test_the_audit_tells_the_settings_of_a_server_from_others(decoder: Callable[..., Answer]) -> None:
    requests = [generation(f"Q{n}: the opposite of hot is", doc=n, max_gen_toks=16, until=[]) for n in range(4)]
    requests += [generation("small", task="another", doc=0, max_gen_toks=16, until=[])]
    expected = MDLM(MODEL, device="cpu", **STATED).generate_until(requests)
    audits = {}
    for threshold in (0.9, 0.05):
        with StandIn(decoder(confidence_threshold=threshold)) as server:
            lm = lm_of(server, settings=STATED, audit=4, num_concurrent=4, device="cpu")
            answers = lm.generate_until(requests)
            facts = facts_of(lm)
        assert (answers == expected) is (threshold == 0.9)
        assert facts["server"]["reference"]["decoding"]["confidence_threshold"] == 0.9
        audits[threshold] = facts["tasks"]["task"]["audit"]
        assert facts["tasks"]["another"]["audit"]["requests"] == 1
    right, wrong = audits[0.9], audits[0.05]
    assert (right["requests"], right["same_strings"], right["first_differing_token"]) == (4, 4, None)
    assert lm.reference is not None
    for text in ("a <|mask|> b", "words", lm.tokenizer.decode([lm.mask_token_id])):
        assert lm.tok_encode(text) == lm.reference.tok_encode(text)
        assert lm.mask_token_id not in lm.tok_encode(text)
    assert right["exact_cost"]["forward_passes"] > 3
    assert wrong["same_strings"] < 4
    assert [one["doc_id"] for one in wrong["exact_answers"]] == [one["doc_id"] for one in right["exact_answers"]]
    by_doc = {one["doc_id"]: one["exact"] for one in wrong["exact_answers"] if "exact" in one}
    assert all(expected[doc] == exact for doc, exact in by_doc.items())


def test_the_reference_reaches_what_an_engine_reaches() -> None:
    """LMDeploy writes a token whose confidence equals the threshold, SGLang and block diffusion here do not."""
    for pages, below in ((DIALECTS["lmdeploy"], True), (models("openai"), False)):
        with StandIn(echo, pages) as server:
            lm = lm_of(server, settings={"confidence_threshold": 0.5}, audit=1, device="cpu")
        assert lm.reference is not None
        found = lm.reference.settings.decoding.confidence_threshold
        assert (0.4999999 < found < 0.5) is below


# Chats


def chats(*instances: Instance) -> list[Instance]:
    """As lm-eval asks with --apply_chat_template."""
    for one in instances:
        messages = [{"role": "user", "content": one.args[0]}]
        one.arguments = (MDLMServer.apply_chat_template(SimpleNamespace(chat=True), messages), one.args[1])  # type: ignore[arg-type]
    return [*instances]


@pytest.mark.parametrize(
    ("engine", "sent"),
    [
        ("openai", {"max_tokens": 8, "temperature": 0.0, "stop": ["."]}),
        ("dlmserve", {"max_tokens": 8, "temperature": 0.0, "num_denoising_steps": 4}),
        ("ollada", {"options": {"gen_length": 8, "temperature": 0.0, "steps": 4}}),
    ],
)
def test_a_chat_is_the_servers_to_template(
    engine: str, sent: dict[str, Any], checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(payload: Mapping[str, Any]) -> dict[str, Any]:
        return chat("It is 4. Or 5", 7, 3)

    with StandIn(answer) as server:
        lm = lm_of(server, engine=engine, chat=True, settings={"steps": 4}, pretrained=str(checkpoint), audit=0)
        assert lm.generate_until(chats(generation("2 + 2?", max_gen_toks=8, until=["."]))) == ["It is 4"]
        (payload,) = server.served
        facts = facts_of(lm)["server"]
    seed = {key: value for key, value in payload.items() if key == "seed"}
    messages = [{"role": "user", "content": "2 + 2?"}]
    assert payload == {"model": "served", "stream": False, "messages": messages} | sent | seed
    here = len(lm.tok_encode(lm.rendered(messages)))
    assert facts["prompt_tokens"] == {"said": 7, "here": here}
    assert f"The server counts 7 prompt tokens, and the chat template of {checkpoint} makes {here}" in caplog.text


def test_what_is_no_chat_is_refused(checkpoint: Path) -> None:
    with StandIn(lambda _: chat("4", 7, 1) | {"id": "chatcmpl-ollada-1"}) as server:
        lm = lm_of(server, chat=True, pretrained=str(checkpoint))
        with pytest.raises(OptionError, match="chat=true needs --apply_chat_template"):
            lm.generate_until([generation("2 + 2?")])
        with pytest.raises(OptionError, match="few-shot suite"):
            lm.generate_until(chats(generation("2 + 2?", task="mdlm_verb_smallest")))
        with pytest.raises(OptionError, match="gen_prefix"):
            lm.apply_chat_template([{"role": "assistant", "content": "It is"}], add_generation_prompt=False)
        with pytest.raises(OptionError, match="no room for a prompt of"):
            lm.generate_until(chats(generation("one " * 3000)))
        with pytest.raises(OptionError, match="set engine=ollada"):
            lm.generate_until(chats(generation("2 + 2?", max_gen_toks=8)))


def test_chats_are_audited_by_the_tokenizers_template(checkpoint: Path) -> None:
    denoiser, tokenizer = load_denoiser(str(checkpoint)), load_tokenizer(str(checkpoint))
    stated = {"n_masks": 8, "block_length": 8}
    with StandIn(decoding(denoiser, tokenizer, DecodingOptions(**stated))) as server:
        lm = lm_of(server, chat=True, pretrained=str(checkpoint), settings=stated, audit=2, device="cpu")
        lm.generate_until(chats(*numbered(2)))
        facts = facts_of(lm)
    assert facts["tasks"]["task"]["audit"]["same_strings"] == 2


# The report


@dataclass
class Examined:
    """A random model that a confidence of equals `threshold`, and the in-process model that all reports share."""

    folder: Path
    threshold: float
    reference: MDLM

    def report(self, fault: str, *, chat: bool = False) -> dict[str, Any]:
        settings = {"block_length": 8, "confidence_threshold": self.threshold}
        options = DecodingOptions(**settings)
        with StandIn(decoding(self.reference.denoiser, self.reference.tokenizer, options, fault)) as server:
            lm = lm_of(server, pretrained=str(self.folder), settings=settings, chat=chat)
            lm.reference = self.reference
            return conformance(lm)


@pytest.fixture(scope="module")
def examined(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examined]:
    folder = tmp_path_factory.mktemp("examined") / "model"
    shutil.copytree(checkpoint, folder)
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "'"  # which it writes in one of the answers
    tokenizer.save_pretrained(folder)
    lm = MDLM(str(folder), device="cpu", block_length=8)

    def text(threshold: np.float32) -> str:
        (found,) = lm.generate_until([generation(PROMPTS[0], max_gen_toks=32, confidence_threshold=float(threshold))])
        return str(found)

    low, high = np.float32(0.05), np.float32(0.1)
    assert text(low) != text(high)
    while np.nextafter(low, high) < high:
        middle = (low + high) / 2
        low, high = (low, middle) if text(middle) != text(low) else (middle, high)
    threshold = float(low)  # masks are filled where a confidence equals it
    reference = MDLM(str(folder), device="cpu", block_length=8, confidence_threshold=threshold)
    with pytest.MonkeyPatch.context() as patched:  # all reports ask for the same texts
        patched.setattr(reference, "generate_until", once(reference.generate_until, lambda one, **_: one[0].args))
        patched.setattr(serve, "decode", once(serve.decode, lambda _, *prompt_and_how, **more: (prompt_and_how, more)))
        yield Examined(folder, threshold, reference)


def once(function: Callable[..., Any], key_of: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers what a function returns."""
    known: dict[str, Any] = {}

    def remembered(*arguments: Any, **named: Any) -> Any:
        key = repr(key_of(*arguments, **named))
        if key not in known:
            known[key] = function(*arguments, **named)
        return known[key]

    return remembered


def test_the_report_passes_a_right_server(examined: Examined) -> None:
    points = examined.report("")["points"]
    assert {point["result"] for name, point in points.items() if name != "settings"} == {"pass"}
    assert "1.5 against 0; equal seeds give the same text" in points["temperature"]["why"]


NAMED = {fault: {*points} for fault, points in data("cases.json")["faults of a server"].items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_report_names_what_a_server_does_wrong(fault: str, examined: Examined) -> None:
    points = examined.report(fault)["points"]
    assert {name for name, point in points.items() if point["result"] == "fail"} == NAMED[fault]
    for name in NAMED[fault]:
        wrong = points[name]["wrong"]
        assert wrong["text"] != wrong["expected"]
        assert wrong["request"]["max_tokens"] == 32


@pytest.mark.parametrize("fault", ["", "threshold", "stop", "template_twice"])
def test_the_report_on_a_server_of_chats(fault: str, examined: Examined) -> None:
    points = examined.report(fault, chat=True)["points"]
    assert {name for name, point in points.items() if point["result"] == "fail"} == NAMED.get(fault, set())
    assert "prompt tokens" in points["template"]["why"]


def test_the_report_is_a_command(examined: Examined, tmp_path: Path) -> None:
    settings = {"block_length": 8, "confidence_threshold": 0.05}
    arguments = {"pretrained": str(examined.folder), "device": "cpu", "temperature": 1, "settings": settings}
    lm = examined.reference
    with StandIn(decoding(lm.denoiser, lm.tokenizer, DecodingOptions(**settings), "stop")) as server:
        words = ["--model_args", json.dumps(arguments | {"base_url": server.address})]
        words += ["--output_path", str(tmp_path / "report.json")]
        done = run("mdlm_lm_eval.serving.conformance", *words, code=1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert "| stop strings | fail |" in done.stdout
    assert '"stop": [' in done.stdout.split("stop strings: ")[-1]
    assert [name for name, point in report["points"].items() if point["result"] == "fail"] == ["stop strings"]
    assert report["server"]["stated"] == settings
    assert "base_url is not set" in run("mdlm_lm_eval.serving.conformance", code=2).stderr


@pytest.mark.usefixtures("without_tasks_of_lm_eval")
def test_the_suite_end_to_end(decoder: Callable[..., Answer], tmp_path: Path) -> None:
    tasks = ("mdlm_animal_smallest", "mdlm_verb_largest")
    with StandIn(decoder(**STATED)) as server:
        arguments = {
            "base_url": server.address,
            "pretrained": MODEL,
            "settings": STATED,
            "audit": 1,
            "engine_version": "1",
        }
        words = shlex.split(f"--model mdlm-server --tasks {','.join(tasks)} --limit 2 --log_samples --device cpu")
        words += ["--metadata", '{"fewshot_relevant": 2, "fewshot_distractors": 1}', "--include_path"]
        words += [str(tasks_path() / "context"), "--output_path", str(tmp_path)]
        words += ["--model_args", json.dumps(arguments | {"num_concurrent": 8})]
        run("lm_eval", *words)
    (path,) = (tmp_path / MODEL).glob("results_*.json")
    file = read_result_file(path)
    assert file.tasks.keys() == {*tasks}
    assert {task.version for task in file.tasks.values()} == {current_version()}
    (setting,) = file.mdlm["settings"]
    assert (setting["options"]["confidence_threshold"], len(setting["tasks"])) == (0.9, 2)
    assert (file.mdlm["server"]["reference"]["dtype"], file.mdlm["pretrained"]) == ("float32", MODEL)
    assert file.mdlm["server"]["version"] == "1"
    _, _, *lines = audit(path, None).splitlines()
    assert len(lines) == 2
    assert all("| 1 of 1 |" in line and "| +0.0 |" in line for line in lines)
