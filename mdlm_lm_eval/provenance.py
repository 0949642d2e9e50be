"""Where scores come from: what the results file says of a model and its settings, and what tells two of them apart."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from peft import PeftModel
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval import __version__, families
from mdlm_lm_eval.diffusion_hflm import DiffusionHFLM
from mdlm_lm_eval.model.devices import device_name
from mdlm_lm_eval.requests import SAMPLING_NAMES
from mdlm_lm_eval.results.names import adapter_name, model_name
from mdlm_lm_eval.results.record import merged
from mdlm_lm_eval.results.suite import suite_info

_VALUES_PER_PARAMETER = 16
# Settings that say where a model came from, or what its weights say better.
_SILENT_SETTINGS = {"_name_or_path", "base_model_name_or_path", "transformers_version", "dtype"}


def provenance(lm: DiffusionHFLM, batch_size: int | None) -> dict[str, Any]:
    """Everything that a score depends on: model, options as set, effective numbers of each task, suite, machine."""
    tasks = merged(lm.records)
    return {
        **_settings(lm),
        "package_version": __version__,
        "family": families.family_of(lm.config).name,
        "pretrained": model_name(lm.checkpoint),
        "weights": lm.weights,
        "revision": lm.revision,
        "adapter": lm.peft and adapter_name(lm.peft),
        "adapter_weights": lm.adapter_weights,
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
        "set sampling options": sorted(lm.explicit.intersection(SAMPLING_NAMES)),  # over those of a task
        "package_version": __version__,
        "weights": weights_digest(lm.model),
        "config": settings_digest(lm.model.config.to_dict()),
        "adapter": settings_digest(lm.model.active_peft_config.to_dict()) if isinstance(lm.model, PeftModel) else None,
        "attention": lm.denoiser.attention,
        "eos_ids": sorted(lm.eos_ids),
        "end_of_turn_ids": sorted(lm.end_of_turn_ids),
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
    """Digest of the name, shape, type and first values of every weight: cheap, and different after any training.

    Weights are the parameters and the buffers that are saved with them, such as those of a GPTQ or AWQ checkpoint.
    """
    digest = hashlib.sha256()
    saved = model.state_dict(keep_vars=True).keys()
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
    for name, parameter in (*model.named_parameters(), *buffers):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not local.is_meta:  # weights offloaded to disk
            first = local.detach().flatten()[:_VALUES_PER_PARAMETER].float().cpu()
            digest.update(first.numpy().tobytes())
    return digest.hexdigest()


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Digest of the config of a model or an adapter: what its weights do not tell, such as rope and lora_alpha."""
    told = {name: value for name, value in settings.items() if name not in _SILENT_SETTINGS}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=_as_json).encode()).hexdigest()


def _as_json(value: object) -> object:
    return sorted(value) if isinstance(value, set) else str(value)
