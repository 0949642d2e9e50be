"""The start-up hook: what it adds to lm-eval, and that it never gets in the way."""

import subprocess
import sys
from pathlib import Path

import pytest

import mdlm_lm_eval
from tests.conftest import data
from tests.support.commands import ENVIRONMENT, HOOK, LM_EVAL, python

PACKAGES = Path(mdlm_lm_eval.__file__).parents[1]
UNHOOKED = (
    "import sys; from mdlm_lm_eval import plugin\n"
    "sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, plugin.AfterImport)]\n"
)


def python_itself(*words: str) -> subprocess.CompletedProcess[str]:
    """Without the packages that are installed."""
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, check=False)


def test_the_model_is_registered_and_the_suite_is_scanned_below_the_users_folder(
    task_folder: Path, tmp_path: Path
) -> None:
    """No built-in model is hidden, and no module of lm-eval changed."""
    own, of_lm_eval = tmp_path / "mine" / "own.yaml", tmp_path / "of_lm_eval" / "arc.yaml"
    for path, name in ((own, "mdlm_verb_smallest"), (of_lm_eval, "arc_easy")):
        path.parent.mkdir()
        path.write_text(f"task: {name}\ndataset_path: own\noutput_type: multiple_choice\n")
    code = (
        "from lm_eval.api.registry import get_model, model_registry\n"
        "hf = get_model('hf')\n"  # the registry is empty until here
        "from lm_eval.models import MODEL_MAPPING\n"
        "assert hf.__name__ == 'HFLM', hf\n"
        "assert set(MODEL_MAPPING) < set(model_registry.keys()) and 'mdlm' in model_registry\n"
        "assert 'mdlm_lm_eval.lm' not in __import__('sys').modules\n"
        "import lm_eval.models, inspect; inspect.getsource(lm_eval.models)\n"
        "assert type(lm_eval.models.__loader__).__module__.endswith('importlib_external')\n"
        "import sys; from lm_eval.tasks import TaskManager, manager\n"
        "manager.__file__ = sys.argv.pop()\n"  # a folder in the place of lm-eval's thousands of tasks
        "tasks = TaskManager(None, sys.argv[1:])\n"
        "assert {'tiny_choice', 'mdlm_context', 'arc_easy'} < set(tasks.all_tasks)\n"
        "assert tasks.include_path == sys.argv[1:]\n"
        "assert 'mdlm_context' not in TaskManager(include_defaults=False).all_tasks\n"
        "print(tasks._index['mdlm_verb_smallest'].yaml_path)\n"
        "from mdlm_lm_eval.tasks import questions\n"  # one name for the suite's modules
        "print([m for m in sys.modules if m.endswith('questions') and m.startswith(('mdlm', 'tasks'))])\n"
    )
    done = python(code, str(task_folder), str(own.parent), str(of_lm_eval))
    assert done.stdout.splitlines() == [str(own), "['mdlm_lm_eval.tasks.questions']"], done.stderr


def test_the_hook_imports_nothing_but_the_plugin() -> None:
    code = (
        f"import os, sys; sys.path.append({str(PACKAGES)!r}); before = set(sys.modules)\n{HOOK}\n"
        "print(sorted(set(sys.modules) - before))"
    )
    assert python_itself(code).stdout.strip() == "['mdlm_lm_eval', 'mdlm_lm_eval.plugin']"


