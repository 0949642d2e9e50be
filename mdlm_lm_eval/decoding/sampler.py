"""A way of decoding: which masks a pass fills, which tokens it changes, and which it masks again.

    @dataclass(frozen=True)
    class RightHalf(Sampler):
        \"\"\"Fills the rightmost masks first, `width` in a pass.\"\"\"

        width: int = option(2, "masks that a pass fills", least=1)

        def choose(self, view: View, options: DecodingOptions) -> Choice:
            after = view.masks.flip(1).cumsum(1).flip(1)  # [R, C], masks from here to the right end
            return Choice(fill=view.masks & (after <= self.width))

    register(name="right_half", sampler=RightHalf)

A sampler is one file. It declares its options as fields, which reach help, record and board from there; it plans a
block's passes, says what it needs from the engine, and chooses in each pass. `docs/examples/sampler.py` is complete.
Nothing here imports torch, so that commands can list the options without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from mdlm_lm_eval.options import DecodingOptions, Options, option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mdlm_lm_eval.model.attention import AttentionPattern

# Of several samplers.
STOP_AT_EOS = option(False, "fill nothing after an end-of-text token", also="stop_until_eos early_stop")


class Step(NamedTuple):
    """A planned pass over a block: it fills at least `fill` masks, and masks `back` tokens again."""

    fill: int
    back: int = 0


@dataclass(frozen=True)
class Needs:
    """What the engine computes for a sampler, beyond proposals for the masks of the block.

    confidence: `View.confidence` holds probabilities; without it, priorities.
    filled: `View.filled` names the block's tokens that decoding wrote.
    entropy: `View.entropy`.
    earlier_blocks: `View.masks` and `View.filled` hold those of earlier blocks, too.
    later_blocks: `View.masks` holds those of later blocks, too, and no pass is planned: all blocks are one, and passes
        go on until no mask is left.
    proposals_for_filled: the model proposes tokens for filled tokens, too.
    hindsight: `View.hindsight`; only under full attention with logits that predict their own place.
    history: passes for which `View.divergence` is kept.
    step: `View.step`.
    answer: `View.answer`.
    views: canvases of a row that one pass may run: its own, and drafts of the next ones, over the same stored keys and
        values. For samplers without a state whose steps fill one mask each.
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
    views: int = 1


class Answer(NamedTuple):
    """What stands at the places [R, C] of a pass, of the whole answer and not only of the block that is decoded.

    slots: each place's number among the row's slots, counted from the left, -1 elsewhere.
    blocks: the number of its block, counted from the first one that is decoded; negative elsewhere.
    masks, ends: bool, the slots that hold masks, and those that hold a token that ends an answer.
    would_end: bool, the places that `View.proposed` such a token for.
    """

    slots: "Tensor"
    blocks: "Tensor"
    masks: "Tensor"
    ends: "Tensor"
    would_end: "Tensor"


@dataclass(frozen=True)
class View:
    """One pass as a sampler sees it: R rows with C places; those of no token are in neither `masks` nor `filled`.

    columns: [R, C], each place's column on the canvas, for a state of shape [R, T].
    tokens: [R, C], before the pass.
    masks: [R, C] bool, the masks that the pass may fill.
    filled: [R, C] bool, tokens that decoding wrote and that the pass may change or mask again, if they are needed.
    proposed: [R, C], the token that each mask would become, and each filled token where that is needed.
    confidence: [R, C] float32, its probability; NaN where logits are not finite.
    priority: [R, C] float32, its place in the order of the option `unmasking`: the highest is filled first.
    entropy: [R, C] float32, in nats, where it is needed or the option `entropy_bound` is set.
    fill, back: [R], numbers of the planned step; `fill` is None where every step fills one.
    step: [R], the planned step: passes over the block so far, at most the last one of the plan.
    strict: whether a confidence must exceed `confidence_threshold`; without, reaching it is enough.
    hindsight: [R, C] float32, the probability of each filled token as if its own position were masked.
    divergence: [R, H, C] float32, how much each mask's distribution changed in the last H passes: the Kullback-Leibler
        divergence from the pass before, in nats; large where there was none.
    answer: the whole answer, where it is needed; where a pass runs whole canvases, place j is column j.
    state: the sampler's own tensors, as `Sampler.state` made them or the last pass left them.
    """

    columns: "Tensor"
    tokens: "Tensor"
    masks: "Tensor"
    filled: "Tensor"
    proposed: "Tensor"
    confidence: "Tensor"
    priority: "Tensor"
    entropy: "Tensor"
    fill: "Tensor | None"
    back: "Tensor"
    step: "Tensor"
    strict: bool
    hindsight: "Tensor | None" = None
    divergence: "Tensor | None" = None
    answer: Answer | None = None
    state: "Mapping[str, Tensor]" = field(default_factory=dict)


