"""Silences a logger of others for a moment."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silenced(name: str) -> Iterator[None]:
    """Disables a logger, and then makes it what it was, also after an error."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
