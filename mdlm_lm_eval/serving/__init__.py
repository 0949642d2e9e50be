"""Serving engines: the requests that each takes, the decoding settings that each reports, and how to read answers.

Written for SGLang 0.5.23 (likelihood requests: its main branch of 2026), vLLM 0.33, LMDeploy 0.18, dlmserve 0.1.1 and
ollada 0.3.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mdlm_lm_eval.declared import defaults_of
from mdlm_lm_eval.options import DecodingOptions, OptionError, shown
from mdlm_lm_eval.results.result_file import UNKNOWN

logger = logging.getLogger(__name__)

# Decoding options that a request contains. The server's flags set the others.
REQUEST_OPTIONS = ("max_gen_toks", "temperature", "top_p", "top_k", "seed")
# SGLang's algorithm for DiffusionGemma. It samples by its own schedule, and refuses requests with a seed.
RENOISING = "Gemma4Renoise"
# SGLang's names in --dllm-algorithm-config -> our names, and the default values of its algorithms.
_SGLANG_NAMES = {
    "threshold": "confidence_threshold",
    "block_size": "block_length",
    "edit_threshold": "editing_threshold",
    "max_post_edit_steps": "max_post_steps",
}
_SGLANG_DEFAULTS: dict[str, dict[str, float]] = {
    "LowConfidence": {"threshold": 0.95},
    "JointThreshold": {"threshold": 0.5, "edit_threshold": 0, "max_post_edit_steps": 16},
}
# The facts about a server that results record. The server's other facts contain paths, addresses and keys.
_FACTS = """
    dllm_algorithm dllm_fdfo dtype kv_cache_dtype quantization attention_backend tp_size dp_size max_running_requests
    random_seed canvas_length max_denoising_steps
"""
# Beginnings of `finish_reason` if there is no answer.
_FAILED = ("abort", "error", "cancel", "fail")


class NoAnswerError(RuntimeError):
    """A server's response to a request is not an answer."""


@dataclass(frozen=True)
class Engine:
    """How an engine differs from OpenAI's API.

    fixed: options that the engine does not read from a request, with the values in effect.
    sent: those of them that each request contains anyway, as another version of the engine may read them.
    blocks: whether the engine appends blocks until it has written the requested tokens, which is then the number of
        masks.
    takes_ids: whether prompts may be token ids; stop_ids: whether it takes `stop_token_ids`.
    reaches: whether it also writes a token whose confidence equals the threshold. Ours must exceed it.
    chats: whether it offers `/v1/chat/completions` alone; stops: whether it takes stop strings.
    names: its names of options that a request may contain; options that the user states are sent under them.
    nested: the key of a request under which it reads options.
    answer_id: the beginning of its answers' `id`, by which it is recognised; "" if nothing tells.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    sent: Mapping[str, Any] = field(default_factory=dict)
    blocks: bool = True
    takes_ids: bool = True
    stop_ids: bool = False
    reaches: bool = False
    chats: bool = False
    stops: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    nested: str = ""
    answer_id: str = ""


_GREEDY = {"temperature": 0.0, "top_p": None, "top_k": None, "seed": UNKNOWN}
ENGINES = {
    "sglang": Engine(_GREEDY, sent={"temperature": 0.0}, stop_ids=True),
    "vllm": Engine({"temperature": UNKNOWN, "seed": UNKNOWN}, stop_ids=True),
    "lmdeploy": Engine(takes_ids=False, reaches=True),
    "openai": Engine(blocks=False),
    "dlmserve": Engine(
        {"top_p": None, "top_k": None},
        chats=True,
        stops=False,
        names={"steps": "num_denoising_steps", "block_length": "block_length"},
    ),
    "ollada": Engine(
        {"seed": UNKNOWN},
        chats=True,
        stops=False,
        names={"max_tokens": "gen_length", "steps": "steps", "block_length": "block_length"},
        nested="options",
        answer_id="chatcmpl-ollada",
    ),
}


def dialect(name: str, facts: Mapping[str, Any], sampling: bool) -> Engine:
    """Returns how to send requests to an engine.

    sampling: whether the user states that it samples with a request's options. Raises OptionError if it cannot.
    """
    if facts.get("dllm_algorithm") == RENOISING:
        if sampling:
            raise OptionError(f"sampling=true: SGLang's {RENOISING} samples by a schedule of its own")
        return replace(ENGINES[name], fixed=dict.fromkeys(_GREEDY, UNKNOWN), sent={})
    return replace(ENGINES[name], fixed={}, sent={}) if sampling else ENGINES[name]


# Settings


def of_sglang(info: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns facts and decoding options of an SGLang server.

    It does not report the values in --dllm-algorithm-config if that is a file. Raises OptionError for a server that
    decodes autoregressively.
    """
    if info and info.get("dllm_algorithm") is None:
        raise OptionError("the SGLang server was started without --dllm-algorithm and decodes autoregressively")
    algorithm, config = str(info.get("dllm_algorithm")), info.get("dllm_algorithm_config")
    facts = _kept(info) | ({"version": info["version"]} if "version" in info else {})
    if algorithm not in _SGLANG_DEFAULTS:
        return facts, {}
    said = {name: value for name, value in defaults_of(DecodingOptions).items() if name not in REQUEST_OPTIONS}
    names = {theirs: _SGLANG_NAMES[theirs] for theirs in ("block_size", *_SGLANG_DEFAULTS[algorithm])}
    for ours in names.values():
        del said[ours]
    if isinstance(config, str):
        logger.warning("SGLang reads thresholds from %s, which it does not serve; say them in settings=", config)
        return facts, said
    values = _SGLANG_DEFAULTS[algorithm] | (config or {})
    return facts, said | {ours: values[theirs] for theirs, ours in names.items() if theirs in values}


