"""What a score depends on: model, options, effective numbers of each task, machine. Results hold it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lm_eval.utils import hash_string
from peft import PeftModel

from mdlm_lm_eval import __version__
from mdlm_lm_eval.arguments import source_of
from mdlm_lm_eval.declared import as_record, silent_names
from mdlm_lm_eval.loaded import LoadedModel
from mdlm_lm_eval.loader import foreign_files
from mdlm_lm_eval.model.devices import device_name
from mdlm_lm_eval.models import MODEL_FOLDERS
from mdlm_lm_eval.options import RANKINGS, shown
from mdlm_lm_eval.presets import mismatches
from mdlm_lm_eval.record import RunRecord, digest_of_file, digest_of_settings, facts_of_run, weights_digest
from mdlm_lm_eval.resolve import SAMPLING_NAMES
from mdlm_lm_eval.results.files import read_json
from mdlm_lm_eval.results.names import adapter_name, adapter_recipe, other_base
from mdlm_lm_eval.results.text import audit_in_words, cost_in_words, kept_in_words, settings_in_words

_IN_EFFECT = ("n_masks", "steps", "block_length", "cache")  # options whose effect `settings_in_words` names
# Attributes of the model, and model options, that results record.
_RECORDED = "mask_token_id max_length think_end_token add_bos_token revision adapter_weights".split()  # noqa: SIM905
_RECORDED_OPTIONS = "cache_audit preset compile fused share_prefix modeling ignore_weights".split()  # noqa: SIM905
# Model arguments that other facts name, or that change no score.
_RECORDED_ELSEWHERE = frozenset({"batch_size", "max_batch_size", "device"})
# The recorded facts that an answer depends on.
_OF_ANSWERS = (
    "mask_token_id shift_logits max_length think_end_token mixed_precision_dtype add_bos_token cache_audit "  # noqa: SIM905
    "prefix_token_id package_version plugins dtype".split()
)


def provenance(lm: LoadedModel, run: RunRecord) -> dict[str, Any]:
    """Returns what a score depends on: model, options, effective numbers of each task, machine."""
    settings, model, device = lm.settings, lm.model, lm.device
    foreign = foreign_files({"sampler": settings.decoding.guest, "modeling": settings.model.modeling})
    of_run, preset = facts_of_run(run, as_record), settings.model.preset
    return of_run | {
        "decoding": as_record(settings.decoding),
        "likelihood": as_record(settings.likelihood),
        **{name: getattr(lm, name) for name in _RECORDED},
        **{name: getattr(settings.model, name) for name in _RECORDED_OPTIONS},
        "weights": weights_digest(model) if lm.is_object else lm.weights,  # it may be trained between two evaluations
        "arguments": _arguments_of(lm),
        "chat_template_sha": lm.used_template and hash_string(lm.used_template),
        "cuda_graphs": lm.denoiser.graphs is not None,
        "shift_logits": lm.denoiser.shift,
        "rows_alone": lm.denoiser.rows_alone,
        "block_length_from": _block_length_from(lm),
        "config_digest": digest_of_settings(model.config.to_dict()),
        "vocabulary_digest": lm.vocabulary_digest,
        "mixed_precision_dtype": str(lm.mixed_precision_dtype),
        "prefix_token_id": lm.custom_prefix_token_id,
        "plugins": [*of_run["plugins"], *foreign],
        "family": lm.family.name,
        "quantised_by": _quantised_by(lm),
        "pretrained": lm.name,
        "adapter": lm.peft and adapter_name(lm.peft),
        "adapter_recipe": lm.peft and adapter_recipe(lm.peft),
        "adapter_base": lm.peft and other_base(model.active_peft_config.base_model_name_or_path, lm.name),
        "device": str(device),
        "device_name": device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "dtype": str(model.dtype).removeprefix("torch."),
        "attn_implementation": model.config._attn_implementation,
        "peak_memory_of": "GPUs" if device.type == "cuda" else "process",
        "processes": lm.world_size,
        "check": _check_of(lm),
        "preset_mismatches": mismatches(preset, lm.family.name, of_run["tasks"]) if preset else [],
        "explicit_options": sorted(settings.explicit),
        "family_options": sorted(settings.from_family),
        "batch_size": lm.batches.size,
        "forward_passes": run.forward_passes,
        "kept_answers": run.kept,
    }


def _arguments_of(lm: LoadedModel) -> dict[str, Any]:
    """Returns the model arguments under our names, however the run was started; objects by their names."""
    own = {name: value for name, value in lm.settings.arguments.items() if name not in _RECORDED_ELSEWHERE}
    own["pretrained"] = lm.name if lm.name in MODEL_FOLDERS else lm.pretrained or lm.name
    objects = {name: value for name, value in own.items() if not isinstance(value, (str, int, float, list, dict))}
    return own | {
        name: getattr(value, "name_or_path", str(value)) or type(value).__name__ for name, value in objects.items()
    }


def _quantised_by(lm: LoadedModel) -> str | None:
    """Returns the method by which the weights are quantised; a device without kernels for it has them dequantised."""
    now = lm.model.config.to_dict().get("quantization_config")
    method = (now or lm.quantisation or {}).get("quant_method")
    name = method and str(getattr(method, "value", method))
    return f"{name} (dequantised)" if name and not now else name


def _block_length_from(lm: LoadedModel) -> str | None:
    """Returns the source of a block-diffusion model's block length; None for other models."""
    if lm.denoiser.attention.block_length is None:
        return None
    is_typed = "block_length" in lm.settings.explicit
    return "model_args" if is_typed else lm.model.config.to_dict().get("block_length_from", "config.json")


