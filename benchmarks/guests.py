"""Authors' own files, unchanged, as guests on tiny checkpoints of published shape: their answers and costs beside ours.

    OMP_NUM_THREADS=1 python -m benchmarks.guests --llada LLaDA --fast_dllm Fast-dLLM --json guests.json
    OMP_NUM_THREADS=1 python -m benchmarks.guests --info_gain Information-Gain-Sampler --json guests.json

The folders are checkouts of ML-GSAI/LLaDA, NVlabs/Fast-dLLM and yks23/Information-Gain-Sampler. `mdlm` runs under
lm-eval with the guest, and with the package's own way of the same settings and `early_exit=false`. Thresholds are low
enough for random weights. The last line is the time of being a guest, on one core, as a share of a pass of width 512, 6
layers and 1,200 tokens. Info-Gain, which the package does not have, is run by the file of docs/guests.md and by itself,
with the same random numbers.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval import DecodingOptions, decode, load_denoiser
from mdlm_lm_eval.decoding.canvas import seed_of
from mdlm_lm_eval.decoding.guests import forked_random
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.loader import load_foreign
from mdlm_lm_eval.model.denoiser import Denoiser
from tests.conftest import evaluate, tasks_of
from tests.support.published_shapes import build, shape

BLOCKS: dict[str, Any] = {"n_masks": 16, "block_length": 8}
COUNTS = ("forward_passes", "layer_tokens", "written_tokens")


def comparisons(llada: Path, fast: Path) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Checkpoint, function, the settings that both have, and those of each that the other has no name for."""
    ours, theirs = llada / "generate.py", fast / "llada" / "generate.py"
    network = {"modeling": f"{fast}/llada/model/modeling_llada.py:LLaDAModelLM"}
    dream = f"{fast}/dream/model/generation_utils.py:DreamGenerationMixin.diffusion_generate"
    found: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("llada", f"{ours}:generate", BLOCKS | {"steps": 16}, {}),
        ("llada", f"{ours}:generate", BLOCKS | {"steps": 8, "cfg_scale": 0.5}, {}),
    ]
    for settings in (BLOCKS | {"steps": 16}, BLOCKS | {"steps": 8}, BLOCKS | {"threshold": 0.0000165}):
        found.append(("llada", f"{theirs}:generate", settings, {}))
        found.append(("llada", f"{theirs}:generate_with_prefix_cache", settings, network | {"own cache": "prefix"}))
        found.append(("llada", f"{theirs}:generate_with_dual_cache", settings, network | {"own cache": "dual"}))
    for alg in ("maskgit_plus", "topk_margin", "entropy"):
        found.append(("dream", dream, {"n_masks": 16, "steps": 6, "alg": alg}, {"own schedule": "dream"}))
    return found


