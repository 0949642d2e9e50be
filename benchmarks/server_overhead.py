"""What `--model mdlm-server` adds to a request, over a plain client that posts the same bodies to the same server.

    python -m benchmarks.server_overhead --concurrent 32

The 16 few-shot tasks with 50 questions each, against a stand-in that answers at once, in a process of its own. Seconds
are wall time and processor time of this process; what is added holds tokenisation, records and lm-eval's transport.
With version 0.4.0, a request takes 2.07 ms (1.06 of the processor), and 1.53 ms (0.49) with the plain client: median of
five runs on two cores of an AMD EPYC (Zen 5).
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import aiohttp
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from benchmarks.serve import StandIn, completion
from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.results.suite import task_names
from mdlm_lm_eval.server import MDLMServer


def serve(ready: Any) -> None:
    """Answers until the process is ended."""
    server = StandIn(lambda payload: completion("A", 1))
    ready.send(server.address)
    server.serve_forever()


def suite(questions: int) -> list[Instance]:
    """The generation requests of the suite."""
    manager = TaskManager(include_path=str(tasks_path()), include_defaults=False)
    found: list[Instance] = []
    for name in sorted(task_names()):
        task = manager.load([f"mdlm_{name}"])["tasks"][f"mdlm_{name}"]
        task.build_all_requests(limit=questions, rank=0, world_size=1)
        found += task.instances
    return found


async def post(url: str, bodies: list[dict[str, Any]], concurrent: int) -> None:
    """The plain client."""
    gate = asyncio.Semaphore(concurrent)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrent)) as session:

        async def one(body: dict[str, Any]) -> None:
            async with gate, session.post(url, json=body) as response:
                await response.json()

        await asyncio.gather(*map(one, bodies))


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    lm = MDLMServer(here.recv(), pretrained="built-in-block", num_concurrent=given.concurrent)
    requests = suite(given.questions)
    bodies: list[dict[str, Any]] = []
    create = lm._create_payload
    lm._create_payload = lambda *a, **b: bodies.append(body := create(*a, **b)) or body  # type: ignore[method-assign]
    lm.generate_until(requests)
    lm._create_payload = create  # type: ignore[method-assign]
    ours = [seconds(lambda: lm.generate_until(requests)) for _ in range(given.repeats)]
    plain = [seconds(lambda: asyncio.run(post(lm.base_url, bodies, given.concurrent))) for _ in range(given.repeats)]
    process.terminate()
    print(f"{len(requests)} requests, {given.concurrent} at a time, median of {given.repeats} runs; ms a request")
    for name, runs in (("mdlm-server", ours), ("plain client", plain)):
        wall, processor = (1000 * median(column) / len(requests) for column in zip(*runs, strict=True))
        print(f"{name:>12}  wall {wall:.2f}  processor {processor:.2f}")


if __name__ == "__main__":
    main()
