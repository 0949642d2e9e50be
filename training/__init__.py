"""Trains the built-in models, and runs the study of their masks. Works only in a clone, as it is not installed."""
