"""Draws random numbers as lm-eval's own tasks do: some from a generator of their module, others from Python's."""

import random

from lm_eval.api.filter import Filter
from lm_eval.api.registry import register_filter

rng = random.Random(42)


@register_filter("as_it_is")
class AsItIs(Filter):
    def apply(self, resps, docs):
        return [answers[0] for answers in resps]


def reordered(dataset):
    order = rng.sample(range(len(dataset)), len(dataset))
    random.shuffle(order)
    return dataset.select(order)


def with_choices(dataset):
    def add(doc):
        choices = ["A", "B", "C", "D", "E"]
        random.shuffle(choices)
        return {"q": doc["q"] + "".join(choices)}

    return dataset.map(add)
