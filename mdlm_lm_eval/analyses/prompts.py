"""A test question as input tokens, with what stands where: masks, in-context examples, the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mdlm_lm_eval.analyses.models import PromptEncoding
from mdlm_lm_eval.analyses.tasks import examples_of
from mdlm_lm_eval.decoding.canvas import build_canvas, build_infill_canvas
from mdlm_lm_eval.families.loading.errors import refusing
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.text import SLOT_MARKER
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.tasks import prompts


@dataclass(frozen=True)
class Prompt:
    """One question as the model sees it. Positions count tokens from 0.

    `answer_at` is the position whose token is predicted: the first mask, or, for an autoregressive model, the end,
    where a token stands that only keeps the place and is not part of the input.
    """

    token_ids: list[int]
    answer_at: int
    masks: list[int]
    others: list[int]  # all that are no masks
    examples: list[range]  # of each in-context example, in the order of the prompt
    answer: str  # the right letter
    length: int  # tokens of context, as lm-eval's canvas has it: some models count blocks from its end


def build_prompt(
    task: Any, document: dict[str, Any], encoding: PromptEncoding, n_masks: int | None, *, apply_chat_template: bool
) -> Prompt:
    """The question `document` of a task with `n_masks` masks appended.

    None appends none, so that it takes a fixed-slot task or an autoregressive model. Raises OptionError where the
    prompt does not fit into the model's context, or where nothing is there to be predicted.
    """
    name, tokenizer = task.config.task, encoding.tokenizer
    if apply_chat_template and not tokenizer.chat_template:
        raise OptionError("apply_chat_template needs a chat template, which the checkpoint's tokenizer has not")
    with refusing("--apply_chat_template cannot be used with this model's tokenizer"):
        text = task.fewshot_context(
            document,
            0,
            apply_chat_template=apply_chat_template,
            fewshot_as_multiturn=True,
            chat_template=lambda messages, add_generation_prompt: tokenizer.apply_chat_template(
                messages, tokenize=False, continue_final_message=True
            ),
        )
    if task.is_fixed_slot:
        if encoding.mask_token_id is None:
            raise OptionError(f"tasks={name} is not for model=hf: its prompts hold a mask")
        text = text.replace(SLOT_MARKER, tokenizer.convert_ids_to_tokens(encoding.mask_token_id))
    elif encoding.mask_token_id is not None and n_masks is None:
        raise OptionError(f"tasks={name} needs n_masks, as its prompts hold no mask: a whole number from 1")
    ids, offsets = _tokenized(text, encoding)
    if not task.is_fixed_slot:
        while offsets[-1][0] == offsets[-1][1]:  # what the tokenizer closes a text with, such as BERT's [SEP]
            ids.pop()
            offsets.pop()
    token_ids, masks, length = _with_masks(ids, n_masks, encoding, name)
    answer_at = masks[0] if masks else len(ids)
    masked = set(masks)
    return Prompt(
        token_ids=token_ids,
        answer_at=answer_at,
        masks=masks,
        others=[n for n in range(len(token_ids)) if n not in masked and (masks or n != answer_at)],
        examples=[_tokens_within(span, offsets) for span in _example_spans(task, text)],
        answer=document["answer"],
        length=length,
    )


def padded(prompts: Sequence[Prompt], denoiser: Denoiser) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token ids and attention mask, [B, T], padded on the right; the answers' places in B * T, and lengths, [B]."""
    rows = [torch.tensor(prompt.token_ids) for prompt in prompts]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=denoiser.pad_token_id)
    attended = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    answer = torch.tensor([n * ids.shape[1] + prompt.answer_at for n, prompt in enumerate(prompts)])
    lengths = torch.tensor([prompt.length for prompt in prompts])
    device = denoiser.device
    return ids.to(device), attended.to(device), answer.to(device), lengths.to(device)


def _tokenized(text: str, encoding: PromptEncoding) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids and the characters that each stands for; a chat template has written its own BOS already."""
    bos = encoding.tokenizer.bos_token
    encoded = encoding.tokenizer(
        text,
        return_offsets_mapping=True,
        add_special_tokens=bos is None or not text.startswith(bos),
        verbose=False,
    )
    return encoded["input_ids"], encoded["offset_mapping"]


def _with_masks(
    ids: list[int], n_masks: int | None, encoding: PromptEncoding, name: str
) -> tuple[list[int], list[int], int]:
    """The canvas, the positions of its masks and its prompt's length.

    For autoregressive models, a token that keeps the answer's place follows the prompt.
    """
    mask_token_id = encoding.mask_token_id
    if mask_token_id is None:
        token_ids, masks, length = [*ids, encoding.pad_token_id], [], len(ids)
        cut = max(0, len(ids) + 1 - encoding.max_length)
    else:
        options = DecodingOptions(n_masks="auto" if n_masks is None else n_masks)
        limits: dict[str, Any] = {
            "mask_token_id": mask_token_id,
            "max_length": encoding.max_length,
            "request_gen_toks": 1,
            "attention": encoding.attention,
        }
        if mask_token_id in ids:
            slot = ids.index(mask_token_id)
            canvas, cut = build_infill_canvas([ids[:slot], ids[slot + 1 :]], options, **limits)
        else:
            canvas, cut = build_canvas(ids, options, **limits)
        token_ids, masks, length = list(canvas.token_ids), list(canvas.slots), canvas.prompt_length
    if cut:
        raise OptionError(
            f"{name} with n_masks={n_masks} takes {len(ids) + (n_masks or 1)} tokens, but the model's context has "
            f"{encoding.max_length}; append fewer masks, or show fewer examples by --metadata"
        )
    return token_ids, masks, length


def _example_spans(task: Any, text: str) -> list[tuple[int, int]]:
    """First and last character (exclusive) of each example; a chat template may stand between its two lines."""
    spans = []
    end = 0
    for example in examples_of(task):
        options, answer = prompts.solved(example).split("\n")
        start = text.index(options, end)
        end = text.index(answer, start + len(options)) + len(answer)
        spans.append((start, end))
    return spans


def _tokens_within(span: tuple[int, int], offsets: list[tuple[int, int]]) -> range:
    touched = [n for n, (start, end) in enumerate(offsets) if start < span[1] and end > span[0]]
    return range(touched[0], touched[-1] + 1)
