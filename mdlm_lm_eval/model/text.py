"""From text to token ids and back, for requests that may contain a mask token's string or slot markers."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from lm_eval.models.utils import postprocess_generated_text
from transformers import PreTrainedTokenizerBase

SLOT_MARKER = "<|mask|>"
# A slot of 8 masks, or of as many masks as a text has tokens: `<|mask:8|>`, `<|mask like return x|>`.
_LONG_SLOT = re.compile(r"<\|mask(?::(\d+)| like (.+?))\|>", re.DOTALL)
# Replaces the bytes of an incomplete character in decoded text.
_INCOMPLETE_CHARACTER = "\ufffd"
# How an answer ended; `cut`: by its length; `unfinished_thinking`: by its length, before its thinking ended.
ENDINGS = ("ended_by_eos", "ended_by_stop", "cut", "unfinished_thinking")


def has_slots(text: str) -> bool:
    """Whether a text has slot markers, which are slots only in requests with `infill`."""
    return SLOT_MARKER in text or _LONG_SLOT.search(text) is not None


def closing_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that the tokenizer adds after every text, such as BERT's [SEP]."""
    text = "a"
    if not (bare := tokenizer.encode(text, add_special_tokens=False)):  # a vocabulary of other letters, such as DNA's
        letters = sorted(tokenizer.get_vocab().keys() - tokenizer.all_special_tokens)
        text, bare = next((one, ids) for one in letters if (ids := tokenizer.encode(one, add_special_tokens=False)))
    closed = tokenizer.encode(text)
    return closed[closed.index(bare[0]) + len(bare) :]


