"""AntiBERTy's own class and functions, run in an environment of their own (transformers 4.49).

    reference/bin/python studies/antiberty/theirs.py

Reads `antiberty/chains.json`, and writes `antiberty/theirs.json` with their fills and pseudo-log-likelihoods.
`mdlm-check` takes the class `Network` for the logits.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from antiberty import AntiBERTy, AntiBERTyRunner
from transformers.modeling_outputs import MaskedLMOutput

FOLDER = Path("antiberty")


class Network(AntiBERTy):
    """AntiBERTy with its logits under the name that other models give them."""

    def forward(self, *words: Any, **named: Any) -> MaskedLMOutput:
        """Logits [B, T, V]."""
        return MaskedLMOutput(logits=super().forward(*words, **named).prediction_logits)


def main() -> None:
    """Asks the package as it is, with the weights that it ships."""
    torch.set_num_threads(1)
    asked = json.loads((FOLDER / "chains.json").read_text())
    runner = AntiBERTyRunner()
    begin = time.process_time()
    answers = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "fills": [runner.fill_masks([text])[0] for text in asked["masked"]],
        "pseudo": runner.pseudo_log_likelihood(asked["pseudo"], batch_size=16).tolist(),
        "seconds": time.process_time() - begin,
    }
    (FOLDER / "theirs.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