def of_vllm(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns facts and decoding options of a vLLM server from its `vllm_config`."""
    diffusion = (config.get("diffusion_config") or {}) if isinstance(config, dict) else {}
    names = {"canvas_length": "block_length", "max_denoising_steps": "steps_per_block"}
    said = {ours: diffusion[theirs] for theirs, ours in names.items() if diffusion.get(theirs) is not None}
    return _kept(diffusion), said


def _kept(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: info[name] for name in _FACTS.split() if info.get(name) is not None}


# Choices of one token


def canvas_read(ids: list[int], targets: list[int], noise: list[int]) -> dict[str, Any]:
    """Returns a request to vLLM's `/v1/completions` for log p at the first position of a canvas of random tokens.

    vLLM runs one denoising step. ids: the prompt; targets: the tokens whose log p is asked for; noise: the canvas.
    """
    reads = {"diffusion_seed_canvas": noise, "diffusion_max_steps": 1, "diffusion_read_only": True}
    how = {"max_tokens": 1, "logprobs": 1, "return_tokens_as_token_ids": True}
    return {"prompt": ids, "logprob_token_ids": targets, "vllm_xargs": reads} | how


def last_step_read(ids: list[int], targets: list[int]) -> dict[str, Any]:
    """Returns a request to SGLang's `/generate` for log p of the first token after the last step of its canvas."""
    how = {"sampling_params": {"max_new_tokens": 1}, "return_logprob": True, "logprob_start_len": -1}
    return {"input_ids": ids, "token_ids_logprob": targets} | how


# Answers


def check_engine(name: str, outputs: Mapping[str, Any]) -> None:
    """Raises OptionError if an answer shows another engine, which reads requests in another way."""
    id = str(outputs.get("id"))
    for other, engine in ENGINES.items():
        if engine.answer_id and id.startswith(engine.answer_id) and other != name:
            raise OptionError(f"this is {other}, which ignores most of OpenAI's fields: set engine={other}")


def text_of(choice: Mapping[str, Any]) -> str:
    """Returns the text of a completion or of a chat's answer."""
    return choice.get("text") or (choice.get("message") or {}).get("content") or ""


def check_answer(outputs: Any) -> None:
    """Raises NoAnswerError, with the reason, for a response with status 200 that is not an answer."""
    if not isinstance(outputs, dict) or outputs.get("error") or outputs.get("object") == "error":
        raise NoAnswerError(f"it sent an error: {shown(outputs)}")
    choice = (outputs.get("choices") or [outputs.get("meta_info")])[0]
    if not choice:
        raise NoAnswerError(f"it sent no choices: {shown(outputs)}")
    reason = choice.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if str(kind).lower().startswith(_FAILED):
        raise NoAnswerError(f"finish_reason={shown(reason)}")
    tokens = (outputs.get("usage") or {}).get("completion_tokens")
    read = choice.get("logprobs") or "output_token_logprobs" in choice
    if not read and not text_of(choice) and (tokens == 0 or (tokens is None and kind is None)):
        raise NoAnswerError("it sent an empty text and no tokens")


def read_of(outputs: Mapping[str, Any], target: int) -> tuple[float, bool]:
    """Returns log p(target) in nats, and whether it is the likeliest token (vLLM) or the one it wrote (SGLang)."""
    try:
        if "choices" in outputs:
            row = outputs["choices"][0]["logprobs"]["top_logprobs"][0]
            found = row[f"token_id:{target}"]
            return found, found == max(row.values())
        of_read = outputs["meta_info"]
        of_token = {token: found for found, token, *_ in of_read["output_token_ids_logprobs"][0]}
        return of_token[target], of_read["output_token_logprobs"][0][1] == target
    except (KeyError, IndexError, TypeError) as error:
        raise NoAnswerError(f"it sent no log-probability of token {target}: {shown(outputs)}") from error
