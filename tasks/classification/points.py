"""Points with three integer coordinates in two classes, for multi-dimensional classification (paper, appendix A.8).

The paper names the four shapes. Noise, the gap between the circles, the polynomial's degree and which class is Above
are ours.
"""

from functools import cache

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from sklearn.datasets import make_circles, make_moons, make_swiss_roll
from sklearn.preprocessing import PolynomialFeatures

DATA_SETS = ("nonlinear", "swiss_roll", "moons", "circles")
SEEDS = (1, 2, 3, 4, 5)
N_TRAIN, N_TEST = 100, 1000
LARGEST_COORDINATE = 100
N_CANDIDATES = 20_000
RAREST_SHARE = 0.1  # of a class among the candidates: weights for which nearly all points are in one class are redrawn
ABOVE, BELOW = 0, 1

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def all_seeds(data_set: str) -> dict[str, Dataset]:
    """The training and test points of all five seeds, of which every next five have one of each."""
    splits: dict[str, list[dict[str, int]]] = {"train": [], "test": []}
    for name, rows in splits.items():
        of_seeds = [draw_points(data_set, seed)[name] for seed in SEEDS]  # [5, n, 4]
        for points in zip(*of_seeds, strict=True):
            for seed, (x, y, z, label) in zip(SEEDS, points, strict=True):
                rows.append({"seed": seed, "x": int(x), "y": int(y), "z": int(z), "label": int(label)})
    return {name: Dataset.from_list(rows) for name, rows in splits.items()}


@cache
def draw_points(data_set: str, seed: int) -> dict[str, Integers]:
    """Split -> rows (x, y, z, label): 100 `train` and 1000 `test` points, all different, half of each class.

    Every next two training points are one of each class, so that labels are balanced whatever the number of shots.
    """
    rng = np.random.default_rng([DATA_SETS.index(data_set), seed])
    coordinates, above = _candidates(data_set, rng)
    _, first = np.unique(coordinates, axis=0, return_index=True)
    kept = np.sort(first)
    labels = np.where(above[kept], ABOVE, BELOW)
    rows = np.column_stack([coordinates[kept], labels])  # [N, 4]
    pairs = np.stack([rows[labels == label][: (N_TRAIN + N_TEST) // 2] for label in (ABOVE, BELOW)], axis=1)
    swapped = rng.random(len(pairs)) < 0.5
    pairs[swapped] = pairs[swapped, ::-1]
    train, test = np.split(pairs.reshape(-1, 4), [N_TRAIN])
    return {"train": train, "test": rng.permutation(test)}


def _candidates(data_set: str, rng: np.random.Generator) -> tuple[Integers, NDArray[np.bool_]]:
    """Coordinates [N, 3] and whether each point is Above [N], in random order."""
    random_state = int(rng.integers(2**31))
    if data_set == "nonlinear":
        return _nonlinear(rng)
    if data_set == "swiss_roll":
        places, along = make_swiss_roll(N_CANDIDATES, random_state=random_state)
        return _as_integers(places, rng), along > np.median(along)
    if data_set == "moons":
        places, label = make_moons(N_CANDIDATES, noise=0.1, random_state=random_state)
    else:
        places, label = make_circles(N_CANDIDATES, noise=0.05, factor=0.5, random_state=random_state)
    return _as_integers(places, rng), label == 0


def _nonlinear(rng: np.random.Generator) -> tuple[Integers, NDArray[np.bool_]]:
    """A logistic model with random weights on polynomial features, at the threshold 0.5."""
    coordinates = rng.integers(1, LARGEST_COORDINATE + 1, (N_CANDIDATES, 3))
    features = PolynomialFeatures(degree=2).fit_transform(2 * coordinates / LARGEST_COORDINATE - 1)  # [N, 10]
    while True:
        probability = 1 / (1 + np.exp(-features @ rng.standard_normal(features.shape[1])))
        above = probability > 0.5
        if RAREST_SHARE <= above.mean() <= 1 - RAREST_SHARE:
            return coordinates, above


def _as_integers(places: Floats, rng: np.random.Generator) -> Integers:
    """Places [N, 2 or 3] stretched to 1..100 and rounded; missing coordinates are random."""
    low, high = places.min(axis=0), places.max(axis=0)
    stretched = np.rint(1 + (LARGEST_COORDINATE - 1) * (places - low) / (high - low)).astype(np.int64)
    missing = rng.integers(1, LARGEST_COORDINATE + 1, (len(places), 3 - places.shape[1]))
    return np.concatenate([stretched, missing], axis=1)
