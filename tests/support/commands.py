"""Commands in processes of their own, as users start them."""

import atexit
import logging
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

# No GPU, so that no command needs --device, as users leave it out.
ENVIRONMENT = os.environ | {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
# Code that takes lm-eval's thousands of tasks away, whose index takes seconds to build.
WITHOUT_ITS_TASKS = """
import functools, lm_eval.tasks
lm_eval.tasks.TaskManager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
"""
LM_EVAL = f"{WITHOUT_ITS_TASKS}\nfrom lm_eval.__main__ import cli_evaluate\ncli_evaluate()\n"
HOOK = (Path(__file__).parents[2] / "mdlm_lm_eval_hook.pth").read_text()

# Imports take seconds, and the work of a test's command a fraction of one: processes are forked from one that has
# imported what they need. What a command imports, and when, is tested in processes that begin with Python itself.
_FORKS = multiprocessing.get_context("forkserver")


def fork_server() -> None:
    """Starts that process as a copy of this one, in which no test has run yet."""

    def copy(_: object, arguments: Sequence[str], kept: Sequence[int]) -> int:
        if pid := os.fork():
            return pid
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number in {*map(int, os.listdir("/dev/fd"))} - {0, 1, 2, *kept}:
                os.dup2(null, number)  # pipes of the other process, and streams of its that modules may still hold
            atexit._clear()
            logging.root.handlers.clear()
            exec(arguments[-1], {})
        finally:
            os._exit(0)

    resource_tracker.ensure_running()
    changes = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with mock.patch.dict(os.environ, changes), mock.patch("multiprocessing.util.spawnv_passfds", copy):
        forkserver.ensure_running()


def _command(name: str, words: Sequence[str], log: str, variables: dict[str, str]) -> None:
    for stream, name_of, end in ((1, "stdout", ".out"), (2, "stderr", ".err")):
        os.dup2(os.open(log + end, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        setattr(sys, name_of, os.fdopen(stream, "w", buffering=1, encoding="utf-8"))
    for reference in logging._handlerList:
        if isinstance(handler := reference(), logging.StreamHandler):
            handler.setStream(sys.stderr)
    os.environ.update(variables)
    sys.argv = [name, *words]
    try:
        if name == "-c":
            folders, code = sys.argv.pop(1), sys.argv.pop(1)
            sys.path[:0] = filter(None, folders.split(os.pathsep))
            _forget_imports()
            exec(code, {"__name__": "__main__"})
        elif name == "lm_eval":
            exec(LM_EVAL, {"__name__": "__main__"})
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except Exception:
        sys.excepthook(*sys.exc_info())  # as Python itself ends, and multiprocessing does not
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def _forget_imports() -> None:
    """Of what is imported, only other projects' modules stay, and the start-up hook waits as in a new interpreter."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("lm_eval", "mdlm_lm_eval", "mdlm_finetune", "mdlm_leaderboard", "tests"):
            del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "AfterImport"]
    exec(HOOK)


def start(name: str, *words: str, log: Path, **variables: str) -> BaseProcess:
    """Starts `lm_eval`, without its own tasks, or `python -m NAME`; it writes to `{log}.out` and `{log}.err`."""
    process = _FORKS.Process(target=_command, args=(name, words, str(log), variables), daemon=True)
    process.start()
    return process


def run(name: str, *words: str, processes: int = 1, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, also in several processes as `torchrun` starts them; what the first said comes back.

    It must end with `code`.
    """
    with TemporaryDirectory() as folder:
        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        same = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        each = [same | {"RANK": n, "LOCAL_RANK": n} if processes > 1 else {} for n in range(processes)]
        started = [
            start(name, *words, log=Path(folder, str(n)), **{key: str(value) for key, value in variables.items()})
            for n, variables in enumerate(each)
        ]
        while running := [process for process in started if process.is_alive()]:
            connection.wait([process.sentinel for process in running])
            if any(process.exitcode for process in started):
                for process in running:
                    process.kill()  # it may wait for one that failed
        out, err = (Path(folder, f"0.{stream}").read_text(encoding="utf-8") for stream in ("out", "err"))
        assert next((process.exitcode for process in started if process.exitcode), 0) == code, err[-3000:]
        return subprocess.CompletedProcess([name, *words], code, out, err)


def python(code: str, *words: str, path: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    """Runs code, which finds the packages in `path` first, where neither lm-eval nor ours is imported yet."""
    return run("-c", os.pathsep.join(map(str, path)), code, *words)
