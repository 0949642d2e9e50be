"""Measures a checkpoint on this machine: how it is read, equal strings, noise floor."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from lm_eval import simple_evaluate

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.arguments import config_of, settings_of, tokenizer_of
from mdlm_lm_eval.declared import as_record
from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.loader import load_plugins
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.text import Ending, prompt_ids
from mdlm_lm_eval.models import model_path
from mdlm_lm_eval.options import DecodingOptions, OptionError, dtype_name
from mdlm_lm_eval.plugin import task_manager
from mdlm_lm_eval.provenance import provenance
from mdlm_lm_eval.record import first_difference
from mdlm_lm_eval.resolve import ResolvedRequest, Settings
from mdlm_lm_eval.results.statistics import wilson

LENGTHS, RATIOS = (16, 64, 256), (0.25, 0.5, 1.0)  # of canvases of random tokens, and of their masks
BATCH_SIZES = (1, 2, 8)
STOP = (".",)  # a stop string that occurs in some of the answers, so that their rows leave the batch early
# Options that the authors' side is told, and arguments that it loads our network with.
_TOLD = "temperature cfg_scale top_p top_k confidence_threshold parallel_factor unmasking suppress_eos eos_last".split()  # noqa: SIM905
_OF_LOADING = ("revision", "subfolder", "diffusion_family", "mask_token_id", "shift_logits", "attn_implementation")


@dataclass(frozen=True)
class Subject:
    """A checkpoint before its weights are read: the options, prompts and canvases that `lm_eval` would use."""

    arguments: dict[str, Any]
    config: Any
    settings: Settings
    request: ResolvedRequest
    tokenizer: Any
    mask_token_id: int

    @classmethod
    def of(cls, model: str, model_args: Mapping[str, Any], gen_toks: int) -> "Subject":
        """Reads config and tokenizer. Answers have `gen_toks` tokens unless the model arguments set their length."""
        arguments = {**model_args, "pretrained": model}
        load_plugins(arguments.get("plugins"))
        config = config_of(model, arguments)
        settings = settings_of(config, arguments)
        tokenizer = tokenizer_of(model, config, arguments)
        is_open = settings.decoding.max_gen_toks is None and settings.decoding.n_masks == "auto"
        request = settings.request({"max_gen_toks": gen_toks} if is_open else {})
        mask_token_id = checkpoints.resolve_mask_token_id(config, tokenizer, settings.model.mask_token_id)
        return cls(arguments, config, settings, request, tokenizer, mask_token_id)

    @property
    def whole(self) -> list[list[int]]:
        """Canvases of random tokens with random masks, of several lengths and shares, on which networks are compared.

        For block diffusion models they are at most one block long, because attention between blocks depends on
        attention masks that each author's code builds differently.
        """
        longest = self.request.attention.block_length or self.context
        generator = torch.Generator().manual_seed(0)
        canvases = []
        for length in sorted({min(length, longest) for length in LENGTHS}):
            for ratio in RATIOS:
                ids = torch.randint(len(self.tokenizer), (length,), generator=generator)
                masked = torch.rand(length, generator=generator).argsort() < round(ratio * length)
                canvases.append(ids.masked_fill(masked, self.mask_token_id).tolist())
        return canvases

    @property
    def context(self) -> int:
        """Number of tokens that fit on a canvas."""
        return checkpoints.context_length(self.config, self.tokenizer)

    def prompts(self, texts: Sequence[str], with_template: bool) -> list[list[int]]:
        """Token ids of each text, as the user's message of a chat if there is a template and `with_template` is set."""
        if with_template and self.tokenizer.chat_template is not None:
            chats = [[{"role": "user", "content": text}] for text in texts]
            texts = self.tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        special = not with_template
        return [prompt_ids(self.tokenizer, text, self.mask_token_id, add_special_tokens=special) for text in texts]

    def canvas(self, prompt: list[int]) -> Canvas:
        """The canvas of a prompt."""
        canvas, _ = build_canvas(
            prompt,
            self.request,
            mask_token_id=self.mask_token_id,
            max_length=self.context,
            filler_ids=checkpoints.ids_after_answers(self.tokenizer, self.config),
        )
        return canvas

    def called_with(
        self, arguments: Mapping[str, Any], prompts: Sequence[list[int]]
    ) -> tuple[list[Canvas], DecodingOptions] | None:
        """Canvases and options under these arguments of a sampler; None if one of them is no option of ours."""
        own = replace(self.settings, explicit=frozenset())  # the arguments replace what the user set
        told = {"max_gen_toks": self.request.options.max_gen_toks}
        if not self.request.attention.is_block_causal:  # these follow from the length unless they are typed
            told |= {name: self.as_job()["options"][name] for name in {"steps", "block_length"} - self.request.typed}
        try:
            called = replace(self, request=own.request({**told, **arguments}))
            return [called.canvas(prompt) for prompt in prompts], called.request.options
        except OptionError:
            return None

    def as_job(self) -> dict[str, Any]:
        """The facts that the authors' side needs."""
        options, attention = self.request.options, self.request.attention
        canvas = self.canvas([0] * (attention.block_length or 1))
        block = attention.block_length or max(canvas.block_lengths)
        told = {name: getattr(options, name) for name in _TOLD} | {
            "n_masks": canvas.n_returned,
            "steps": canvas.steps,
            "block_length": block,
            "steps_per_block": options.steps_per_block or block,
        }
        dtype = self.arguments.get("dtype") or self.config.dtype or "float32"
        return {
            "checkpoint": model_path(self.arguments["pretrained"]),
            "dtype": dtype_name(str(dtype)),
            "device": devices.usable_device(self.arguments.get("device")),
            "options": told,
            "mask_token_id": self.mask_token_id,
            "loading": {name: self.arguments[name] for name in _OF_LOADING if name in self.arguments},
        }