def _code(lm: LoadedModel) -> dict[str, Any]:
    """Returns what identifies a checkpoint's own code, which neither weights nor config show."""
    return {"files": lm.weights} if source_of(lm.settings.loading)["trust_remote_code"] else {}


def checked(lm: LoadedModel) -> dict[str, Any]:
    """Returns the facts that must be the same in a check and in a run for the check to apply to the run."""
    options = as_record(lm.settings.decoding).items()
    return {
        "weights": weights_digest(lm.model),
        **_code(lm),
        "config": digest_of_settings(lm.model.config.to_dict()),
        "vocabulary": lm.vocabulary_digest,
        "package_version": __version__,
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        # A task or lm-eval's --seed sets these two.
        "options": {name: value for name, value in options if name not in ("seed", "max_gen_toks")},
    }


def fingerprint(lm: LoadedModel, run: RunRecord) -> dict[str, Any]:
    """Returns everything that an answer to a request depends on, in a flat dictionary."""
    facts, silent, model = provenance(lm, run), silent_names(), lm.model
    has_own_method = lm.family.generate is not None or lm.settings.decoding.guest is not None
    generation = getattr(model, "generation_config", None) if has_own_method else None
    is_adapted = isinstance(model, PeftModel)
    return {
        **{f"decoding {name}": value for name, value in facts["decoding"].items() if name not in silent},
        **{f"likelihood {name}": value for name, value in facts["likelihood"].items()},
        **{name: facts[name] for name in _OF_ANSWERS},
        # A task's sampling options count only if the user did not set them.
        "set sampling options": sorted(lm.settings.explicit.intersection(SAMPLING_NAMES)),
        "weights": weights_digest(model),
        **_code(lm),
        "config": facts["config_digest"],
        "adapter": digest_of_settings(model.active_peft_config.to_dict()) if is_adapted else None,
        "token frequencies": digest_of_file(lm.settings.decoding.token_frequencies),
        "generation config": generation and digest_of_settings(generation.to_dict()),
        "attention": lm.denoiser.attention,
        "eos_ids": sorted(lm.eos_ids),
        "end_of_turn_ids": sorted(lm.end_of_turn_ids),
        "vocabulary": facts["vocabulary_digest"],
    }


def check_file(facts: Mapping[str, Any]) -> Path:
    """Returns the path of the file in which `mdlm-check` keeps its findings for these facts."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "mdlm_lm_eval" / "checks" / f"{digest_of_settings(facts)[:24]}.json"


def _check_of(lm: LoadedModel) -> dict[str, Any] | None:
    """Returns file, verdict and noise floor of the check that the user names or that applies; None if there is none.

    `stale` names the facts (`checked`) that have changed since the check.
    """
    named = lm.settings.model.check
    if named is None and not check_file({}).parent.is_dir():
        return None
    applies_to = checked(lm)
    path = Path(named) if named else check_file(applies_to)
    if not path.is_file():
        return None
    content = read_json(path)
    stale = [name for name, value in applies_to.items() if content.get("applies_to", {}).get(name) != value]
    noise = content.get("noise_floor") or {}
    kept = {name: noise[name] for name in ("task", "change", "share", "interval", "largest_move") if name in noise}
    return {"file": path.name, "verdict": content.get("verdict"), "stale": stale, "noise_floor": kept or None}


def in_words(facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns the lines about settings, speed, request cache and audit of a run with this `provenance`."""
    tasks = facts["tasks"].values()
    words = settings_in_words(tasks, bool(facts["chat_template_sha"]))
    estimators = {one["options"].get("likelihood") for one in facts["settings"]}
    words += [f"likelihood={one} (ranks answers, no likelihood)" for one in RANKINGS if one in estimators]
    said = {*_IN_EFFECT, *(["likelihood"] if estimators & {*RANKINGS} else [])}
    asked = [one["options"].items() for one in facts["settings"] if one["request_type"] == "generate_until"]
    by_requests = {name for one in asked for name, value in one if value != facts["decoding"].get(name)}
    for name in sorted({*facts["explicit_options"], *(by_requests - {"max_gen_toks"})} - said):
        values = {shown(one["options"][name]) for one in facts["settings"] if name in one["options"]}
        words += [f"{name}={value}" for value in sorted(values)]
    named = {"an adapter of ": "adapter_base", "ignore_weights=": "ignore_weights", "quantised by ": "quantised_by"}
    words += [f"{what}{facts[name]}" for what, name in named.items() if facts[name]]
    words += ["each row alone (padding changes the model's logits)"] if facts["rows_alone"] else []
    source = facts["block_length_from"]
    words += [f"block length by {source}"] if source not in (None, "model_args", "config.json") else []
    return {
        "settings": ", ".join(words),
        "speed": cost_in_words([{**task["cost"], "requests": task["requests"]} for task in tasks]),
        "cache": kept_in_words(facts["kept_answers"]),
        "audit": audit_in_words([task.get("audit", {}) for task in tasks]),
    }
