"""Which checkpoint a result file measured."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from mdlm_leaderboard.result_files import ResultFile
from mdlm_leaderboard.rows import AUTOREGRESSIVE

BUILT_IN = "built-in"
MDLM = "mdlm"
# lm-eval's own models; other names may be diffusion models whose mask count nobody knows.
AUTOREGRESSIVE_KINDS = frozenset(
    {
        "anthropic-chat",
        "anthropic-chat-completions",
        "anthropic-completions",
        "ggml",
        "gguf",
        "habana",
        "hf",
        "hf-audiolm-qwen",
        "hf-auto",
        "hf-mistral3",
        "hf-multimodal",
        "huggingface",
        "ipex",
        "litellm",
        "litellm-chat",
        "litellm-chat-completions",
        "local-chat-completions",
        "local-completions",
        "mamba_ssm",
        "megatron_lm",
        "nemo_lm",
        "neuronx",
        "onnxruntime",
        "onnxruntime-genai",
        "openai-chat-completions",
        "openai-completions",
        "openvino",
        "sglang",
        "sglang-generate",
        "steered",
        "textsynth",
        "trtllm",
        "vllm",
        "vllm-vlm",
        "watsonx_llm",
        "winml",
    }
)
# Decoding options among the model arguments, which `Decoding` shows.
DECODING_NAMES = frozenset(
    {
        "block_length",
        "cfg_scale",
        "confidence_threshold",
        "eos_last",
        "filler",
        "mask_ratio",
        "max_gen_toks",
        "n_fillers",
        "n_masks",
        "schedule",
        "seed",
        "steps",
        "suppress_eos",
        "temperature",
        "top_k",
        "top_p",
        "unmasking",
    }
)
_LIKELIHOOD_NAMES = frozenset({"likelihood", "mc_num", "check_greedy"})
# Model arguments that change no score, or that other columns show.
_SILENT_ARGUMENTS = frozenset(
    {
        "backend",
        "base_url",
        "batch_size",
        "cache_dir",
        "compile",
        "data_parallel_size",
        "device",
        "device_map",
        "device_map_option",
        "dtype",
        "early_exit",
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
        "proxies",
        "revision",
        "seed",
        "tensor_parallel_size",
        "tokenizer_backend",
        "trust_remote_code",
        "use_fast_tokenizer",
        "use_safetensors",
    }
)


@dataclass(frozen=True)
class Checkpoint:
    """The model behind a score. `model` and `adapter` are full names or paths; `loading` is text such as `bfloat16`."""

    model: str
    adapter: str | None
    family: str
    loading: str
    states_masks: bool


def checkpoint_of(file: ResultFile) -> Checkpoint:
    """The checkpoint that a result file names."""
    mdlm, arguments = file.mdlm or {}, file.model_args
    pretrained = mdlm.get("pretrained") or next(
        (arguments[name] for name in ("pretrained", "model", "path", "engine") if name in arguments), None
    )
    model = BUILT_IN if file.model_kind == MDLM and _is_built_in(pretrained) else str(pretrained or file.model_kind)
    adapter = mdlm.get("adapter") or arguments.get("peft")
    revision = mdlm.get("revision") or arguments.get("revision")
    facts = [f"revision {revision}"] if revision not in (None, "", "main") else []
    facts += [file.dtype] if file.dtype else []
    facts += [
        f"{name}={value}"
        for name, value in sorted(arguments.items())
        if name not in _SILENT_ARGUMENTS | DECODING_NAMES | _LIKELIHOOD_NAMES
    ]
    if file.system_instruction:
        facts.append(f"system instruction {file.system_instruction!r}")
    is_autoregressive = file.model_kind in AUTOREGRESSIVE_KINDS
    family = str(mdlm.get("family", "")) or (AUTOREGRESSIVE if is_autoregressive else file.model_kind)
    return Checkpoint(
        model, str(adapter) if adapter else None, family, ", ".join(facts), is_autoregressive or bool(mdlm)
    )


def display_name(name: str) -> str:
    """A hub name as it is, the last part of a path."""
    if name == BUILT_IN or (name.count("/") == 1 and not name.startswith(("/", ".", "~"))):
        return name
    return PurePosixPath(name.replace("\\", "/")).name or name


def _is_built_in(pretrained: object) -> bool:
    return pretrained is None or PurePosixPath(str(pretrained)).parts[-2:] == ("mdlm_lm_eval", "default_model")
