"""Computes the memory of one MA fine-tuning pass of LLaDA-8B with the paper's recipe, from counted tensors.

    python benchmarks/finetune_memory.py

The bytes that autograd keeps are counted (saved-tensor hooks, every storage once) on layers of LLaDA-8B's widths with
few tokens and a small vocabulary, as a function of layers x tokens, tokens and logits that is linear in each; the
recipe's own numbers are then put in. Weights, gradients and optimiser states follow from the shapes alone.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_finetune import Collator, Example, mask_agnostic_loss
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from mdlm_finetune.recipe import Recipe, read_arguments
from mdlm_finetune.run import predictions
from mdlm_lm_eval.model.denoiser import Denoiser

RECIPE = "llada-8b-base-ce-tv"
VOCABULARY, LAYERS = 126_464, 32
COUNTED_VOCABULARY = 2048
GIB = 2**30


@dataclass(frozen=True)
class Point:
    """One counted pass: its sizes and the bytes that its backward pass needs."""

    layers: int
    tokens: int  # of all rows together
    logits: int  # masked answer positions of both views together, times the vocabulary
    kept: int


def llada_8b(layers: int, vocabulary: int) -> LlamaConfig:
    """LLaDA-8B's shape (its config.json), in transformers' terms."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=layers,
        num_attention_heads=32,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        is_causal=False,
        use_cache=False,
    )


def adapted(model: Any, recipe: Recipe) -> Any:
    lora = LoraConfig(r=recipe.lora_r, lora_alpha=recipe.lora_alpha, target_modules="all-linear")
    return get_peft_model(model, lora)


def count(layers: int, length: int, n_answer: int, recipe: Recipe, *, checkpointing: bool) -> Point:
    """Runs one forward pass of the loss and counts what it keeps."""
    torch.manual_seed(0)
    with torch.device("meta"):
        bare = LlamaForCausalLM(llada_8b(layers, COUNTED_VOCABULARY)).to(torch.bfloat16)
    bare.to_empty(device="cpu")  # counting needs no values, and drawing them takes longer than the pass
    model = adapted(bare, recipe)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    model.train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    objective = MaskAgnostic(p_low=1.0, p_high=1.0, masks_start=8, masks_end=8)
    collator = Collator(objective, mask_token_id=5, eos_token_id=1, max_length=length)
    prompt = length - n_answer - 8
    views = collator([Example(n, [7] * prompt, [9] * n_answer) for n in range(recipe.per_device_train_batch_size)], 0)
    denoiser = Denoiser(model, mask_token_id=5, pad_token_id=1)
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        one, two = predictions(denoiser, views).chunk(2)
        loss = mask_agnostic_loss(one, two, views.targets, views.example, views.mask_ratio, alpha=0.1, beta=1.0).total
    assert loss.requires_grad
    return Point(layers, views.input_ids.numel(), 2 * len(views.targets) * COUNTED_VOCABULARY, sum(kept.values()))


def fitted(points: list[Point]) -> tuple[np.ndarray, float]:
    """Bytes = (1, tokens, layers x tokens, logits) x coefficients, and the largest relative error of the fit."""
    design = np.array([[1, p.tokens, p.layers * p.tokens, p.logits] for p in points], float)
    kept = np.array([p.kept for p in points], float)
    scale = design.max(0)
    coefficients = np.linalg.lstsq(design / scale, kept, rcond=None)[0] / scale
    return coefficients, float(np.abs(design @ coefficients / kept - 1).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer_tokens", type=int, default=1024, help="masked answer tokens of a row, at the worst")
    arguments = parser.parse_args()
    recipe, objective, *_ = read_arguments([f"--config={RECIPE}"])
    assert isinstance(objective, MaskAgnostic)
    with torch.device("meta"):
        whole = adapted(LlamaForCausalLM(llada_8b(LAYERS, VOCABULARY)), recipe)
    trainable = sum(p.numel() for p in whole.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in whole.parameters()) - trainable
    tokens = 2 * recipe.per_device_train_batch_size * recipe.longest
    predicted = int(2 * recipe.per_device_train_batch_size * arguments.answer_tokens * objective.p_high)
    print(f"weights, bf16: {2 * frozen / GIB:.1f} GiB; LoRA of {trainable / 1e6:.0f} M parameters")
    # float32 weights, their gradients, and Adam's two moments.
    fixed = 2 * frozen + 16 * trainable
    print(f"LoRA weights, gradients and Adam's moments, float32: {16 * trainable / GIB:.1f} GiB")
    # What the loss's backward pass adds at its peak: gradients of both views' float32 logits, and of one more term.
    transient = 2 * 4 * predicted * VOCABULARY
    one_layer = 0.0
    for checkpointing in (False, True):
        points = [
            count(layers, length, n_answer, recipe, checkpointing=checkpointing)
            for layers in (1, 2)
            for length, n_answer in ((32, 4), (64, 4), (64, 16))
        ]
        coefficients, error = fitted(points)
        kept = float(coefficients @ [1, tokens, LAYERS * tokens, predicted * VOCABULARY])
        if checkpointing:
            kept += one_layer  # one layer at a time is computed again
        one_layer = float(coefficients[2] * tokens)
        print(
            f"gradient checkpointing {'on' if checkpointing else 'off'}: {coefficients[2] / 2**10:.1f} KiB a layer and "
            f"token, {coefficients[3]:.1f} bytes a logit (fit within {100 * error:.1f}%); kept for the backward pass "
            f"of {tokens} tokens and {predicted} predictions {kept / GIB:.1f} GiB, gradients of logits "
            f"{transient / GIB:.1f} GiB, in all {(fixed + kept + transient) / GIB:.1f} GiB"
        )


if __name__ == "__main__":
    main()
