"""The start-up hook: what it adds to lm-eval, and that it never gets in the way."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mdlm_lm_eval
from mdlm_lm_eval import plugin

REPOSITORY = Path(__file__).parent.parent
HOOK = (REPOSITORY / "mdlm_lm_eval_hook.pth").read_text()


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
        f"import sys; sys.path.append({str(REPOSITORY)!r}); before = set(sys.modules)\n{HOOK}\n"
        "print(sorted(set(sys.modules) - before))"
    )
    assert python(code, "-S").stdout.strip() == "['mdlm_lm_eval', 'mdlm_lm_eval.plugin']"


def test_hook_without_the_package_is_silent() -> None:
    done = python(HOOK, "-S")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
        raise RuntimeError("broken")

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
