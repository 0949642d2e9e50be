"""Questions of the few-shot suite as input tokens, with the positions of masks, examples and answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor, nn

from mdlm_lm_eval import MDLM
from mdlm_lm_eval.declared import declarations
from mdlm_lm_eval.jobs.shared import warn_of_unknown
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.text import SLOT_MARKER, count_unknown, prompt_ids
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from mdlm_lm_eval.plugin import task_manager
from mdlm_lm_eval.results.suite import suite_info
from mdlm_lm_eval.tasks import questions
from mdlm_lm_eval.tasks.settings import check_metadata


@dataclass(frozen=True)
class Prompt:
    """One question as the model sees it. Positions count tokens from 0.

    `answer_at` is the position of the predicted token: the first mask, or the end for an autoregressive model. Then a
    placeholder token stands there, which does not affect the prediction. `answer` is the right letter, or the first
    token of the answer without blanks.
    """

    token_ids: list[int]
    answer_at: int
    masks: list[int]
    others: list[int]  # positions without a mask
    examples: list[range]  # positions of each in-context example, in the order of the prompt
    answer: str
    length: int  # tokens of the context; some models count blocks from its end


def load_model(kind: str, model_args: Mapping[str, Any], device: str | None) -> Any:
    """Loads lm-eval's model. `kind` is `mdlm`, or `hf` for autoregressive models.

    An autoregressive model gets a denoiser, too: its output at a position predicts the next token (`shift`), and
    because attention is causal, the token at the predicted position has no effect. Its `mask_token_id` is None. Raises
    OptionError for decoding options, which have no effect on an analysis, and for a masked diffusion model with `hf`.
    """
    for name in {*declarations(DecodingOptions), *declarations(LikelihoodOptions)} & {*model_args}:
        raise OptionError(f"{name}={model_args[name]} has no effect on an analysis; leave it out of --model_args")
    lm: Any = (HFLM if kind == "hf" else MDLM)(**model_args, **({} if device is None else {"device": device}))
    if kind == "hf":
        if lm.config.to_dict().get("is_causal") is False:
            raise OptionError(f"pretrained={model_args['pretrained']} is no autoregressive model; use --model mdlm")
        # Padding is never attended to, so any id will do if the tokenizer has no padding token.
        pad = lm.tokenizer.pad_token_id or 0
        lm.denoiser = Denoiser(lm.model, mask_token_id=pad, pad_token_id=pad, shift=True)
        lm.mask_token_id = None
    return lm


def load_tasks(names: Sequence[str], metadata: Mapping[str, Any], include_path: str | None = None) -> dict[str, Any]:
    """Tasks (`FewShotTask`) by name, including those of groups; with `include_path`, also the user's own.

    Raises OptionError for a name outside the suite, and for a task of the user's that does not generate.
    """
    for name in names:
        if not suite_info([name]) and include_path is None:
            raise OptionError(
                f"tasks={name}: must be one of the few-shot suite's tasks and groups, as mdlm_context; groups and "
                "confidence take your own with --include_path"
            )
    check_metadata([name for name in names if suite_info([name])], metadata)
    tasks: dict[str, Any] = task_manager(names, include_path, dict(metadata)).load(list(names))["tasks"]
    for name, task in tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise OptionError(f"tasks={name}: its output_type must be generate_until, not {task.OUTPUT_TYPE}")
    return tasks


def examples_of(task: Any, document: dict[str, Any]) -> list[Any]:
    """The in-context examples of a question, in the order of the prompt."""
    before, after = task.examples(document)
    return [*before, *after]


def reorder_examples(task: Any, seed: int, reordering: int) -> None:
    """Puts the examples of a task into a random order. Relevant ones have the same places in all questions."""
    for triple, (before, after) in task.prefixes.items():
        rng = Random(f"mdlm reordering {task.config.task} {seed} {reordering}")
        # They are sorted first, so that the order depends only on the number of the reordering.
        in_order = sorted([*before, *after], key=lambda one: (one.is_relevant, one.question.options))
        order = questions.shuffled(in_order, rng)
        task.prefixes[triple] = order[: len(before)], order[len(before) :]


def build_prompts(task: Any, lm: Any, n_masks: int | None, *, limit: int | None, chat: bool) -> list[Prompt]:
    """The first `limit` questions of a task, each with `n_masks` appended masks.

    `n_masks` is None for fixed-slot tasks and autoregressive models. Raises OptionError if a prompt does not fit into
    the model's context, or if it would have no mask.
    """
    name = task.config.task
    of_suite = bool(suite_info([name]))
    _check_masks(task, lm, n_masks, of_suite=of_suite)
    prompts = []
    if of_suite:
        documents = task.test_docs()
        for document in documents.select(range(min(limit or len(documents), len(documents)))):
            text = task.fewshot_context(
                document, 0, apply_chat_template=chat, fewshot_as_multiturn=True, chat_template=lm.apply_chat_template
            )
            prompt = _prompt(name, text, task.config.generation_kwargs, document["answer"], lm, n_masks)
            prompts.append(replace(prompt, examples=_examples(task, document, text, prompt, lm)))
    else:
        task.build_all_requests(
            limit=limit, apply_chat_template=chat, fewshot_as_multiturn=chat, chat_template=lm.apply_chat_template
        )
        for instance in task.instances:
            text, gen_kwargs = instance.args
            answer = first_token(task, instance.doc, lm.tokenizer, chat=chat)
            prompts.append(_prompt(name, text, gen_kwargs, answer, lm, n_masks))
    texts = ([id for id in one.token_ids if id != lm.mask_token_id] for one in prompts)
    warn_of_unknown((name, count_unknown(lm.tokenizer, ids)) for ids in texts)
    return prompts


def first_token(task: Any, document: dict[str, Any], tokenizer: Any, *, chat: bool) -> str:
    """The first token of a question's answer, without blanks.

    The answer follows the task's delimiter, as in lm-eval's examples, but in a chat: " Paris" may be another token than
    "Paris".
    """
    answer = str(task.doc_to_target(document))
    begun = answer if chat else f"{task.config.target_delimiter}{answer}"
    tokens = [tokenizer.encode(text, add_special_tokens=False)[:1] for text in (begun, answer)]
    return next(filter(None, (tokenizer.decode(token).strip() for token in tokens)), "")


def _check_masks(task: Any, lm: Any, n_masks: int | None, *, of_suite: bool) -> None:
    """Raises OptionError if a task's prompts would hold no mask, or one that an autoregressive model cannot read."""
    name, has_slot = task.config.task, of_suite and task.is_fixed_slot
    if lm.mask_token_id is None and (has_slot or not of_suite):
        why = "its prompts hold a mask" if has_slot else "only the few-shot suite's are"
        raise OptionError(f"tasks={name} is not for model=hf: {why}")
    if lm.mask_token_id is not None and of_suite and not has_slot and n_masks is None:
        raise OptionError(f"tasks={name} needs n_masks, as its prompts hold no mask")


