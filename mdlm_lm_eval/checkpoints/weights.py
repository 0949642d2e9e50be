"""Loads weights into transformers' classes, or into the authors' own network for guests that need it."""

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import hf_hub_download, snapshot_download
from safetensors.torch import load_file
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_utils import local_torch_dtype
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils.hub import extract_commit_hash

from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.families.remote import offered_class
from mdlm_lm_eval.loader import Foreign, load_foreign
from mdlm_lm_eval.models import MODEL_FOLDERS, model_path
from mdlm_lm_eval.options import OptionError, dtype_name
from mdlm_lm_eval.results.files import read_json

logger = logging.getLogger(__name__)

_NAMES_SHOWN = 5
_DIGESTED_BYTES, _DIGESTED_PIECE, _PIECES_EVERY = 2**20, 2**12, 2**23
_BESIDE_WEIGHTS = "*config.json *token* vocab* merges.txt *.model chat_template* *.jinja */*.jinja *.py".split()  # noqa: SIM905


def load_model(
    pretrained: str,
    config: PretrainedConfig,
    *,
    revision: str = "main",
    subfolder: str = "",
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    ignore_weights: str | None = None,
    **from_pretrained_kwargs: Any,
) -> PreTrainedModel:
    """The model of `config` with the checkpoint's weights, in evaluation mode.

    ignore_weights: a regular expression of the whole names of unexpected weights to leave out.
    from_pretrained_kwargs: for transformers (device_map, quantization_config, attn_implementation, tp_plan, ...).
    Raises OptionError for weights that are missing, unexpected, or of another shape.
    """
    pretrained, family = model_path(pretrained), family_of(config)
    loader, conversions = family.model_class(config), family.weight_conversions()
    if family.weight_names:
        from_pretrained_kwargs["key_mapping"] = dict(family.weight_names)
    if conversions:
        if from_pretrained_kwargs.get("tp_plan") is not None:
            # transformers would divide this weight among processes before it is split into several weights.
            raise OptionError(f"tp_plan does not work with the family {family.name}; use device_map=auto")
        loader = _converting_class(config, family.name, conversions)
    refuse_files_outside(pretrained, subfolder)
    with refused_pickles(f"pretrained={pretrained}"):
        model, info = loader.from_pretrained(
            pretrained,
            config=config,
            revision=revision,
            subfolder=subfolder,
            dtype=dtype_name(str(dtype or "auto")),
            trust_remote_code=trust_remote_code and family.remote_code,
            ignore_mismatched_sizes=True,  # reported below, by name, with the missing ones
            output_loading_info=True,
            **from_pretrained_kwargs,
        )
    unexpected = {
        name for name in info["unexpected_keys"] if not any(unused in name for unused in family.unused_weights)
    }
    refuse_weights(pretrained, "missing", set(info["missing_keys"]))
    refuse_unexpected(pretrained, unexpected, ignore_weights)
    refuse_weights(pretrained, "of another shape than its config says", {name for name, *_ in info["mismatched_keys"]})
    if conversions:
        model.__class__ = type(model).__base__
    if conversions or family.weight_names:
        # Otherwise save_pretrained would write the published names beside a config of transformers' class.
        model._weight_conversions = None
    if not family.remote_code and family.generate is None:
        # The config's is_causal only affects masks. Flash attention reads the attribute of each module.
        for module in model.modules():
            if "is_causal" in vars(module):
                module.is_causal = False
    family.adapt(model)
    return model.eval()


def _converting_class(config: PretrainedConfig, family: str, conversions: list[Any]) -> type[PreTrainedModel]:
    """A subclass of transformers' class whose weights are converted while they are loaded.

    transformers finds conversions by the name of the model's class. A subclass with a name of its own keeps them from
    other checkpoints of transformers' class, and from `save_pretrained`. It needs the module of its base, where
    transformers looks for fast implementations of experts.
    """
    native = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    loader: type[PreTrainedModel] = type(f"{native.__name__}_{family}", (native,), {"__module__": native.__module__})
    register_checkpoint_conversion_mapping(loader.__name__, conversions, overwrite=True)
    return loader


