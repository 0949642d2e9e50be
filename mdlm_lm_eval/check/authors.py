"""The authors' side of a check: runs their network and their sampler as a script, in any environment that has torch.

    python authors.py JOB

JOB is a folder with `job.json`. The script writes two files into it:

report.json: versions, and the arguments, seconds and passes of the sampler; or, under `error`, the reason why the job
    cannot be done, as one sentence.
tensors.safetensors: `logits.K` [T, V] for each canvas K of the job. For each pass P over prompt N, `N.P.columns` [W]
    and `N.P.ids` [W] are the positions and tokens that the network read, `N.P.top` [W, 8] and `N.P.values` [W, 8] the
    tokens with the highest logits and these logits, and `N.P.lse` [W] the log-sum-exp of all logits. `N.final` [T] is
    the canvas that the function returned.

Unless the network is ours, only those modules of this package are imported that do not need transformers.
"""

import importlib.metadata
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor

if __name__ == "__main__":  # makes this package importable in any environment, and nothing else that lies beside it
    sys.path.pop(0)
    _here = Path(__file__).parents[1]
    _spec = importlib.util.spec_from_file_location("mdlm_lm_eval", _here / "__init__.py")
    assert _spec is not None
    assert _spec.loader is not None
    _spec.submodule_search_locations = [str(_here)]
    sys.modules["mdlm_lm_eval"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["mdlm_lm_eval"])

from mdlm_lm_eval.decoding.guests import MASKS, WORDS, Network, Signature
from mdlm_lm_eval.loader import load_foreign
from mdlm_lm_eval.options import OptionError

_TOP = 8  # logits that are kept for each position
# SDAR's names for unmasking rules, without and with a confidence threshold.
_STRATEGIES = {"confidence": ("low_confidence_static", "low_confidence_dynamic"), "left_to_right": ("sequential",) * 2}


def network_of(job: dict[str, Any]) -> Any:
    """Returns a network with the checkpoint's weights.

    It is the class of `--modeling`, the checkpoint's own code with `--trust_remote_code`, or else our network.
    """
    how = {"torch_dtype": getattr(torch, job["dtype"])}
    if place := job["modeling"]:
        kind = load_foreign("--modeling", place).thing
        of_class = getattr(kind.config_class, "model_type", "")
        of_file = kind.config_class.get_config_dict(job["checkpoint"])[0].get("model_type")
        if of_class and of_class != of_file:
            raise OptionError(f"--modeling {place}: is for model_type={of_class}, and the checkpoint's is {of_file}")
        network = kind.from_pretrained(job["checkpoint"], **how)
    elif job["trust_remote_code"]:
        from transformers import AutoModel

        network = AutoModel.from_pretrained(job["checkpoint"], trust_remote_code=True, **how)
    else:
        from mdlm_lm_eval.checkpoints import load_denoiser

        where = {"dtype": job["dtype"], "device": job["device"]}
        return Network(load_denoiser(job["checkpoint"], **where, **job["loading"]), aligned=False)
    return network.to(job["device"]).eval()


class Passes:
    """Keeps the inputs and outputs of each forward pass of a network."""

    def __init__(self, cfg_scale: float) -> None:
        self.cfg_scale = cfg_scale
        self.length = 0
        self.found: list[dict[str, Tensor]] = []

    def keep(self, _: Any, words: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        """A forward hook. A network that is called without positions reads the last tokens of the canvas."""
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


def arguments_of(takes: Signature, job: dict[str, Any]) -> dict[str, Any]:
    """Our options under the names of the function's own arguments. Raises OptionError for an unknown signature."""
    options, place = job["options"], f"--against {job['against']}"
    length = takes.own_name("n_masks")
    if len(takes.parameters) < 3 or length is None:
        raise OptionError(
            f"{place}: takes ({', '.join(takes.parameters)}), not (model, prompt, ..., gen_length or max_new_tokens, "
            "...) as the samplers of LLaDA, Dream, Fast-dLLM and SDAR do"
        )
    owned = {takes.own_name(option): value for option, value in options.items()}
    told = {name: value for name, value in owned.items() if name is not None and value is not None}
    told |= {name: job["mask_token_id"] for name in MASKS if name in takes.names}
    told |= {name: words.get(told[name], told[name]) for name, words in WORDS.items() if name in told}
    has_threshold = options["confidence_threshold"] is not None
    if "alg" in told:  # Dream's function would take top_k=50 from transformers' defaults
        told |= {name: options[name] for name in ("top_p", "top_k")}
        told |= {"alg": "confidence_threshold"} if has_threshold else {}
    if "remasking_strategy" in takes.names:
        told["remasking_strategy"] = _STRATEGIES[options["unmasking"]][has_threshold]
        told["temperature"] = options["temperature"] or 1.0  # it divides by it, and draws, which is replaced below
    for name in job["given"].keys() - takes.names:
        raise OptionError(f"--reference_args {name}={job['given'][name]}: {job['against']} takes no such argument")
    return told


def likeliest(probabilities: Tensor, num_samples: int, **_: Any) -> Tensor:
    """Replaces `torch.multinomial` at temperature 0: returns the likeliest tokens."""
    return probabilities.topk(num_samples).indices


def decode(network: Any, job: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Runs the function on each prompt and fills `tensors`. Returns facts for the report."""
    function = load_foreign("--against", job["against"])
    takes = Signature(job["against"], function)
    told = arguments_of(takes, job)
    given = told | job["given"]
    seconds, numbers = [], []
    for n, prompt in enumerate(job["prompts"]):
        ids = torch.tensor([prompt], device=job["device"])
        mask = torch.ones_like(ids)
        more = {"attention_mask": mask} if "attention_mask" in takes.parameters else {}
        passes = Passes(job["options"]["cfg_scale"])
        hook = network.register_forward_hook(passes.keep, with_kwargs=True)
        began = time.perf_counter()
        draws = likeliest if job["options"]["temperature"] == 0.0 else torch.multinomial
        with function.at_home(), torch.no_grad(), mock.patch("torch.multinomial", draws):
            result = takes.call(network, ids, mask, more | given)
        seconds.append(time.perf_counter() - began)
        hook.remove()
        final = result[0].cpu()
        if final[: len(prompt)].tolist() != prompt:
            final = torch.cat([ids[0].cpu(), final])
        tensors[f"{n}.final"] = final
        numbers.append(len(passes.found))
        for p, one in enumerate(passes.found):
            tensors |= {f"{n}.{p}.{name}": each for name, each in one.items()}
    masks = {name: takes.parameters[name].default for name in MASKS if name in takes.parameters}
    masks = {name: id for name, id in masks.items() if isinstance(id, int) and id != job["mask_token_id"]}
    return {"told": told, "arguments": given, "seconds": seconds, "passes": numbers, "other_masks": masks}


def logits_of(network: Any, canvas: list[int], device: str) -> Tensor:
    """The network's logits [T, V] on a whole canvas. Some networks need an attention mask."""
    ids = torch.tensor([canvas], device=device)
    with torch.no_grad():
        try:
            output = network(ids)
        except TypeError:
            output = network(ids, attention_mask=torch.ones(1, len(canvas), len(canvas), device=device))
    found: Tensor = output.logits[0].float().cpu()
    return found


def main(folder: Path) -> None:
    """Does the job in `folder` and writes its two result files there."""
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
    except OptionError as error:
        report["error"] = str(error)
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "tensors.safetensors")
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
