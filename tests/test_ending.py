"""How commands end."""

from pathlib import Path

from torch import distributed

from mdlm_lm_eval.ending import ending_well


def test_a_command_leaves_its_process_group(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    with ending_well("command", after_stop=""):
        assert distributed.is_initialized()
    assert not distributed.is_initialized()
