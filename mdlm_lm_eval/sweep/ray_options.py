"""What the command line says about a Ray cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mdlm_lm_eval.values import must_be, number_of, parse_whole

EXECUTORS = ("here", "ray")


@dataclass(frozen=True)
class RayOptions:
    """Where cells run on a Ray cluster; None leaves the choice to what the cluster has."""

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "RayOptions":
        """Raises OptionError."""
        workers, gpus = given.get("workers"), given.get("gpus_per_worker")
        n_gpus = None if gpus is None else number_of(gpus)
        if gpus is not None and (n_gpus is None or n_gpus < 0 or (n_gpus > 1 and n_gpus != int(n_gpus))):
            raise must_be("gpus_per_worker", "a whole number from 0, or a share below 1", gpus)
        return cls(
            address=given.get("address"),
            workers=None if workers is None else parse_whole("workers", workers, least=1),
            gpus_per_worker=n_gpus,
        )
