"""One file a model family, and what all of them share."""
