"""The share of masked residues that an answer recovers."""

from typing import Any


def recovered(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Compares residue by residue. An answer of another length, which holds special tokens, recovers none."""
    answer, truth = results[0].split(), doc["answer"].split()
    if len(answer) != len(truth):
        return {"recovered": 0.0}
    return {"recovered": sum(a == b for a, b in zip(answer, truth, strict=True)) / len(truth)}