def compare(folder: Path, function: str, shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Answers and costs of a task's first two questions, by the guest and by the engine."""
    tasks = tasks_of("tasks", folder.parent / "tasks")
    of_guest = {"sampler": function} | {name: value for name, value in own.items() if not name.startswith("own ")}
    of_engine = {name.removeprefix("own "): value for name, value in own.items() if name.startswith("own ")}
    answers, costs, digests = [], [], []
    for arguments in (of_guest, of_engine | {"early_exit": False}):
        model = MDLM(str(folder), device="cpu", dtype="float32", batch_size=1, **shared, **arguments)
        kwargs = {"max_gen_toks": 16, "until": []}
        results = evaluate(model, ["tiny_generate"], tasks, gen_kwargs=kwargs, limit=2)
        samples = sorted(results["samples"]["tiny_generate"], key=lambda one: one["doc_id"])
        answers.append([one["resps"] for one in samples])
        facts = results["config"]["mdlm"]
        costs.append([facts["tasks"]["tiny_generate"]["cost"][name] for name in COUNTS])
        digests.append({plugin["name"]: plugin["files"] for plugin in facts["plugins"]})
    return {
        "function": "/".join(Path(function).parts[-3:]),
        "settings": shared,
        "same_strings": answers[0] == answers[1],
        **{name: list(pair) for name, pair in zip(COUNTS, zip(*costs, strict=True), strict=True)},
        "files": digests[0],
    }


def info_gain(folder: Path, checkpoint: Path) -> list[dict[str, Any]]:
    """Tokens and passes of Info-Gain's sampler as a guest and by itself, after two prompts under each setting."""
    samplers, page = folder / "src" / "samplers", Path(__file__).parents[1] / "docs" / "guests.md"
    code = next(one for one in page.read_text().split("```python\n") if "InfoGainSampler" in one).partition("```")[0]
    denoiser, found = load_denoiser(str(checkpoint), dtype="float32"), []
    with tempfile.TemporaryDirectory() as beside:
        shutil.copy(samplers / "info_gain.py", beside)
        Path(beside, "guest.py").write_text(code)
        own = load_foreign("sampler", f"{samplers}/info_gain.py:InfoGainSampler").thing
        for settings in ({}, {"confidence_threshold": 0.0000165}, {"temperature": 0.7}):
            options = DecodingOptions(sampler=f"{beside}/guest.py:generate", **BLOCKS | {"steps": 16} | settings)
            pairs, passes = [], []
            for length in (9, 14):
                prompt = torch.arange(length).mul(7).remainder(500).add(3).tolist()
                (answer,) = decode(denoiser, [prompt], options, return_completions=True)
                calls: list[int] = []
                hook = denoiser.model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
                with forked_random(seed_of(f"0 0 {prompt}"), denoiser.device), torch.no_grad():
                    canvas = own(denoiser.model, None, denoiser.mask_token_id).sample(
                        torch.tensor([prompt]),
                        max_new_tokens=16,
                        steps=16,
                        block_size=8,
                        threshold=settings.get("confidence_threshold", 0.8),
                        temperature=settings.get("temperature", 0.0),
                    )
                hook.remove()
                pairs.append(answer.token_ids == canvas[0, length:].tolist())
                passes.append([answer.passes, len(calls)])
            found.append({"settings": settings, "same_tokens": all(pairs), "passes": passes})
            print(found[-1], flush=True)
    return found


def overhead(llada: Path) -> dict[str, float]:
    """Seconds of an answer beside its passes, and of a pass: the least of many, in time of this process's core."""
    torch.set_num_threads(1)
    passes, length = 8, 8
    prompt = torch.arange(3, 1195).remainder(500).clamp(min=3)[None]
    seconds = []
    for width, layers in ((8, 1), (512, 6)):
        sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": max(1, width // 64)}
        config = LlamaConfig(vocab_size=512, num_hidden_layers=layers, is_causal=False, **sizes)
        denoiser = Denoiser(LlamaForCausalLM(config).eval(), mask_token_id=2, pad_token_id=0)
        named = f"{llada}/generate.py:generate"
        options = DecodingOptions(sampler=named, n_masks=length, steps=passes, block_length=length)
        arguments = {"steps": passes, "gen_length": length, "block_length": length, "mask_id": 2}
        plain = partial(load_foreign("sampler", named).thing, Bare(denoiser), prompt, **arguments)
        guest = partial(decode, denoiser, prompt.tolist(), options)
        seconds += [least(guest, 60), least(plain, 60)] if width == 8 else [least(plain, 2)]
    as_guest, alone, wide = seconds
    cost = as_guest - alone
    return {"answer_seconds": cost, "pass_seconds": wide / passes, "share_of_a_pass": cost * passes / wide}


class Bare:
    """A network without a cache, as authors call it."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser, self.device = denoiser, denoiser.device

    def __call__(self, ids: torch.Tensor, attention_mask: Any = None) -> Any:
        return self.denoiser.model(ids, use_cache=False)


def least(call: Callable[[], Any], times: int) -> float:
    """The shortest time of a call."""
    found = []
    for _ in range(times):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return min(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llada", type=Path, help="a checkout of ML-GSAI/LLaDA")
    parser.add_argument("--fast_dllm", type=Path, help="a checkout of NVlabs/Fast-dLLM")
    parser.add_argument("--info_gain", type=Path, help="a checkout of yks23/Information-Gain-Sampler")
    parser.add_argument("--json", type=Path, help="where the record goes; what is not run stays in it")
    given = parser.parse_args()
    record = json.loads(given.json.read_text()) if given.json and given.json.is_file() else {}
    record["torch"] = torch.__version__
    with tempfile.TemporaryDirectory() as folder:
        built = {name: build(name, Path(folder) / shape(name)["checkpoint"]) for name in ("llada", "dream")}
        if given.info_gain:
            digest = sha256((given.info_gain / "src" / "samplers" / "info_gain.py").read_bytes()).hexdigest()
            record["info_gain"] = {"sha256": digest, "runs": info_gain(given.info_gain.resolve(), built["llada"])}
        if given.llada and given.fast_dllm:
            rows = record["comparisons"] = []
            for name, function, shared, own in comparisons(given.llada.resolve(), given.fast_dllm.resolve()):
                rows.append(compare(built[name], function, shared, own))
                print({key: value for key, value in rows[-1].items() if key != "files"}, flush=True)
            record["overhead"] = overhead(given.llada.resolve())
            print(record["overhead"])
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
