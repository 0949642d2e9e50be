"""A sampler is a way of decoding: it chooses the masks that a pass fills, and the tokens that it changes or remasks.

    @dataclass(frozen=True)
    class RightHalf(Sampler):
        \"\"\"Fills the rightmost masks first, `width` in a pass.\"\"\"

        width: int = option(2, "masks that a pass fills", least=1)

        def choose(self, view: View, options: DecodingOptions) -> Choice:
            after = view.masks.flip(1).cumsum(1).flip(1)  # [R, C], masks from here to the right end
            return Choice(fill=view.masks & (after <= self.width))

    register(name="right_half", sampler=RightHalf)

A sampler is one file. It declares its options as fields, which appear in help, results and the leaderboard. It plans
the passes over a block, names the numbers that it needs from the engine, and chooses in each pass.
`docs/examples/sampler.py` is complete. Nothing here imports torch, so that commands can list the options without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, Options, option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# When a filled token is final.
Settled = Literal["at once", "with its block", "with the canvas"]
# An option of several samplers.
STOP_AT_EOS = option(False, "Fill nothing after an end-of-text token", also="stop_until_eos early_stop")


class Step(NamedTuple):
    """A planned pass over a block: it fills at least `fill` masks, and masks `back` tokens again."""

    fill: int
    back: int = 0


@dataclass(frozen=True)
class Needs:
    """The numbers that the engine computes for a sampler, beyond proposals for the masks of the block.

    confidence, filled, entropy, hindsight, step, answer: whether the `View` has this field. hindsight works only under
        full attention, with logits that predict their own position.
    earlier_blocks: whether `View.masks` and `View.filled` include earlier blocks.
    later_blocks: whether `View.masks` includes later blocks. Then no pass is planned: all blocks are one, and passes go
        on until no mask is left.
    proposals_for_filled: whether the model also proposes tokens for filled tokens.
    history: the number of passes for which `View.divergence` is kept.
    """

    confidence: bool = False
    filled: bool = False
    entropy: bool = False
    earlier_blocks: bool = False
    later_blocks: bool = False
    proposals_for_filled: bool = False
    hindsight: bool = False
    history: int = 0
    step: bool = False
    answer: bool = False


class WholeAnswer(NamedTuple):
    """The whole answer at the places [R, C] of a pass, not only the block that is decoded.

    slots: each place's number among the row's slots, counted from the left; -1 at places that are no slots.
    blocks: the number of the place's block, counted from the first one that is decoded; negative elsewhere.
    masks, ends: bool, the slots that hold masks, and those that hold a token that ends an answer.
    would_end: bool, the places for which such a token is proposed.
    """

    slots: "Tensor"
    blocks: "Tensor"
    masks: "Tensor"
    ends: "Tensor"
    would_end: "Tensor"


class NotAsked:
    """Stands in a `View` for numbers that the sampler does not ask for; each use of it is an error."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise AttributeError(
            "choose() reads a field of View that the sampler's needs() do not ask for, or its state() does not make"
        )

    @classmethod
    def __torch_function__(cls, *arguments: Any, **named: Any) -> Any:
        return cls()._refuse()

    __getattr__ = __bool__ = __len__ = __getitem__ = __invert__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __add__ = __sub__ = __mul__ = _refuse


_NOT_ASKED: Any = NotAsked()


@dataclass(frozen=True)
class View:
    """One pass as a sampler sees it: R rows with C places. Unused places are in neither `masks` nor `filled`.

    Reading a field that the sampler does not ask for in `Needs` is an error.

    columns: [R, C], each place's column on the canvas, for a state of shape [R, T].
    tokens: [R, C], the tokens before the pass.
    masks: [R, C] bool, the masks that the pass may fill.
    proposed: [R, C], the token that each mask would become, with `Needs.proposals_for_filled` also each filled token.
    priority: [R, C] float32, by the option `unmasking`: the mask of the highest priority is filled first.
    fill, back: [R], the planned step; `fill` is None if every step fills one mask.
    strict: whether a confidence must exceed `confidence_threshold`; if not, reaching it is enough.
    filled: [R, C] bool, tokens that decoding wrote and that the pass may change or mask again.
    confidence: [R, C] float32, the proposed token's probability, also with an option that fills by it.
    entropy: [R, C] float32 in nats, also with the option `entropy_bound`.
    step: [R], the number of the planned step: passes over the block so far, at most the last number of the plan.
    hindsight: [R, C] float32, the probability that each filled token would have if its own position were masked.
    divergence: [R, H, C] float32, the Kullback-Leibler divergence in nats of each mask's distribution from that of the
        pass before, for the last H passes; large if there was no pass before.
    answer: the whole answer; if a pass runs whole canvases, place j is column j.
    state: the sampler's own tensors, as `Sampler.state` made them or the last pass left them.
    """

    columns: "Tensor"
    tokens: "Tensor"
    masks: "Tensor"
    proposed: "Tensor"
    priority: "Tensor"
    fill: "Tensor | None"
    back: "Tensor"
    strict: bool
    filled: "Tensor" = _NOT_ASKED
    confidence: "Tensor" = _NOT_ASKED
    entropy: "Tensor" = _NOT_ASKED
    step: "Tensor" = _NOT_ASKED
    hindsight: "Tensor" = _NOT_ASKED
    divergence: "Tensor" = _NOT_ASKED
    answer: WholeAnswer = _NOT_ASKED
    state: "Mapping[str, Tensor]" = _NOT_ASKED


