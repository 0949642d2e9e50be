"""The start-up hook: what it adds to lm-eval, and that it never gets in the way."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mdlm_lm_eval
from mdlm_lm_eval import plugin
from tests.commands import WITHOUT_ITS_TASKS

REPOSITORY = Path(__file__).parent.parent
HOOK = (REPOSITORY / "mdlm_lm_eval_hook.pth").read_text()
UNHOOKED = (
    "import sys; from mdlm_lm_eval import plugin\n"
    "sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, plugin.AfterImport)]\n"
)


def python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, cwd="/", check=False)


def test_model_is_registered_and_hides_no_built_in_model() -> None:
    code = (
        "from lm_eval.api.registry import get_model, model_registry\n"
        "hf = get_model('hf')\n"  # the registry is empty until here
        "from lm_eval.models import MODEL_MAPPING\n"
        "assert hf.__name__ == 'HFLM', hf\n"
        "assert set(MODEL_MAPPING) < set(model_registry.keys()) and 'mdlm' in model_registry\n"
        "assert 'mdlm_lm_eval.lm' not in __import__('sys').modules\n"
    )
    assert python(code).stderr == ""


def test_hook_imports_nothing_but_the_plugin() -> None:
    code = (
        f"import os, sys; sys.path.append({str(REPOSITORY)!r}); before = set(sys.modules)\n{HOOK}\n"
        "print(sorted(set(sys.modules) - before))"
    )
    assert python(code, "-S").stdout.strip() == "['mdlm_lm_eval', 'mdlm_lm_eval.plugin']"


def test_hook_without_the_package_is_silent() -> None:
    done = python(HOOK, "-S")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("failure", ["raise SystemExit(3)", "raise KeyboardInterrupt", "import nothing_of_this_name"])
def test_hook_survives_whatever_the_package_does(tmp_path: Path, failure: str) -> None:
    package = tmp_path / "mdlm_lm_eval"
    package.mkdir()
    (package / "__init__.py").write_text(failure)
    done = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{HOOK}\nprint('goes on')", "-S")
    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")


def test_diagnosis_names_what_works_and_what_does_not() -> None:
    works = subprocess.run(
        [sys.executable, "-m", "mdlm_lm_eval.plugin"], capture_output=True, text=True, cwd="/", check=False
    )
    assert (works.returncode, works.stderr) == (0, "")
    assert "start-up hook:    armed" in works.stdout
    diagnose = "import runpy; runpy.run_module('mdlm_lm_eval.plugin', run_name='__main__')"
    broken = python(UNHOOKED + WITHOUT_ITS_TASKS + diagnose)
    assert broken.returncode == 1
    assert "--model mdlm:     not found" in broken.stdout
    assert "run python -m mdlm_lm_eval in place of lm_eval" in broken.stdout


def test_the_command_works_without_the_hook() -> None:
    code = (
        "sys.argv = 'lm_eval run --model mdlm --model_args n_masks=0 --tasks mdlm_verb_smallest'.split()\n"
        "import runpy; runpy.run_module('mdlm_lm_eval', run_name='__main__')"
    )
    assert "n_masks must be auto or a whole number from 1, not 0" in python(UNHOOKED + code).stderr.splitlines()[-1]


def test_an_installation_adds_no_generic_name_to_the_environment() -> None:
    code = (
        "from importlib.util import find_spec\n"
        "print([name for name in ('tasks', 'tests', 'benchmarks', 'docs', 'build_tasks') if find_spec(name)])"
    )
    assert python(code).stdout == "[]\n"


def test_tasks_have_one_import_name() -> None:
    code = (
        "import sys; from lm_eval.tasks import TaskManager; TaskManager().load(['mdlm_verb_smallest'])\n"
        "from mdlm_lm_eval.tasks import questions\n"
        "print([m for m in sys.modules if m.endswith('questions') and m.startswith(('mdlm', 'tasks'))])"
    )
    assert python(code).stdout == "['mdlm_lm_eval.tasks.questions']\n"


def test_arming_twice_leaves_one_finder() -> None:
    plugin.arm()
    plugin.arm()
    assert sum(isinstance(finder, plugin.AfterImport) for finder in sys.meta_path) == 1


def test_stands_back_where_lm_eval_discovers_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.api import registry

    empty = registry.Registry("model")
    monkeypatch.setattr(registry, "model_registry", empty)
    monkeypatch.setattr(registry, "import_plugins", lambda: None, raising=False)
    plugin.register_model(ModuleType("lm_eval.models"))
    assert len(empty) == 0


def test_a_failing_action_leaves_the_module_usable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "module_with_failing_action.py").write_text("value = 1")

    def fail(module: ModuleType) -> None:
        raise SystemExit("broken")

    finder = plugin.AfterImport({"module_with_failing_action": fail})
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(tmp_path))
    try:
        import module_with_failing_action
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(tmp_path))
    assert module_with_failing_action.value == 1
    assert "module_with_failing_action" in capsys.readouterr().err


def test_public_names_are_listed() -> None:
    assert set(dir(mdlm_lm_eval)) == set(mdlm_lm_eval.__all__)


class FakeTaskManager:
    """Stands for lm-eval's: it keeps what it was told to scan."""

    def __init__(self, verbosity=None, include_path=None, include_defaults=True, metadata=None) -> None:
        self.scanned = (include_path, include_defaults)
        self.include_path = include_path


@pytest.fixture
def task_manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type:
    suite = tmp_path / "suite"
    suite.mkdir()
    monkeypatch.setattr(mdlm_lm_eval, "tasks_path", lambda: suite)
    module = ModuleType("lm_eval.tasks.manager")
    module.TaskManager = type("TaskManager", (FakeTaskManager,), {"__init__": FakeTaskManager.__init__})
    plugin.add_tasks(module)
    return module.TaskManager


def test_suite_is_scanned_before_the_users_folder(task_manager: type, tmp_path: Path) -> None:
    manager = task_manager(include_path=str(tmp_path / "mine"))
    assert manager.scanned == ([tmp_path / "suite", str(tmp_path / "mine")], True)
    assert manager.include_path == str(tmp_path / "mine")
    assert task_manager().scanned == ([tmp_path / "suite"], True)


def test_suite_is_not_scanned_twice_nor_without_defaults(task_manager: type, tmp_path: Path) -> None:
    suite = str(tmp_path / "suite")
    assert task_manager(include_path=suite).scanned == (suite, True)
    assert task_manager(include_defaults=False).scanned == (None, False)


def test_tasks_path_of_an_editable_install_is_the_checkout() -> None:
    assert mdlm_lm_eval.tasks_path() == REPOSITORY / "tasks"


def test_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        mdlm_lm_eval.Nothing  # noqa: B018
