"""The command `mdlm-leaderboard` as a user types it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mdlm_leaderboard.__main__ import main

Typed = Callable[..., str]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Runs a command of these words, which must end with `code`, and returns all that it printed."""

    def run(*words: str | Path, code: int = 0) -> str:
        capsys.readouterr()
        try:
            ended = main([*map(str, words)])
        except SystemExit as error:
            ended = error.code
        assert ended == code
        return "".join(capsys.readouterr())

    return run
