"""The lm-eval task class of multi-dimensional classification, whose example order depends on the test point."""

import math
from typing import Any

from datasets import Dataset
from lm_eval.api import task as lm_eval_task

from mdlm_lm_eval.options import parse_whole
from mdlm_lm_eval.tasks.classification.prompts import LETTERS, letter

ORDERS = ("random", "nearest_first", "nearest_last")


# lm-eval 0.5 has a class for each type of output.
Base: Any = getattr(lm_eval_task, "GenerateTask", lm_eval_task.ConfigurableTask)


class ClassificationTask(Base):
    """Classifies a test point by the first `num_fewshot` training points of the same seed.

    They are the same for all test points. A task's YAML says their `example_order`: random (the same for all), or by
    Euclidean distance to the test point, nearest_first (distance up) or nearest_last (distance down).

    Raises ValueError for an unknown order, and OptionError for more shots than there are training points of a seed.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        config = dict(config)
        del config["class"]
        self.example_order: str = config.pop("example_order")
        if self.example_order not in ORDERS:
            raise ValueError(f"example_order={self.example_order!r} is not allowed; allowed are {', '.join(ORDERS)}")
        super().__init__(config=config)
        self.training_points: dict[int, list[dict[str, int]]] = {}
        for point in self.dataset["train"]:
            self.training_points.setdefault(point["seed"], []).append(point)
        self.config.metadata |= {**self.config.dataset_kwargs, "example_order": self.example_order}

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: object) -> None:
        """Draws the points; the model arguments in the task's metadata have no say in them.

        Test points name their letter, and both.
        """
        self.dataset = self.config.custom_dataset(**self.config.dataset_kwargs)
        named = [{**point, "labels": [*LETTERS], "answer": letter(point)} for point in self.dataset["test"]]
        self.dataset = {**self.dataset, "test": Dataset.from_list(named)}

    def examples(self, doc: dict[str, int], n: int) -> list[dict[str, int]]:
        """The examples of one test point, in the order in which they stand in its prompt."""
        points = self.training_points[doc["seed"]][:n]
        if self.example_order == "random":
            return points

        def distance(point: dict[str, int]) -> float:
            return math.dist([point[axis] for axis in "xyz"], [doc[axis] for axis in "xyz"])

        return sorted(points, key=distance, reverse=self.example_order == "nearest_last")

    def fewshot_context(self, doc: dict[str, int], num_fewshot: int, **kwargs: Any) -> str:
        """The whole prompt of a test point."""
        self.sampler.replace_df(self.examples(doc, num_fewshot))
        context: str = super().fewshot_context(doc, num_fewshot, **kwargs)
        return context

    def set_config(self, key: str, value: Any, update: bool = False) -> None:
        """Refuses a `--num_fewshot` beyond the training points of a seed."""
        n_available = min(map(len, self.training_points.values()))
        if key == "num_fewshot":
            parse_whole(f"num_fewshot of {self.config.task}", value, most=n_available)
        super().set_config(key, value, update)