def recognised(lm: MDLM, subject: Subject) -> dict[str, Any]:
    """How the checkpoint was recognised, and which options are set by the user or by the family."""
    settings, config = subject.settings, subject.config.to_dict()
    options = as_record(subject.request.options)
    from_config = "config" if config.get("mask_token_id") is not None else "tokenizer"
    facts = provenance(lm, lm.record_of_all)
    names = ("family", "mask_token_id", "dtype", "attn_implementation", "shift_logits")
    return {name: facts[name] for name in names} | {
        "mask_token_from": "model_args" if settings.model.mask_token_id is not None else from_config,
        "mask_token": lm.tokenizer.convert_ids_to_tokens(lm.mask_token_id),
        "eos_ids": sorted(lm.eos_ids),
        "end_of_turn_ids": sorted(lm.end_of_turn_ids),
        "chat_template": subject.tokenizer.chat_template is not None,
        "context_length": lm.max_length,
        "device": facts["device_name"],
        "block_length": subject.request.attention.block_length,
        "set": {name: options[name] for name in sorted(settings.explicit) if name in options},
        "from_family": {name: options[name] for name in sorted(settings.from_family) if name in options},
    }


def equal_strings(lm: MDLM, canvases: Sequence[Canvas], request: ResolvedRequest) -> dict[str, Any]:
    """Counts answers that stay the same strings under each change that should have no effect on them.

    They are compared with the answers of the largest batch. If decoding uses an exact cache, it is also switched off.
    """
    ends = lm.eos_ids | lm.end_of_turn_ids
    ending = Ending(lm.tokenizer, ends, STOP, None)

    def strings(batch_size: int, **changes: Any) -> list[str]:
        completions = decode_canvases(
            lm.denoiser,
            canvases,
            replace(request.options, **changes),
            eos_ids=lm.eos_ids,
            end_of_turn_ids=lm.end_of_turn_ids,
            is_decided=ending.is_decided,
            batch_size=batch_size,
        )
        return [ending.of(completion.token_ids)[0] for completion in completions]

    largest = BATCH_SIZES[-1]
    first = strings(largest)
    others = {"two runs": strings(largest)}
    others |= {f"batch_size={size}": strings(size) for size in BATCH_SIZES[:-1]}
    others["early_exit=false"] = strings(largest, early_exit=False)
    if request.cache.remembers and not request.options.is_approximate:
        others["cache=none"] = strings(largest, cache="none")
    same = {name: sum(a == b for a, b in zip(first, found, strict=True)) for name, found in others.items()}
    return {"answers": len(first), "cache": request.cache_name, "same_strings": same}


