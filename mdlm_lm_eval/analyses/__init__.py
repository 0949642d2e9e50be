"""Analyses beside scores: gradient attribution, confidence and entropy, order of filling."""

#: Analysis of a model -> the name of its files.
FILES = {"groups": "attribution_groups", "examples": "attribution_examples", "confidence": "confidence"}
