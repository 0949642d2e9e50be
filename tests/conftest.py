"""A tiny random masked diffusion model, and a task that runs on it without a network."""

import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Several processes test at a time (`-n auto`), and start others; more threads than cores are slower by far.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"} | os.environ

import pytest
from packaging.version import Version

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.registry import SAMPLERS
from mdlm_lm_eval.results.samples import new_instance
from mdlm_lm_eval.tasks import questions
from tests.support import commands

# The process that only hands out tests to others reads this file, too. It needs none of these, which take seconds.
if TYPE_CHECKING:
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.tasks import TaskManager
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

os.environ["TOKENIZERS_PARALLELISM"] = "false"
# A shell starts background jobs with Ctrl-C ignored, and the commands that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Collections of garbage need not look at a million objects of modules each time; commands begin with them.

    Lm-eval asks pip, the compiler and others for their versions after each evaluation, most of which take less time.
    """
    from torch.utils import collect_env

    collect_env.get_pretty_env_info = lambda: "not asked for in tests"
    gc.freeze()
    commands.fork_server()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process has a half of the files, and with them what their tests share, until it helps another one."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.option.dist == "load" else None


LM_EVAL_05 = Version(version("lm_eval")).release >= (0, 5)

SPECIAL_TOKENS = ("<|pad|>", "<|eos|>", "<|mask|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}\n<assistant>{% endif %}"
)


def tiny_tokenizer(n_tokens: int = 259) -> "PreTrainedTokenizerFast":
    """One token a byte, and three special tokens; the last bytes are left out for models with fewer tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id for id, token in enumerate([*SPECIAL_TOKENS, *alphabet][:n_tokens])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|eos|>",
        mask_token="<|mask|>",
        chat_template=CHAT_TEMPLATE,
    )


def random_llama(vocab_size: int, *, seed: int = 0, **changes: Any) -> "LlamaForCausalLM":
    """Two layers, float32, seeded; logits spread enough that decoding depends on the context."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = data("cases.json")["sizes of a tiny Llama"]
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **sizes | changes)).eval()


def tiny_model() -> "LlamaForCausalLM":
    """A random Llama for the tiny tokenizer."""
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "mask_token_id": 2}
    return random_llama(259, num_attention_heads=2, max_position_embeddings=256, **ids)


def data(name: str) -> Any:
    """What a file of tests/data holds."""
    return json.loads((Path(__file__).parent / "data" / name).read_text(encoding="utf-8"))


def edit_json(path: Path, **changes: Any) -> None:
    """Changes entries of a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tasks_of(name: str, folder: Path) -> Path:
    """A copy of the tasks in a folder of tests/data, whose YAML files say where their documents lie."""
    folder.mkdir(exist_ok=True)
    for path in (Path(__file__).parent / "data" / name).glob("*.*"):
        (folder / path.name).write_text(path.read_text().replace("FOLDER", str(folder)))
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first, so that no process waits for the last of them."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def own_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samplers that a test registers are forgotten after it."""
    monkeypatch.setattr(SAMPLERS, "_known", SAMPLERS.all())
    monkeypatch.setattr(SAMPLERS, "guests", dict(SAMPLERS.guests))


def refused(by: str) -> list[Any]:
    """Input that `by` refuses, each with a part of the sentence that says why; a new case is a row of the file."""
    return [pytest.param(*row, id=" ".join(map(_words, row[:-1]))) for row in data("refused.json")[by]]


def _words(value: Any) -> str:
    return ",".join(f"{k}={_words(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def instance_of(
    kind: str, arguments: tuple[Any, ...], task: str | None = None, doc_id: int | None = None, document: Any = None
) -> "Instance":
    """A request as the installed lm-eval builds it."""
    return new_instance(kind, document or {}, arguments, task, doc_id)


def generation(text: str, task: str | None = "task", doc: int | None = None, **gen_kwargs: Any) -> "Instance":
    """A generation request."""
    return instance_of("generate_until", (text, gen_kwargs), task, doc)


