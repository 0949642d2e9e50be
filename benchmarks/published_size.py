"""Writes a random checkpoint in the files, names and sizes of a published one, with a tokenizer of single bytes.

    python -m benchmarks.published_size llada FOLDER
    python -m benchmarks.published_size llada FOLDER --layers 2

Names are those of tests/published. Values are drawn on the GPU, if there is one.
"""

import argparse
from pathlib import Path

import torch

from tests.support import published_shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=published_shapes.NAMES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, help="fewer layers than published")
    arguments = parser.parse_args()
    known = published_shapes.shape(arguments.name)
    config = dict(known["config.json"])
    if arguments.layers is not None:
        config[known["layers"]] = arguments.layers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    published_shapes.build(arguments.name, arguments.folder, config, scale=0.02, device=device)


if __name__ == "__main__":
    main()
