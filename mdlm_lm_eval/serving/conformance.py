"""Compares a running server with the model in this process, point by point.

    python -m mdlm_lm_eval.serving.conformance --model_args base_url=http://localhost:8000,pretrained=built-in-block

Prints a table and, for each point that fails, the request that shows it; then the exit code is 1. A point is untested
if no prompt here can show a fault. The arguments are those of `--model mdlm-server`.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval._cli.utils import MergeDictAction

from mdlm_lm_eval.command_line import ending_well, parser_of
from mdlm_lm_eval.options import OptionError, shown
from mdlm_lm_eval.results.samples import new_instance
from mdlm_lm_eval.results.text import markdown_table
from mdlm_lm_eval.serving import REQUEST_OPTIONS, NoAnswerError, check_answer, text_of

if TYPE_CHECKING:
    from mdlm_lm_eval.server import MDLMServer

PROMPTS = (
    "Q1: the opposite of hot is",
    "The capital of France is",
    "1, 2, 3, 4,",
    "The children walked to the",
    "Water boils at a temperature of",
    "List three animals:",
)
# Two prompts with different ends after the same beginning, which is longer than a page of a prefix cache.
_ALIKE = "Once upon a time there lived a miller who had three sons, a mill, a donkey and a cat. When he died, the "
_ENDS = ("eldest took the mill and", "youngest took the cat and")
_THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, None)
_GENERATION: dict[str, Any] = {"max_gen_toks": 32, "until": []}


def _chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


@dataclass(frozen=True)
class Served:
    """A request, the text that the server sent, and the expected text."""

    request: Mapping[str, Any]
    text: str
    expected: str

    @property
    def is_right(self) -> bool:
        """Whether the two texts are equal."""
        return self.text == self.expected


@dataclass(frozen=True)
class Finding:
    """The finding for a point: fail if there is a `wrong` answer, otherwise pass or untested. `why`: the reason."""

    why: str
    wrong: Served | None = None
    passed: bool = False


class Examination:
    """Asks a server and the model in this process, one request at a time. Each method below `Points` is a point.

    failures: requests without an answer from the server. The point that sent such a request is untested.
    """

    def __init__(self, lm: "MDLMServer") -> None:
        assert lm.reference is not None
        self.lm, self.reference, self.facts = lm, lm.reference, lm.get_model_info()["mdlm"]["server"]
        self.n_asked, self.failures = 0, list[Served]()
        self.usage: Mapping[str, Any] = {}  # of the last answer

    def request(self, prompt: str, gen_kwargs: Mapping[str, Any], template: Callable[..., Any]) -> Any:
        """Returns a request as lm-eval makes it, in a task named after the prompt. A chat is written by `template`."""
        text = template(_chat(prompt)) if self.lm.chat else prompt
        return new_instance("generate_until", {}, (text, {**_GENERATION, **gen_kwargs}), prompt, 0)

    def expected(self, prompt: str, **gen_kwargs: Any) -> str:
        """Returns the text that the model in this process writes."""
        request = self.request(prompt, gen_kwargs, self.lm.rendered)
        (text,) = self.reference.generate_until([request], disable_tqdm=True)
        return text

    def ask(self, prompt: str, expected: str, seed: int = 0, **gen_kwargs: Any) -> Served:
        """Returns the server's text as it was sent. Raises NoAnswerError if there is none."""
        import requests

        lm = self.lm
        payload = lm.payload_of(self.request(prompt, gen_kwargs, lm.apply_chat_template), seed)
        self.n_asked += 1
        try:
            answer = requests.post(
                lm.address + lm.path, json=payload, headers=lm.header, timeout=lm.timeout, verify=lm.verify_certificate
            )
            outputs: Any = answer.json() if answer.ok else {"error": f"status {answer.status_code}: {answer.text}"}
            check_answer(outputs)
        except (NoAnswerError, requests.RequestException) as error:
            self.failures.append(Served(payload, str(error), "an answer"))
            raise NoAnswerError(f"no answer: {error}") from error
        self.usage = outputs.get("usage") or {}
        return Served(payload, text_of(outputs["choices"][0]), expected)

    def compare(self, prompt: str, **gen_kwargs: Any) -> Served:
        """Returns the server's text with the text of the model in this process."""
        return self.ask(prompt, self.expected(prompt, **gen_kwargs), **gen_kwargs)

    @cached_property
    def plain(self) -> list[Served]:
        """The texts for `PROMPTS`, at temperature 0."""
        return [self.compare(prompt) for prompt in PROMPTS]

    @cached_property
    def differing(self) -> Served | None:
        """The first of the plain texts that is wrong; None if all are right."""
        return next((one for one in self.plain if not one.is_right), None)

    def is_served_with(self, threshold: float | None) -> bool:
        """Returns whether the model in this process writes all of the server's texts with this threshold."""
        return all(
            self.expected(prompt, confidence_threshold=threshold) == one.text
            for prompt, one in zip(PROMPTS, self.plain, strict=True)
        )

    @cached_property
    def beside(self) -> list[bool]:
        """`is_served_with` for both floats next to the threshold. With the lower one, a confidence may equal it."""
        import numpy as np

        threshold = self.reference.settings.decoding.confidence_threshold
        ends = () if threshold is None else (0, 1)
        return [self.is_served_with(float(np.nextafter(np.float32(threshold), np.float32(end)))) for end in ends]

    # Points

    def settings(self) -> Finding:
        """Unknown settings are the family's defaults. A contradiction has already ended the run."""
        known = ", ".join(f"{name}={shown(value)}" for name, value in self.lm.stated.items()) or "nothing"
        unknown = [name for name in self.facts["unknown"] if name not in REQUEST_OPTIONS]
        guessed = f", {len(unknown)} guessed" if unknown else ""
        return Finding(f"{len(self.lm.said)} said, {known} stated{guessed}", passed=not unknown)

    def strings(self) -> Finding:
        n_right = sum(one.is_right for one in self.plain)
        why = f"{n_right} of {len(PROMPTS)} equal those of --model mdlm"
        return Finding(why, self.differing, passed=True)

    def threshold(self) -> Finding:
        here = self.reference.settings.decoding.confidence_threshold
        here = here and round(here, 6)  # a smaller float is the same threshold with equality
        others = [other for other in _THRESHOLDS if other != here]
        same = [shown(other) for other in others if self.is_served_with(other)]
        if self.differing is None:
            n_told = len(others) - len(same)
            return Finding(f"the texts rule out {n_told} of {len(others)} other thresholds", passed=n_told > 0)
        if not same or any(self.beside):
            return Finding("strings differ for another reason")
        return Finding(f"strings are those of {' or '.join(same)}, not of {shown(here)}", self.differing)

    def equality(self) -> Finding:
        """Whether masks are filled only above the threshold, or also if the confidence equals it."""
        told = any(self.beside) if self.differing else not all(self.beside)
        why = "a confidence equals the threshold" if told else "no confidence equals the threshold"
        return Finding(why, self.differing if told else None, passed=told)

    def stop_strings(self) -> Finding:
        if not self.lm.dialect.stops:
            return Finding(f"requests to {self.lm.engine} have none; answers are cut here")
        for prompt, plain in zip(PROMPTS, self.plain, strict=True):
            stop = plain.expected[len(plain.expected) // 3 :][:3]
            if plain.is_right and stop.strip():
                one = self.compare(prompt, until=[stop])
                found = "ends" if one.is_right else "does not end"
                return Finding(f"a text {found} before {stop!r}", None if one.is_right else one, passed=True)
        return Finding("no text holds one")

    def end_tokens(self) -> Finding:
        tasks, asked = self.reference.record.tasks, zip(PROMPTS, self.plain, strict=True)
        ended = [one for prompt, one in asked if tasks[prompt].endings["ended_by_eos"]]
        longer = (one for one in ended if not one.is_right and one.text.startswith(one.expected))
        why = f"{len(ended)} texts end by themselves"
        return Finding(why, next(longer, None), passed=any(one.is_right for one in ended))

    def template(self) -> Finding:
        if self.lm.chat:
            one = self.compare(PROMPTS[0])
            said, here = self.usage.get("prompt_tokens"), len(self.lm.tok_encode(self.lm.rendered(_chat(PROMPTS[0]))))
            why = f"the server's: {said} prompt tokens, and {here} by the tokenizer's"
            return Finding(why, one if said not in (None, here) else None, passed=said is not None)

        def applied(text: str) -> str:
            return str(self.lm.apply_chat_template(_chat(text)))

        for prompt in PROMPTS if self.lm.tokenizer.chat_template else ():
            one = self.compare(applied(prompt))
            others = {self.expected(applied(applied(prompt))): "twice", self.expected(prompt): "not at all"}
            if one.expected not in others and (one.is_right or one.text in others):
                return Finding(f"applied {others.get(one.text, 'once')}", None if one.is_right else one, passed=True)
        return Finding("the tokenizer has none, or no prompt shows it")

    def temperature(self) -> Finding:
        if "temperature" in self.lm.dialect.fixed:
            return Finding(f"requests to {self.lm.engine} ask for none; with sampling=true they do")
        greedy = self.plain[0].text
        drawn = [self.ask(PROMPTS[0], "another text", seed=seed, temperature=1.5) for seed in (1, 1, 2, 3)]
        same = "the same text" if drawn[0].text == drawn[1].text else "other texts"
        has_effect = any(one.text != greedy for one in drawn)
        return Finding(f"1.5 against 0; equal seeds give {same}", None if has_effect else drawn[0], passed=True)

    def shared_prefix(self) -> Finding:
        first, other, again = (self.compare(_ALIKE + _ENDS[n]) for n in (0, 1, 0))
        stale = other if first.is_right and not other.is_right and self.differing is None else None
        stale = again if again.text != first.text else stale
        passed = first.is_right and other.is_right and first.text != other.text
        return Finding("prompts that begin alike", stale, passed=passed)

    def mask_in_prompt(self) -> Finding:
        string = self.lm.tokenizer.convert_ids_to_tokens(self.lm.mask_token_id)
        asked = [self.compare(f"{prompt} {string}{string} and") for prompt in PROMPTS[:3]]
        wrong = next((one for one in asked if not one.is_right), None) if self.differing is None else None
        return Finding("the mask's string stays text", wrong, passed=self.differing is None)

    def answers(self) -> Finding:
        """Whether every request had an answer. This must be the last point."""
        why = f"{len(self.failures)} of {self.n_asked} requests have none"
        return Finding(why, self.failures[0] if self.failures else None, passed=True)


POINTS = "settings strings threshold equality stop_strings end_tokens template temperature shared_prefix mask_in_prompt"


def conformance(lm: "MDLMServer") -> dict[str, Any]:
    """Returns the report on a model's server: facts, and the finding for every point. The model must have `audit`."""
    exam, points = Examination(lm), {}
    for name in [*POINTS.split(), "answers"]:
        try:
            finding = getattr(exam, name)()
        except (NoAnswerError, OptionError) as error:
            finding = Finding(str(error))
        result = "fail" if finding.wrong else "pass" if finding.passed else "untested"
        points[name.replace("_", " ")] = {"result": result} | asdict(finding)
    return {"server": exam.facts, "points": points}


def main() -> None:
    """Runs the command line."""
    parser = parser_of("python -m mdlm_lm_eval.serving.conformance", __doc__)
    parser.add_argument("--model_args", nargs="+", action=MergeDictAction, default={}, metavar="NAME=VALUE")
    parser.add_argument("--output_path", type=Path, metavar="FILE", help="also write the report, as JSON")
    given = parser.parse_args()
    with ending_well("conformance", after_stop="run it again"):
        from mdlm_lm_eval.server import MDLMServer

        kept = {name: value for name, value in given.model_args.items() if name not in REQUEST_OPTIONS}
        report = conformance(MDLMServer(**kept | {"audit": 1}))
        points = report["points"].items()
        rows = [(name, each["result"], each["why"]) for name, each in points]
        print(markdown_table(("point", "result", "why"), rows))
        for name, each in points:
            if each["wrong"]:
                print(f"\n{name}: {json.dumps(each['wrong'], ensure_ascii=False)}")
        if given.output_path:
            given.output_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(each["result"] == "fail" for _, each in points))


if __name__ == "__main__":
    main()
