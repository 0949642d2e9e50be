"""Which checkpoint a result file measured."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from mdlm_leaderboard.decoding import DECODING_DEFAULTS, LIKELIHOOD_DEFAULTS
from mdlm_leaderboard.rows import AUTOREGRESSIVE
from mdlm_lm_eval.options import silent_names
from mdlm_lm_eval.results.names import BUILT_IN, is_public, recorded_name
from mdlm_lm_eval.results.privacy import published_text
from mdlm_lm_eval.results.result_file import ResultFile

MDLM = "mdlm"
# Model arguments that change no score, or that other columns show.
_SILENT_ARGUMENTS = frozenset(
    {
        *DECODING_DEFAULTS,
        *LIKELIHOOD_DEFAULTS,
        *silent_names(),
        "backend",
        "base_url",
        "batch_size",
        "cache_audit",
        "cache_dir",
        "data_parallel_size",
        "device",
        "device_map",
        "device_map_option",
        "dtype",
        "engine",
        "force_download",
        "gpu_memory_utilization",
        "local_files_only",
        "low_cpu_mem_usage",
        "max_batch_size",
        "max_cpu_memory",
        "max_memory",
        "max_memory_per_gpu",
        "model",
        "num_concurrent",
        "offload_folder",
        "parallelize",
        "path",
        "peft",
        "preset",
        "pretrained",
        "revision",
        "tensor_parallel_size",
        "tokenizer_backend",
        "trust_remote_code",
        "use_fast_tokenizer",
        "use_safetensors",
    }
)


@dataclass(frozen=True)
class Checkpoint:
    """The model behind a score. `loading` is text such as `bfloat16`.

    `identity`, of model and adapter, tells apart folders of one name: digests of their weights, or of the paths that
    old files have; "" where the names alone do.
    """

    model: str
    adapter: str | None
    family: str
    loading: str
    states_masks: bool
    identity: tuple[str, str]

    def __str__(self) -> str:
        return repr(self.model) + (f" with {self.adapter!r}" if self.adapter else "")


@cache
def autoregressive_kinds() -> frozenset[str]:
    """lm-eval's own models; other names may be diffusion models whose mask count nobody knows."""
    from lm_eval.models import MODEL_MAPPING

    return frozenset(MODEL_MAPPING) - {MDLM, "dummy"}


def checkpoint_of(file: ResultFile) -> Checkpoint:
    """The checkpoint that a result file names."""
    mdlm, arguments = file.mdlm or {}, file.model_args
    model, adapter = (published_text(recorded_name(name)) for name in file.folders)
    if not model:
        model = BUILT_IN if file.model_kind == MDLM else file.model_kind
    revision = mdlm.get("revision") or arguments.get("revision")
    facts = [f"revision {revision}"] if revision not in (None, "", "main") else []
    facts += [file.dtype] if file.dtype else []
    facts += [f"{name}={value}" for name, value in sorted(arguments.items()) if name not in _SILENT_ARGUMENTS]
    if file.system_instruction:
        facts.append(f"system instruction {file.system_instruction!r}")
    is_autoregressive = file.model_kind in autoregressive_kinds()
    return Checkpoint(
        model=model,
        adapter=adapter or None,
        family=str(mdlm.get("family", "")) or (AUTOREGRESSIVE if is_autoregressive else file.model_kind),
        loading=", ".join(facts),
        states_masks=is_autoregressive or bool(mdlm),
        identity=_identity(file),
    )


def names_of(checkpoints: Iterable[Checkpoint]) -> dict[Checkpoint, tuple[str, str | None]]:
    """Model and adapter as they are shown: where two of other weights have one name, with the weights' digest."""
    checkpoints = set(checkpoints)
    weights: dict[tuple[str, ...], set[str]] = {}
    for one in checkpoints:
        weights.setdefault((one.model,), set()).add(one.identity[0])
        weights.setdefault((one.model, one.adapter or ""), set()).add(one.identity[1])
    names: dict[Checkpoint, tuple[str, str | None]] = {}
    for one in checkpoints:
        several = len(weights[one.model,]) > 1, len(weights[one.model, one.adapter or ""]) > 1
        digests = [f" ({of[:7]})" if are and of else "" for are, of in zip(several, one.identity, strict=True)]
        names[one] = one.model + digests[0], one.adapter and one.adapter + digests[1]
    return names


def _identity(file: ResultFile) -> tuple[str, str]:
    digests = []
    for name, given in zip(("weights", "adapter_weights"), file.folders, strict=True):
        digest = (file.mdlm or {}).get(name) or (file.sweep.get("settings") or {}).get(name)
        if not digest and not is_public(given) and recorded_name(given) != BUILT_IN:
            digest = hashlib.sha256(given.encode()).hexdigest()
        digests.append(str(digest or ""))
    return digests[0], digests[1]
