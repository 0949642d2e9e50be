"""Several processes on one output: each cell is computed once, whoever dies, and the files are those of one process."""

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mdlm_lm_eval.analyses.output import Report
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results import locks
from mdlm_lm_eval.results.files import whole_folder, write_whole
from mdlm_lm_eval.results.locks import Claim, claim
from mdlm_lm_eval.results.sharing import Shared
from mdlm_lm_eval.sweep.failures import failed_file, read_failure, write_failure
from mdlm_lm_eval.sweep.plan import plan
from mdlm_lm_eval.sweep.ranks import Ranks
from mdlm_lm_eval.sweep.results import is_enlarged
from mdlm_lm_eval.sweep.runner import SweepRun
from mdlm_lm_eval.sweep.status import status_of
from tests.commands import ENVIRONMENT
from tests.test_sweep import command, run_here, stored

N_MASKS = "3,4,5,6,7,8"
# Starts processes that each run the command as if it were typed; they share the imports, which take most of the time.
FORKED = """
import os, sys
import mdlm_lm_eval.sweep.runner
from mdlm_lm_eval.sweep.__main__ import main
n, folder = int(sys.argv[1]), sys.argv[2]
sys.argv = ["mdlm-sweep", *sys.argv[3:]]
for number in range(n):
    if (child := os.fork()) == 0:
        log = os.open(f"{folder}/{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            main()
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(int(bool(end.code)))
    print(child, flush=True)
codes = [os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) for _ in range(n)]
print(*codes, flush=True)
"""


