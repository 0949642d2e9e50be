"""Where scores come from: what the results file says of a model and its settings, and what tells two of them apart."""

import hashlib
from dataclasses import asdict
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval import __version__, families
from mdlm_lm_eval.devices import device_name
from mdlm_lm_eval.diffusion_hflm import DiffusionHFLM
from mdlm_lm_eval.results.names import adapter_name, model_name
from mdlm_lm_eval.results.record import merged
from mdlm_lm_eval.results.suite import suite_info

_VALUES_PER_PARAMETER = 16


def provenance(lm: DiffusionHFLM, batch_size: int | None) -> dict[str, Any]:
    """Everything that a score depends on: model, options as set, effective numbers of each task, suite, machine."""
    tasks = merged(lm.records)
    pretrained = lm.pretrained if isinstance(lm.pretrained, str) else lm.model.name_or_path
    return {
        **_settings(lm),
        "package_version": __version__,
        "family": families.family_of(lm.config).name,
        "pretrained": model_name(pretrained),
        "weights": families.files_digest(pretrained, lm.subfolder) if pretrained else None,
        "revision": lm.revision,
        "adapter": lm.peft and adapter_name(lm.peft),
        "adapter_weights": lm.peft and families.files_digest(lm.peft),
        "device": str(lm.device),
        "device_name": device_name(lm.device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "attn_implementation": lm.model.config._attn_implementation,
        "peak_memory_of": "GPUs" if lm.device.type == "cuda" else "process",
        "processes": lm.world_size,
        "preset": lm.preset,
        "compile": lm.compiled,
        "explicit_options": sorted(lm.explicit),
        "family_options": sorted(lm.from_family),
        "batch_size": batch_size,
        "forward_passes": sum(record.forward_passes for record in lm.records),
        "tasks": tasks,
        "task_suite": suite_info(tasks),
    }


def fingerprint(lm: DiffusionHFLM) -> dict[str, Any]:
    """What an answer to a request depends on, under flat names."""
    settings = _settings(lm)
    return {
        **{f"decoding {name}": value for name, value in settings.pop("decoding").items()},
        **{f"likelihood {name}": value for name, value in settings.pop("likelihood").items()},
        **settings,
        "package_version": __version__,
        "weights": weights_digest(lm.model),
        "vocabulary": vocabulary_digest(lm.tokenizer),
    }


def _settings(lm: DiffusionHFLM) -> dict[str, Any]:
    return {
        "decoding": asdict(lm.decoding),
        "likelihood": asdict(lm.likelihood),
        "mask_token_id": lm.mask_token_id,
        "shift_logits": lm.denoiser.shift,
        "max_length": lm.max_length,
        "think_end_token": lm.think_end_token,
        "mixed_precision_dtype": str(lm.mixed_precision_dtype),
        "add_bos_token": lm.add_bos_token,
        "cache_audit": lm.cache_audit,
        "prefix_token_id": lm.custom_prefix_token_id,
    }


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of every token and its id."""
    return hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of every parameter's name, shape, type and first values: cheap, and different after any training."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not local.is_meta:  # weights offloaded to disk
            first = local.detach().flatten()[:_VALUES_PER_PARAMETER].float().cpu()
            digest.update(first.numpy().tobytes())
    return digest.hexdigest()
