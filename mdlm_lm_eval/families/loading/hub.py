"""Hub ids and folders: what can be told of a name before anything is read."""

import logging
import os
from functools import cache
from pathlib import Path

from huggingface_hub import constants, get_session, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from mdlm_lm_eval.options import OptionError

logger = logging.getLogger(__name__)
_PATIENCE = 10  # seconds


def check_source(option: str, name: str, file: str, *, revision: str = "main", subfolder: str = "") -> None:
    """Raises OptionError where `name` reads as a folder's path and there is none, or is a hub id without a way to it.

    `file` is the first that is read of it.
    """
    check_folder(option, name)
    if os.path.exists(name):
        return
    _use_cache_alone_without_network()
    if not constants.HF_HUB_OFFLINE:
        return
    try:
        cached = try_to_load_from_cache(name, os.path.join(subfolder, file), revision=revision)
    except HFValidationError:
        return  # whoever reads it says what is wrong with the name
    if not isinstance(cached, str):
        raise OptionError(
            f"{option}={name}: there is no such folder, its {file} is not in the hub's cache here, and the hub cannot "
            "be reached or HF_HUB_OFFLINE=1 is set; models in the cache and folders work without it"
        )


def check_folder(option: str, name: str) -> None:
    """Raises OptionError where `name` reads as a folder's path and there is none, or is a file's."""
    if os.path.isfile(name):
        raise OptionError(f"{option}={name}: must be a folder, and is a file")
    is_path = Path(name).is_absolute() or name.startswith((".", "~")) or name.endswith("/") or name.count("/") > 1
    if is_path and not os.path.exists(name):
        raise OptionError(f"{option}={name}: there is no such folder")


@cache
def _use_cache_alone_without_network() -> None:
    """As HF_HUB_OFFLINE=1 where the hub cannot be reached, which would be tried for half a minute for every file."""
    if constants.HF_HUB_OFFLINE:
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as error:  # of requests or httpx, by the hub's version
        logger.warning("%s cannot be reached (%s); only what is in its cache is used", constants.ENDPOINT, error)
        constants.HF_HUB_OFFLINE = True
