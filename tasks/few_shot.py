"""The lm-eval task class of the few-shot suite."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import datasets
from lm_eval.api import task as lm_eval_task

from mdlm_lm_eval.options import OptionError, must_be
from mdlm_lm_eval.tasks import prompts, questions, rule_sets
from mdlm_lm_eval.tasks.settings import read_settings

# lm-eval 0.5 has a class for each type of output.
Base: Any = getattr(lm_eval_task, "GenerateTask", lm_eval_task.ConfigurableTask)


class FewShotTask(Base):
    """One relevant rule beside one distractor rule, in one arrangement of examples and question.

    A task's YAML says `rule`, `distractor`, `arrangement` (mixed or block), for a block its `position` (the number of
    distractors before it) and, where it is not `right`, the `question`'s place; `sets: true` takes questions and
    relevant examples from `rule_sets`. What a user may change (`settings.py`) comes by `--metadata`.

    Raises OptionError for a setting that is unknown or not allowed, for `--num_fewshot`, and for a block position
    beyond the last distractor.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        config = dict(config)
        del config["class"]
        self.rule: str = config.pop("rule")
        self.distractor: str = config.pop("distractor")
        self.arrangement: str = config.pop("arrangement")
        self.position: int = config.pop("position", 0)
        self.question_place: str = config.pop("question", "right")
        self.asks_sets: bool = config.pop("sets", False)
        settings = read_settings(config["metadata"])
        n_relevant, n_distractors, self.seed, template = settings.values()
        self.template = prompts.TEMPLATES[template]
        if self.position > n_distractors:
            raise must_be(
                "fewshot_distractors",
                f"at least {self.position} for {config['task']}, whose block stands after so many",
                n_distractors,
            )
        self.before, self.after = self._examples(n_relevant, n_distractors)
        super().__init__(config=config)
        self.is_fixed_slot = bool(self.config.generation_kwargs.get("infill"))
        # In the results lm-eval then names the number of examples, and it calls set_config for --num_fewshot alone.
        self.config.num_fewshot = n_relevant + n_distractors or None
        self.config.metadata |= settings | {
            "rule": self.rule,
            "distractor": self.distractor,
            "arrangement": self.arrangement,
            "position": self.position if self.arrangement == "block" else None,
            "question": self.question_place,
        }

    def _examples(
        self, n_relevant: int, n_distractors: int
    ) -> tuple[Sequence[questions.Question], Sequence[questions.Question]]:
        names = self.rule, self.distractor
        relevant = (rule_sets if self.asks_sets else questions).relevant_examples(*names, n_relevant, self.seed)
        distractors = questions.distractor_examples(*names, n_distractors, self.seed)
        if self.arrangement == "block":
            examples = prompts.block(relevant, distractors, self.position)
        elif self.arrangement == "mixed":
            order = Random(f"mdlm mixed order {self.rule} {self.distractor} {self.seed}")
            examples = prompts.mixed(relevant, distractors, order)
        else:
            raise ValueError(f"arrangement={self.arrangement!r} is not allowed; allowed are mixed and block")
        return prompts.split_at_question(examples, self.question_place)

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: object) -> None:
        """Makes the test questions, which no data set need be loaded for; those of a set name it."""
        names = self.rule, self.distractor, self.seed
        if self.asks_sets:
            asked = rule_sets.test_questions(*names)
            documents = [{"set": name} | self._document(one) for name, one in asked.items()]
        else:
            documents = list(map(self._document, questions.test_questions(*names)))
        self.dataset = {"test": datasets.Dataset.from_list(documents)}

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        fewshot_as_multiturn: bool = False,
        chat_template: Callable[..., str] | None = None,
        gen_prefix: str | None = None,
    ) -> str:
        """The whole prompt of a test question: plain text, or a conversation in which its answer is prefilled."""
        template = self.template
        question = questions.Question(tuple(doc["options"]), template.labels.index(doc["answer"]))
        # In the fixed slot the model sees the marker as one mask token.
        asked = template.text(question, prompts.SLOT_MARKER) if self.is_fixed_slot else template.open_ended(question)
        texts = [*map(template.solved, self.before), asked, *map(template.solved, self.after)]
        if not apply_chat_template or chat_template is None:
            return template.plain_text([system_instruction, *texts] if system_instruction else texts)
        if not fewshot_as_multiturn:
            raise OptionError(
                f"fewshot_as_multiturn must be true for {self.config.task}, whose examples are a user and an assistant "
                "message each"
            )
        messages = template.chat_messages(texts)
        if system_instruction:
            messages.insert(0, {"role": "system", "content": system_instruction})
        return chat_template(messages, add_generation_prompt=False)

    def build_all_requests(
        self, *, cache_requests: bool = False, rewrite_requests_cache: bool = False, **kwargs: Any
    ) -> None:
        """Builds the requests anew each time, because lm-eval's cache of them knows nothing of the suite's settings."""
        super().build_all_requests(cache_requests=False, rewrite_requests_cache=False, **kwargs)

    def set_config(self, key: str, value: Any, update: bool = False) -> None:
        """Refuses `--num_fewshot`, which would say nothing of how many examples are relevant ones."""
        if key == "num_fewshot" and (value or self.config.num_fewshot):
            relevant, distractors = ("0", "0") if value == 0 else ("...", "...")
            raise OptionError(
                f"num_fewshot={value} does not say which examples {self.config.task} shall have; use "
                f"--metadata fewshot_relevant={relevant} fewshot_distractors={distractors}"
            )
        super().set_config(key, value, update)

    def _document(self, question: questions.Question) -> dict[str, Any]:
        return {
            "question": self.template.open_ended(question),
            "options": list(question.options),
            "answer": self.template.label(question),
        }
