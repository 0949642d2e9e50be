"""Analyses of a model: gradient attribution and confidence, task by task, so that a killed run can continue."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from accelerate import find_executable_batch_size
from torch import Tensor, nn
from tqdm import tqdm

from mdlm_lm_eval import __version__, checkpoints
from mdlm_lm_eval.analyses import FILES, inputs
from mdlm_lm_eval.analyses.report import Report, Row, over_tasks
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.models import BUILT_IN
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.plugin import digest_of_own_task
from mdlm_lm_eval.results.names import recorded_name
from mdlm_lm_eval.results.suite import suite_info

# `batch_size=auto` starts with these and shrinks when memory runs out. A CPU would swap before that happens.
LARGEST_BATCH, LARGEST_BATCH_ON_CPU = 64, 8
_SETTINGS = ("apply_chat_template", "metadata", "n_masks", "limit", "reorderings", "seed")
N_LAST = 50  # positions in table 1's second group
_T = TypeVar("_T")


def run(given: Namespace) -> Report:
    """Writes the report of an analysis with the rows of all tasks, and their means over tasks."""
    analysis, file = ANALYSES[given.analysis], FILES[given.analysis]
    own = vars(given).get("include_path")
    tasks = inputs.load_tasks(given.tasks, given.metadata, own)
    pretrained, adapter = str(given.model_args.get("pretrained", BUILT_IN)), given.model_args.get("peft")
    beside = {name: given.model_args.get(name) for name in ("tokenizer", "subfolder", "revision")}
    settings = {  # everything that decides the results, except batch size and device
        "package_version": __version__,
        "model": given.model,
        "pretrained": recorded_name(pretrained),
        "model_args": {name: value for name, value in given.model_args.items() if name not in ("pretrained", "peft")},
        # Further training changes the weights, but not the name of a checkpoint or adapter.
        **checkpoints.digests_of_folders(pretrained, adapter, **beside),
        "adapter": adapter and recorded_name(str(adapter)),
        "tasks": sorted(tasks),
        "own_tasks": own and [digest_of_own_task(name, own) for name in sorted(tasks)],
        "task_suite": suite_info(tasks),
        **{name: vars(given).get(name) for name in _SETTINGS},
    }
    report = Report(given.output_path, file, settings)
    to_do = [name for name in tasks if name not in report.finished]
    if to_do:
        lm = given.loaded or inputs.load_model(given.model, given.model_args, given.device)
        lm.model.requires_grad_(False)
    for name in tqdm(to_do, desc=file, unit="task"):
        report.add(name, analysis.rows(given, lm, tasks[name]))
    report.write({name: over_tasks(report.rows, value, by) for name, (value, by) in analysis.summary.items()})
    return report


def group_rows(given: Namespace, lm: Any, task: Any) -> list[Row]:
    """Table 1: rows with the mean normalised gradient norm of each group of positions, for each question."""
    prompts = inputs.build_prompts(task, lm, given.n_masks, limit=given.limit, chat=given.apply_chat_template)
    rows = []
    for question, (prompt, (values, token)) in enumerate(zip(prompts, _attributed(given, lm, prompts), strict=True)):
        row = {"task": task.config.task, "question": question, "n_masks": len(prompt.masks)}
        row |= {"predicted": lm.tokenizer.decode([token]), "answer": prompt.answer}
        rows += [row | {"group": group, "gradient": mean} for group, mean in group_means(values, prompt).items()]
    return rows


def example_rows(given: Namespace, lm: Any, task: Any) -> list[Row]:
    """E3: a row for each reordering and place of an example, with the mean over questions.

    Places count from 1, the first example of the prompt.
    """
    first = task.test_docs()[0]
    rows = []
    for reordering in range(given.reorderings):
        inputs.reorder_examples(task, given.seed, reordering)
        prompts = inputs.build_prompts(task, lm, given.n_masks, limit=given.limit, chat=given.apply_chat_template)
        attributed = zip(prompts, _attributed(given, lm, prompts), strict=True)
        means = [example_means(values, prompt) for prompt, (values, _) in attributed]  # [questions][examples]
        for place, (example, gradients) in enumerate(
            zip(inputs.examples_of(task, first), zip(*means, strict=True), strict=True), 1
        ):
            row = {"task": task.config.task, "reordering": reordering, "place": place}
            row |= {"example": "relevant" if example.is_relevant else "distractor", "n_masks": len(prompts[0].masks)}
            rows.append(row | {"questions": len(prompts), "gradient": sum(gradients) / len(prompts)})
    return rows


def confidence_rows(given: Namespace, lm: Any, task: Any) -> list[Row]:
    """E13: a row for each question and mask count, with the greedy token, its probability and the entropy in nats.

    `n_masks` is the requested number. A block diffusion model gets more masks, up to the end of its last block.
    """
    rows = []
    for n_masks in given.n_masks:
        prompts = inputs.build_prompts(task, lm, n_masks, limit=given.limit, chat=given.apply_chat_template)
        predictions = _in_batches(given, lm, prompts, partial(predict, lm.denoiser))
        for question, (prompt, (token, confidence, entropy)) in enumerate(zip(prompts, predictions, strict=True)):
            predicted = lm.tokenizer.decode([token])
            row = {"task": task.config.task, "question": question, "n_masks": n_masks, "predicted": predicted}
            written = predicted if suite_info([task.config.task]) else predicted.strip()
            row |= {"answer": prompt.answer, "correct": int(written == prompt.answer != "")}
            rows.append(row | {"confidence": confidence, "entropy": entropy})
    return rows


def embedding_gradient(
    denoiser: Denoiser, canvases: tuple[Tensor, Tensor, Tensor, Tensor], excluded_token_id: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the gradient [B, T, H] of the predicted tokens' logits, and these tokens [B].

    `canvases` come from `inputs.padded`. The predicted token is the likeliest one except `excluded_token_id`, the mask
    token, which decoding never emits. Rows do not affect each other, so the gradient of the summed logits is that of
    each row. No gradients of weights are computed.
    """
    input_ids, attention_mask, positions, lengths = canvases
    embeddings: list[Tensor] = []  # [B, T, H], the leaf of the backward pass

    def keep_embeddings(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    handle = denoiser.model.get_input_embeddings().register_forward_hook(keep_embeddings)
    try:
        logits = denoiser.logits(input_ids, attention_mask, positions, prompt_lengths=lengths, gradient=True)  # [B, V]
    finally:
        handle.remove()
    allowed = logits.detach().clone()
    if excluded_token_id is not None:
        allowed[:, excluded_token_id] = -torch.inf
    predicted = allowed.argmax(-1)
    target = logits.gather(1, predicted[:, None]).sum()
    (gradient,) = torch.autograd.grad(target, embeddings)
    return gradient, predicted


def attribute(
    denoiser: Denoiser, batch: Sequence[inputs.Prompt], excluded_token_id: int | None = None
) -> list[tuple[Tensor, int]]:
    """For each prompt, how strongly its tokens affect the predicted token, and that token (paper, 4.3 and A.2).

    The first are L2 norms [T], in float32 or wider: those of the gradient of the predicted token's logit with respect
    to the input embeddings, divided by the largest of the prompt.

    The paper says "normalised" but not how. Its table 1 rules out some methods. The masks' mean of LLaDA-Base, 0.234
    over 50 positions, cannot come from norms that sum to 1 (50 * 0.234 > 1), or from norms with squares that sum to 1
    (50 * 0.234^2 > 1). The mean over all positions is far below 1 and above 0, so it is neither division by the mean
    nor a z-score. Division by the largest norm remains, and similar methods (min-max, which differs by the smallest
    norm). We do not know whether the paper takes the maximum per question, as here, or over several, and how it treated
    embeddings that were quantised to 4 bits.

    Raises OptionError if a gradient is not finite, or is zero everywhere, which can happen in a narrow dtype.
    """
    gradient, predicted = embedding_gradient(denoiser, inputs.padded(batch, denoiser), excluded_token_id)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    norms = torch.linalg.vector_norm(gradient, dim=-1, dtype=wide)  # [B, T]
    largest = norms.amax(dim=1, keepdim=True)
    if not bool(torch.isfinite(norms).all() & (largest > 0).all()):
        raise OptionError(f"gradients in dtype={denoiser.dtype} are not finite or vanish; try dtype=float32")
    shares = (norms / largest).cpu()
    rows = [share[: len(prompt.token_ids)] for share, prompt in zip(shares, batch, strict=True)]
    return list(zip(rows, predicted.tolist(), strict=True))


def group_means(values: Tensor, prompt: inputs.Prompt) -> dict[str, float]:
    """The mean of `values` [T] for each group of table 1, and for all masks except the answer's own.

    Groups without positions are left out.
    """
    beside = [place for place in prompt.masks if place != prompt.answer_at]
    groups = {"masks": prompt.masks, "other masks": beside}
    groups |= {"last 50 non-masks": prompt.others[-N_LAST:], "all non-masks": prompt.others}
    return {name: float(values[positions].mean()) for name, positions in groups.items() if positions}


def example_means(values: Tensor, prompt: inputs.Prompt) -> list[float]:
    """The mean of `values` [T] over the tokens of each in-context example."""
    return [float(values[tokens.start : tokens.stop].mean()) for tokens in prompt.examples]


def confidence_and_entropy(logits: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Greedy tokens [N], their probabilities [N] and entropies [N] in nats, from logits [N, V].

    The distribution is over the vocabulary without the mask token, which decoding never emits.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    wide[:, mask_token_id] = -torch.inf
    found = torch.distributions.Categorical(logits=wide)
    confidence, tokens = found.probs.max(-1)
    return tokens, confidence, found.entropy()


def predict(denoiser: Denoiser, batch: Sequence[inputs.Prompt]) -> list[tuple[int, float, float]]:
    """The greedy token at each prompt's answer mask, its probability and the entropy, in one forward pass.

    Raises OptionError if logits are not finite.
    """
    input_ids, attention_mask, positions, lengths = inputs.padded(batch, denoiser)
    logits = denoiser.logits(input_ids, attention_mask, positions, prompt_lengths=lengths)
    if not bool(logits.isfinite().all()):
        raise OptionError(f"the model's logits in dtype={denoiser.dtype} are not finite (NaN or infinity)")
    columns = (values.tolist() for values in confidence_and_entropy(logits, denoiser.mask_token_id))
    return list(zip(*columns, strict=True))


def _attributed(given: Namespace, lm: Any, prompts: Sequence[inputs.Prompt]) -> list[tuple[Any, int]]:
    """The normalised gradient norms [T] of each prompt, and its predicted token."""
    return _in_batches(given, lm, prompts, partial(attribute, lm.denoiser, excluded_token_id=lm.mask_token_id))


def _in_batches(
    given: Namespace, lm: Any, prompts: Sequence[inputs.Prompt], run: Callable[[Any], list[_T]]
) -> list[_T]:
    """Results of `run` for all prompts, in batches that shrink when memory runs out."""
    largest = LARGEST_BATCH_ON_CPU if lm.denoiser.device.type == "cpu" else LARGEST_BATCH

    @find_executable_batch_size(starting_batch_size=largest if given.batch_size == "auto" else int(given.batch_size))
    def run_all(batch_size: int) -> list[_T]:
        starts = range(0, len(prompts), batch_size)
        return [found for start in starts for found in run(prompts[start : start + batch_size])]

    found: list[_T] = run_all()
    return found


class Analysis(NamedTuple):
    """Its rows for a task, and its means: name -> a column, and those that it is grouped by."""

    rows: Callable[[Namespace, Any, Any], list[Row]]
    summary: Mapping[str, tuple[str, list[str]]]


#: Name of a command -> its analysis.
ANALYSES = {
    "groups": Analysis(group_rows, {"groups": ("gradient", ["group"])}),
    "examples": Analysis(
        example_rows,
        {
            "kinds": ("gradient", ["example"]),
            "places": ("gradient", ["place"]),
            "places_by_kind": ("gradient", ["example", "place"]),
        },
    ),
    "confidence": Analysis(
        confidence_rows, {name: (name, ["n_masks"]) for name in ("confidence", "entropy", "correct")}
    ),
}
