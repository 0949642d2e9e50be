"""Tokenizers of the published checkpoints, without their remote code, and a time limit for their chat templates."""

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from mdlm_lm_eval.checkpoints.config import load_config
from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.model.text import closing_ids
from mdlm_lm_eval.models import BUILT_IN, model_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.registry import FAMILIES
from mdlm_lm_eval.silence import silenced

_LONGEST = 10.0  # seconds of a chat template, which takes milliseconds


def load_tokenizer(
    pretrained: str = BUILT_IN,
    *,
    config: PretrainedConfig | None = None,
    revision: str = "main",
    subfolder: str = "",
    trust_remote_code: bool = False,
    use_fast_tokenizer: bool = True,
    add_bos_token: bool | None = None,
    diffusion_family: str | None = None,
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a checkpoint, with the mask and padding tokens that the config names.

    - `pretrained`: a hub id, a folder, or the name of a model that comes with the package.
    - `config`: the config of the model. By default, it is read from `pretrained`.
    - `revision`, `subfolder`, `trust_remote_code`: as in transformers.
    - `use_fast_tokenizer`: whether to prefer the fast tokenizer.
    - `add_bos_token`: whether texts begin with the BOS token. By default, the tokenizer decides.
    - `diffusion_family`: the family of the model, if the config fits several families.

    Raises OptionError for the tokenizer of another model.
    """
    pretrained = model_path(pretrained)
    config = config or load_config(
        pretrained,
        revision=revision,
        subfolder=subfolder,
        trust_remote_code=trust_remote_code,
        diffusion_family=diffusion_family,
    )
    class_name = get_tokenizer_config(pretrained, revision=revision, subfolder=subfolder).get("tokenizer_class")
    tokenizer_class = family_of(config).tokenizer_class(class_name)
    more: dict[str, Any] = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    if tokenizer_class is AutoTokenizer:
        more |= {"use_fast": use_fast_tokenizer, "trust_remote_code": trust_remote_code}
    # AutoTokenizer also reads the published config, and warns of its model type and rope settings.
    no_warnings = warnings.catch_warnings(action="ignore", category=FutureWarning)
    with silenced("transformers.configuration_utils"), no_warnings:
        tokenizer = tokenizer_class.from_pretrained(pretrained, revision=revision, subfolder=subfolder, **more)
    settings = config.to_dict()
    if tokenizer.mask_token_id is None:
        tokenizer.mask_token = _name_of(tokenizer, settings.get("mask_token_id"))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = _name_of(tokenizer, settings.get("pad_token_id")) or tokenizer.eos_token
    check_tokenizer(tokenizer, config, pretrained)
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, named: str) -> None:
    """Raises OptionError if the tokenizer's ids do not fit the model's embedding, so that it is another model's.

    An embedding may have more rows than the tokenizer has tokens (LLaDA, Dream), but not more than twice as many.
    `named` is the tokenizer's folder or hub id.
    """
    n_ids, n_rows = max(tokenizer.get_vocab().values()) + 1, config.get_text_config().vocab_size
    if n_ids > n_rows or n_rows > 2 * n_ids:
        hint = " (are its files missing?)" if n_ids < n_rows else ""
        raise OptionError(
            f"tokenizer={named}: it has ids up to {n_ids - 1}{hint} and the model an embedding of {n_rows} tokens, so "
            "it is another model's"
        )


def _name_of(tokenizer: PreTrainedTokenizerBase, token_id: int | None) -> str | None:
    # An embedding may have more rows than the tokenizer has tokens (LLaDA Base), so an id may have no name.
    if token_id is None or not 0 <= token_id < len(tokenizer):
        return None
    return tokenizer.convert_ids_to_tokens(token_id)


def ids_after_answers(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> tuple[int, ...]:
    """The closing token after an answer, such as BERT's [SEP]; none for a model that was trained without one."""
    return tuple(closing_ids(tokenizer)) if family_of(config).closes_texts else ()


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of tokens that end an assistant's turn in any family's chat format, as far as the tokenizer has them."""
    vocabulary = tokenizer.get_added_vocab()
    tokens = {token for family in FAMILIES.all().values() for token in family.end_of_turn}
    return frozenset(vocabulary[token] for token in tokens if token in vocabulary)


def eos_ids(tokenizer: PreTrainedTokenizerBase, generation_eos: int | list[int] | None) -> frozenset[int]:
    """Ids of EOS in the tokenizer and the generation config, except those that end a turn."""
    ids = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    if generation_eos is not None:
        ids.update(generation_eos if isinstance(generation_eos, list) else [generation_eos])
    return frozenset(ids) - end_of_turn_ids(tokenizer)


@contextmanager
def ending_templates(name: str | None) -> Iterator[None]:
    """Ends a chat template that loops. Raises OptionError, which names the model.

    It needs a timer of the process: other threads than the main one, and programs with such a timer, go without.
    """

    def end(*_: Any) -> None:
        raise OptionError(f"pretrained={name}: its chat template has not ended after {_LONGEST:.0f} seconds")

    is_free = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not is_free or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
