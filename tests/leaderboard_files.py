"""Result files as lm-eval 0.4.13 writes them, small: of the few-shot suite and of a standard benchmark."""

import json
from pathlib import Path
from typing import Any

from mdlm_lm_eval.results.suite import current_version

RULES = ("country", "capitalised", "verb", "adjective", "animal", "colour", "emotion", "object")
TASKS = tuple(f"{rule}_{distractor}" for rule in RULES for distractor in ("smallest", "largest"))
HASH = "1cfd7802b88844aa07d9c50e47a1b323734bada3a5e7eb2bf50ae8536c045dcb"


def suite_file(
    *,
    n_masks: int | None = 50,
    accuracy: float = 0.8,
    variant: str = "",
    group: str = "mdlm_context",
    model: str = "mdlm",
    model_args: dict[str, Any] | None = None,
    adapter: str | None = None,
    limit: float | None = None,
    version: str = current_version(),
    relevant: int = 10,
    distractors: int = 40,
    date: float = 1795231548.94,
    **decoding: Any,
) -> dict[str, Any]:
    """All 16 tasks `mdlm_*{variant}`; the first is 0.1 better and the last 0.1 worse than `accuracy`.

    `n_masks` is the number appended, None for `auto`; other decoding options go by their names.
    """
    is_open_ended = not variant.endswith("_slot") and not any(place in variant for place in ("left", "middle", "right"))
    names = [f"mdlm_{task}{variant}" for task in TASKS]
    asked = 1000 if limit is None else int(limit)
    accuracies = dict.fromkeys(names, accuracy) | {names[0]: accuracy + 0.1, names[-1]: accuracy - 0.1}
    masks = (n_masks or 1) if is_open_ended else 1 + (n_masks or 0)
    steps = decoding.get("steps", "auto")
    settings = {"n_masks": n_masks or "auto", "mask_ratio": None, "steps": "auto", "block_length": None}
    settings |= {"unmasking": "confidence", "schedule": "linear", "confidence_threshold": None, "temperature": 0.0}
    settings |= {"top_p": None, "top_k": None, "cfg_scale": 0.0, "filler": ".", "n_fillers": 0, "suppress_eos": False}
    settings |= {"eos_last": False, "early_exit": True, "seed": 1234, **decoding}
    content = lm_eval_file(
        names,
        metrics={
            name: {"exact_match,none": value, "exact_match_stderr,none": 0.01} for name, value in accuracies.items()
        },
        asked=asked,
        original=1000,
        version=version,
        shots=relevant + distractors,
        model=model,
        model_args={"n_masks": n_masks} | (model_args or {}) if model == "mdlm" else model_args or {},
        limit=limit,
        date=date,
    )
    for name in names:
        content["configs"][name]["metadata"] |= {"fewshot_relevant": relevant, "fewshot_distractors": distractors}
        content["configs"][name]["metadata"] |= {"fewshot_seed": 1}
        content["configs"][name]["generation_kwargs"] = {"max_gen_toks": 1, "until": []}
    content["groups"] = {group: {"alias": group, "exact_match,none": accuracy, "exact_match_stderr,none": 0.01}}
    content["group_subtasks"] = {group: names}
    content["versions"][group] = version
    if model == "mdlm":
        content["config"]["mdlm"] = mdlm_record(
            names, masks=masks, steps=1 if steps == "auto" else min(steps, masks), requests=asked
        )
        content["config"]["mdlm"] |= {"decoding": settings, "adapter": adapter}
        content["config"]["mdlm"]["pretrained"] = (model_args or {}).get("pretrained", "built-in")
    return content


