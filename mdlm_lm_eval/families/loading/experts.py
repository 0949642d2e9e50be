"""Mixtures of experts, published expert by expert and fused by transformers while loading."""

from transformers import PretrainedConfig


def expert_weight_names(config: PretrainedConfig) -> set[str]:
    """Published names of all experts' weights."""
    sparse = [
        layer
        for layer in range(config.num_hidden_layers)
        if (layer + 1) % config.to_dict().get("decoder_sparse_step", 1) == 0
        and layer not in config.to_dict().get("mlp_only_layers", ())
        and layer >= config.to_dict().get("first_k_dense_replace", 0)
    ]
    return {
        f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight"
        for layer in sparse
        for expert in range(config.num_local_experts)
        for projection in ("gate", "up", "down")
    }
