"""Errors of other packages as one sentence of ours."""

_LONGEST = 500


def one_line(error: BaseException) -> str:
    """An exception's message on one line, cut where it is long; the exception's type where it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