def _prompt(name: str, text: str, gen_kwargs: Mapping[str, Any], answer: str, lm: Any, n_masks: int | None) -> Prompt:
    """The prompt of a text with the masks that lm-eval's request would have; the positions of examples are not set.

    For autoregressive models, a placeholder follows the text in the answer's place.
    """
    if lm.mask_token_id is None:
        ids = prompt_ids(lm.tokenizer, text, None)
        token_ids, masks, length = [*ids, lm.denoiser.pad_token_id], [], len(ids)
        cut = max(0, len(token_ids) - lm.max_length)
    else:
        request = lm.settings.request({**gen_kwargs, **({} if n_masks is None else {"n_masks": n_masks})})
        canvas, cut = lm.canvas(text, request, [], 0)
        token_ids, masks, length = [*canvas.token_ids], [*canvas.slots], canvas.prompt_length
    if cut:
        raise OptionError(
            f"{name} with n_masks={n_masks} takes {len(token_ids) + cut} tokens, but the model's context has "
            f"{lm.max_length}; append fewer masks, or show fewer examples by --metadata"
        )
    answer_at = masks[0] if masks else length
    others = sorted({*range(len(token_ids))} - {answer_at, *masks})
    return Prompt(token_ids, answer_at, masks, others, [], answer, length)


def _examples(task: Any, document: dict[str, Any], text: str, prompt: Prompt, lm: Any) -> list[range]:
    """The token positions of each example. With a chat template, other text may stand between its two lines."""
    tokenizer = lm.tokenizer
    if task.is_fixed_slot:
        text = text.replace(SLOT_MARKER, tokenizer.convert_ids_to_tokens(lm.mask_token_id))
    # A chat template has written its own BOS already.
    special = tokenizer.bos_token is None or not text.startswith(tokenizer.bos_token)
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=special, verbose=False)
    if encoded["input_ids"][: prompt.length] != prompt.token_ids[: prompt.length]:
        raise OptionError(f"{task.config.task}: the tokenizer splits its prompts otherwise where it also gives offsets")
    found = []
    end = 0
    for example in examples_of(task, document):
        options, answer = task.template.shown(example).rsplit("\n", 1)
        start = text.index(options, end)
        end = text.index(answer, start + len(options)) + len(answer)
        touched = [n for n, (first, last) in enumerate(encoded["offset_mapping"]) if first < end and last > start]
        found.append(range(touched[0], touched[-1] + 1))
    return found


def padded(batch: Sequence[Prompt], denoiser: Denoiser) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token ids and attention mask [B, T], padded on the right; indices of the answers in B * T, and lengths, [B]."""
    rows = [torch.tensor(prompt.token_ids) for prompt in batch]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=denoiser.pad_token_id)
    attended = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    answer = torch.tensor([n * ids.shape[1] + prompt.answer_at for n, prompt in enumerate(batch)])
    lengths = torch.tensor([prompt.length for prompt in batch])
    device = denoiser.device
    return ids.to(device), attended.to(device), answer.to(device), lengths.to(device)