class Choice(NamedTuple):
    """What a pass does, [R, C] bool: `fill` masks, `change` filled tokens to what is proposed, `back` to masks.

    A mask that is filled may be masked `back` in the same pass. tokens: [R, C], written instead of what is proposed.
    best: [R] float32 that is NaN where a mask's logits are not finite, where the sampler has such a number at hand.
    state: the sampler's tensors after the pass. order: [R, C] float32, which masks will be filled next for all that is
    known, the highest first, for `Needs.views`; without, `View.priority`.
    """

    fill: "Tensor"
    change: "Tensor | None" = None
    back: "Tensor | None" = None
    tokens: "Tensor | None" = None
    best: "Tensor | None" = None
    order: "Tensor | None" = None
    state: "Mapping[str, Tensor]" = {}  # noqa: RUF012 - never written to

    @property
    def written(self) -> "Tensor":
        """Where a token is written."""
        return self.fill if self.change is None else self.fill | self.change

    def tokens_after(self, view: View, mask_token_id: int) -> "Tensor":
        """The tokens [R, C] after the pass."""
        new = (view.proposed if self.tokens is None else self.tokens).where(self.written, view.tokens)
        return new if self.back is None else new.masked_fill(self.back, mask_token_id)


@dataclass(frozen=True)
class Sampler(Options):
    """A way of decoding; its fields are its options.

    asked_by: the option that chooses this sampler where `sampler` is auto, once it is set.
    ends_as_planned: whether a block ends after its last planned pass; else that pass repeats until no mask is left.
    settled: when a filled token is final: at once, when its block ends, or when the canvas ends.
    ends_at_eos: whether an answer ends with a finished block that holds an EOS.
    edits: whether it needs a model that was trained to correct what it wrote.
    reads_priority: whether the option `unmasking` changes anything.
    runs_whole_canvases: whether it needs full attention without a cache.
    """

    asked_by: ClassVar[str | None] = None
    ends_as_planned: ClassVar[bool] = False
    settled: ClassVar[Literal["at once", "with its block", "with the canvas"]] = "at once"
    ends_at_eos: ClassVar[bool] = False
    edits: ClassVar[bool] = False
    reads_priority: ClassVar[bool] = True
    runs_whole_canvases: ClassVar[bool] = False

    def refuses(self, options: DecodingOptions, attention: "AttentionPattern") -> str | None:
        """The sentence about an option or an attention that this sampler cannot be used with; None where it can."""
        return None

    def attention(self, attention: "AttentionPattern", options: DecodingOptions) -> "AttentionPattern":
        """What positions see while it decodes: what the model's own say, or something else."""
        return attention

    def needs(self, options: DecodingOptions) -> Needs:
        """What `choose` reads."""
        return Needs()

    def steps_of(self, n_masks: int, options: DecodingOptions) -> int | None:
        """Passes over a block under full attention, for progress bars and `plan`; None where `steps` decides."""
        return None

    def plan(self, n_masks: int, steps: int, options: DecodingOptions, *, after_one: bool = False) -> Sequence[Step]:
        """The passes over a block of so many masks; after them, each pass fills at least one.

        `after_one`: the first pass can fill one mask only.
        """
        return ()

    def edit_passes(self, options: DecodingOptions) -> int:
        """The most passes over a block that follow its last mask, while they change something."""
        return 0

    def path_is_known(self, options: DecodingOptions) -> bool:
        """Whether the plan alone decides how many masks are left after every pass, so that the host need not look."""
        return False

    def state(self, n_rows: int, n_columns: int, device: "torch.device") -> "dict[str, Tensor]":
        """Tensors [R, ...] that it keeps between passes, as they begin; equal for all rows."""
        return {}

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """What the pass does; tensors in, tensors out, without a loop over rows or a wait for the device."""
        raise NotImplementedError


@dataclass(frozen=True)
class Remasking(Sampler):
    """Fills masks by priority, and masks those tokens again that had the lowest one when they were filled."""

    ends_as_planned: ClassVar[bool] = True
    runs_whole_canvases: ClassVar[bool] = True

    def refuses(self, options: DecodingOptions, attention: "AttentionPattern") -> str | None:
        """Its passes are planned for a whole canvas."""
        if options.is_parallel or options.append_blocks:
            return f"sampler={options.sampler_name} does not work with a parallel rule or append_blocks"
        return None

    def state(self, n_rows: int, n_columns: int, device: "torch.device") -> "dict[str, Tensor]":
        """priority: [R, T] float32, each token's when it was filled."""
        import torch

        return {"priority": torch.zeros(n_rows, n_columns, device=device)}

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """As many as the step says are filled, and masked again."""
        from mdlm_lm_eval.decoding.selection import lowest, select

        fill, best = select(view)
        priority = view.priority.where(fill, view.state["priority"].gather(1, view.columns))
        back = lowest(priority, view.filled | fill, view.back)
        return Choice(
            fill, back=back, best=best, state={"priority": view.state["priority"].scatter(1, view.columns, priority)}
        )