def choice(context: str, continuation: str, doc: int = 0, task: str = "choice") -> "Instance":
    """A likelihood request."""
    return instance_of("loglikelihood", (context, continuation), task, doc)


def rolling(text: str, doc: int | None = 0, task: str | None = "task") -> "Instance":
    """A request for the likelihood of a text."""
    return instance_of("loglikelihood_rolling", (text,), task, doc)


def drawn_questions(rule: str, distractor: str) -> tuple[questions.Question, ...]:
    """A task's test questions, asked for as tasks do, so that they are drawn once."""
    return questions.test_questions(rule, distractor, questions.DEFAULT_SEED)


@cache
def suite() -> "TaskManager":
    """The package's own tasks, whose index takes a second."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(tasks_path()), include_defaults=False)


def load_task(name: str) -> Any:
    """One of them."""
    return suite().load([name])["tasks"][name]


def fake_template(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    """A chat template that shows where messages begin."""
    return "".join(f"<{m['role']}>{m['content']}" for m in messages) + ("<assistant>" if add_generation_prompt else "")


def requests_of(task: Any, limit: int | None = None, num_fewshot: int | None = None, chat: bool = False) -> list[Any]:
    """What a task asks: the arguments of its requests."""
    if num_fewshot is not None:
        task.set_config("num_fewshot", num_fewshot)
    template = fake_template if chat else None
    task.build_all_requests(limit=limit, apply_chat_template=chat, fewshot_as_multiturn=chat, chat_template=template)
    return [instance.args for instance in task.instances]


class CodeEval:
    """Stands in for the hub's `code_eval`: runs programs and tests in this process, as both are written in tests."""

    def compute(
        self, references: list[str], predictions: list[list[str]], k: list[int]
    ) -> tuple[dict[str, float], None]:
        passed = [self.passes(f"{one}\n{tests}") for tests, [one] in zip(references, predictions, strict=True)]
        return {"pass@1": sum(passed) / len(passed)}, None

    @staticmethod
    def passes(program: str) -> bool:
        try:
            exec(program, {"print": id})
        except Exception:
            return False
        return True


def stand_in_for_code_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tasks that are loaded now execute code by it; those of an earlier test keep what they loaded."""
    monkeypatch.setattr("evaluate.load", lambda _name: CodeEval())
    for name in [name for name in sys.modules if "mbpp" in name or "humaneval" in name]:
        monkeypatch.delitem(sys.modules, name)


def evaluate(lm: Any, tasks: Sequence[str], *folders: Path, **arguments: Any) -> dict[str, Any]:
    """lm-eval's results of tasks in these folders, or of the package's own."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=[*map(str, folders)], include_defaults=False) if folders else suite()
    return dict(simple_evaluate(lm, tasks=[*tasks], task_manager=manager, **{"bootstrap_iters": 0} | arguments))


def small_memory(lm: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets passes without a cache run out of memory with more than `most` rows; how many rows each is asked for."""
    import torch

    sizes: list[int] = []
    logits = lm.denoiser.logits

    def limited(input_ids: "torch.Tensor", *arguments: Any, **named: Any) -> "torch.Tensor":
        sizes.append(len(input_ids))
        if len(input_ids) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return logits(input_ids, *arguments, **named)

    monkeypatch.setattr(lm.denoiser, "logits", limited)
    return sizes


@pytest.fixture
def without_tasks_of_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lm-eval has thousands of tasks, whose index takes seconds."""
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(tmp_path / "none" / "manager.py"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder in transformers' own format."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def long_checkpoint(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights with a context of 2048 tokens, for few-shot prompts of one token a byte."""
    folder = tmp_path_factory.mktemp("long") / "checkpoint"
    shutil.copytree(checkpoint, folder)
    edit_json(folder / "config.json", max_position_embeddings=2048)
    return folder


@pytest.fixture(scope="session")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks `tiny_generate`, `tiny_sampled` (three repeats at temperature 1) and `tiny_choice` on five documents."""
    return tasks_of("tasks", tmp_path_factory.mktemp("tasks"))