def load_network(
    pretrained: str,
    named: str,
    *,
    revision: str,
    subfolder: str,
    trust_remote_code: bool,
    dtype: str | torch.dtype | None,
    ignore_weights: str | None = None,
    device_map: Mapping[str, Any] | None = None,
    attn_implementation: str | None = None,
) -> Any:
    """The network class `named` with the checkpoint's weights, on one device, in evaluation mode.

    It is not built by `from_pretrained`, which does not work with all code for older versions of transformers. Raises
    OptionError for weights that are missing or unexpected.
    """
    published, _ = PretrainedConfig.get_config_dict(pretrained, revision=revision, subfolder=subfolder)
    wanted = dtype_name(str(dtype or "auto"))
    if wanted == "auto":
        wanted = str(published.get("torch_dtype") or published.get("dtype") or "float32")
    foreign = _class_of(published, pretrained, named, revision, trust_remote_code)
    device = (device_map or {}).get("", "cpu")
    with foreign.at_home(), local_torch_dtype(getattr(torch, wanted)), torch.device(device):
        # Code for transformers 4 may ask for flash attention in its config, but also supports these two.
        implementation = attn_implementation or ("sdpa" if foreign.thing.__dict__.get("_supports_sdpa") else "eager")
        config = foreign.thing.config_class.from_dict(published | {"attn_implementation": implementation})
        for name in published.keys() - {"attn_implementation"}:
            if not hasattr(config, name):  # transformers 5 drops some keys, such as use_cache
                setattr(config, name, published[name])
        network = foreign.thing(config).to(device)
    folder = pretrained
    if not Path(pretrained).is_dir():
        folder = snapshot_download(pretrained, revision=revision, allow_patterns=["*.safetensors"])
    _load_weights(network, Path(folder, subfolder), pretrained, ignore_weights)
    return network.eval()


def _class_of(published: Mapping[str, Any], pretrained: str, named: str, revision: str, trusted: bool) -> Foreign:
    """The network's class. Raises OptionError if the checkpoint's own code is missing or not trusted."""
    if named != "remote":
        return load_foreign("modeling", named)
    offered = published.get("auto_map", {})
    kind = offered_class(offered).__name__
    if not trusted or kind not in offered:
        raise OptionError("modeling=remote needs trust_remote_code=true and a checkpoint that brings its own code")
    return Foreign(get_class_from_dynamic_module(offered[kind], pretrained, revision=revision), None, None)


def _load_weights(network: torch.nn.Module, folder: Path, pretrained: str, ignore_weights: str | None) -> None:
    missing, unexpected = {*network.state_dict()}, set()
    for file in sorted(folder.glob("*.safetensors")):
        loaded = load_file(file)
        unexpected |= {*network.load_state_dict(loaded, strict=False).unexpected_keys}
        missing -= loaded.keys()
    refuse_weights(pretrained, "missing", missing)
    refuse_unexpected(pretrained, unexpected, ignore_weights)


@contextmanager
def refused_pickles(given: str) -> Iterator[None]:
    """Raises OptionError for a pickle that torch refuses. Torch's own message advises to let it run.

    given: the option with its value.
    """
    try:
        yield
    except UnpicklingError as error:
        raise OptionError(
            f"{given}: torch refuses a file of weights, since it is a broken pickle or one that may run code; do not "
            "allow it, but ask for the weights as safetensors"
        ) from error


def refuse_files_outside(pretrained: str, subfolder: str) -> None:
    """Raises OptionError if a folder's index of weights names a file that is not in the folder itself."""
    for index in sorted(Path(pretrained, subfolder).glob("*.index.json")):
        if outside := [file for file in read_json(index)["weight_map"].values() if Path(file).name != file]:
            raise OptionError(f"pretrained={pretrained}: {index.name} names {outside[0]}, which is outside the folder")