class Choice(NamedTuple):
    """The changes of a pass.

    fill, change, back: [R, C] bool, the masks that are filled, the filled tokens that become the proposed ones, and the
        tokens that are masked again. A mask may be filled and masked again in the same pass.
    tokens: [R, C], written instead of the proposed tokens; None to write these.
    state: the sampler's tensors after the pass.
    """

    fill: "Tensor"
    change: "Tensor | None" = None
    back: "Tensor | None" = None
    tokens: "Tensor | None" = None
    state: "Mapping[str, Tensor]" = {}  # noqa: RUF012 - never written to

    @property
    def written(self) -> "Tensor":
        """The places [R, C] bool at which a token is written."""
        return self.fill if self.change is None else self.fill | self.change

    def tokens_after(self, view: View, mask_token_id: int) -> "Tensor":
        """The tokens [R, C] after the pass."""
        new = (view.proposed if self.tokens is None else self.tokens).where(self.written, view.tokens)
        return new if self.back is None else new.masked_fill(self.back, mask_token_id)


@dataclass(frozen=True)
class Sampler(Options):
    """A way of decoding; its fields are its options.

    asked_by: the option that chooses this sampler if it is set and `sampler` is auto.
    ends_as_planned: whether a block ends after its last planned pass; if not, passes go on until no mask is left.
    settled: when a filled token is final: at once, when its block ends, or when the canvas ends.
    ends_at_eos: whether an answer ends with the first finished block that holds an EOS.
    edits: whether it needs a model that was trained to correct its own tokens.
    reads_priority: whether the option `unmasking` changes anything.
    runs_whole_canvases: whether it needs full attention without a cache.
    """

    asked_by: ClassVar[str | None] = None
    ends_as_planned: ClassVar[bool] = False
    settled: ClassVar[Settled] = "at once"
    ends_at_eos: ClassVar[bool] = False
    edits: ClassVar[bool] = False
    reads_priority: ClassVar[bool] = True
    runs_whole_canvases: ClassVar[bool] = False

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Returns a sentence about an option or attention that this sampler does not work with; None if it works."""
        return None

    def attention(self, attention: AttentionPattern, options: DecodingOptions) -> AttentionPattern:
        """The attention pattern while this sampler decodes, given the model's own."""
        return attention

    def needs(self, options: DecodingOptions) -> Needs:
        """The numbers that `choose` reads."""
        return Needs()

    def steps_of(self, n_masks: int, options: DecodingOptions) -> int | None:
        """Passes over a block under full attention, for progress bars and `plan`; None to use the option `steps`."""
        return None

    def plan(self, n_masks: int, steps: int, options: DecodingOptions, *, after_one: bool = False) -> Sequence[Step]:
        """The passes over a block of `n_masks` masks; after them, each pass fills at least one.

        `after_one`: whether the first pass can fill one mask only.
        """
        return ()

    def edit_passes(self, options: DecodingOptions) -> int:
        """The most passes over a block after its last mask is filled; they go on while they change something."""
        return 0

    def state(self, n_rows: int, n_columns: int, device: "torch.device") -> "dict[str, Tensor]":
        """The tensors [R, ...] that it keeps between passes, as they are before the first one; equal for all rows."""
        return {}

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Chooses the changes of a pass, on the CPU, with tensor operations: a loop over rows would cost time."""
        raise NotImplementedError
