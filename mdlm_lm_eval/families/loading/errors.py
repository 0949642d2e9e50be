"""What transformers and peft raise over the files of a checkpoint, as one sentence of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError

from huggingface_hub.errors import StrictDataclassFieldValidationError

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.sentences import one_line

# Errors whose message says all; of others, such as KeyError, the name says half of it.
_SPEAKING = (OSError, ValueError, ImportError)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Ends in an OptionError, "`what`: the reason", whatever a wrong file makes other packages' code raise."""
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"{what}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Why, on one line."""
    if isinstance(error, UnpicklingError):  # its own message tells how to let the file run code
        return "they hold more than tensors, and reading them could run code; convert them to safetensors"
    if isinstance(error, StrictDataclassFieldValidationError) and error.__cause__ is not None:
        return one_line(error.__cause__)  # "Field 'vocab_size' expected int, got str (value: 'x')"
    return one_line(error) if isinstance(error, _SPEAKING) else f"{type(error).__name__}: {one_line(error)}"


def remote_code_sentence(pretrained: str, error: Exception) -> str:
    """What to say where a checkpoint's own code fails."""
    return (
        f"pretrained={pretrained}: its own code does not run with the installed packages: "
        f"{type(error).__name__}: {one_line(error)}"
    )