def noise_floor(subject: Subject, loaded: list[MDLM], given: Namespace) -> dict[str, Any]:
    """Measures how many answers flip, and how far scores move, under a change that should have no effect.

    `loaded` holds the only model in memory. It is removed from the list, to make room for the second one. `given` has
    the command's flags `noise` (the change), `task`, `requests`, `include_path` and `apply_chat_template`.
    """
    change = given.noise or {"dtype": "float32" if loaded[0].model.dtype.itemsize < 4 else "bfloat16"}
    if given.requests < 1:
        return {"left_out": "--requests 0"}
    if reason := _why_too_large(loaded[0], change):
        return {"left_out": reason}
    results, dtypes = [], []
    manager = task_manager([given.task], given.include_path)
    for changes in ({}, change):
        lm = loaded.pop() if loaded else MDLM(**{**subject.arguments, **changes})
        dtypes.append(str(lm.model.dtype).removeprefix("torch."))
        results.append(
            simple_evaluate(
                lm,
                tasks=[given.task],
                limit=given.requests,
                log_samples=True,
                bootstrap_iters=0,
                task_manager=manager,
                apply_chat_template=given.apply_chat_template,
            )
        )
        del lm
        clear_device_cache(garbage_collection=True)
    return {"task": given.task, "change": dict(change), "dtypes": dtypes} | _moves(results[0], results[1], subject)


def _why_too_large(lm: MDLM, change: Mapping[str, Any]) -> str:
    """Why the weights of the second run do not fit into the GPU; "" if they do."""
    wanted = getattr(torch, dtype_name(str(change.get("dtype", lm.model.dtype))))
    needed = sum(each.numel() for each in lm.model.parameters()) * wanted.itemsize
    if lm.device.type != "cuda" or needed <= torch.cuda.mem_get_info()[1]:
        return ""
    return f"{needed / 2**30:.0f} GiB of weights do not fit; --noise batch_size=1 needs no more"


def _moves(first: Mapping[str, Any], second: Mapping[str, Any], subject: Subject) -> dict[str, Any]:
    """Returns the answers that differ between lm-eval's results of two runs, and how far scores move."""
    pairs = [
        (_answer(one), _answer(other))
        for name in sorted(first["samples"])
        for one, other in zip(first["samples"][name], second["samples"][name], strict=True)
    ]
    differ = [(one, other) for one, other in pairs if one != other]
    ids = [[subject.tokenizer(each)["input_ids"] for each in pair] for pair in differ if isinstance(pair[0], str)]
    tokens = [first_difference(*pair) for pair in ids]
    share = len(differ) / len(pairs)
    scores = {
        f"{name} {metric}": [value, second["results"][name][metric]]
        for name, metrics in first["results"].items()
        for metric, value in metrics.items()
        if "," in metric and "_stderr" not in metric and isinstance(value, float)
    }
    return {
        "answers": len(pairs),
        "flipped": len(differ),
        "share": share,
        "interval": [*wilson(share, len(pairs))],
        "first_differing_token": {"smallest": min(tokens), "median": median(tokens)} if tokens else None,
        "scores": scores,
        "unknown_share": max(one["unknown_share"] for one in first["config"]["mdlm"]["tasks"].values()),
        "largest_move": max((abs(one - other) for one, other in scores.values()), default=0.0),
    }


def _answer(sample: Mapping[str, Any]) -> Any:
    """The answer of a sample: a text, or the number of the likeliest choice."""
    scores = [each[0] if isinstance(each, (tuple, list)) else each for each in sample["filtered_resps"]]
    return scores[0] if isinstance(scores[0], str) else scores.index(max(scores))
