"""Decoding by guests (`sampler=FILE.py:FUNCTION`): row by row, with checked answers and counted passes."""

import itertools
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdlm_lm_eval.decoding.canvas import Canvas, Completion, DecodingCall, RowCost
from mdlm_lm_eval.decoding.guests import GuestError, Signature, asked_tokens, forked_random, signature_of
from mdlm_lm_eval.decoding.row_decoders import RowDecoder
from mdlm_lm_eval.options import DecodingOptions, short_name
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    from mdlm_lm_eval.model.denoiser import Denoiser


@dataclass(frozen=True)
class Guest(RowDecoder):
    """Serves a `sampler` that names a function. Rows are batched if the function has `function.batches = True`."""

    @classmethod
    def serves(cls, denoiser: "Denoiser", options: DecodingOptions) -> bool:
        """Whether the option `sampler` names a function."""
        return options.guest is not None

    def decode(self, call: DecodingCall) -> Iterator[tuple[int, Completion]]:
        """Decodes canvases; see `completions_of`. Raises GuestError, which names the canvas."""
        denoiser, canvases, options = call.denoiser, call.canvases, call.options
        takes, named = signature_of(options), f"sampler={short_name(options.guest or '')}"
        network = takes.network(denoiser)
        size = call.n_lanes if getattr(takes.foreign.thing, "batches", False) else 1
        asked = [
            (asked_tokens(options, len(canvas.slots), canvas.n_returned), canvas.n_returned) for canvas in canvases
        ]
        # Models of blocks fill their last block, and DiffusionGemma its last canvas.
        blocks: int = call.way.attention.block_length or getattr(denoiser.model.config, "canvas_length", None) or 1
        surplus = blocks - 1
        mask = denoiser.mask_token_id if denoiser.generate is None else -1  # which is no token
        first = 0
        while first < len(canvases):
            alike = itertools.takewhile(asked[first].__eq__, asked[first : first + size])
            batch = canvases[first : first + len(list(alike))]
            length = takes.length(asked[first][0], options)
            _check_room(denoiser, batch, first, length)
            with counted(denoiser.model, first) as count:
                try:
                    rows = answers(call, takes, network, batch, asked[first][0])
                except Exception as error:
                    if isinstance(error, RuntimeError) and "out of memory" in str(error):
                        raise  # a smaller batch may do
                    raise GuestError(first, f"{named} {_said(error, takes.foreign.path)}") from error
            denoiser.forward_passes += count.passes
            cost = RowCost(count.passes, count.passes, count.positions // len(batch))
            for index, (canvas, ids) in enumerate(zip(batch, rows, strict=True), start=first):
                written = _checked(ids, canvas.n_returned, length, surplus, mask, call.end_ids)
                if isinstance(written, str):
                    raise GuestError(index, f"{named} {written}")
                call.advance(cost.steps)
                yield index, Completion(written, cost, min(len(ids), canvas.n_returned))
            first += len(batch)


def answers(
    call: DecodingCall, takes: Signature, network: Any, batch: Sequence[Canvas], n_tokens: int
) -> list[list[int]]:
    """The tokens after the prompt of each canvas, of which `n_tokens` are asked for.

    Raises all errors of the function, and ValueError as `_written`.
    """
    import torch

    denoiser, seed = call.denoiser, batch[0].seed
    longest = max(canvas.prompt_length for canvas in batch)
    padding = [longest - canvas.prompt_length for canvas in batch]
    prompts = [canvas.token_ids[: canvas.prompt_length] for canvas in batch]
    rows = [[denoiser.pad_token_id] * n + [*prompt] for n, prompt in zip(padding, prompts, strict=True)]
    ids = torch.tensor(rows, device=denoiser.device)  # [B, L]
    mask = torch.tensor([[0] * n + [1] * (longest - n) for n in padding], device=denoiser.device)
    arguments = takes.filled_in(denoiser, sorted(call.end_ids)) | {"attention_mask": mask, "seed": seed}
    arguments = {name: value for name, value in arguments.items() if name in takes.names and value is not None}
    arguments |= takes.arguments(call.options, n_tokens, batch[0].n_returned)
    with takes.foreign.at_home(), forked_random(seed, denoiser.device), torch.no_grad():
        output = takes.call(network, ids, mask, arguments)
    return _written(output, rows)


def _written(output: Any, prompts: Sequence[list[int]]) -> list[list[int]]:
    """The tokens after each prompt in what a function returned, which may begin with the prompts.

    Raises ValueError if it returned no token ids.
    """
    import torch

    if isinstance(output, torch.Tensor):
        if output.is_floating_point() or output.dtype == torch.bool:
            raise ValueError(f"returned {output.dtype} instead of token ids")
        output = output.tolist()
    if not isinstance(output, list) or not output:
        raise ValueError(f"returned {type(output).__name__} instead of token ids")
    rows = output if isinstance(output[0], list) else [output]
    if len(rows) != len(prompts):
        raise ValueError(f"returned {len(rows)} rows for {len(prompts)} prompts")
    return [ids[len(row) :] if ids[: len(row)] == row else ids for ids, row in zip(rows, prompts, strict=True)]


def _check_room(denoiser: "Denoiser", batch: Sequence[Canvas], first: int, length: int) -> None:
    """Raises GuestError if `length` tokens do not fit after the prompts of canvases from number `first` on."""
    most = getattr(denoiser.model.config, "max_position_embeddings", None)
    for index, canvas in enumerate(batch, start=first):
        if most is not None and (n_prompt := canvas.prompt_length) + length > most:
            raise GuestError(index, f"{length} tokens, in whole blocks, do not fit after a prompt of {n_prompt}")


def _checked(
    ids: list[int], n_returned: int, length: int, surplus: int, mask: int, end_ids: Collection[int]
) -> list[int] | str:
    """The tokens of an answer up to its end, or a string that says why it cannot be used."""
    answer = ids[:n_returned]
    ends = [n for n, token in enumerate(answer, start=1) if token in end_ids]
    answer = answer[: ends[0]] if ends else answer
    if len(ids) > length + surplus:
        return f"returned {len(ids)} tokens where {length} were asked for"
    if len(answer) < n_returned and not ends:
        return f"returned {len(ids)} tokens where {length} were asked for, and no end of text"
    return f"left the mask token {mask} at place {answer.index(mask)} of its answer" if mask in answer else answer


def _said(error: Exception, file: Path | None) -> str:
    """An error in words, with the last line of the guest's folder in its traceback."""
    if isinstance(error, ValueError) and str(error).startswith("returned "):
        return str(error)
    lines = [Path(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    own = [line for line in lines if file is not None and line.is_relative_to(file.parent)]
    where = f" at {own[-1].parent.name}:{own[-1].name}" if own else ""
    return f"raised {type(error).__name__}{where}: {error}"


@dataclass
class Count:
    """Passes of a model, positions that went through its layers, and whether logits were NaN or infinite.

    is_bad: a bool tensor on the model's device after the first pass.
    """

    passes: int = 0
    positions: int = 0
    is_bad: Any = False


@contextmanager
def counted(model: Any, first: int) -> Iterator[Count]:
    """Counts passes by the first layer of each stack, so that any part of the model may be called.

    Raises NonFiniteLogitsError, for the canvas `first`, if the model's logits were not finite in any pass.
    """
    from torch import Tensor, nn

    from mdlm_lm_eval.model.denoiser import NonFiniteLogitsError

    count = Count()

    def add(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor) and each.ndim == 3), None)
        count.passes += 1
        count.positions += 0 if hidden is None else hidden.shape[0] * hidden.shape[1]

    def look(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if isinstance(logits := getattr(output, "logits", None), Tensor):
            count.is_bad = count.is_bad | ~logits.amax(-1).isfinite().all()

    inner: set[nn.Module] = set()
    with ExitStack() as hooks:
        hooks.enter_context(model.register_forward_hook(look))
        for module in model.modules():
            if isinstance(module, nn.ModuleList) and len(module) and module not in inner:
                inner |= {each for each in module.modules() if each is not module}
                hooks.enter_context(module[0].register_forward_pre_hook(add, with_kwargs=True))
        try:
            yield count
        finally:
            if count.is_bad:
                raise NonFiniteLogitsError(first)


register(name="guest", row_decoder=Guest)