def count_unknown(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> Counter[str]:
    """The number of `tokens`, and how many of them are `unknown` to the tokenizer.

    A vocabulary of bytes spells every text. Its tokenizer may still name the end of text as its unknown token.
    """
    unknown = tokenizer.unk_token_id
    spells_all = unknown in (None, tokenizer.bos_token_id, tokenizer.eos_token_id)
    return Counter(tokens=len(ids), unknown=0 if spells_all else list(ids).count(unknown))


def encode_without_masks(
    tokenizer: PreTrainedTokenizerBase, text: str, mask_token_id: int | None, encode: Callable[[str, bool], list[int]]
) -> list[int]:
    """Token ids of `text`; the mask token's string is encoded as ordinary text.

    `encode(text, first)` encodes a piece. `first` says whether it begins the text, so that the tokenizer may add its
    special tokens.
    """
    mask_string = None if mask_token_id is None else tokenizer.convert_ids_to_tokens(mask_token_id)
    if mask_string is None or mask_string not in text:
        return encode(text, True)
    harmless = tokenizer.encode(mask_string, add_special_tokens=False, split_special_tokens=True)
    if mask_token_id in harmless:  # this tokenizer cannot split special tokens, so the string is spelled out
        harmless = [id for character in mask_string for id in tokenizer.encode(character, add_special_tokens=False)]
    first, *rest = text.split(mask_string)
    ids, closing = _split_closing(tokenizer, encode(first, True))
    for piece in rest:
        ids += harmless
        ids += encode(piece, False)
    return ids + closing


def _split_closing(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> tuple[list[int], list[int]]:
    """Token ids of a text without the closing token, if they end with it, and the closing token."""
    closing = closing_ids(tokenizer)
    n = len(ids) - len(closing)
    return (ids[:n], closing) if ids[n:] == closing else (ids, [])


def stop_ids(tokenizer: PreTrainedTokenizerBase, until: Collection[str]) -> frozenset[int]:
    """The special tokens that stop strings name, which a decoded text does not show."""
    special = tokenizer.added_tokens_decoder.items() if until else ()
    return frozenset(id for id, token in special if token.special and token.content in until)


def prefix_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token before a text without a context, as in lm-eval; for encoders [CLS]."""
    named = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id)
    return next(id for id in named if id is not None)


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, text: str, mask_token_id: int | None, *, add_special_tokens: bool = True
) -> list[int]:
    """Token ids of a text that will be continued, as lm-eval encodes it, but without a closing token."""
    is_begun = text.startswith(tokenizer.decode(prefix_id(tokenizer)))

    def encode(piece: str, first: bool) -> list[int]:
        ids: list[int] = tokenizer.encode(piece, add_special_tokens=first and add_special_tokens and not is_begun)
        return ids

    return _split_closing(tokenizer, encode_without_masks(tokenizer, text, mask_token_id, encode))[0]


def encode_infill(
    tokenizer: PreTrainedTokenizerBase, text: str, mask_token_id: int, encode: Callable[[str, bool], list[int]]
) -> list[list[int]]:
    """The segments of a text between its slots, each as a list of token ids; there is one more than there are slots.

    If the marker can be written as the mask token, the text is encoded in one piece, so that a slot does not change how
    its neighbours are split. `encode` is as in `encode_without_masks`, but keeps mask tokens.
    """
    # SentencePiece's older tokenizers put a space before each piece, except behind another character.
    adds_space = "".join(tokenizer.convert_ids_to_tokens(encode(" a", False))).startswith("▁▁")

    def inside(piece: str) -> list[int]:
        return encode(f"\n{piece}", False)[len(encode("\n", False)) :] if adds_space else encode(piece, False)

    def slots(match: re.Match[str]) -> str:
        return SLOT_MARKER * (int(match[1]) if match[1] else len(inside(match[2])))

    text = _LONG_SLOT.sub(slots, text)
    mask_string = tokenizer.convert_ids_to_tokens(mask_token_id)
    if not adds_space and mask_string is not None and (mask_string == SLOT_MARKER or mask_string not in text):
        between: list[list[int]] = [[]]
        for id in encode(text.replace(SLOT_MARKER, mask_string), True):
            if id == mask_token_id:
                between.append([])
            else:
                between[-1].append(id)
        return between
    first, *rest = text.split(SLOT_MARKER)
    begin, closing = _split_closing(tokenizer, encode_without_masks(tokenizer, first, mask_token_id, encode))
    segments = [begin]
    for segment in rest:
        segments.append(encode_without_masks(tokenizer, segment, mask_token_id, lambda piece, _: inside(piece)))
    segments[-1] += closing
    return segments


def closes_thinking(prompt: str, think_end: str, turn_ends: Collection[str]) -> bool | None:
    """Whether a rendered prompt ends thinking itself, so that the answer has none. None if it does not begin it either.

    Chat templates do so for models that shall not think, and before a `gen_prefix`. Only the last turn counts, after
    the last of `turn_ends`. There, thinking that begins again after its end is open: `</think>` ends `<think>`. An
    answer to such a prompt is a thought.
    """
    begin = max((prompt.rfind(turn_end) + len(turn_end) for turn_end in turn_ends if turn_end in prompt), default=0)
    turn, think_start = prompt[begin:], think_end.replace("/", "", 1)
    if think_start == think_end:
        return think_end in turn or None
    ends, begins = turn.rfind(think_end), turn.rfind(think_start)
    return None if ends == begins else ends > begins


@dataclass(frozen=True)
class Ending:
    """The rules by which a generated text ends: at an end token, then at stop strings after `think_end_token`.

    thinks: whether the text may begin with thinking. empties: whether it is empty if its thinking was cut off.
    in_text: whether it fills a place in a text. There, the space with which several tokens begin counts, which
        SentencePiece's decoders drop.
    """

    tokenizer: PreTrainedTokenizerBase
    end_ids: Collection[int]
    until: tuple[str, ...]
    think_end_token: str | int | None
    thinks: bool = True
    empties: bool = False
    in_text: bool = False

    def of(self, token_ids: list[int]) -> tuple[str, str]:
        """Returns the text of a completely decoded canvas, and which of `ENDINGS` it has."""
        ids = list(takewhile(lambda id: id not in self.end_ids, token_ids))
        ending = "ended_by_eos" if len(ids) < len(token_ids) else "cut"
        if _INCOMPLETE_CHARACTER in self.tokenizer.decode(ids, skip_special_tokens=True):
            # With it, a line end before it may be lost that is a byte, as in Llama 2's vocabulary.
            ids = next((ids[:n] for n in range(1, len(ids)) if self.is_decided(ids[:n])), ids)
        think_end = self.think_end_token
        if isinstance(think_end, int) and think_end in ids:
            ids = ids[len(ids) - ids[::-1].index(think_end) :]
            text = self.tokenizer.decode(ids, skip_special_tokens=True).lstrip()
            think_end = None
        else:
            text = self._lost_space(ids) * (len(token_ids) > 1) + self.tokenizer.decode(ids, skip_special_tokens=True)
        is_open = self.thinks and think_end is not None and (isinstance(think_end, int) or think_end not in text)
        if ending == "cut" and is_open:
            ending = "unfinished_thinking"
        if ending == "unfinished_thinking" and self.empties:
            return "", ending
        text = postprocess_generated_text(text, None, think_end if isinstance(think_end, str) else None)
        stopped = postprocess_generated_text(text, list(self.until), None)
        is_stopped = stopped != text and ending != "unfinished_thinking"  # stop strings in thinking do not count
        return stopped, "ended_by_stop" if is_stopped else ending

    def _lost_space(self, ids: Sequence[int]) -> str:
        begin = self.tokenizer.convert_ids_to_tokens(ids[0]) if self.in_text and ids else ""
        return " " if begin.startswith("▁") and len(self.tokenizer.decode(ids[0])) < len(begin) else ""

    def is_decided(self, token_ids: list[int]) -> bool:
        """Whether the returned text is final, whichever tokens follow these, which are the answer's first ones.

        With `think_end_token`, a later end of thinking could still move the text's beginning.
        """
        if any(id in self.end_ids for id in token_ids):
            return True
        if not self.until or self.think_end_token is not None:
            return False
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return _is_cut(text.rstrip(_INCOMPLETE_CHARACTER), self.until)


def _is_cut(text: str, until: Sequence[str]) -> bool:
    """Whether lm-eval cuts every text that begins with `text` at the same place.

    lm-eval cuts at the first occurrence of each stop string in turn, so an earlier stop string may cut into an
    occurrence of a later one: with `until=["\n\n", ".\n"]`, a line end may follow `foo.\n`. So an occurrence counts
    only if it ends before any earlier stop string can still begin.
    """
    first_open = len(text)  # the stop strings before the present one cannot begin before this
    for stop in filter(None, until):
        found = text.find(stop)
        if found < 0:
            begun = (n for n in range(1, len(stop)) if text.endswith(stop[:n]))
            first_open = min(first_open, len(text) - max(begun, default=0))
        elif found + len(stop) <= first_open:
            return True
        else:
            first_open = min(first_open, found)
    return False
