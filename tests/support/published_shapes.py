"""Tiny checkpoints with the config keys, tensor names, dtypes and token ids of published ones (`tests/published`).

Each file there is one checkpoint: its files as published, what has been `seen` of them and in which repository, its
tensors with their sizes in terms of the config, the widths that are `shrunk`, and how the package must recognise it.
Chat templates are shortened: for messages of system, user and assistant they give the published ones' strings.
"""

import json
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

FOLDER = Path(__file__).parents[1] / "published"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
FILES = ("config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json")
N_SHARDS = 3


@cache
def shape(name: str) -> dict[str, Any]:
    """What is known of a published checkpoint."""
    return dict(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def shrunk_config(name: str) -> dict[str, Any]:
    """Its `config.json` with small widths and few layers."""
    config, widths = shape(name)["config.json"], shape(name)["shrunk"]
    return config | {key: config[key] | value if isinstance(value, dict) else value for key, value in widths.items()}


def tensors_of(name: str, config: dict[str, Any]) -> dict[str, tuple[list[int], torch.dtype]]:
    """Names, sizes and dtypes of its tensors for these widths."""
    known = shape(name)
    vision = {f"vision_{key}": value for key, value in config.get("vision_config", {}).items()}
    sizes = config | config.get("text_config", {}) | vision
    layers, types = range(sizes[known["layers"]]), sizes.get("layer_types", [])
    n_dense = sizes.get("first_k_dense_replace", 0)
    numbers = {
        "layer": layers,
        "dense": layers[:n_dense],
        "sparse": layers[n_dense:],
        "sliding": [n for n, kind in enumerate(types) if kind == "sliding_attention"],
        "full": [n for n, kind in enumerate(types) if kind == "full_attention"],
        "vision": range(sizes.get("vision_num_hidden_layers", 0)),
        "expert": range(sizes.get("num_experts", 0)),
    }
    found = {}
    for pattern, dimensions in known["tensors"].items():
        places = re.findall(r"{(\w+)}", pattern)
        for values in product(*(numbers[place] for place in places)):
            size = [int(eval(dimension, {}, sizes)) for dimension in dimensions]
            found[pattern.format(**dict(zip(places, values, strict=True)))] = (size, getattr(torch, known["dtype"]))
    return found


def build(
    name: str, folder: Path, config: dict[str, Any] | None = None, *, scale: float = 0.2, device: str = "cpu"
) -> Path:
    """A random checkpoint of this shape, in shards.

    config: by default with small widths. scale: standard deviation of weights, drawn on `device`.
    """
    known, config = shape(name), config or shrunk_config(name)
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(0)

    def random(tensor: str, size: list[int]) -> Tensor:
        values = torch.randn(size, generator=generator, device=device).cpu()
        is_scale = len(size) == 1 and tensor.endswith(("norm.weight", "scale", "scalar"))
        return 1 + 0.1 * values if is_scale else scale * values

    expected = tensors_of(name, config)
    weights = {tensor: random(tensor, size).to(dtype) for tensor, (size, dtype) in expected.items()}
    places = {}
    for shard in range(N_SHARDS):
        file = f"model-{shard + 1:05}-of-{N_SHARDS:05}.safetensors"
        part = [*weights][shard::N_SHARDS]
        save_file({tensor: weights[tensor] for tensor in part}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(each.nbytes for each in weights.values())}, "weight_map": places}
    files = {file: known[file] for file in FILES if file in known}
    files |= {"config.json": config, "model.safetensors.index.json": index}
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    if "chat_template.jinja" in known:
        (folder / "chat_template.jinja").write_text(known["chat_template.jinja"], encoding="utf-8")
    write_tokenizer(known, folder)
    return folder


def write_tokenizer(known: dict[str, Any], folder: Path) -> None:
    """Bytes as tokens and no merges, the added tokens under their own ids, and tokens without a text for the others."""
    added = {int(id): token for id, token in known["added_tokens"].items()}
    ordinary = {int(id) for id in known["ordinary_tokens"]}
    settings = dict(known["tokenizer_config.json"])
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings["added_tokens_decoder"] = {
        str(id): {"content": token, "special": id not in ordinary, **flags} for id, token in added.items()
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    free = (id for id in range(max(*added, known.get("tokens", 2 * 256))) if id not in added)
    vocabulary = dict(zip(sorted(pre_tokenizers.ByteLevel.alphabet()), free, strict=False))
    vocabulary |= {f"unused {id}": id for id in free}
    if known["vocabulary"] == "vocab.json":
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        return
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | {token: id for id, token in added.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in added.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
