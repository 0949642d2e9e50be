"""The labels of a single-token answer: which there are, which tokens spell them, what a first token says of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.decoding.canvas import FirstToken

_ALPHABETS = ("ABCDEFGHIJ", "abcdefghij", "123456789", "XYZ")


@dataclass(frozen=True)
class Labels:
    """The labels that an answer may be, and the one that is right, "" where it is not known."""

    names: tuple[str, ...]
    answer: str

    @classmethod
    def of(cls, document: Any) -> "Labels | None":
        """Those of a task's document: its `labels`, or the letters of its `options`, of which `answer` is one.

        None where it has neither: documents of other tasks may mean anything by these keys.
        """
        if not isinstance(document, Mapping):
            return None
        answer, options, labels = (document.get(name) for name in ("answer", "options", "labels"))
        if isinstance(labels, Sequence) and labels and all(isinstance(one, str) for one in labels):
            return cls(tuple(labels), answer if isinstance(answer, str) and answer in labels else "")
        if not isinstance(options, Collection) or not isinstance(answer, str):
            return None
        names = (tuple(alphabet[: len(options)]) for alphabet in _ALPHABETS)
        return next((cls(some, answer) for some in names if answer in some), None)


class LabelTokens:
    """The tokens that decode to each label, with or without a space before it in the vocabulary.

    Labels that no single token spells are left out.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Collection[int],
        end_of_turn_ids: Collection[int],
    ) -> None:
        self.names: dict[int, str] = {}
        for name in names:
            for text in (name, f" {name}"):
                ids = tokenizer.encode(text, add_special_tokens=False)
                if len(ids) == 1 and tokenizer.decode(ids) == name:
                    self.names[ids[0]] = name
        self.eos_ids, self.end_of_turn_ids = eos_ids, end_of_turn_ids

    def letter(self, first: FirstToken, answer: str) -> str:
        """What the likeliest token is: R and W the right and a wrong label, E the end of text, T of a turn, O another.

        E, T and O are lower case where the likeliest label is wrong. Where the answer is not known, L is any label.
        """
        if first.token in self.names:
            return "L" if not answer else "R" if self.names[first.token] == answer else "W"
        kind = "E" if first.token in self.eos_ids else "T" if first.token in self.end_of_turn_ids else "O"
        return kind if not answer or self.names[first.label] == answer else kind.lower()
