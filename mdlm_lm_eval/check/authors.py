"""The authors' side of a check, run as a script: their network and their sampler, in any environment that has torch.

    python authors.py JOB

JOB is a folder. `job.json` says what to do, `report.json` what was done or, under `error`, why not in one sentence;
`tensors.safetensors` holds `logits.K` [T, V] of each canvas K of the job, and of each prompt N and pass P
`N.P.columns`, `N.P.ids` [W], and of the outputs there `N.P.top`, `N.P.values` [W, K] and `N.P.lse` [W]; `N.final` is
what the function returned. Nothing of this package is imported but where the network is ours, as the environment may
be another one.
"""

import importlib.metadata
import inspect
import json
import operator
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor

_TOP = 8  # outputs of a position that are kept
# What authors call our options. A function has few of these; one with `**kwargs` is told those of `_OF_KWARGS`.
NAMES = {
    **dict.fromkeys(("gen_length", "max_new_tokens"), "n_masks"),
    **dict.fromkeys(("mask_id", "mask_token_id"), "mask_id"),
    **dict.fromkeys(("threshold", "confidence_threshold"), "confidence_threshold"),
    **dict.fromkeys(("remasking", "alg", "remasking_strategy"), "unmasking"),
    **{name: name for name in ("steps", "block_length", "temperature", "cfg_scale", "top_p", "top_k")},
    "denoising_steps": "steps_per_block",
    "factor": "parallel_factor",
    "logits_eos_inf": "suppress_eos",
    "confidence_eos_eot_inf": "eos_last",
}
_OF_KWARGS = ("max_new_tokens", "steps", "temperature", "top_p", "top_k", "alg", "threshold", "mask_token_id")
# Their words for rules of unmasking, by the name of the argument; with a threshold, after the comma.
_RULES = {
    "remasking": {"confidence": "low_confidence", "random": "random"},
    "alg": {"confidence": "maskgit_plus,confidence_threshold", "margin": "topk_margin", "entropy": "entropy"},
    "remasking_strategy": {
        "confidence": "low_confidence_static,low_confidence_dynamic",
        "left_to_right": "sequential",
    },
}


class Refused(Exception):
    """What cannot be done, in one sentence."""


def loaded(place: str, flag: str) -> Any:
    """The object `FILE.py:NAME`; its file may import its neighbours, with and without a dot."""
    file, _, name = place.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file() or path.suffix != ".py":
        raise Refused(f"{flag} {place}: there is no such file; it must be FILE.py:NAME")
    package = ModuleType(f"authors_{path.parent.name}")
    package.__path__ = [str(path.parent)]
    sys.modules[package.__name__] = package
    sys.path.insert(0, str(path.parent))
    module = import_module(f"{package.__name__}.{path.stem}")
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        raise Refused(f"{flag} {place}: {path.name} has no {name}") from None


def network_of(job: dict[str, Any]) -> Any:
    """The authors' network with the checkpoint's weights, by its class or as the checkpoint brings it, else ours."""
    how = {"torch_dtype": getattr(torch, job["dtype"])}
    if place := job["modeling"]:
        kind, flag = loaded(place, "--modeling"), f"--modeling {place}"
        if not hasattr(kind, "config_class"):
            raise Refused(f"{flag}: is no class of a transformers model")
        of_class = getattr(kind.config_class, "model_type", "")
        of_file = kind.config_class.get_config_dict(job["checkpoint"])[0].get("model_type")
        if of_class and of_class != of_file:
            raise Refused(f"{flag}: is for model_type={of_class}, and the checkpoint's is {of_file}")
        network = kind.from_pretrained(job["checkpoint"], **how)
    elif job["trust_remote_code"]:
        from transformers import AutoModel

        network = AutoModel.from_pretrained(job["checkpoint"], trust_remote_code=True, **how)
    else:
        from mdlm_lm_eval.checkpoints import load_denoiser

        network = Ours(load_denoiser(job["checkpoint"], dtype=job["dtype"], **job["loading"]).model)
    return network.to(job["device"]).eval()


class Ours(torch.nn.Module):
    """Our network as authors' samplers call theirs: masks by row, and a cache that some passes only read."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network, self.config, self.device = network, network.config, network.device

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        store_kv: bool = True,
        **_: Any,
    ) -> Any:
        """As transformers' models, and without a store where `store_kv` is false."""
        if attention_mask is not None and attention_mask.ndim == 3:
            attention_mask = attention_mask[:, None].bool()
        before = past_key_values.get_seq_length() if past_key_values is not None else 0
        output = self.network(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=past_key_values is not None,
        )
        if past_key_values is not None and not store_kv and before:
            past_key_values.crop(-input_ids.shape[1])
        elif past_key_values is not None and not store_kv:
            past_key_values.layers.clear()
        return output


