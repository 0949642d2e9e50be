"""What the paper looks into beside scores: gradient attribution, confidence and entropy, shots against masks."""
