"""The labels of single-token answers, the tokens that spell them, and the letter that describes a first token."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.decoding.canvas import FirstToken

_ALPHABETS = ("ABCDEFGHIJ", "abcdefghij", "123456789", "XYZ")


@dataclass(frozen=True)
class Labels:
    """The labels that an answer may be, and the right one; "" if it is not known."""

    names: tuple[str, ...]
    answer: str

    @classmethod
    def of(cls, document: Any) -> "Labels":
        """Returns the labels of a task's document: its `labels`, or the letters of its `options`; none if it has none.

        Letters count only if `answer` is one of them, as other tasks may use these keys for anything.
        """
        if not isinstance(document, Mapping):
            return NO_LABELS
        answer, options, labels = (document.get(name) for name in ("answer", "options", "labels"))
        if isinstance(labels, Sequence) and labels and all(isinstance(one, str) for one in labels):
            return cls(tuple(labels), answer if isinstance(answer, str) and answer in labels else "")
        if not isinstance(options, Collection) or not isinstance(answer, str):
            return NO_LABELS
        names = (tuple(alphabet[: len(options)]) for alphabet in _ALPHABETS)
        return next((cls(some, answer) for some in names if answer in some), NO_LABELS)


NO_LABELS = Labels((), "")


class LabelTokens:
    """The tokens that decode to the labels; the vocabulary may store them with a space in front.

    names: token id -> label. Labels that no single token spells are left out.
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
        """Returns a letter for the likeliest token.

        R: the right label; W: a wrong label; L: any label, if the answer is not known; E: end of text; T: end of turn;
        O: any other token. E, T and O are in lower case if the likeliest label is wrong.
        """
        if first.token in self.names:
            return "L" if not answer else "R" if self.names[first.token] == answer else "W"
        kind = "E" if first.token in self.eos_ids else "T" if first.token in self.end_of_turn_ids else "O"
        return kind if not answer or self.names[first.label] == answer else kind.lower()
