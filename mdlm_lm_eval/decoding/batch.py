"""Canvases that are decoded together: their layouts, and the facts that hold for all of them."""

from collections.abc import Sequence

import torch

from mdlm_lm_eval.decoding.blocks import Layout, Structure
from mdlm_lm_eval.decoding.canvas import DecodingCall
from mdlm_lm_eval.decoding.sampler import Step
from mdlm_lm_eval.model.devices import up_to_keys, up_to_positions


class Batch:
    """The canvases of a `DecodingCall`, and what all passes over them have in common.

    is_guided: whether each row also runs without its prompt.
    shares_prefixes: whether some canvases begin with a shared prefix.
    one_a_pass: whether every planned step fills one mask.
    n_columns: T, the most columns of a canvas, and one more that is no row's.
    widest_block, most_slots: the most columns and slots of a block.
    """

    def __init__(self, call: DecodingCall) -> None:
        self.call, self.way, self.canvases, self.denoiser = call, call.way, call.canvases, call.denoiser
        options = self.options = call.options
        self.structure = Structure(call.way, call.denoiser.shift)
        self.device: torch.device = call.denoiser.device
        self.mask_token_id, self.end_ids = call.denoiser.mask_token_id, call.end_ids
        self.on_gpu, self.is_guided = self.device.type == "cuda", options.cfg_scale > 0.0
        remembers = call.way.cache.remembers
        may_share = remembers and not options.batch_invariant
        self.shares_prefixes = may_share and any(canvas.prefix is not None for canvas in self.canvases)
        self.layouts = self._layouts()
        blocks = [block for layout in self.layouts for block in layout.blocks]
        self.one_a_pass = all(step == Step(1) for block in blocks for step in block.steps)
        self.widest_block = max(block.stop - block.start for block in blocks)
        self.most_slots = max(len(block.slots) for block in blocks)
        longest = max(len(canvas.token_ids) for canvas in self.canvases)
        self.n_columns = columns_of(longest, is_padded=self.on_gpu and remembers)
        if options.batch_invariant:
            self.n_columns = up_to_positions(longest) + 1

    def _layouts(self) -> Sequence[Layout]:
        """Each canvas's layout; canvases of the same shape share one."""
        of_shapes: dict[object, Layout] = {}
        layouts = []
        for canvas in self.canvases:
            numbers = len(canvas.token_ids), canvas.prompt_length, canvas.n_returned, len(canvas.prefix or ())
            shape = *numbers, canvas.slots, canvas.block_lengths, canvas.block_steps
            if shape not in of_shapes:
                of_shapes[shape] = Layout.of(canvas, self.structure)
            layouts.append(of_shapes[shape])
        return layouts


def columns_of(longest: int, *, is_padded: bool) -> int:
    """Columns of canvases of up to `longest` tokens, rounded up if `is_padded`, and one more that is no row's."""
    return (up_to_keys(longest) if is_padded else longest) + 1
