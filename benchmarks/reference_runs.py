"""Random ways of decoding on tiny models: the engine beside the reference loop, pass by pass, as a record.

    OMP_NUM_THREADS=1 python -m benchmarks.reference_runs --settings 400 --json benchmarks/reference_runs.json

A setting is an attention pattern, a sampler with its options, an order, a schedule, a pace and a block length, drawn by
its number; with it rows of several lengths are decoded in three lanes that are refilled. A row differs where any canvas
after a pass or the number of passes is another one. Ends with 1 where a row differs.
"""

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

from mdlm_lm_eval.options import DecodingOptions
from tests.against_reference import compared, random_setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=400)
    parser.add_argument("--json", help="a file for the record")
    arguments = parser.parse_args()
    of_samplers: Counter[str] = Counter()
    rows = passes = 0
    differing: list[dict[str, Any]] = []
    for number in range(arguments.settings):
        draw = random.Random(number)
        attention, facts, changes = random_setting(draw)
        found = compared(attention, facts, changes, n=draw.randint(2, 6))
        of_samplers[type(DecodingOptions().override(changes).way).__name__] += 1
        rows, passes = rows + found.n_rows, passes + found.n_passes
        if found.differing:
            differing.append({"setting": number, "attention": str(attention), "facts": facts, "options": changes})
            print(differing[-1], flush=True)
    record = {
        "settings": arguments.settings,
        "of each sampler": dict(sorted(of_samplers.items())),
        "rows": rows,
        "passes": passes,
        "settings that differ": differing,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    print(json.dumps(record))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