def refuse_unexpected(pretrained: str, names: set[str], ignore_weights: str | None) -> None:
    """Raises OptionError if there are unexpected weights that `ignore_weights` does not match. Names those it does."""
    ignored = {name for name in names if ignore_weights is not None and re.fullmatch(ignore_weights, name)}
    if ignored:
        logger.warning("ignore_weights=%s leaves out %s", ignore_weights, ", ".join(sorted(ignored)))
    elif ignore_weights is not None:
        logger.warning("ignore_weights=%s matches no unexpected weight", ignore_weights)
    hint = "; if the model needs none of them, leave them out by ignore_weights=REGEX"
    refuse_weights(pretrained, "unexpected", names - ignored, hint)


def refuse_weights(pretrained: str, what: str, names: set[str], hint: str = "") -> None:
    """Raises OptionError if there are such weights. `what`: what is wrong with them. `hint`: what to do."""
    if names:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        listed = ", ".join(sorted(names)[:_NAMES_SHOWN])
        raise OptionError(f"pretrained={pretrained}: weights {what}: {listed}{more}{hint}")


def checkpoint_digest(checkpoint: str, subfolder: str = "", *, revision: str = "main") -> str | None:
    """What identifies all files of a model or adapter: a digest, or the commit of a hub id. None if there are none."""
    weights, others = (
        files_digest(checkpoint, subfolder, revision=revision),
        files_beside_weights_digest(checkpoint, subfolder),
    )
    return weights if others is None else hashlib.sha256(f"{weights} {others}".encode()).hexdigest()


def _commit(hub_id: str, subfolder: str, revision: str) -> str | None:
    """The commit of files on the hub, or else in its cache. A revision such as main may move."""
    for file in ("config.json", "adapter_config.json", "tokenizer_config.json"):
        with suppress(OSError, ValueError):  # no hub id, or neither the hub nor its cache has the file
            path = hf_hub_download(hub_id, file, subfolder=subfolder, revision=revision)
            return extract_commit_hash(path, None)
    return None


def files_digest(checkpoint: str, subfolder: str = "", *, revision: str = "main") -> str | None:
    """SHA-256 of the weights in a folder: names, sizes, the first and last MiB of each file, and 4 KiB every 8 MiB.

    Training of a few modules, which may lie anywhere, changes some of these parts. The commit of a hub id.
    """
    folder = Path(model_path(checkpoint), subfolder)
    if not folder.is_dir():
        return _commit(checkpoint, subfolder, revision)
    paths = sorted(path for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern) if path.is_file())
    if not paths:
        return None
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_DIGESTED_BYTES))
            for place in range(_PIECES_EVERY, size, _PIECES_EVERY):
                file.seek(place)
                digest.update(file.read(_DIGESTED_PIECE))
            file.seek(max(size - _DIGESTED_BYTES, 0))
            digest.update(file.read())
    return digest.hexdigest()


def digests_of_folders(
    pretrained: Any, adapter: Any, *, tokenizer: Any, subfolder: Any, revision: Any
) -> dict[str, str | None]:
    """Digests of what decides answers in the folders of a model, its tokenizer and its adapter, by names for a record.

    The arguments are model arguments as they were typed. A hub id has its commit. A digest is None for one that is not
    given.
    """
    subfolder, revision = str(subfolder or ""), str(revision or "main")
    return {
        "weights": pretrained and files_digest(str(pretrained), subfolder, revision=revision),
        "config_and_tokenizer": pretrained and files_beside_weights_digest(str(pretrained), subfolder),
        "tokenizer": tokenizer and checkpoint_digest(str(tokenizer), revision=revision),
        "adapter_weights": adapter and files_digest(str(adapter), revision=revision),
        "adapter_config": adapter and files_beside_weights_digest(str(adapter)),
    }


def files_beside_weights_digest(checkpoint: str, subfolder: str = "") -> str | None:
    """SHA-256 of the config, tokenizer, chat templates and code in a folder: what decides answers beside the weights.

    None for a hub id, which a revision identifies, and for models that come with the package.
    """
    folder = Path(os.path.expanduser(checkpoint), subfolder)
    if checkpoint in MODEL_FOLDERS or not folder.is_dir():
        return None
    paths = {path for pattern in _BESIDE_WEIGHTS for path in folder.glob(pattern) if path.is_file()}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
