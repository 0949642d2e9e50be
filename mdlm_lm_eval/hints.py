"""Warnings about requests, before their first pass: about presets, prompts that are cut, and options without effect."""

import logging
from collections.abc import Sequence

from lm_eval.api.instance import Instance

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.jobs.generation import Generation
from mdlm_lm_eval.jobs.prepared import PreparedRequest, task_of, warn_of_unknown
from mdlm_lm_eval.loaded import LoadedModel
from mdlm_lm_eval.model.text import SLOT_MARKER, has_slots
from mdlm_lm_eval.options import DEFAULT_SAMPLER, shown
from mdlm_lm_eval.presets import mismatches
from mdlm_lm_eval.resolve import without_effect

logger = logging.getLogger(__name__)
_CUT = (
    "%d of %d prompts do not fit into the model's context of %d tokens beside what is appended: of the most shortened, "
    "the last %d of %d tokens are left"
)
_PLAIN = "%d of %d prompts hold %s as plain text; for slots, write <|mask|> in a task with infill: true"


def warn_of_preset(lm: LoadedModel, requests: Sequence[Instance]) -> None:
    """Warns in one process if the preset was made for other tasks or another family."""
    if (preset := lm.settings.model.preset) and lm.rank == 0:
        for sentence in mismatches(preset, lm.family.name, sorted({task_of(one) for one in requests})):
            logger.warning(sentence)


def warn_of_requests(
    lm: LoadedModel, requests: Sequence[Instance], prepared: Sequence[PreparedRequest], left: Sequence[int]
) -> None:
    """Warns of prompts that were cut, of texts with the mask token's own string, and of unknown tokens.

    left: the number of tokens that are left of each prepared request's prompt.
    """
    if cut := [(one.truncated, n) for one, n in zip(prepared, left, strict=True) if one.truncated]:
        n_lost, n_left = max(cut)
        logger.warning(_CUT, len(cut), len(prepared), lm.max_length, n_left, n_lost + n_left)
    masks = lm.tokenizer.convert_ids_to_tokens(lm.mask_token_id)
    if n_plain := 0 if masks in (None, SLOT_MARKER) else sum(masks in one.args[0] for one in requests):
        logger.warning(_PLAIN, n_plain, len(requests), masks)
    warn_of_unknown((task_of(one.instance), one.text) for one in prepared)


def warn_of_decoder(lm: LoadedModel) -> None:
    """Warns in one process if the checkpoint was trained for another sampler than the one in effect."""
    options, known = lm.settings.decoding, checkpoints.own_decoder(lm.pretrained or "")
    is_plain = lm.settings.way.name == DEFAULT_SAMPLER and not options.is_parallel
    if lm.rank == 0 and known is not None and (is_plain or (known.use.startswith("its") and not options.guest)):
        sentence = "pretrained=%s was trained for a decoder of its own, which %s; use %s"
        logger.warning(sentence, lm.name, known.does, known.use)


def warn_of_no_effect(generations: Sequence[Generation]) -> None:
    """Warns of options that were set and change nothing in these requests, and of slots that are not filled."""
    if plain := sum(has_slots(one.instance.args[0]) for one in generations if not one.request.infill):
        sentence = "%d of %d prompts hold <|mask|> as plain text; a task's infill: true makes it a slot"
        logger.warning(sentence, plain, len(generations))
    for request in {id(one.request): one.request for one in generations}.values():
        for name, why in without_effect(request).items():
            if name in request.typed:
                logger.warning("%s=%s has no effect %s", name, shown(request.options.as_dict()[name]), why)
    short = [
        len(one.canvas.slots)
        for one in generations
        if "block_length" in one.request.typed
        and not one.request.attention.is_block_causal
        and (one.request.options.block_length or 0) > len(one.canvas.slots)
    ]
    if short:
        sentence = "block_length is longer than %d of %d canvases, which are one block each; the shortest has %d masks"
        logger.warning(sentence, len(short), len(generations), min(short))
