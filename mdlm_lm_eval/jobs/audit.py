"""Which requests are decoded a second time, exactly, so that their answers can be compared."""

from collections.abc import Iterable

from mdlm_lm_eval.decoding.canvas import seed_of


def in_drawn_order(requests: Iterable[tuple[str, int]], label: str) -> dict[str, list[tuple[float, int]]]:
    """For each task its requests (task, seed) in an order that their seeds draw, as (place in [0, 1), index).

    The order depends neither on batches nor on the order in which requests come. Another `label` draws another one.
    """
    by_task: dict[str, list[tuple[int, int]]] = {}
    for index, (task, seed) in enumerate(requests):
        by_task.setdefault(task, []).append((seed_of(f"{label} {seed}"), index))
    return {task: [(digest / 2**63, index) for digest, index in sorted(of_task)] for task, of_task in by_task.items()}
