"""Tells the weights in two folders apart without reading them whole."""

import hashlib
from pathlib import Path

from mdlm_lm_eval.default_model import model_path

_WEIGHTS = ("*.safetensors", "*.bin")
_DIGESTED_BYTES = 2**20


def files_digest(checkpoint: str, subfolder: str = "") -> str | None:
    """Digest of the weights in a folder: names, sizes, and each file's first and last MiB, which any training changes.

    `subfolder` is the one that is loaded, if any. None for a hub id, which its revision names.
    """
    folder = Path(model_path(checkpoint), subfolder)
    paths = sorted(path for pattern in _WEIGHTS for path in folder.glob(pattern) if path.is_file())
    if not paths:
        return None
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_DIGESTED_BYTES))
            file.seek(max(size - _DIGESTED_BYTES, 0))
            digest.update(file.read())
    return digest.hexdigest()
