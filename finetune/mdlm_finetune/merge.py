"""The model with an adapter folded in, as a checkpoint of its own."""

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.folders import merged_folder
from mdlm_lm_eval import families
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.results.files import whole_folder


def write_merged(arguments: FinetuneArguments) -> None:
    """Writes OUTPUT_DIR.merged, from the adapter in `output_dir`: a trained model may lie in shards."""
    pretrained, merged = arguments.checkpoint, merged_folder(arguments)
    tokenizer = families.load_tokenizer(pretrained, config=families.load_config(pretrained))
    denoiser = load_denoiser(pretrained, dtype=arguments.dtype, peft=str(arguments.folder))
    _untie(denoiser.model)
    with whole_folder(merged) as folder:
        denoiser.model.merge_and_unload().save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _untie(model: PeftModel) -> None:
    """Gives the output head weights of its own where it or the embedding is adapted: merging would change both."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.tie_word_embeddings and (isinstance(embedding, BaseTunerLayer) or isinstance(head, BaseTunerLayer)):
        layer = head.get_base_layer() if isinstance(head, BaseTunerLayer) else head
        layer.weight = nn.Parameter(layer.weight.detach().clone())
        model.config.tie_word_embeddings = False