def started(n: int, logs: Path, words: list[str]) -> tuple[subprocess.Popen[str], list[int]]:
    """`n` processes of one command, and their ids."""
    logs.mkdir()
    python, _, _, *arguments = words
    launcher = subprocess.Popen(
        [python, "-c", FORKED, str(n), str(logs), *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    return launcher, [int(launcher.stdout.readline()) for _ in range(n)]


def last_lines(logs: Path) -> list[str]:
    return [path.read_text().splitlines()[-1] for path in sorted(logs.iterdir())]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, task_folder: Path) -> dict[str, Any]:
    """What one process writes."""
    output = tmp_path_factory.mktemp("one")
    run_here(output, checkpoint, task_folder, n_masks=N_MASKS, limit=1)
    return stored(output)


def test_two_processes_share_the_cells(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    words = command(tmp_path / "out", checkpoint, task_folder, f"--n_masks={N_MASKS}", "--limit=1")
    launcher, _ = started(2, tmp_path / "logs", words)
    output, _ = launcher.communicate()
    assert output.split() == ["0", "0"]
    assert stored(tmp_path / "out") == undisturbed
    ends = last_lines(tmp_path / "logs")
    assert all("mdlm-sweep: 6 of 6 cells are done" in end for end in ends)
    own = [int(end.partition(" by this process")[0].split()[-1]) if " by this" in end else 0 for end in ends]
    assert sum(own) == 6  # each once
    assert not [path for path in (tmp_path / "out").rglob(".*") if path.name != ".sweeps"]
    assert "6 cells: 6 done, 0 running, 0 failed, 0 missing" in status_of(tmp_path / "out")


def test_eight_processes_and_random_kills_write_the_same(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    words = command(tmp_path / "out", checkpoint, task_folder, f"--n_masks={N_MASKS}", "--limit=1")
    launcher, processes = started(8, tmp_path / "logs", words)
    rng = random.Random(0)
    for process in rng.sample(processes, 4):
        time.sleep(rng.random())
        os.kill(process, signal.SIGKILL)
    output, _ = launcher.communicate()
    codes = output.split()
    assert sorted(codes, reverse=True)[-4:] == ["-9"] * codes.count("-9") + ["0"] * (4 - codes.count("-9"))
    assert set(codes) <= {"0", "-9"}
    assert stored(tmp_path / "out") == undisturbed


def test_a_failing_cell_is_tried_once_by_all_together_and_again_by_the_next_command(
    tmp_path: Path, checkpoint: Path, task_folder: Path
) -> None:
    common = {"model_args": {"pretrained": str(checkpoint)}, "include_path": str(task_folder), "device": "cpu"}
    settings = common | {"tasks": "tiny_generate", "n_masks": 4, "n_fillers": [0, 500], "limit": 1}
    first, second = SweepRun(plan(settings), tmp_path), SweepRun(plan(settings), tmp_path)
    evaluated = []
    for run in (first, second):
        run.start()
    for run in (first, second):
        evaluate = run.evaluator.evaluate
        run.evaluator.evaluate = lambda *cell, evaluate=evaluate: (evaluated.append(cell), evaluate(*cell))[1]  # type: ignore[method-assign]
        run.run()
    assert len(evaluated) == 2
    assert first.report().summary().startswith("1 of 2 cells are done")
    assert ": 1 by others" in second.report().summary()
    assert "4 masks and 500 filler tokens" in first.failures[0]
    assert second.failures[0].startswith(f"{first.failures[0]} (process {os.getpid()} on ")
    status = status_of(tmp_path)
    assert "2 cells: 1 done, 0 running, 1 failed, 0 missing" in status
    assert "500 filler tokens" in status
    third = SweepRun(plan(settings), tmp_path)
    third.run()
    assert third.failures == first.failures


def test_enlarging_the_limit_replaces_results(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    for limit in (1, 2):
        run = run_here(tmp_path, checkpoint, task_folder, n_masks=4, limit=limit)
        assert not run.failures
        assert "1 by this process" in run.report().summary()
        (result,) = stored(tmp_path).values()
        assert result["config"]["limit"] == limit
        assert run.report().table().splitlines()[-1].endswith(f"| {limit} |")
    assert not list(tmp_path.rglob(".*.old.*"))


@pytest.mark.parametrize(
    ("before", "now", "enlarged"),
    [(1, 2, True), (2, 1, False), (5, None, True), (None, 5, False), (0.1, 0.5, True), (0.5, 3, False), (3, 3, False)],
)
def test_which_limits_cover_more(before: float | None, now: float | None, enlarged: bool) -> None:
    assert is_enlarged(before, now) is enlarged


def test_status_says_who_runs_what_and_what_is_missing(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    run = SweepRun(
        plan(
            {
                "model_args": {"pretrained": str(checkpoint)},
                "include_path": str(task_folder),
                "tasks": "tiny_generate",
                "n_masks": [1, 2],
            }
        ),
        tmp_path,
    )
    run.start()
    assert run.board is not None
    with claim(run.board.folder(run.sweep.cells[1])):
        lines = status_of(tmp_path).splitlines()
    assert lines[1] == "2 cells: 0 done, 1 running, 0 failed, 1 missing"
    assert lines[2].startswith(f"running: {checkpoint.name}/tiny_generate,n_masks=2: process {os.getpid()} on ")
    assert lines[3] == f"missing: {checkpoint.name}/tiny_generate,n_masks=1"
    with pytest.raises(OptionError, match="no sweep has begun there"):
        status_of(tmp_path / "other")


def test_processes_share_the_tasks_of_an_analysis(tmp_path: Path) -> None:
    """Two reports on one folder, of which one adds the tasks that the other has not."""
    first, second = (Report(tmp_path, "confidence", {"limit": 1}) for _ in range(2))
    shared = [Shared(["a", "b", "c"], report.task_path, report.has) for report in (first, second)]
    taken = shared[0].take()
    assert taken is not None
    for task, _ in [shared[1].take(), shared[1].take()]:  # type: ignore[misc]
        second.add(task, [{"task": task, "value": 1}])
    assert shared[1].take() is None
    first.add(taken[0], [{"task": taken[0], "value": 2}])
    taken[1].release()
    assert shared[0].wait() is shared[1].wait() is None
    for report in (first, second):
        report.sort(["a", "b", "c"])
        assert [row["task"] for row in report.rows] == report.finished == ["a", "b", "c"]
    assert (first.own, second.own) == (["a"], ["b", "c"])


def test_a_process_that_lost_its_task_adds_no_rows(tmp_path: Path) -> None:
    suspended, other = (Report(tmp_path, "confidence", {}) for _ in range(2))
    other.add("a", [{"task": "a", "value": 1}])
    suspended.add("a", [{"task": "a", "value": 1}])
    for report in (other, suspended, Report(tmp_path, "confidence", {})):
        assert (report.finished, report.rows) == (["a"], [{"task": "a", "value": 1}])
    assert suspended.own == []


# Claims themselves


def test_items_are_done_once_by_two_that_take_turns(tmp_path: Path) -> None:
    done: list[int] = []
    workers = [Shared(range(6), lambda n: tmp_path / str(n), done.__contains__) for _ in range(2)]
    first = workers[0].take()
    assert first is not None
    second = workers[1].take()
    assert second is not None
    assert (first[0], second[0]) == (0, 1)
    preferred = workers[1].take(lambda n: n == 4)
    assert preferred is not None
    assert preferred[0] == 4
    assert workers[0].holders() == []
    done += [first[0], preferred[0]]
    for _, held in (first, second, preferred):
        held.release()  # the second's is not done
    done.extend(n for n, _ in workers[0])
    assert sorted(done) == [0, 1, 2, 3, 4, 5]
    assert workers[1].wait() is None


def test_a_claim_of_a_dead_host_is_taken_after_the_lease_by_the_own_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.4)
    marker = tmp_path / ".cell.claim"
    with claim(tmp_path / "cell"):
        text = marker.read_text()
    marker.write_text(text.replace(locks.platform.node(), "another-host"))
    os.utime(marker, (time.time() + 1e6, time.time() + 1e6))  # its clock is days ahead
    waiting = Claim(tmp_path / "cell")
    assert not waiting.take()
    assert waiting.holder == f"process {os.getpid()} on another-host"
    assert waiting.take(wait=60)
    waiting.release()
    assert not list(tmp_path.iterdir())


def test_a_claim_that_outlived_its_process_is_cleared(tmp_path: Path) -> None:
    code = "import os, sys\nfrom pathlib import Path\nfrom mdlm_lm_eval.results.locks import Claim\n"
    code += "for name in sys.argv[1:]:\n    held = Claim(Path(name))\n    held.take()\nos._exit(0)\n"
    finished, free = tmp_path / "finished", tmp_path / "free"
    subprocess.run([sys.executable, "-c", code, str(finished)], check=True)
    finished.mkdir()
    with claim(free):
        locks.clear_claims(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"finished", ".free.claim"}


def test_a_claim_without_a_name_does_not_last_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.2)
    (tmp_path / ".cell.claim").touch()
    waiting = Claim(tmp_path / "cell")
    while not waiting.take():
        time.sleep(0.01)
    waiting.release()


# On disks that cannot exchange two files, with which filelock takes a claim over


WITHOUT_EXCHANGE = """
import errno, filelock._util
filelock._util._rename_call = lambda: (lambda *_: errno.EINVAL, 2)
"""
HOLDER = """
import sys
from pathlib import Path
from mdlm_lm_eval.results.locks import Claim
held = [Claim(Path(name)) for name in sys.argv[1:]]
print(*(claim.take() for claim in held), flush=True)
while sys.stdin.readline():
    print(*(claim.lost for claim in held), flush=True)
"""
# Each says which of the claims it got, all having tried each at the same moment.
BREAKERS = """
import multiprocessing, sys
from pathlib import Path
from mdlm_lm_eval.results.locks import Claim

def work(paths, at_once, results):
    claims = [Claim(Path(path)) for path in paths]
    taken = []
    for claim in claims:
        at_once.wait()
        taken.append(claim.take())
        at_once.wait()
    results.put([took * (2 if claim.lost else 1) for took, claim in zip(taken, claims)])
    at_once.wait()

context = multiprocessing.get_context("fork")
at_once, results = context.Barrier(3, timeout=60), context.Queue()
workers = [context.Process(target=work, args=(sys.argv[1:], at_once, results)) for _ in range(3)]
for worker in workers:
    worker.start()
print([sum(of_one) for of_one in zip(*(results.get() for _ in workers))])
"""


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filelock._util._rename_call", lambda: (lambda *_: errno.EINVAL, 2))


@contextmanager
def holder(*paths: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has claimed `paths`."""
    words = [sys.executable, "-c", WITHOUT_EXCHANGE + HOLDER, *map(str, paths)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["True"] * len(paths)
        try:
            yield process
        finally:
            process.kill()


def left_by_a_dead_process(*paths: Path) -> None:
    with holder(*paths):
        pass


@pytest.mark.usefixtures("no_exchange")
def test_the_claim_of_a_dead_process_is_taken_at_once(tmp_path: Path) -> None:
    cell = tmp_path / "cell"
    with holder(cell):
        assert not Claim(cell).take()
    taken = Claim(cell)
    assert taken.take()
    assert not taken.lost
    assert [path.name for path in tmp_path.iterdir()] == [".cell.claim"]
    taken.release()


def test_of_processes_that_take_over_at_once_one_holds_it(tmp_path: Path) -> None:
    cells = [tmp_path / str(n) for n in range(30)]
    left_by_a_dead_process(*cells)
    words = [sys.executable, "-c", WITHOUT_EXCHANGE + BREAKERS, *map(str, cells)]
    assert json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout) == [1] * len(cells)


@pytest.mark.usefixtures("no_exchange")
def test_who_is_slow_to_take_over_leaves_the_claim_of_the_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cell"
    left_by_a_dead_process(cell)
    slow, fast = Claim(cell), Claim(cell)
    is_dead = locks._is_dead

    def take_it_meanwhile(owner: Any) -> bool:
        monkeypatch.setattr(locks, "_is_dead", is_dead)
        assert fast.take()
        return True

    monkeypatch.setattr(locks, "_is_dead", take_it_meanwhile)
    assert not slow.take()
    assert not fast.lost
    fast.release()


@pytest.mark.usefixtures("no_exchange")
def test_a_process_that_dies_while_it_takes_over_keeps_nobody_from_it(tmp_path: Path) -> None:
    cell = tmp_path / "cell"
    left_by_a_dead_process(cell)
    dying = (
        "import os\nlooks = iter([Claim._look])\nClaim._look = lambda self: next(looks, lambda _: os._exit(9))(self)\n"
    )
    code = HOLDER.replace("held = ", f"{dying}held = ", 1)
    words = [sys.executable, "-c", WITHOUT_EXCHANGE + code, str(cell)]
    assert subprocess.run(words, check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 2  # the claim, and that it was about to be removed
    taken = Claim(cell)
    assert taken.take()
    assert [path.name for path in tmp_path.iterdir()] == [".cell.claim"]
    taken.release()


@pytest.mark.usefixtures("no_exchange")
def test_the_claim_of_another_machine_is_taken_once_it_is_renewed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, clock = tmp_path / ".cell.claim", SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(locks, "time", clock)
    with claim(tmp_path / "cell"):
        text = marker.read_text()
    marker.write_text(text.replace(locks.platform.node(), "another-host"))
    waiting = Claim(tmp_path / "cell")
    for seconds in range(100):  # it is renewed, by a clock of its own
        os.utime(marker, (seconds, seconds))
        clock.now += 0.9 * locks.LEASE_SECONDS
        assert not waiting.take()
    clock.now += 0.9 * locks.LEASE_SECONDS
    assert not waiting.take()
    clock.now += 0.2 * locks.LEASE_SECONDS
    assert waiting.take()
    waiting.release()


@pytest.mark.usefixtures("no_exchange")
def test_a_suspended_process_notices_that_it_lost_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Claim(tmp_path / "cell")
    with holder(tmp_path / "cell") as suspended:
        assert suspended.stdin is not None
        assert suspended.stdout is not None
        print(file=suspended.stdin, flush=True)
        assert suspended.stdout.readline() == "False\n"
        suspended.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(locks, "LEASE_SECONDS", 0.1)
        assert waiting.take(wait=60)
        suspended.send_signal(signal.SIGCONT)
        print(file=suspended.stdin, flush=True)  # before it tries to renew
        assert suspended.stdout.readline() == "True\n"
    assert not waiting.lost
    waiting.release()


def test_the_longest_name_of_a_cell_has_room_for_all_that_is_put_around_it(tmp_path: Path) -> None:
    longest = {"tasks": "mdlm_context", "filler": "x" * (239 - len("mdlm_context,filler="))}
    (cell,) = plan(longest).cells
    with pytest.raises(OptionError, match=r"a folder name of 240 bytes, .*; at most 239 are possible"):
        plan(longest | {"filler": f"{longest['filler']}x"})
    folder = tmp_path / cell.name
    write_failure(failed_file(folder), "a sentence")
    assert read_failure(failed_file(folder))["sentence"] == "a sentence"
    left_by_a_dead_process(folder)
    with claim(folder):
        for replaced in (False, True):
            with whole_folder(folder, replaced=replaced) as unfinished:
                write_whole(unfinished / "results.json", "{}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--executor=slurm"], "executor must be one of here, ray, not slurm"),
        (["--workers=2"], "--workers is for --executor ray"),
        (["--executor=ray", "--workers=0"], "workers must be a whole number from 1, not 0"),
        (["--executor=ray", "--gpus_per_worker=1.5"], "gpus_per_worker must be a whole number from 0, or a share"),
        (["--output_path=s3://bucket/results"], "--output_path s3:/bucket/results: must be a folder on a disk"),
    ],
)
def test_where_cells_run_is_checked_first(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mdlm_lm_eval.sweep.__main__ import main

    words = ["mdlm-sweep", f"--output_path={tmp_path}", "--tasks=mdlm_context", *arguments]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value.code).startswith(f"mdlm-sweep: {sentence}")


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mdlm_lm_eval.sweep import __main__ as command_line

    monkeypatch.setattr(command_line, "find_spec", lambda name: None)
    words = ["mdlm-sweep", f"--output_path={tmp_path}", "--tasks=mdlm_context", "--executor=ray"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == "mdlm-sweep: --executor ray needs Ray: pip install 'mdlm-lm-eval[ray]'"


def test_a_process_that_fails_alone_ends_the_run(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import torch.distributed\n"
        "from mdlm_lm_eval.sweep.ranks import Ranks\n"
        "ranks = Ranks()\n"
        "ranks.told(None)\n"
        "ranks.settle(ValueError('of both'))\n"
        "ranks.told(None)\n"
        "ranks.settle(None)\n"
        "ranks.told(None)\n"
        "print('third cell')\n"
        "if ranks.is_first:\n"
        "    torch.distributed.barrier()\n"
        "else:\n"
        "    ranks.settle(ValueError('of one'), seconds=1)\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(launch, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout.count("third cell") == 2
    assert "process 1 of 2 failed alone (ValueError: of one), and the others wait for it" in done.stderr


def test_fewer_questions_than_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    ranks = Ranks()
    for limit in (None, 0.5, 8):
        ranks.check_limit(limit)
    with pytest.raises(OptionError, match=r"^--limit 4 leaves some of 8 processes without a question"):
        ranks.check_limit(4)


def test_two_launchers_of_torchrun_give_the_same_scores(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    python, _, _, *arguments = command(
        tmp_path / "out", checkpoint, task_folder, f"--n_masks={N_MASKS[:3]}", "--limit=4"
    )
    run_here(tmp_path / "one", checkpoint, task_folder, n_masks=N_MASKS[:3], limit=4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    rendezvous = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
    launch = [python, "-m", "torch.distributed.run", *rendezvous, "-m", "mdlm_lm_eval.sweep", *arguments]
    nodes = [subprocess.Popen(launch, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [node.communicate()[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "".join(errors)[-3000:]
    scores, expected = (
        {path: json.dumps(result["results"]) for path, result in stored(tmp_path / folder).items()}
        for folder in ("out", "one")
    )
    assert scores == expected
    assert sum("2 of 2 cells are done" in error for error in errors) == 1
    assert all(result["config"]["mdlm"]["processes"] == 2 for result in stored(tmp_path / "out").values())
