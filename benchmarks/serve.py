"""An OpenAI-compatible server around `decode`, one request at a time, for tests of `--model mdlm-server`.

    python benchmarks/serve.py --pretrained built-in-block --port 8000 confidence_threshold=0.9

`StandIn` also speaks the engines' dialects (`DIALECTS`) and fails where it is told to.
"""

import argparse
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.checkpoints import end_of_turn_ids, eos_ids, load_denoiser, load_tokenizer
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
DROP = 0  # among faults: the connection is closed without an answer


def models(owner: str, **facts: Any) -> dict[str, Any]:
    """The page `/v1/models`."""
    return {"object": "list", "data": [{"id": "served", "object": "model", "owned_by": owner, **facts}]}


# Pages of each engine as its source has them (SGLang 0.5.23, vLLM 0.33 with VLLM_SERVER_DEV_MODE=1, LMDeploy 0.18).
DIALECTS: dict[str, dict[str, Any]] = {
    "sglang": {
        "/v1/models": models("sglang", max_model_len=2048),
        "/server_info": {
            "model_path": "/secret/LLaDA2.0-mini",
            "api_key": "secret",
            "dllm_algorithm": "LowConfidence",
            "dllm_algorithm_config": None,
            "dllm_fdfo": False,
            "dtype": "bfloat16",
            "tp_size": 1,
            "max_running_requests": 32,
            "internal_states": [{"last_gen_throughput": 0.0}],
            "version": "0.5.23",
        },
    },
    "vllm": {
        "/v1/models": models("vllm", root="served", max_model_len=1024),
        "/version": {"version": "0.33.0"},
        "/server_info?config_format=json": {
            "vllm_config": {"diffusion_config": {"canvas_length": 256, "max_denoising_steps": None}},
            "vllm_env": {},
        },
    },
    "lmdeploy": {"/v1/models": models("lmdeploy", root="served", parent=None)},
    "openai": {"/v1/models": models("mdlm-lm-eval")},
}


def completion(text: str, tokens: int | None = None, reason: str | None = "stop") -> dict[str, Any]:
    """The body of an answer."""
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": reason}], **usage}


def chat(text: str, prompt_tokens: int, tokens: int) -> dict[str, Any]:
    """The body of an answer to a chat."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    return {"object": "chat.completion", "choices": [choice], "usage": usage}


class StandIn(ThreadingHTTPServer):
    """Answers requests by `answer`, in a thread of its own within `with`.

    pages: what GET requests find. faults: HTTP statuses (or DROP) with which the first requests are answered instead.
    delay: seconds before each answer. `served` holds the payloads of those that were answered.
    """

    request_queue_size = 256
    daemon_threads = True

    def __init__(
        self,
        answer: Answer,
        pages: Mapping[str, Any] = DIALECTS["openai"],
        *,
        faults: Iterable[int] = (),
        delay: float = 0.0,
        port: int = 0,
    ) -> None:
        self.answer, self.pages, self.faults, self.delay = answer, pages, list(faults), delay
        self.served: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def address(self) -> str:
        """Its base_url."""
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "StandIn":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: StandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path)
        self._send(404 if page is None else 200, page or {"detail": "Not Found"})

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            fault = self.server.faults.pop(0) if self.server.faults else None
        if fault == DROP:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault is not None:
            self._send(fault, {"error": {"message": f"status {fault} was asked for", "code": fault}})
            return
        time.sleep(self.server.delay)
        answer = self.server.answer(payload)
        with self.server.lock:
            self.server.served.append(payload)
        self._send(200, answer)

    def _send(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


# What `decoding` does wrong where it is told to: each is a mistake that a serving engine can make.
FAULTS = (
    "threshold",
    "equality",
    "stop",
    "end",
    "template_twice",
    "template_left_out",
    "temperature",
    "prefix",
    "mask",
)
FAULTS += ("abort",)


def decoding(
    denoiser: Denoiser, tokenizer: PreTrainedTokenizerBase, options: DecodingOptions, fault: str = ""
) -> Answer:
    """Answers by our own decoder, with one of `FAULTS` or none."""
    ends = eos_ids(tokenizer, None) | end_of_turn_ids(tokenizer)
    lock, seen, count = threading.Lock(), list[list[int]](), itertools.count(1)
    threshold = options.confidence_threshold
    if threshold and fault in ("threshold", "equality"):
        # Of block diffusion: one that equals it counts, too; of other models: it does not.
        beside = float(np.nextafter(np.float32(threshold), np.float32(0 if denoiser.attention.is_block_causal else 1)))
        options = replace(options, confidence_threshold=beside if fault == "equality" else 0.1)

    def answer(payload: Mapping[str, Any]) -> dict[str, Any]:
        asked = {"temperature": payload.get("temperature", 0), "seed": payload.get("seed", 0)}
        given = _templated(payload["messages"], tokenizer) if "messages" in payload else payload["prompt"]
        prompt = tokenizer.encode(given) if isinstance(given, str) else given
        prompt = _misread(prompt, tokenizer, fault, seen)
        asked |= {"temperature": 0} if fault == "temperature" else {}
        stop_ids = () if fault == "end" else ends
        with lock:
            how = {"max_gen_toks": payload["max_tokens"], "stop_ids": stop_ids}
            (ids,) = decode(denoiser, [prompt], replace(options, **asked), **how)
        text = tokenizer.decode(ids[:-1] if ids and ids[-1] in stop_ids else ids, skip_special_tokens=True)
        for stop in (payload.get("stop") or ()) if fault != "stop" else ():
            text = text.split(stop)[0]
        if fault == "abort" and next(count) % 5 == 0:
            return completion(text[: len(text) // 2], len(ids) // 2, "abort")
        return chat(text, len(prompt), len(ids)) if "messages" in payload else completion(text, len(ids))

    return answer


def _misread(
    prompt: list[int], tokenizer: PreTrainedTokenizerBase, fault: str, seen: list[list[int]], page: int = 16
) -> list[int]:
    """The prompt that is decoded."""
    if fault == "prefix":  # keys of an earlier prompt are taken for a page that begins as this one does, and goes on
        for other in seen:
            n = next((n for n, pair in enumerate(zip(prompt, other, strict=False)) if pair[0] != pair[1]), 0)
            if n >= page:
                return [*other[: n + page], *prompt[n + page :]]
        seen.append(prompt)
    if fault == "mask":
        return list(tokenizer.encode(tokenizer.decode(prompt)))
    if fault.startswith("template"):
        text, (before, after) = tokenizer.decode(prompt), _templated(_user("\0"), tokenizer).split("\0")
        if fault == "template_twice":
            return list(tokenizer.encode(_templated(_user(text), tokenizer)))
        if text.startswith(before) and text.endswith(after):
            return list(tokenizer.encode(text.removeprefix(before).removesuffix(after)))
    return prompt


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _templated(messages: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", default="built-in-block")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--engine", default="openai", choices=DIALECTS, help="whose pages about itself to show")
    parser.add_argument("--fault", default="", choices=FAULTS, help="a mistake to make")
    parser.add_argument("options", nargs="*", metavar="name=value", help="decoding options")
    given = parser.parse_args()
    options = DecodingOptions(**dict(word.split("=", 1) for word in given.options))
    denoiser, tokenizer = load_denoiser(given.pretrained, device=given.device), load_tokenizer(given.pretrained)
    server = StandIn(decoding(denoiser, tokenizer, options, given.fault), DIALECTS[given.engine], port=given.port)
    print(f"serving {given.pretrained} on {server.address}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
