"""Runs an analysis of a model task by task, so that a killed run goes on where it stopped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from mdlm_lm_eval import families
from mdlm_lm_eval.analyses.confidence import predict
from mdlm_lm_eval.analyses.gradients import attribute, example_means, group_means
from mdlm_lm_eval.analyses.models import (
    PromptEncoding,
    check_model_arguments,
    load_model,
    pretrained_path,
    read_encoding,
)
from mdlm_lm_eval.analyses.options import AnalysisOptions
from mdlm_lm_eval.analyses.output import Report, Row
from mdlm_lm_eval.analyses.prompts import Prompt, build_prompt
from mdlm_lm_eval.analyses.tasks import examples_of, load_tasks, relevant_examples, reorder_examples
from mdlm_lm_eval.batching import Batches
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import check_device
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import check_writable
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.sharing import Shared
from mdlm_lm_eval.results.suite import suite_info

# `batch_size=auto` starts here and halves when memory runs out; a CPU swaps long before it says so.
LARGEST_BATCH, LARGEST_BATCH_ON_CPU = 64, 8


@dataclass(frozen=True)
class Session:
    """A loaded model and how its prompts are made."""

    options: AnalysisOptions
    encoding: PromptEncoding
    denoiser: Denoiser
    batches: Batches
    bar: Any  # counts forward passes

    def prompts(self, task: Any, n_masks: int | None) -> list[Prompt]:
        """The first `limit` questions of a task."""
        return [
            build_prompt(task, document, self.encoding, n_masks, apply_chat_template=self.options.apply_chat_template)
            for document in _documents(task, self.options)
        ]

    def attribute(self, prompts: Sequence[Prompt]) -> tuple[list[Any], list[str]]:
        """Normalised gradient norms [T] of every prompt, and the predicted token as text."""
        values, tokens = attribute(
            self.denoiser,
            prompts,
            self.batches,
            excluded_token_id=self.encoding.mask_token_id,
            advance=self.bar.update,
        )
        return values, [self.encoding.tokenizer.decode([token]) for token in tokens]


def run(options: AnalysisOptions, rows_of: Callable[[Session, Any], list[Row]]) -> Report:
    """The report with the rows of every task; the caller writes its summary.

    Processes that run the same analysis into the same folder share its tasks.

    Raises OptionError before the weights are read for what tasks, tokenizer and the files on disk decide.
    """
    check_model_arguments(options.model_args)
    check_device(options.device)
    encoding = read_encoding(options)
    tasks = load_tasks(options.tasks, options.metadata)
    report = Report(options.output_path, options.analysis, _settings(options, tasks))
    to_do = {name: task for name, task in tasks.items() if name not in report.finished}
    for task in to_do.values():
        if rows_of is example_rows and not examples_of(task):
            raise OptionError(f"{task.config.task} has no in-context examples with these settings")
        first = next(iter(_documents(task, options)))
        for n_masks in options.n_masks:
            build_prompt(task, first, encoding, n_masks, apply_chat_template=options.apply_chat_template)
    if not to_do:
        return report
    check_writable(options.output_path, "--output_path")
    denoiser = load_model(options, encoding)
    largest = LARGEST_BATCH_ON_CPU if denoiser.device.type == "cpu" else LARGEST_BATCH
    per_task = len(options.n_masks) * options.reorderings
    passes = {name: per_task * len(_documents(task, options)) for name, task in tasks.items()}
    done = sum(passes[name] for name in report.finished)
    with tqdm(total=sum(passes.values()), initial=done, desc=options.analysis, unit="question") as bar:
        session = Session(options, encoding, denoiser, Batches(options.batch_size.partition(":")[0], largest), bar)
        for name, _ in Shared(to_do, report.task_path, report.has):
            try:
                report.add(name, rows_of(session, to_do[name]))
            except (NonFiniteLogitsError, OptionError) as error:
                raise OptionError(f"{name}: {error}") from error
    report.sort(list(tasks))
    return report


def group_rows(session: Session, task: Any) -> list[Row]:
    """Table 1: for each question, the mean normalised gradient norm of masks, last 50 non-masks and all non-masks."""
    (n_masks,) = session.options.n_masks
    prompts = session.prompts(task, n_masks)
    values, tokens = session.attribute(prompts)
    return [
        {
            "task": task.config.task,
            "question": question,
            "n_masks": len(prompt.masks),
            "predicted": token,
            "answer": prompt.answer,
            "group": group,
            "gradient": gradient,
        }
        for question, (prompt, of_prompt, token) in enumerate(zip(prompts, values, tokens, strict=True))
        for group, gradient in group_means(of_prompt, prompt).items()
    ]


def example_rows(session: Session, task: Any) -> list[Row]:
    """E3: for each reordering and place of an example, the mean over questions.

    Places count from 1, the first example of the prompt, to the one before the question.
    """
    (n_masks,) = session.options.n_masks
    relevant = relevant_examples(task)
    orders: list[list[Any]] = []
    prompts: list[Prompt] = []  # of all reorderings together, so that batches are full
    for reordering in range(session.options.reorderings):
        reorder_examples(task, session.options.seed, reordering)
        orders.append(examples_of(task))
        prompts += session.prompts(task, n_masks)
    values, _ = session.attribute(prompts)
    n_questions = len(prompts) // len(orders)
    rows = []
    for reordering, order in enumerate(orders):
        questions = range(reordering * n_questions, (reordering + 1) * n_questions)
        of_questions = [example_means(values[n], prompts[n]) for n in questions]
        for place, (example, gradients) in enumerate(zip(order, zip(*of_questions, strict=True), strict=True), start=1):
            rows.append(
                {
                    "task": task.config.task,
                    "reordering": reordering,
                    "place": place,
                    "example": "relevant" if example in relevant else "distractor",
                    "n_masks": len(prompts[0].masks),
                    "questions": n_questions,
                    "gradient": sum(gradients) / n_questions,
                }
            )
    return rows


def confidence_rows(session: Session, task: Any) -> list[Row]:
    """E13: for each question and mask count, the greedy token, its probability and the entropy in nats."""
    rows = []
    for n_masks in session.options.n_masks:
        prompts = session.prompts(task, n_masks)
        predictions = predict(session.denoiser, prompts, session.batches, advance=session.bar.update)
        for question, (prompt, prediction) in enumerate(zip(prompts, predictions, strict=True)):
            token = session.encoding.tokenizer.decode([prediction.token_id])
            rows.append(
                {
                    "task": task.config.task,
                    "question": question,
                    # As asked for: a block diffusion model gets more, to the end of each question's last block.
                    "n_masks": n_masks,
                    "predicted": token,
                    "answer": prompt.answer,
                    "correct": int(token == prompt.answer),
                    "confidence": prediction.confidence,
                    "entropy": prediction.entropy,
                }
            )
    return rows


def _documents(task: Any, options: AnalysisOptions) -> list[dict[str, Any]]:
    questions = task.test_docs()
    n = len(questions) if options.limit is None else min(options.limit, len(questions))
    return list(questions.select(range(n)))


def _settings(options: AnalysisOptions, tasks: dict[str, Any]) -> dict[str, Any]:
    """Everything that decides the numbers, except the code's own version, the batch size and the device."""
    return {
        "model": options.model,
        "pretrained": options.model_args.get("pretrained", BUILT_IN),
        "model_args": {name: value for name, value in options.model_args.items() if name != "pretrained"},
        # A checkpoint or adapter that was trained on lies at the same place with other weights.
        "weights": families.files_digest(
            pretrained_path(options.model_args), options.model_args.get("subfolder") or ""
        ),
        "adapter_weights": families.files_digest(str(adapter)) if (adapter := options.model_args.get("peft")) else None,
        "apply_chat_template": options.apply_chat_template,
        "tasks": sorted(tasks),
        "metadata": dict(options.metadata),
        "n_masks": options.n_masks,
        "limit": options.limit,
        "reorderings": options.reorderings,
        "seed": options.seed,
        "task_suite": suite_info(tasks),
    }
