"""Devices and quantisation of a checkpoint's weights, from HFLM's loading arguments."""

import logging
import os
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import get_max_memory
from transformers import BitsAndBytesConfig

from mdlm_lm_eval.model import devices
from mdlm_lm_eval.resolve import BITSANDBYTES

logger = logging.getLogger(__name__)


def device_placement(loading: dict[str, Any]) -> tuple[dict[str, Any], Accelerator | None]:
    """Returns transformers' loading arguments with devices, and the processes that divide the requests among them.

    The model is on one device, or with `parallelize` on this process's share of all GPUs. With `tp_plan`, processes
    share the model and each has all requests; then None is returned for them. `load_in_4bit` and similar arguments,
    which transformers 5 no longer takes, become a quantisation config.
    """
    kin = {name: loading.pop(name) for name in list(loading) if name.startswith(BITSANDBYTES)}
    if kin.get("load_in_4bit") or kin.get("load_in_8bit"):
        loading["quantization_config"] = BitsAndBytesConfig(**kin)
    parallelize, offload = loading.pop("parallelize", False), loading.pop("offload_folder", "./offload")
    device, gpu_memory = loading.pop("device", None), loading.pop("max_memory_per_gpu", None)
    cpu_memory = loading.pop("max_cpu_memory", None)
    if loading.get("tp_plan") is not None:
        return loading, None
    devices.share_cpu_among_processes()
    processes = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(weeks=52))])
    n = processes.num_processes
    if parallelize and not torch.cuda.is_available():  # accelerate would offload all weights to disk
        logger.warning("parallelize=true has no effect without a GPU")
        parallelize = False
    if not parallelize:
        device = processes.device if n > 1 else devices.usable_device(device)
        return {"device_map": {"": str(device)}, **loading}, processes
    own, n_here = processes.local_process_index, int(os.environ.get("LOCAL_WORLD_SIZE", n))
    memory: dict[Any, Any] = {} if cpu_memory is None else {"cpu": cpu_memory}
    for gpu, free in get_max_memory().items():
        if gpu != "cpu" and gpu % n_here == own:
            memory[gpu] = gpu_memory or free
    return {"device_map": "auto", "max_memory": memory, "offload_folder": offload, **loading}, processes
