"""How commands end."""

from pathlib import Path

import pytest
from torch import distributed

from mdlm_lm_eval.command_line import ending_well
from mdlm_lm_eval.options import OptionError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OptionError("n_masks=0 is too small"), 2, "command: n_masks=0 is too small\n"),
        (KeyboardInterrupt(), 130, "\ncommand: stopped; the same command goes on\n"),
    ],
)
def test_how_a_command_ends(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, ending_well("command", after_stop="the same command goes on"):
        raise error
    assert (ended.value.code, capsys.readouterr().err) == (code, said)


def test_a_command_leaves_its_process_group(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    with ending_well("command", after_stop=""):
        assert distributed.is_initialized()
    assert not distributed.is_initialized()
