"""How the task of each preset scores right answers, in forms that its prompt asks for and in others, and wrong ones.

`data/preset_tasks.json` has documents of each data set's schema, and under `right` answers by the columns (filters, or
metrics without one) that score them 1; those under "" are right, too, and score 0 in all.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
import pytest
import torch
from lm_eval.tasks._yaml_loader import load_yaml
from torch import Tensor

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.presets import published
from tests.conftest import LM_EVAL_05, data, evaluate, stand_in_for_code_eval, tiny_model, tiny_tokenizer
from tests.support.local_tasks import local_task

pytestmark = pytest.mark.slow

Entry = dict[str, Any]
TASKS: dict[str, list[Entry]] = data("preset_tasks.json")
FOLDERS = (tasks_path(), Path(lm_eval.tasks.__file__).parent)
N_MASKS = 256
SPLITS = ("fewshot", "training", "validation", "test")


def runs() -> list[Any]:
    """Of the runs of all presets, the distinct ones: task, shots, template, and a length that the task does not set."""
    found = {}
    for preset, run in published().items():
        shots, turns = run.value("--num_fewshot"), run.value("--fewshot_as_multiturn")
        key = (str(run.value("--tasks")), int(shots or 0), "--apply_chat_template" in run.flags, turns != "false")
        found.setdefault(key, pytest.param(*key, id=preset))
    return [*found.values()]


class Scripted(MDLM):
    """Answers document n with the nth answer, of which `@words@` is the letter of the choice with these words."""

    answers: Sequence[str]

    def answer(self, prompt: str, number: int) -> str:
        def letter(match: re.Match[str]) -> str:
            return str(re.findall(rf"(\w)[.)] {match[1]}\n", prompt)[-1])

        return re.sub("@(.*?)@", letter, self.answers[number])

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The model is sure of the answer, and then of the end of text, whatever stands on the canvas."""

        def logits(input_ids: Tensor, attention_mask: Tensor | None, positions: Tensor, **_: Any) -> Tensor:
            rows, columns = positions // input_ids.shape[1], positions % input_ids.shape[1]  # [N] each
            lengths = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).sum(1)  # [B]
            begin, tokens = lengths - N_MASKS, torch.full((len(input_ids), N_MASKS), 1)  # [B], [B, M]
            for row, ids in enumerate(input_ids):
                prompt = self.tokenizer.decode(ids[: begin[row]])
                spoken = self.answer(prompt, int(re.findall(r"<(\d+)>", prompt)[-1]))
                ids = self.tokenizer.encode(spoken, add_special_tokens=False)
                tokens[row, : len(ids)] = torch.tensor(ids)
            return torch.nn.functional.one_hot(tokens[rows, columns - begin[rows]], 259).float() * 20.0  # [N, V]

        self.denoiser.logits = logits  # type: ignore[method-assign]
        return super().generate_until(requests, disable_tqdm)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Only the chosen continuation is likely; where all are the same, the context that ends in the choice."""
        chosen = [self.answer(one.args[0], one.doc_id) for one in requests]
        return [
            (0.0 if choice == one.args[1].strip() or one.args[0].endswith(choice) else -1000.0, False)
            for one, choice in zip(requests, chosen, strict=True)
        ]


@pytest.fixture(scope="module")
def lm() -> Scripted:
    return Scripted(tiny_model(), tokenizer=tiny_tokenizer(), max_length=20_000, n_masks=N_MASKS, steps=1, batch_size=4)


@pytest.mark.skipif(LM_EVAL_05, reason="metrics of lm-eval 0.5.0.dev1's own tasks end in errors")
@pytest.mark.parametrize(("task", "shots", "chat", "multiturn"), runs())
def test_right_answers_score_one_and_wrong_and_empty_ones_zero(
    task: str, shots: int, chat: bool, multiturn: bool, lm: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_code_eval(monkeypatch)
    monkeypatch.setattr("nltk.download", lambda _name: None)
    monkeypatch.setattr(
        "signal.alarm", lambda _seconds: 0
    )  # 5 seconds to compare two formulas are few on a busy machine
    for number, entry in enumerate(TASKS[task]):
        pytest.importorskip(entry.get("needs", "json"))
        forms = {form: names.split() for names, of_columns in entry["right"].items() for form in of_columns}
        forms |= dict.fromkeys(entry["wrong"], ())
        is_choice = any(name == "acc" for names in entry["right"] for name in names.split())
        forms |= {} if is_choice else {"": ()}
        lm.answers = [*forms]
        doc = json.dumps(entry["doc"])
        docs = [json.loads(doc.replace("{n}", str(n))) for n in range(len(forms) + 6)]
        splits = dict.fromkeys(("train", "validation", "val", "test", "dev"), docs)
        source = next(folder / entry["yaml"] for folder in FOLDERS if (folder / entry["yaml"]).exists())
        config = local_task(tmp_path, source, splits, name=str(number), dataset_name=None)
        results = evaluate(
            lm,
            [config],
            tmp_path / "none",
            limit=len(forms),  # the others are shots
            num_fewshot=shots,
            apply_chat_template=chat,
            fewshot_as_multiturn=multiturn if chat else False,
            confirm_run_unsafe_code=True,
        )
        [samples] = results["samples"].values()
        scores = {  # (document, column) -> score; a metric of a task with a filter has the filter's name
            (one["doc_id"], metric if one["filter"] == "none" else one["filter"]): float(np.mean(one[metric]))
            for one in samples
            for metric in one["metrics"]
        }
        names = {name for _, name in scores}
        found = {form: {name for name in names if scores[n, name] == 1.0} for n, form in enumerate(forms)}
        assert found == {form: set(of_form) for form, of_form in forms.items()}
        assert set(scores.values()) <= {0.0, 1.0}


def test_no_presets_prompt_depends_on_lm_evals_version() -> None:
    """lm-eval's main branch excludes the question from `first_n` examples, and fills `gen_prefix` by the example."""
    for preset, run in published().items():
        if int(run.value("--num_fewshot") or 0) == 0:
            continue
        for entry in TASKS[str(run.value("--tasks"))]:
            config = whole(entry["yaml"])
            examples, splits = config.get("fewshot_config") or {}, [config.get(f"{name}_split") for name in SPLITS]
            drawn_from = next(filter(None, splits))
            asked = config.get("test_split") or config.get("validation_split")
            assert examples.get("sampler") != "first_n" or "samples" in examples or drawn_from != asked, preset
            assert "{{" not in config.get("gen_prefix", ""), preset


def whole(name: str) -> dict[str, Any]:
    """A task's YAML, with that of lm-eval that it names."""
    source = next(folder / name for folder in FOLDERS if (folder / name).exists())
    config: dict[str, Any] = load_yaml(source, resolve_func=False)
    return whole(config["yaml"]) | config if "yaml" in config else config
