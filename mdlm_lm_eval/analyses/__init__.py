"""Analyses beside scores: gradient attribution, confidence and entropy, shots against masks, order of filling."""
