"""What can be asked of any model: logits at chosen positions, keys and values, attention patterns, text as tokens."""