@pytest.mark.parametrize("package", [None, "raise SystemExit(3)", "raise KeyboardInterrupt", "import nothing_at_all"])
def test_the_hook_survives_whatever_the_package_does(tmp_path: Path, package: str | None) -> None:
    if package is not None:
        (tmp_path / "mdlm_lm_eval").mkdir()
        (tmp_path / "mdlm_lm_eval" / "__init__.py").write_text(package)
    code = f"import sys; sys.path[:] = [{str(tmp_path)!r}, *sys.path[1:]]\n{HOOK}\nprint('goes on')"
    done = python_itself(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")


def test_the_command_works_without_the_hook() -> None:
    code = (
        f"{UNHOOKED}import runpy\ntry: runpy.run_module('mdlm_lm_eval', run_name='__main__')\nexcept SystemExit: pass\n"
        "import lm_eval.models; from lm_eval.api.registry import model_registry; from lm_eval.tasks import manager\n"
        "manager.__file__ = '/nowhere/manager.py'\n"  # a folder without lm-eval's thousands of tasks
        "print('mdlm' in model_registry, 'mdlm_context' in manager.TaskManager().all_tasks)"
    )
    assert python(code, "--help").stdout.endswith("True True\n")


def test_other_models_run_as_without_the_package(task_folder: Path) -> None:
    words = f"run --model dummy --tasks tiny_choice --include_path {task_folder} --limit 2".split()
    help = "try: cli_evaluate()\nexcept SystemExit: sys.argv[1:] = words\ncli_evaluate()"
    code = f"import sys; words = sys.argv[1:]; sys.argv[1:] = ['--help']\n{LM_EVAL.replace('cli_evaluate()', help)}"
    hooked, unhooked = (python(before + code, *words) for before in ("", UNHOOKED))
    assert "usage: lm-eval" in hooked.stdout
    assert hooked.stdout == unhooked.stdout
    assert "mdlm" not in hooked.stdout + hooked.stderr


# Where the parts of lm-eval that are extended may lie in other releases, and what they are then.
RENAMED = {
    "TaskIndex": ("TasksIndex", "['dummy', 'mdlm', 'mdlm-server'] [OWN, 'mine']\n"),
    "paths": ("folders", "['dummy', 'mdlm', 'mdlm-server'] [OWN, 'mine']\n"),
    "model_registry": ("registry_of_models", f"['dummy'] [OWN, '{mdlm_lm_eval.tasks_path()}', 'mine']\n"),
}


@pytest.mark.parametrize("name", RENAMED)
def test_a_release_that_is_laid_out_otherwise_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    """A package of lm-eval's module names, with one of the names changed that the hook looks for."""
    other, expected = RENAMED[name]
    for module, content in data("cases.json")["a release that is laid out otherwise"].items():
        path = tmp_path / "lm_eval" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.replace(name, other))
    done = python(f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_module('lm_eval.__main__')")
    assert done.stdout == expected.replace("OWN", repr(str(tmp_path / "lm_eval" / "tasks"))), done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith("mdlm-lm-eval: could not ")


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_programs_own_model_of_our_name_is_used_and_said(order: str) -> None:
    steps = ["import lm_eval.models", "register_model('mdlm')(Own)"]
    code = (
        "from lm_eval.api.model import LM\nfrom lm_eval.api.registry import get_model, model_registry, register_model\n"
        "class Own(LM):\n    loglikelihood = loglikelihood_rolling = generate_until = None\n"
        f"{'; '.join(steps if order == 'after' else reversed(steps))}\n"
        "import importlib; importlib.reload(lm_eval.models)\n"
        "print(get_model('mdlm').__name__, model_registry.keys() >= {'mdlm-server', 'hf'})"
    )
    done = python(code)
    assert done.stdout == "Own True\n", done.stderr
    assert done.stderr.splitlines()[0] == (
        "mdlm-lm-eval: --model mdlm is this program's own class, not the one of mdlm-lm-eval"
    )


def test_warnings_of_lm_eval_name_the_line_that_calls_it() -> None:
    code = (
        "import warnings; from lm_eval.tasks import TaskManager, manager\n"
        "manager.__file__ = '/nowhere/manager.py'\n"
        "with warnings.catch_warnings(record=True, action='always') as caught: TaskManager('INFO')\n"
        "print([one.filename for one in caught if one.category is DeprecationWarning])"
    )
    assert python(code).stdout == "['<string>']\n"


def test_tools_can_read_the_modules_that_the_hook_waits_for() -> None:
    code = (
        "import copy, importlib.util as util\n"
        "for name in ('lm_eval.models', 'lm_eval.tasks.manager'):\n"
        "    loader = copy.copy(util.find_spec(name).loader)\n"
        "    print(loader.get_filename(name).endswith('.py'), 'lm' in loader.get_source(name))\n"
    )
    assert python(code).stdout == "True True\n" * 2


def test_a_release_that_discovers_plugins_registers_the_model_itself() -> None:
    code = (
        "import lm_eval.api.registry as registry; registry.import_plugins = None\n"
        "import lm_eval.models; print('mdlm' in registry.model_registry)"
    )
    assert python(code).stdout == "False\n"


def test_a_release_that_finds_the_tasks_of_packages_lists_each_once(task_folder: Path) -> None:
    """As lm-eval's pull request 4015 orders folders: its own, those of packages, those of `--include_path`."""
    code = (
        "import sys; from pathlib import Path; from mdlm_lm_eval import tasks_path\n"
        "from lm_eval.tasks import _index\n"
        "build, scanned = _index.TaskIndex.build, []\n"
        "def scan(paths):\n"
        "    scanned.extend(paths := list(paths))\n"
        "    return build(paths[1:])\n"  # without lm-eval's thousands of tasks
        "_index.TaskIndex.build = staticmethod(scan)\n"
        "from lm_eval.tasks import manager\n"
        "own, mine = Path(manager.__file__).parent, Path(sys.argv[1])\n"
        "names = manager.TaskIndex.build([own, tasks_path(), mine])\n"
        "assert scanned == [own, tasks_path(), mine], scanned\n"
        "print('tiny_choice' in names, 'mdlm_context' in names)"
    )
    done = python(code, str(task_folder))
    assert done.stdout == "True True\n", done.stderr


def test_public_names() -> None:
    assert set(dir(mdlm_lm_eval)) == set(mdlm_lm_eval.__all__)
    assert all(getattr(mdlm_lm_eval, name) for name in mdlm_lm_eval.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        mdlm_lm_eval.Nothing  # noqa: B018
