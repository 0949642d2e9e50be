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

    `prefixes` holds the examples before and after a question, by the question's triple of rules; those of
    `mdlm_context` have none, and all the same examples.

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
        n_distractors, self.seed = settings["fewshot_distractors"], settings["fewshot_seed"]
        self.template = prompts.TEMPLATES[settings["fewshot_template"]]
        if self.position > n_distractors:
            raise must_be(
                "fewshot_distractors",
                f"at least {self.position} for {config['task']}, whose block stands after so many",
                n_distractors,
            )
        counts = settings["fewshot_relevant"], n_distractors
        triples = rule_sets.triples_of(self.rule) if self.asks_sets else [()]
        self.prefixes = {triple: self._prefix(triple, *counts, settings["fewshot_labels"]) for triple in triples}
        super().__init__(config=config)
        self.is_fixed_slot = bool(self.config.generation_kwargs.get("infill"))
        # In the results lm-eval then names the number of examples, and it calls set_config for --num_fewshot alone.
        self.config.num_fewshot = sum(counts) or None
        self.config.metadata |= settings | {
            "rule": self.rule,
            "distractor": self.distractor,
            "arrangement": self.arrangement,
            "position": self.position if self.arrangement == "block" else None,
            "question": self.question_place,
        }

    def _prefix(
        self, triple: tuple[str, ...], n_relevant: int, n_distractors: int, labels: str
    ) -> tuple[Sequence[prompts.Example], Sequence[prompts.Example]]:
        """The examples of one triple's questions; of three tasks that share a triple, they differ in answers alone."""
        name = " ".join(triple) or self.rule
        shown = self._relevant(triple, n_relevant, labels)
        relevant = [prompts.Example(one, is_relevant=True, is_hidden=labels == "hidden") for one in shown]
        numbers = questions.distractor_examples(name, self.distractor, n_distractors, self.seed)
        distractors = [prompts.Example(one, is_relevant=False) for one in numbers]
        if self.arrangement == "block":
            examples = prompts.block(relevant, distractors, self.position)
        elif self.arrangement == "mixed":
            order = Random(f"mdlm mixed order {name} {self.distractor} {self.seed}")
            examples = prompts.mixed(relevant, distractors, order)
        else:
            raise ValueError(f"arrangement={self.arrangement!r} is not allowed; allowed are mixed and block")
        return prompts.split_at_question(examples, self.question_place)

    def _relevant(self, triple: tuple[str, ...], n: int, labels: str) -> Sequence[questions.Question]:
        """The relevant examples with the answers that `fewshot_labels` asks for."""
        if not self.asks_sets:
            if labels == "wrong":
                raise must_be("fewshot_labels", "true or hidden in mdlm_context, whose options follow one rule", labels)
            return questions.relevant_examples(self.rule, self.distractor, n, self.seed)
        rule = rule_sets.wrong_rule(self.rule, triple) if labels == "wrong" else self.rule
        return [one.question(rule) for one in rule_sets.example_sets(triple, self.distractor, n, self.seed)]

    def examples(self, doc: dict[str, Any]) -> tuple[Sequence[prompts.Example], Sequence[prompts.Example]]:
        """The examples before and after a test question."""
        rules = doc.get("rules", ())
        return next(found for triple, found in self.prefixes.items() if set(triple) == set(rules))

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: object) -> None:
        """Makes the test questions, which no data set need be loaded for; those of a set name it and its rules."""
        names = self.rule, self.distractor, self.seed
        if self.asks_sets:
            asked = rule_sets.asked_sets(*names)
            documents = [
                {"set": name} | self._document(one.question(self.rule)) | {"rules": list(one.rules)}
                for name, one in asked.items()
            ]
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
        before, after = self.examples(doc)
        texts = [*map(template.shown, before), asked, *map(template.shown, after)]
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
        """As lm-eval 0.4 sets `--num_fewshot`."""
        if key == "num_fewshot":
            self.set_num_fewshot(value)
        super().set_config(key, value, update)

    def set_num_fewshot(self, num_fewshot: int) -> None:
        """Refuses `--num_fewshot`, which would not say how many examples are relevant; lm-eval 0.5 calls it."""
        if num_fewshot or self.config.num_fewshot:
            relevant, distractors = ("0", "0") if num_fewshot == 0 else ("...", "...")
            raise OptionError(
                f"num_fewshot={num_fewshot} does not say which examples {self.config.task} shall have; use "
                f"--metadata fewshot_relevant={relevant} fewshot_distractors={distractors}"
            )

    def _document(self, question: questions.Question) -> dict[str, Any]:
        return {
            "question": self.template.open_ended(question),
            "options": list(question.options),
            "answer": self.template.label(question),
        }
