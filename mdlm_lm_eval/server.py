"""The lm-eval model `mdlm-server`: a serving engine decodes, and the result records the settings that it used.

lm-eval's own API model sends the requests (concurrency, timeouts, retries). The record separates settings that the
server reports, settings that the user states, and unknown ones. A sample of the requests can also be decoded in this
process. The module `serving` describes the engines.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from importlib.util import find_spec
from inspect import signature
from random import Random
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import requests
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.models.utils import postprocess_generated_text

from mdlm_lm_eval import checkpoints, loader, serving
from mdlm_lm_eval.arguments import config_of, tokenizer_of
from mdlm_lm_eval.checkpoints import context_length
from mdlm_lm_eval.command_line import check_output_path, say_at_the_end, show_errors_and_warnings_alone
from mdlm_lm_eval.declared import as_record, declarations, parsed, silent_names
from mdlm_lm_eval.decoding.canvas import DEFAULT_MAX_GEN_TOKS, seed_of
from mdlm_lm_eval.jobs.request_cache import RequestCache
from mdlm_lm_eval.jobs.shared import PreparedRequest, in_drawn_order, seeds_of, task_of, warn_of_unknown
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.text import count_unknown, prompt_ids, stop_ids
from mdlm_lm_eval.options import (
    DecodingOptions,
    LikelihoodOptions,
    OptionError,
    check_names,
    must_be,
    parse_flag,
    parse_whole,
    shown,
)
from mdlm_lm_eval.record import Answer, RunRecord, TaskRecord, facts_of_run
from mdlm_lm_eval.resolve import LOADING_NAMES, ResolvedRequest, resolve
from mdlm_lm_eval.results.names import model_name, other_base
from mdlm_lm_eval.results.result_file import UNKNOWN, served_in_words
from mdlm_lm_eval.results.suite import suite_task
from mdlm_lm_eval.results.text import audit_in_words

logger = logging.getLogger(__name__)
show_errors_and_warnings_alone()
if not (find_spec("aiohttp") and find_spec("tenacity")):  # without them, lm-eval's module raises a NameError
    raise OptionError(
        "mdlm-server needs lm-eval's API models: pip install 'mdlm-lm-eval[server]', or '.[server]' in a clone"
    )

from aiohttp import ClientConnectionError  # noqa: E402
from lm_eval.models.api_models import JsonChatStr  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402

# Options that have their defaults on every server.
_ALIKE = ("mask_ratio", "filler", "n_fillers", "escape_until", "unfinished_thinking", "early_exit")
_SECRETS = ("token", "auth_token", "header", "api_key")
_OTHER_PROMPT = "The server counts %d prompt tokens, and %s of %s makes %d: prompts differ, or the server cuts them"
_SHORT = "The server ended an answer of %d tokens for its length, and %d were asked for: its own limit is lower"
# What a server says of itself that changes no answer.
_OF_SPEED = ("tp_size", "dp_size", "max_running_requests")


@dataclass(kw_only=True)
class ServerJob(PreparedRequest):
    """One request to the server.

    until: stop strings, at which the answer is cut.
    target: the token whose log p a likelihood request asks for; None for generation.
    answer: what lm-eval gets; None until it has arrived.
    """

    payload: dict[str, Any]
    until: tuple[str, ...] = ()
    target: int | None = None
    answer: Any = None


# The jobs that the response to the current asyncio task answers.
_JOBS: ContextVar[Sequence[ServerJob]] = ContextVar("jobs")


class MDLMServer(LocalCompletionsAPI):
    """Generation by a server's `/v1/completions` or `/v1/chat/completions`, registered as `mdlm-server`.

    base_url: the server's address.
    engine: one of `ENGINES`; auto asks the server.
    engine_version: needed if the engine does not report it. (lm-eval uses the argument `version` for a task's.)
    model: the name of the model on the server; by default `pretrained`, or the only one that the server lists.
    pretrained: the checkpoint, on the hub or in a folder; by default `model`. Its tokenizer makes the token ids.
    settings: decoding options that the server was started with and does not report, as a dictionary or JSON. Engines
        that read them from requests get them so.
    chat: true sends chats to `/v1/chat/completions`, and the server applies its own template.
    sampling: true states that the engine samples with a request's temperature, top_p, top_k and seed, although its
        documented versions do not.
    plugins: as for `--model mdlm`.
    audit: how many requests of each task are also decoded in this process, with HFLM's arguments (dtype, device).

    `REQUEST_OPTIONS` may be given, too. The server's key is read from the environment variable OPENAI_API_KEY. Raises
    OptionError for other arguments, for settings that contradict those of the server, and for requests that a server
    cannot answer.
    """

    def __init__(
        self,
        base_url: str = "",
        engine: str = "auto",
        engine_version: str = "",
        model: str = "",
        pretrained: str = "",
        tokenizer: str = "",
        settings: str | Mapping[str, Any] = "{}",
        chat: bool | str = False,
        sampling: bool | str = False,
        audit: int | str = 0,
        num_concurrent: int | str = 1,
        timeout: int | str = 300,
        max_retries: int | str = 3,
        verify_certificate: bool = True,
        plugins: str = "",
        **arguments: Any,
    ) -> None:
        known = signature(MDLMServer).parameters
        typed = {name: value for name, value in locals().items() if name in known and value != known[name].default}
        self.arguments = {name: value for name, value in typed.items() if name != "arguments"} | arguments
        loader.load_plugins(plugins)
        _check_arguments(base_url, arguments)
        self.address = base_url.rstrip("/").removesuffix("/completions").removesuffix("/chat").removesuffix("/v1")
        super().__init__(
            base_url=f"{self.address}/v1/completions",
            tokenizer_backend="None",
            num_concurrent=parse_whole("num_concurrent", num_concurrent, least=1),
            timeout=timeout,
            max_retries=max_retries,
            verify_certificate=verify_certificate,
        )
        listed = self._chosen(model, pretrained)
        owner = str(listed.get("owned_by"))
        self.engine = engine if engine != "auto" else owner if owner in serving.ENGINES else "openai"
        if self.engine not in serving.ENGINES:
            raise OptionError(f"engine must be one of auto, {', '.join(serving.ENGINES)}, not {shown(engine)}")
        self.facts, self.said = self._said()
        self._renoises = self.facts.get("dllm_algorithm") == serving.RENOISING
        self.dialect = serving.dialect(self.engine, self.facts, parse_flag("sampling", sampling))
        self.chat = parse_flag("chat", chat) or self.dialect.chats
        self.path = "/v1/chat/completions" if self.chat else "/v1/completions"  # of generation requests
        self.prompt_tokens: dict[str, int] = {}
        self.version = engine_version or str(self.facts.pop("version", UNKNOWN))
        given = {name: arguments.pop(name) for name in serving.REQUEST_OPTIONS if name in arguments}
        self._take(_settings_of(settings), given)
        self.pretrained = pretrained or self.model
        self._load(tokenizer or self.pretrained, arguments, listed.get("max_model_len"))
        self.audit = parse_whole("audit", audit)
        self.reference = self._in_process(arguments) if self.audit else None
        self.start_record()
        self._last: dict[str, str] = {}
        say_at_the_end(lambda: self._last)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
        """Returns the model as `lm_eval` builds it. lm-eval names the folder of results after `pretrained`."""
        check_output_path()
        config = {name: value for name, value in (additional_config or {}).items() if value is not None}
        found = cls(**config | arg_dict)
        arg_dict.setdefault("pretrained", found.pretrained)
        return found

    # Settings

    def _ask(self, path: str) -> dict[str, Any]:
        """Returns the server's JSON response for this path, or an empty dictionary if it has none."""
        try:
            answer = requests.get(
                self.address + path, headers=self.header, verify=self.verify_certificate, timeout=self.timeout
            )
            return dict(answer.json()) if answer.ok else {}
        except requests.ConnectionError as error:
            reason = getattr(error.args[0], "reason", error)
            raise OptionError(
                f"base_url={self.address}: no server answers ({reason}); start one, or name the address that it prints"
            ) from error

    def _chosen(self, model: str, pretrained: str) -> Mapping[str, Any]:
        """Sets `model`, and returns what the server lists of it, or of its first.

        Without an argument `model`, it is the one called `pretrained`, or the first; OptionError if none of several is.
        """
        listed = self._ask("/v1/models").get("data") or [{}]
        found = next((one for one in listed if one.get("id") == (model or pretrained)), None)
        if found is None and pretrained and not model and len(listed) > 1:
            ids = ", ".join(shown(one.get("id")) for one in listed[:8])
            raise OptionError(f"model is not set, and the server has several, none of which is {pretrained}: {ids}")
        found = found or listed[0]
        self.model = model or found.get("id") or pretrained
        if "/" in self.model and other_base(self.model, pretrained):
            logger.warning("The server has the model %s, and pretrained is %s", self.model, pretrained)
        return dict(found)

    def _said(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns facts about the server for the result, and the decoding options that it reports."""
        if self.engine == "sglang":
            return serving.of_sglang(self._ask("/server_info") or self._ask("/get_server_info"))
        if self.engine != "vllm":
            return {}, {}
        page = self._ask("/server_info?config_format=json")  # of VLLM_SERVER_DEV_MODE=1
        facts, said = serving.of_vllm(page.get("vllm_config"))
        return facts | self._ask("/version"), said

    def _take(self, stated: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Merges the settings that the server reports with those that the user states and with options of requests."""
        check_names("option in settings", stated, declarations(DecodingOptions))
        self.stated = parsed(DecodingOptions, stated)
        self.said = parsed(DecodingOptions, self.said)
        for name, value in self.stated.items():
            if self.said.get(name, value) != value:
                raise OptionError(f"settings: {name}={shown(value)}; the server says {shown(self.said[name])}")
        masks = {"n_masks": "auto"} if self.dialect.blocks else {}
        self.known = {name: getattr(DecodingOptions(), name) for name in _ALIKE} | masks | self.said | self.stated
        self.settings = resolve({**self.known, **given}, default_seed=torch.initial_seed() % 2**31)
        self.ignored: dict[str, Any] = {}

    def _take_seed(self) -> None:
        """Takes the seed of this evaluation, with which lm-eval seeds torch, perhaps after this object was made."""
        self.settings = self.settings.seeded(torch.initial_seed() % 2**31)

    def _effective(self, options: DecodingOptions | LikelihoodOptions) -> dict[str, Any]:
        """Returns the options of a request, `UNKNOWN` for those that are not known."""
        if isinstance(options, LikelihoodOptions):
            drawn = {"likelihood": "read", "noise_num": 1, "seed": options.seed}
            read = {"likelihood": "last_step"} if self._renoises else drawn
            n_masks = UNKNOWN if options.n_masks == "auto" else options.n_masks
            return dict.fromkeys(as_record(options), UNKNOWN) | {"n_masks": n_masks} | read
        carried = {name: getattr(options, name) for name in serving.REQUEST_OPTIONS}
        return {**dict.fromkeys(as_record(options), UNKNOWN), **self.known, **carried, **self.dialect.fixed}

    def _request(self, gen_kwargs: Mapping[str, Any]) -> ResolvedRequest:
        """Returns a request's options. Raises OptionError for options that requests to a server cannot contain."""
        request = self.settings.request(gen_kwargs)
        usual = {name: getattr(self.settings.decoding, name) for name in serving.REQUEST_OPTIONS}
        if request.infill or replace(request.options, **usual) != self.settings.decoding:
            asked = ", ".join(f"{name}={shown(value)}" for name, value in gen_kwargs.items() if name != "until")
            carried = ", ".join(serving.REQUEST_OPTIONS)
            raise OptionError(f"a task asks for {asked}; a server's requests carry {carried} and stop strings alone")
        ignored = {name: value for name, value in request.options.changes().items() if name in self.dialect.fixed}
        ignored.pop("seed", None)  # lm-eval always sets one
        ignored |= dict.fromkeys(request.ignored, "set by a task")
        if ignored.keys() - self.ignored.keys():
            hint = "; with sampling=true they are" if "temperature" in ignored and not self._renoises else ""
            names = ", ".join(sorted(ignored))
            logger.warning("Not sent to %s, which is not known to use them: %s%s", self.engine, names, hint)
            self.ignored |= ignored
        return request

    # Text

    def _load(self, tokenizer: str, arguments: Mapping[str, Any], served_length: int | None) -> None:
        """Loads the tokenizer and facts about the checkpoint. Raises OptionError for a causal language model."""
        config = config_of(tokenizer, arguments)
        self.tokenizer = tokenizer_of(tokenizer, config, arguments)
        self.tokenizer_backend, self.tokenized_requests = "huggingface", True
        self.add_bos_token = arguments.get("add_bos_token")
        self.family = checkpoints.family_of(config)
        generates = self.family.generate is not None  # without masks
        self.mask_token_id = None if generates else checkpoints.resolve_mask_token_id(config, self.tokenizer, None)
        self.vocab_size = config.get_text_config().vocab_size
        self.end_ids = checkpoints.eos_ids(self.tokenizer, None) | checkpoints.end_of_turn_ids(self.tokenizer)
        lengths = (served_length, arguments.get("max_length") or context_length(config, self.tokenizer))
        self.max_length = min(int(length) for length in lengths if length)
        self.think_end_token, self.peft = arguments.get("think_end_token"), arguments.get("peft")

    @property
    def tokenizer_name(self) -> str:
        """A part of the key of lm-eval's `--cache_requests`, as models may have different chat templates."""
        return str(self.pretrained).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Returns token ids as `--model mdlm` does: the mask token's string is plain text, and no token closes it."""
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        return prompt_ids(self.tokenizer, string, self.mask_token_id, add_special_tokens=special is not False)

    # Requests

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns a string for each request. Raises OptionError before the first is sent if any cannot be answered."""
        self._take_seed()
        wanted = [self._request(one.args[1]) for one in requests]
        seeds = seeds_of(requests, [request.options.seed for request in wanted])
        jobs = [self._prepare(*each) for each in zip(requests, wanted, seeds, strict=True)]
        warn_of_unknown((task_of(job.instance), job.text) for job in jobs)
        for job in jobs:
            job.answer = job.saved_sample(self.request_cache)
        left = [n for n, job in enumerate(jobs) if job.answer is None]
        if self.audit:
            self._decode_exactly([jobs[n] for n in left], [seeds[n] for n in left])
        self._send([[jobs[n]] for n in left])
        return [job.answer for job in jobs]

    def _prepare(self, instance: Instance, request: ResolvedRequest, seed: int) -> ServerJob:
        """Returns a request with its payload and the effective numbers for the results."""
        options = request.options
        stated = options.n_masks if isinstance(options.n_masks, int) else None
        n_tokens = options.max_gen_toks or stated or DEFAULT_MAX_GEN_TOKS
        kept, asked, n_lost = self._prompt(instance, n_tokens)
        numbers = {"prompt_tokens": len(kept), "returned_tokens": n_tokens}
        if stated or self.dialect.blocks:
            numbers |= {"masks": stated or n_tokens, "asked_masks": stated or n_tokens}
        differs = request.sampled or self.family.draws or instance.args[1].get("do_sample")
        return ServerJob(
            instance=instance,
            options=options,
            numbers=numbers,
            truncated=n_lost,
            text=count_unknown(self.tokenizer, kept),
            own_seed=seed if differs else None,
            payload={"model": self.model, "stream": False} | asked | self._body(request, n_tokens, seed),
            until=request.until,
        )

    def _body(self, request: ResolvedRequest, n_tokens: int, seed: int) -> dict[str, Any]:
        """Returns what a request holds beside its prompt: options by the engine's names, stop strings and tokens."""
        options, engine = request.options, self.dialect
        wanted: dict[str, Any] = {"max_tokens": n_tokens, "temperature": options.temperature, "seed": seed % 2**31}
        wanted |= {name: value for name in ("top_p", "top_k") if (value := getattr(options, name)) is not None}
        wanted |= {name: self.stated[name] for name in engine.names if name in self.stated}
        named = {engine.names.get(name, name): value for name, value in wanted.items() if name not in engine.fixed}
        body: dict[str, Any] = {engine.nested: named} if engine.nested else named
        if request.until and engine.stops and not self.think_end_token:
            body["stop"] = list(request.until)
        if engine.stop_ids and not self.chat:
            body["stop_token_ids"] = sorted(self.end_ids | stop_ids(self.tokenizer, request.until))
        return body | dict(engine.sent)

    def _prompt(self, instance: Instance, n_tokens: int) -> tuple[list[int], dict[str, Any], int]:
        """Returns a prompt's tokens and its part of a request, and how many tokens it lost to an answer of `n_tokens`.

        Raises OptionError if there is no room for it, and for a text that the engine would read as masks.
        """
        prompt, takes_text = self.text_of(instance), self.chat or not self.dialect.takes_ids
        ids, room = self.tok_encode(prompt), self.max_length - n_tokens
        if room < 1 or (self.chat and len(ids) > room):
            what = f"a prompt of {len(ids)} tokens" if self.chat else "a prompt"
            raise OptionError(f"max_gen_toks={n_tokens} leaves no room for {what} in {self.max_length} tokens")
        kept = ids[-room:]
        text = prompt if kept == ids else self.tokenizer.decode(kept)
        mask = None if self.mask_token_id is None else self.tokenizer.convert_ids_to_tokens(self.mask_token_id)
        if takes_text and mask and mask in text:
            raise OptionError(f"a prompt holds {mask}, which {self.engine} would read as a mask; it takes text alone")
        if self.chat:
            return kept, {"messages": json.loads(instance.args[0].prompt)}, 0
        return kept, {"prompt": text if takes_text else kept}, len(ids) - len(kept)

    def text_of(self, instance: Instance) -> str:
        """Returns the text of a prompt. A chat's is that of the tokenizer's template, which may not be the server's.

        Raises OptionError for prompts that cannot be chats.
        """
        prompt = instance.args[0]
        if not self.chat:
            return str(prompt)
        if suite_task(task_of(instance)):
            raise OptionError("chat=true does not work with the few-shot suite, which asks for the token after a text")
        if isinstance(prompt, str):
            raise OptionError("chat=true needs --apply_chat_template: the server takes chats")
        return self.rendered(json.loads(prompt.prompt))

    def rendered(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the text of a conversation by the tokenizer's template. Raises OptionError for one without an end."""
        with checkpoints.ending_templates(self.pretrained):
            return str(super().apply_chat_template(chat_history, add_generation_prompt))

    def payload_of(self, instance: Instance, seed: int) -> dict[str, Any]:
        """Returns the payload of a generation request. Raises OptionError as `generate_until` does."""
        return self._prepare(instance, self._request(instance.args[1]), seed).payload

    def _send(self, groups: Sequence[Sequence[ServerJob]], path: str = "") -> None:
        """Asks the server. Answers are recorded and saved when they arrive.

        Each group of jobs is one request, with the payload of its first job. Raises NoAnswerError for a request that
        has no answer after all retries.
        """
        self._arrived, self.base_url = time.monotonic(), self.address + (path or self.path)
        if not groups:
            return
        try:
            asyncio.run(self.get_batched_requests(list(groups), [None] * len(groups), generate=True))
        except ClientConnectionError as error:
            raise OptionError(f"the server is gone ({error}); with --use_cache a run goes on later") from error

    def create_message(self, messages: list[Sequence[ServerJob]], generate: bool = False) -> Any:
        """Returns the jobs of one request. Their payload is made before."""
        return messages[0]

    def _create_payload(self, messages: Any, **_: Any) -> dict[str, Any]:
        _JOBS.set(messages)
        return dict(messages[0].payload)

    def parse_generations(self, outputs: Any, **_: Any) -> list[str]:
        """Records and saves the answers to the jobs of the current request. Returns one text, which nobody reads."""
        jobs = _JOBS.get()
        try:
            serving.check_answer(outputs)
            for job in jobs:
                job.answer = self._answer_to(job, outputs)
        except serving.NoAnswerError as error:
            one = jobs[0].instance
            request = f"document {one.doc_id} of {task_of(one)} (... {shown(one.args[0][-60:])})"
            raise serving.NoAnswerError(f"the server did not answer {request}: {error}") from error
        now = time.monotonic()
        seconds, self._arrived = now - self._arrived, now
        usage = outputs.get("usage") or {}
        serving.check_engine(self.engine, outputs)
        self._compare_lengths(jobs[0], usage)
        passes = usage.get("nfe", outputs.get("nfe"))
        amounts = {"answer_tokens": usage.get("completion_tokens"), "forward_passes": passes, "seconds": seconds}
        known = {key: value for key, value in amounts.items() if value is not None}
        for job in jobs:
            kind = job.instance.request_type
            task = job.add_to(self.record, kind, known, None if job.exact is None else self._answer(job.answer))
            if "choices" in outputs:
                self._record_ending(task, job, outputs["choices"][0], usage.get("completion_tokens"))
            if self.request_cache:
                self.request_cache.save(kind, [(job.instance.args, job.answer, job.own_seed)], self.record)
            known = {}
        return [""]  # lm-eval 0.5 counts them

    def _compare_lengths(self, job: ServerJob, usage: Mapping[str, Any]) -> None:
        """Compares the server's number of prompt tokens with ours. What is missing counts as cut off.

        The first text or chat of a run only shows whether tokenizers and templates agree.
        """
        said, here = usage.get("prompt_tokens"), int(job.numbers.get("prompt_tokens", 0))
        if not said or not here:
            return
        first = not self.prompt_tokens
        known = self.prompt_tokens = self.prompt_tokens or {"said": said, "here": here}
        if first and said != here:
            logger.warning(
                _OTHER_PROMPT, said, "the chat template" if self.chat else "the tokenizer", self.pretrained, here
            )
        if isinstance(job.payload.get("prompt"), list) or known["said"] == known["here"]:
            job.truncated += max(0, here - said)

    def _record_ending(self, task: TaskRecord, job: ServerJob, choice: Mapping[str, Any], n_tokens: int | None) -> None:
        """Records an answer that is thinking alone, kept apart by the server, and one shorter than asked for."""
        message = choice.get("message") or {}
        if not serving.text_of(choice) and (message.get("reasoning_content") or message.get("reasoning")):
            task.endings["unfinished_thinking"] += 1
        asked = int(job.numbers.get("returned_tokens", 0))
        if choice.get("finish_reason") == "length" and n_tokens and n_tokens < asked:
            if not any(one.short_answers for one in self.record.tasks.values()):
                logger.warning(_SHORT, n_tokens, asked)
            task.short_answers += 1

    def _answer_to(self, job: ServerJob, outputs: Mapping[str, Any]) -> Any:
        """Returns the answer to a job as lm-eval expects it."""
        if job.target is not None:
            return serving.read_of(outputs, job.target)
        text = serving.text_of(outputs["choices"][0])
        return postprocess_generated_text(text, list(job.until), self.think_end_token)

    def _answer(self, string: str) -> Answer:
        """Returns a string as an answer that can be compared in an audit."""
        return Answer(string, self.tokenizer.encode(string, add_special_tokens=False), {})

    # Likelihood

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns log p(token | context) in nats, and whether the token is the likeliest, for DiffusionGemma.

        vLLM gives log p at the first position of a canvas after one denoising step. The canvas is `block_length` random
        tokens drawn from `seed`, the same for all requests. SGLang gives log p of the first token after the last step.
        It draws its canvas itself, differently for each request, so all choices of a context are sent as one request.
        Raises OptionError for other engines and for continuations of several tokens.
        """
        length = int(self.known.get("block_length") or 0)
        if not self._renoises and (self.engine != "vllm" or not length):
            raise OptionError(
                "mdlm-server answers generation tasks; one-token choices too where vLLM reads canvases of a known "
                f"length (settings: block_length) or SGLang runs {serving.RENOISING}, and this is {self.engine}. Use "
                "--model mdlm for likelihoods"
            )
        self._take_seed()
        draw = Random(seed_of(f"canvas {self.settings.likelihood.seed}"))
        noise = [draw.randrange(self.vocab_size) for _ in range(length)]
        jobs = [self._read(instance, noise) for instance in requests]
        warn_of_unknown((task_of(job.instance), job.text) for job in jobs)
        if not self._renoises:
            self._send([[job] for job in jobs])
            return [job.answer for job in jobs]
        groups: dict[tuple[int, ...], list[ServerJob]] = {}
        for job in jobs:
            groups.setdefault(tuple(job.payload["input_ids"]), []).append(job)
        for group in groups.values():  # the first job's payload is sent
            group[0].payload["token_ids_logprob"] = sorted({job.payload["token_ids_logprob"][0] for job in group})
        self._send([*groups.values()], "/generate")
        return [job.answer for job in jobs]

    def _read(self, instance: Instance, noise: list[int]) -> ServerJob:
        """Returns a likelihood request of one token, on the canvas `noise` if the engine takes one."""
        ids, target = self._encode_pair(*instance.args)
        if len(target) != 1:
            raise OptionError(f"a canvas read scores one token; {shown(instance.args[1])} has {len(target)}")
        length = len(noise)
        kept = ids[-(self.max_length - (length or 1)) :]
        payload = {"model": self.model} | serving.canvas_read(kept, target, noise)
        return ServerJob(
            instance=instance,
            options=replace(self.settings.likelihood, n_masks=length or "auto"),
            numbers={"continuation_tokens": 1} | ({"asked_masks": length, "masks": length} if length else {}),
            truncated=len(ids) - len(kept),
            text=count_unknown(self.tokenizer, [*kept, *target]),
            payload=serving.last_step_read(kept, target) if self._renoises else payload,
            target=target[0],
        )

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Raises OptionError, as no engine scores texts."""
        raise OptionError("mdlm-server answers generation tasks; use --model mdlm for likelihoods of texts")

    # Audit

    def _in_process(self, arguments: Mapping[str, Any]) -> MDLM:
        """Loads the checkpoint in this process with the server's settings. Unknown ones are the family's defaults."""
        if self.family.generate is not None:
            raise OptionError(f"audit does not work with the family {self.family.name}, whose answers are sampled")
        fixed = {name: value for name, value in self.dialect.fixed.items() if value not in (UNKNOWN, None)}
        options = {name: value for name, value in self.known.items() if name != "early_exit"}
        explicit = self.settings.explicit.intersection(serving.REQUEST_OPTIONS)
        given = {name: getattr(self.settings.decoding, name) for name in explicit}
        threshold = options.get("confidence_threshold")
        if threshold and self.dialect.reaches:  # "greater than the next smaller float" means "at least the threshold"
            options["confidence_threshold"] = float(np.nextafter(np.float32(threshold), np.float32(0)))
        prompts = {"tokenizer": self.tokenizer, "max_length": self.max_length}
        return MDLM(self.pretrained, **{**arguments, **prompts, **options, **given, **fixed})

    def _decode_exactly(self, jobs: Sequence[ServerJob], seeds: Sequence[int]) -> None:
        """Chooses the requests to audit in each task, and decodes them in this process."""
        assert self.reference is not None
        tasks = [task_of(job.instance) for job in jobs]
        chosen: list[int] = []
        for name, of_task in in_drawn_order(zip(tasks, seeds, strict=True), "audit").items():
            n_left = max(0, self.audit - len(self.record.tasks[name].audited))
            chosen += [n for _, n in of_task[:n_left]]
        for n in chosen:
            if (temperature := self._effective(jobs[n].options)["temperature"]) != 0:
                raise OptionError(f"audit does not work with temperature={temperature}: sampled answers differ anyway")
        instances = [copy(jobs[n].instance) for n in chosen]
        for instance in instances:
            instance.arguments = (self.text_of(instance), instance.args[1])
        strings = self.reference.generate_until(instances) if chosen else []
        for n, string in zip(chosen, strings, strict=True):
            jobs[n].exact = self._answer(string)
        for name, task in self.reference.record.tasks.items():
            self.record.tasks[name].exact_cost.merge(task.cost)
        self.reference.start_record()

    # Records

    def start_record(self) -> None:
        """Begins an empty record, without a request cache."""
        self.request_cache: RequestCache | None = None
        self.record = RunRecord()

    def get_model_info(self) -> dict[str, Any]:
        """Returns, under `mdlm`, the known settings, facts about the server, and the cost of each task."""
        run = facts_of_run(self.record, self._effective)
        tasks = run["tasks"].values()
        seconds, tokens = (sum(task["cost"].get(name, 0) for task in tasks) for name in ("seconds", "answer_tokens"))
        unknown = sorted(name for name, value in self._effective(self.settings.decoding).items() if value == UNKNOWN)
        server = {"engine": self.engine, "version": self.version, "model": model_name(self.model), "facts": self.facts}
        server |= {"said": self.said, "stated": self.stated, "unknown": unknown, "ignored": self.ignored}
        server |= {"concurrency": self._concurrent}
        if self.prompt_tokens:
            server["prompt_tokens"] = self.prompt_tokens
        if self.chat:
            server["chat_template"] = "the server's"
        if seconds:
            server["requests_per_second"] = sum(task["requests"] for task in tasks) / seconds
            server |= {"tokens_per_second": tokens / seconds} if tokens else {}
        if self.reference is not None:
            dtype = str(self.reference.model.dtype).removeprefix("torch.")
            server["reference"] = {"dtype": dtype, "decoding": as_record(self.reference.settings.decoding)}
        model = {"pretrained": model_name(self.pretrained), "adapter": self.peft and model_name(self.peft)}
        model |= {"family": self.family.name, "weights": None, "max_length": self.max_length}
        model |= {"arguments": self.arguments}
        explicit = sorted({*self.stated, *self.settings.explicit.intersection(serving.REQUEST_OPTIONS)})
        run |= {"device": f"server ({self.engine})", "batch_size": self._concurrent, "server": server}
        run |= {"explicit_options": explicit, "family_options": []}
        hint = "" if self.stated or not unknown else "; state them in settings="
        stated = "".join(f", {name}={shown(value)}" for name, value in self.stated.items())
        self._last = {
            "settings": f"served by {served_in_words(server)}{stated}, {len(unknown)} settings unknown{hint}",
            "audit": audit_in_words([task.get("audit", {}) for task in tasks], "with --model mdlm"),
        }
        self.start_record()
        return {"mdlm": model | run}

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str | JsonChatStr:
        """Returns the text of a conversation, with `chat` the conversation. Raises OptionError for a begun answer."""
        if not self.chat:
            return self.rendered(chat_history, add_generation_prompt)
        if not add_generation_prompt:
            raise OptionError("chat=true: a task begins its answers itself (gen_prefix), which a chat cannot hold")
        return JsonChatStr(json.dumps(chat_history, ensure_ascii=False))

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Takes lm-eval's request cache. Raises OptionError if another server or other settings filled it."""
        self._take_seed()
        if cache_hook.dbdict is not None:
            facts = {"engine": self.engine, "version": self.version, "model": self.model, "max_length": self.max_length}
            facts |= {
                "plugins": loader.plugins(),
                "pretrained": self.pretrained,
                "tokenizer": self.tokenizer.name_or_path,
            }
            facts |= {name: getattr(self, name) for name in ("chat", "think_end_token", "add_bos_token")}
            facts |= {f"server {name}": fact for name, fact in self.facts.items() if name not in _OF_SPEED}
            effective, silent = self._effective(self.settings.decoding), silent_names()
            options = {f"decoding {name}": value for name, value in effective.items() if name not in silent}
            self.request_cache = RequestCache(cache_hook.dbdict, facts | options)
            self.record = self.request_cache.record or self.record


def _check_arguments(base_url: str, arguments: Mapping[str, Any]) -> None:
    if not base_url:
        raise OptionError("base_url is not set; name the server's address, such as http://localhost:8000")
    try:
        address = urlsplit(base_url)
    except ValueError:
        address = urlsplit("")
    if address.scheme not in ("http", "https"):
        raise must_be("base_url", "an address such as http://localhost:8000", base_url)
    secrets = [name for name in _SECRETS if arguments.get(name) is not None]
    secrets += ["a name or password in base_url"] if "@" in address.netloc else []
    secrets += ["a query in base_url"] if "?" in base_url or "#" in base_url else []
    if secrets:
        raise OptionError(
            f"{secrets[0]} does not work with --model mdlm-server: results would show it; set OPENAI_API_KEY"
        )
    own = {*serving.REQUEST_OPTIONS, *signature(MDLMServer).parameters, "diffusion_family"} - {"arguments"}
    for name in sorted(arguments.keys() & declarations(DecodingOptions).keys() - own):
        value = shown(arguments[name])
        raise OptionError(f"{name}={value} is a setting of the server; say in settings= that it has this value")
    check_names("model argument", arguments, LOADING_NAMES | own)


def _settings_of(settings: Any) -> dict[str, Any]:
    """Parses the model argument `settings`."""
    try:
        return dict(json.loads(settings) if isinstance(settings, str) else settings)
    except (TypeError, ValueError) as error:
        example = '{"block_length": 4, "confidence_threshold": 0.9}'
        raise must_be("settings", f"decoding options such as {example}", settings) from error
