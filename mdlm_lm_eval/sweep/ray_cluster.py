"""A Ray cluster before work starts: whether it answers, has the same code everywhere, and room for workers."""

import logging
import os
import socket
import sys
import threading
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.sweep.ray_options import RayOptions

_SECONDS_TO_CONNECT = 8.0  # to reach the address, and again for Ray to answer there
_SECONDS_FOR_A_NODE = 120.0  # to start a process that lists its packages
_PACKAGES = ("mdlm-lm-eval", "lm-eval", "torch", "transformers", "peft", "datasets")
# What every worker has from here; nothing secret, as a cluster shows it to all its users.
_ENVIRONMENT = ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "TQDM_DISABLE")


def connect(address: str | None) -> None:
    """Joins the cluster at `address`; without one, that of `RAY_ADDRESS` or this machine, or one started here.

    Raises OptionError where none answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    host, _, port = (address or "").rpartition(":")
    if address not in (None, "auto"):
        if not host or not port.isdigit():
            raise OptionError(f"--address {address}: must be auto or HOST:PORT, such as 10.0.0.1:6379")
        try:
            socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT).close()
        except (OSError, OverflowError) as error:
            raise OptionError(f"--address {address}: no Ray cluster answers there ({one_line(error)})") from error
    # Ray itself tries for a minute or longer where something else than a cluster answers, and then ends the process.
    watch = threading.Timer(_SECONDS_TO_CONNECT, _give_up, [address])
    if address is not None:
        watch.start()
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:  # of another version of Ray or Python, say
        raise OptionError(f"--address {address}: cannot be joined: {one_line(error)}") from error
    finally:
        watch.cancel()


def check_nodes() -> None:
    """Raises OptionError for nodes whose packages or code are not those of this process."""
    here = _versions_here()
    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    # As a value: a function of this package could not be read on a node without it.
    remote = ray.remote(num_cpus=0)(_list_versions())
    asked = {
        name: remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(_PACKAGES)
        for node, name in nodes.items()
    }
    for name, reference in asked.items():
        try:
            there = ray.get(reference, timeout=_SECONDS_FOR_A_NODE)
        except GetTimeoutError as error:
            raise OptionError(f"node {name} does not answer") from error
        except RayError as error:
            raise OptionError(f"node {name}: {one_line(error)}") from error
        different = [package for package in here if there[package] != here[package]]
        if different:
            has, wanted = (
                ", ".join(f"{package} {versions[package] or 'not at all'}" for package in different)
                for versions in (there, here)
            )
            raise OptionError(f"node {name} has {has}, and this one {wanted}; install the same")


def worker_resources(options: RayOptions) -> tuple[dict[str, Any], int]:
    """What Ray sets aside for each worker, and how many workers there are.

    Raises OptionError where no node has the GPUs of one worker.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = [node.get("GPU", 0.0) for node in nodes]
    each = options.gpus_per_worker if options.gpus_per_worker is not None else float(max(gpus) > 0)
    if each > max(gpus):
        most = f"the most on one node of this cluster is {max(gpus):g}" if max(gpus) else "this cluster has no GPUs"
        raise OptionError(f"gpus_per_worker={each:g}: {most}")
    fitting = sum(_fitting(n, each) for n in gpus) if each else len(nodes)
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    resources = {"num_cpus": 1, "num_gpus": each, "runtime_env": {"env_vars": environment}}
    return resources, options.workers or fitting


def _fitting(gpus: float, each: float) -> int:
    """How many workers a node's GPUs hold. A share is of one GPU, and what several have left makes no further one."""
    # `//` finds four times 0.2 in 1, as the float of 0.2 is a little more than that.
    return int(gpus) * int(1 / each + 1e-9) if each < 1 else int(gpus // each)


def _versions_here() -> dict[str, str | None]:
    versions: dict[str, str | None] = _list_versions()(_PACKAGES)
    return versions


def _list_versions() -> Any:
    def versions(packages: tuple[str, ...]) -> dict[str, str | None]:
        """Of packages, and a digest of our own code, which a version does not tell in a checkout."""
        import hashlib
        import importlib.util
        from importlib.metadata import PackageNotFoundError, version
        from pathlib import Path

        found: dict[str, str | None] = {}
        for package in packages:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = None
        spec = importlib.util.find_spec("mdlm_lm_eval")
        digest = hashlib.sha256()
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
        found["the code of mdlm-lm-eval"] = digest.hexdigest()[:12]
        return found

    return versions


def _give_up(address: str) -> None:
    print(f"mdlm-sweep: --address {address}: no Ray cluster answers there", file=sys.stderr, flush=True)
    os._exit(1)
