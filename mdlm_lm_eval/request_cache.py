"""Keeps lm-eval's `--use_cache` honest: a cache file answers only for the model and the options that filled it."""

import hashlib
from collections.abc import MutableMapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from mdlm_lm_eval.options import OptionError

FINGERPRINT_KEY = "mdlm_lm_eval.fingerprint"
_VALUES_PER_PARAMETER = 16


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of every parameter's name, shape, type and first values: cheap, and different after any training."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not local.is_meta:  # weights offloaded to disk
            first = local.detach().flatten()[:_VALUES_PER_PARAMETER].float().cpu()
            digest.update(first.numpy().tobytes())
    return digest.hexdigest()


def claim_cache(cache: MutableMapping[str, Any], fingerprint: dict[str, Any], *, path: str) -> None:
    """Marks an empty cache as filled by `fingerprint`; refuses one that something else filled.

    lm-eval's keys hold the prompt and the request's options alone, so such a cache would answer for n_masks=200 what it
    computed for n_masks=1. Raises OptionError naming what differs.
    """
    wanted = {name: repr(value) for name, value in fingerprint.items()}
    if len(cache) == 0:
        cache[FINGERPRINT_KEY] = wanted
        return
    if FINGERPRINT_KEY not in cache:
        raise OptionError(
            f"use_cache: {path} was not filled by --model mdlm with this package; allowed is a new path, or a "
            "cache of a run with the same model and options"
        )
    found = cache[FINGERPRINT_KEY]
    differences = [
        f"{name} was {found.get(name, 'not set')} and is {wanted.get(name, 'not set')}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    if differences:
        raise OptionError(
            f"use_cache: {path} was filled with another model or other options ({'; '.join(differences)}); allowed is "
            "a new path, or a cache of a run with the same model and options"
        )
