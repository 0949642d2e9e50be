"""Everything that works with any model: logits at chosen positions, keys and values, attention, text as tokens."""
