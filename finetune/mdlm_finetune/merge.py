"""The model with an adapter folded in, as a checkpoint of its own."""

import os
import tempfile
from pathlib import Path

from mdlm_finetune.folders import merged_folder
from mdlm_finetune.options import FinetuneOptions
from mdlm_lm_eval import families
from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.loading import load_denoiser


def write_merged(options: FinetuneOptions) -> None:
    """Writes OUTPUT.merged, from the adapter in `options.output`: a trained model may lie in shards."""
    pretrained, merged = options.pretrained or str(default_model_path()), merged_folder(options)
    tokenizer = families.load_tokenizer(pretrained, config=families.load_config(pretrained))
    denoiser = load_denoiser(pretrained, dtype=options.dtype, peft=options.output)
    with tempfile.TemporaryDirectory(dir=merged.parent) as scratch:
        whole = Path(scratch) / "model"
        denoiser.model.merge_and_unload().save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        os.replace(whole, merged)
