"""Code for models of any family: logits at chosen positions, keys and values, attention, text as tokens."""