class Passes:
    """Keeps input and outputs of each pass of a network."""

    def __init__(self, cfg_scale: float) -> None:
        self.cfg_scale = cfg_scale
        self.length = 0
        self.found: list[dict[str, Tensor]] = []

    def keep(self, _: Any, words: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        """A forward hook. A window without positions is the end of the canvas."""
        ids: Tensor = words[0] if words else named["input_ids"]
        width = ids.shape[1]
        self.length = max(self.length, width)
        columns = torch.arange(self.length - width, self.length)
        if (replaced := named.get("replace_position")) is not None:
            columns = replaced[0].nonzero().squeeze(1)
        elif (positions := named.get("position_ids")) is not None:
            columns = positions.reshape(-1, width)[0]
        logits = output.logits.float()
        if self.cfg_scale > 0.0 and len(ids) == 2:
            logits = logits[1:] + (self.cfg_scale + 1.0) * (logits[:1] - logits[1:])
        values, top = logits[0].topk(min(_TOP, logits.shape[-1]))
        lse = logits[0].logsumexp(-1)
        found = {"columns": columns, "ids": ids[0], "top": top, "values": values, "lse": lse}
        self.found.append({name: each.cpu().clone() for name, each in found.items()})


def arguments_of(function: Callable[..., Any], job: dict[str, Any]) -> dict[str, Any]:
    """What the function is given beside network and prompt: our options under its names, then the user's own."""
    parameters = inspect.signature(function).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    names = {name for name in NAMES if name in parameters} | ({*_OF_KWARGS} if takes_any else set())
    place = f"--against {job['against']}"
    lengths = [name for name in names if NAMES[name] == "n_masks"]
    if len(parameters) < 3 or not lengths:
        raise Refused(
            f"{place}: takes ({', '.join(parameters)}), not (model, prompt, ..., gen_length or max_new_tokens, ...) as "
            "the samplers of LLaDA, Dream, Fast-dLLM and SDAR do"
        )
    options, given = job["options"], {}
    for name in names:
        value = options[NAMES[name]]
        if NAMES[name] == "unmasking":
            words = _RULES[name].get(value, value).split(",")
            value = words[-1] if options["confidence_threshold"] is not None else words[0]
        # Dream's function takes top_k=50 from transformers' defaults where it is not given.
        if value is not None or (takes_any and name in ("top_p", "top_k")):
            given[name] = value
    if options["temperature"] == 0.0 and "denoising_steps" in parameters:
        given["temperature"] = 1.0  # it divides by it, and draws, which is replaced below
    job["told"] = {**given}
    given |= job["given"]
    known = {*parameters, *(given if takes_any else ())}
    for name in given.keys() - known:
        raise Refused(f"--reference_args {name}={given[name]}: {job['against']} takes no such argument")
    missing = [
        name
        for name, each in [*parameters.items()][2:]
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and name not in given
    ]
    if missing:
        raise Refused(f"{place}: needs {missing[0]}; give --reference_args {missing[0]}=VALUE")
    return given


def likeliest(probabilities: Tensor, num_samples: int, **_: Any) -> Tensor:
    """In place of `torch.multinomial`, at temperature 0."""
    return probabilities.topk(num_samples).indices


def decode(network: Any, job: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Runs the function on each prompt, and keeps what its network saw and gave."""
    function = loaded(job["against"], "--against")
    given = arguments_of(function, job)
    parameters = inspect.signature(function).parameters
    seconds, numbers = [], []
    for n, prompt in enumerate(job["prompts"]):
        ids = torch.tensor([prompt], device=job["device"])
        more = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in parameters else {}
        passes = Passes(job["options"]["cfg_scale"])
        hook = network.register_forward_hook(passes.keep, with_kwargs=True)
        began = time.perf_counter()
        draws = likeliest if job["options"]["temperature"] == 0.0 else torch.multinomial
        with torch.no_grad(), mock.patch("torch.multinomial", draws):
            result = function(network, {"input_ids": ids} if "denoising_steps" in parameters else ids, **more, **given)
        seconds.append(time.perf_counter() - began)
        hook.remove()
        result = getattr(result, "sequences", result)
        final = (result[0] if isinstance(result, tuple) else result)[0].cpu()
        if final[: len(prompt)].tolist() != prompt:
            final = torch.cat([ids[0].cpu(), final])
        tensors[f"{n}.final"] = final
        numbers.append(len(passes.found))
        for p, one in enumerate(passes.found):
            tensors |= {f"{n}.{p}.{name}": each for name, each in one.items()}
    return {"told": job["told"], "arguments": given, "seconds": seconds, "passes": numbers}


def logits_of(network: Any, canvas: list[int], device: str) -> Tensor:
    """Its outputs [T, V] on a whole canvas; some networks need a mask."""
    ids = torch.tensor([canvas], device=device)
    with torch.no_grad():
        try:
            output = network(ids)
        except TypeError:
            output = network(ids, attention_mask=torch.ones(1, len(canvas), len(canvas), device=device))
    found: Tensor = output.logits[0].float().cpu()
    return found


def main(folder: Path) -> None:
    """Does a job and reports it."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    tensors: dict[str, Tensor] = {}
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    report: dict[str, Any] = {"python": sys.version.split()[0], **versions}
    try:
        network = network_of(job)
        for k, canvas in enumerate(job["canvases"]):
            tensors[f"logits.{k}"] = logits_of(network, canvas, job["device"])
        if job["against"]:
            report |= decode(network, job, tensors)
    except Refused as error:
        report["error"] = str(error)
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "tensors.safetensors")
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose names are not the authors'
    main(Path(sys.argv[1]))
