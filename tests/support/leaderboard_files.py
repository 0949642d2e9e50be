"""Result files as lm-eval and `--model mdlm` write them, small: of the few-shot suite and of benchmarks."""

import json
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from mdlm_leaderboard.board import Board
from mdlm_leaderboard.build import read_board
from mdlm_lm_eval.declared import defaults_of
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.results.suite import current_version
from tests.conftest import data

RULES = ("country", "capitalised", "verb", "adjective", "animal", "colour", "emotion", "object")
TASKS = tuple(f"{rule}_{distractor}" for rule in RULES for distractor in ("smallest", "largest"))
HASH = "1cfd7802b88844aa07d9c50e47a1b323734bada3a5e7eb2bf50ae8536c045dcb"


@cache
def committed_board(folder: str = "results") -> Board:
    """The board of committed results, which takes seconds."""
    return read_board(Path(__file__).parents[2] / "leaderboard" / folder)


def result_file(
    metrics: dict[str, dict[str, float]],
    *,
    model: str = "mdlm",
    pretrained: str = "organisation/model",
    adapter: str | None = None,
    adapter_recipe: str = "r" * 64,
    weights: str = "a" * 64,
    output_type: str = "generate_until",
    masks: int = 256,
    steps: int | None = None,
    asked: int = 1319,
    limit: int | None = None,
    version: str = "3.0",
    shots: int = 5,
    metadata: dict[str, Any] | None = None,
    passes: int | None = None,
    group: str = "",
    suite_hash: str | None = None,
    task_record: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Any tasks' results (task -> `metric,filter` -> score); `options` are decoding options that were set.

    `passes` are the forward passes per question, each answer being of 100 tokens.
    """
    options |= {} if steps is None else {"steps": steps}
    kind: Any = DecodingOptions if output_type == "generate_until" else LikelihoodOptions
    effective = defaults_of(kind) | {"seed": 1234} | options
    taken = steps if steps is not None else masks
    record = {"requests": asked, "masks": [masks, masks], "asked_masks": [masks, masks], "steps": [taken, taken]}
    record |= {"returned_tokens": [1, 1], "truncated_prompts": 0, **(task_record or {})}
    if passes is not None:
        cost = {"forward_passes": passes * asked, "answer_tokens": 100 * asked, "seconds": 0.01 * passes * asked}
        record["cost"] = cost | {"peak_memory_bytes": 2**31}
    names = list(metrics)
    content = data("cases.json")["result file"]
    config = content["config"]
    config |= {"model": model, "limit": limit}
    config["model_args"] = {"pretrained": pretrained, **options} | ({"peft": adapter} if adapter else {})
    if model == "mdlm":
        config["mdlm"] |= {
            "decoding": effective,
            "likelihood": defaults_of(LikelihoodOptions),
            "settings": [{"request_type": output_type, "options": effective, "tasks": names}],
            "pretrained": pretrained,
            "weights": weights,
            "adapter": adapter,
            "adapter_recipe": adapter and adapter_recipe,
            "explicit_options": list(options),
            "tasks": dict.fromkeys(names, record),
            "task_suite": {"version": version, "sha256": suite_hash} if suite_hash else {},
            **(facts or {}),
        }
    else:
        del config["mdlm"]
    content |= {
        "results": {name: {"name": name, **scores} for name, scores in metrics.items()},
        "group_subtasks": {group: names} if group else {},
        "configs": {
            name: {"output_type": output_type, "generation_kwargs": {}, "metadata": metadata or {}} for name in names
        },
        "versions": dict.fromkeys(names, version),
        "n-shot": dict.fromkeys(names, shots),
        "higher_is_better": {n: {m.partition(",")[0]: "perplexity" not in m for m in s} for n, s in metrics.items()},
        "n-samples": {name: {"original": 1319 if not suite_hash else 1000, "effective": asked} for name in names},
    }
    if group:
        first = {metric: sum(one[metric] for one in metrics.values()) / len(names) for metric in metrics[names[0]]}
        content["groups"] = {group: first}
    return dict(content)


def suite_file(
    *,
    n_masks: int = 50,
    accuracy: float = 0.8,
    spread: float = 0.1,
    variant: str = "",
    start: str = "mdlm_",
    group: str = "mdlm_context",
    relevant: int = 10,
    distractors: int = 40,
    limit: int | None = None,
    version: str = current_version(),
    suite_hash: str = HASH,
    steps: int = 1,
    **changes: Any,
) -> dict[str, Any]:
    """All 16 tasks `mdlm_*{variant}`, in one step; one rule is `spread` better than `accuracy`, one worse."""
    offset = {"country": spread, "object": -spread}
    metrics = {
        f"{start}{task}{variant}": {"exact_match,none": round(accuracy + offset.get(task.split("_")[0], 0), 3)}
        for task in TASKS
    }
    is_open_ended = not variant.endswith("_slot") and not any(place in variant for place in ("left", "middle", "right"))
    given = {"fewshot_relevant": relevant, "fewshot_distractors": distractors, "fewshot_seed": 1}
    chosen = {"n_masks": n_masks} if is_open_ended else {}
    return result_file(
        metrics,
        masks=n_masks if is_open_ended else 1,
        asked=limit or 1000,
        limit=limit,
        version=version,
        shots=relevant + distractors,
        metadata=given,
        group=group,
        suite_hash=suite_hash,
        **{"pretrained": "built-in", **chosen, "steps": steps, **changes},
    )


def gsm8k_file(score: float = 0.5, **changes: Any) -> dict[str, Any]:
    """lm-eval's gsm8k, of 1319 questions."""
    return result_file(
        {"gsm8k": {"exact_match,flexible-extract": score, "exact_match_stderr,flexible-extract": 0.012}}, **changes
    )


def served(content: dict[str, Any], *, version: str = "0.5.23", known: Iterable[str] = ("n_masks",)) -> dict[str, Any]:
    """The same as `--model mdlm-server` records it, `known` being the options that the server or the user stated."""
    content = deepcopy(content)
    mdlm, known = content["config"]["mdlm"], {*known, "n_fillers", "mask_ratio", "seed"}
    content["config"] |= {"model": "mdlm-server", "model_dtype": ""}
    for one in mdlm["settings"]:
        one["options"] = {name: value if name in known else "unknown" for name, value in one["options"].items()}
    unknown = [name for name, value in mdlm["settings"][0]["options"].items() if value == "unknown"]
    counts = ("steps", "masks", "asked_masks") if "n_masks" in unknown else ("steps",)
    for name, record in mdlm["tasks"].items():
        mdlm["tasks"][name] = {key: value for key, value in record.items() if key not in counts}
    server = {"engine": "sglang", "version": version, "said": {"cache": "none"}, "stated": {"n_masks": 2}}
    server |= {"unknown": unknown, "concurrency": 8, "tokens_per_second": 80.0, "requests_per_second": 2.0}
    mdlm |= {"weights": None, "device": "server (sglang)", "device_name": None, "server": server}
    del mdlm["decoding"], mdlm["likelihood"]
    return content


def write(folder: Path, **contents: Any) -> Path:
    """Writes contents as `{name}.json` into `folder`; strings as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


def six_cells(folder: Path) -> Path:
    """A sweep over steps and thresholds on gsm8k, two of whose settings others beat."""
    cells = {
        "a": gsm8k_file(0.710, passes=256, steps=256),
        "b": gsm8k_file(0.695, passes=128, steps=128),
        "c": gsm8k_file(0.620, passes=64, steps=64),
        "d": gsm8k_file(0.705, passes=90, confidence_threshold=0.9),
        "e": gsm8k_file(0.660, passes=50, confidence_threshold=0.7),
        "f": gsm8k_file(0.600, passes=55, confidence_threshold=0.6),
    }
    return write(folder, **cells)


def write_answers(
    folder: Path, name: str, content: Any, scores: Iterable[float], documents: Iterable[Any] | None = None
) -> Path:
    """A result of gsm8k with its samples beside it, as lm-eval names them."""
    metric = "exact_match"
    lines: list[dict[str, Any]] = [
        {"doc_id": n, "doc_hash": f"{n}", "filter": "flexible-extract", "metrics": [metric], metric: score}
        for n, score in enumerate(scores)
    ]
    for line, document in zip(lines, documents or (), strict=False):
        line["doc"] = document
    write(folder, **{f"results_{name}": content})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"samples_gsm8k_{name}.jsonl").write_text(text, encoding="utf-8")
    return folder / f"results_{name}.json"
