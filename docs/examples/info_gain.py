"""Info-Gain (https://github.com/yks23/Information-Gain-Sampler) as a guest.

The file belongs beside its `src/samplers/info_gain.py`. Tokens and passes are those of the authors' own run
(`benchmarks/guests.json`).
"""

from typing import Any

from info_gain import InfoGainSampler


def generate(
    model: Any,
    input_ids: Any,
    max_new_tokens: int,
    steps: int,
    block_size: int,
    mask_id: int,
    threshold: float = 0.8,
    temperature: float = 0.0,
    candidate_number: int = 8,
) -> Any:
    """The class's canvas: the prompt and `max_new_tokens` tokens after it."""
    sampler = InfoGainSampler(model, None, mask_id)
    return sampler.sample(input_ids, max_new_tokens, steps, block_size, candidate_number, 0.2, threshold, temperature)
