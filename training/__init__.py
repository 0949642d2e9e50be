"""What made the built-in models, and the study of their masks; run from a clone, as it is not installed."""
