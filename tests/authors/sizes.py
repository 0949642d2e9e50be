"""A module beside a network."""

FACTOR = 3