def lm_eval_file(
    names: list[str],
    *,
    metrics: dict[str, dict[str, Any]],
    asked: int,
    original: int,
    version: str,
    shots: int,
    model: str,
    model_args: dict[str, Any],
    limit: float | None = None,
    output_type: str = "generate_until",
    date: float = 1795231548.94,
) -> dict[str, Any]:
    """Any tasks' results, without `--model mdlm`'s own record."""
    return {
        "results": {name: {"name": name, "alias": name, "sample_len": asked, **metrics[name]} for name in names},
        "group_subtasks": {},
        "configs": {
            name: {"task": name, "output_type": output_type, "metadata": {"version": version}, "unsafe_code": False}
            for name in names
        },
        "versions": dict.fromkeys(names, version),
        "n-shot": dict.fromkeys(names, shots),
        "higher_is_better": {
            name: {metric.partition(",")[0]: "perplexity" not in metric for metric in metrics[name]} for name in names
        },
        "n-samples": {name: {"original": original, "effective": asked} for name in names},
        "config": {
            "model": model,
            "model_args": model_args,
            "model_num_parameters": 3698432,
            "model_dtype": "torch.float32",
            "model_revision": "main",
            "model_sha": "",
            "batch_size": 8,
            "device": "cuda:0",
            "limit": limit,
            "gen_kwargs": {},
            "random_seed": 0,
            "numpy_seed": 1234,
            "torch_seed": 1234,
            "fewshot_seed": 1234,
        },
        "date": date,
        "pretty_env_info": "PyTorch version: 2.13.0+cpu\nPython version: 3.11.7 (main) (64-bit runtime)\n",
        "transformers_version": "5.23.0",
        "lm_eval_version": "0.4.13",
        "system_instruction": None,
        "fewshot_as_multiturn": None,
        "chat_template": None,
    }


def mdlm_record(names: list[str], *, masks: int, steps: int, requests: int) -> dict[str, Any]:
    """What `--model mdlm` adds to a result file."""
    record = {"requests": requests, "masks": [masks, masks], "steps": [steps, steps], "returned_tokens": [1, 1]}
    return {
        "decoding": {
            "n_masks": "auto",
            "mask_ratio": None,
            "steps": "auto",
            "block_length": None,
            "unmasking": "confidence",
            "schedule": "linear",
            "confidence_threshold": None,
            "temperature": 0.0,
            "top_p": None,
            "top_k": None,
            "cfg_scale": 0.0,
            "filler": ".",
            "n_fillers": 0,
            "suppress_eos": False,
            "eos_last": False,
            "seed": 1234,
        },
        "likelihood": {"likelihood": "auto", "mc_num": 128, "n_masks": "auto", "cfg_scale": 0.0, "seed": 1234},
        "package_version": "0.1.0",
        "family": "llama",
        "pretrained": "built-in",
        "revision": "main",
        "adapter": None,
        "device": "cpu",
        "processes": 1,
        "explicit_options": [],
        "batch_size": 8,
        "forward_passes": 10,
        "tasks": {name: record | {"forward_passes": 2, "truncated_prompts": 0} for name in names},
        "task_suite": {"version": current_version(), "sha256": HASH},
    }


def gsm8k_file(*, model: str = "hf", score: float = 0.5, masks: int = 256, **changes: Any) -> dict[str, Any]:
    """lm-eval's gsm8k, of 1319 questions."""
    metrics = {"gsm8k": {"exact_match,strict-match": score, "exact_match_stderr,strict-match": 0.01}}
    settings: dict[str, Any] = {"asked": 1319, "original": 1319, "version": "3.0", "shots": 5, "model": model}
    settings |= {"model_args": {"pretrained": "organisation/model"}, "metrics": metrics, **changes}
    content = lm_eval_file(["gsm8k"], **settings)
    if model == "mdlm":
        content["config"]["mdlm"] = mdlm_record(["gsm8k"], masks=masks, steps=masks, requests=1319)
        content["config"]["mdlm"]["pretrained"] = "organisation/model"
    return content


def write(folder: Path, **contents: Any) -> Path:
    """Writes contents as `{name}.json` into `folder`; strings as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder
