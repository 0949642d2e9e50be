"""LLaDA2.2 (`model_type` llada2_moe with `expert_capacity`): LLaDA2 that chooses experts by blocks of tokens.

The tokens of a routing block (`block_size` tokens, from the first token of a row) share `expert_capacity` experts:
those with the highest score at any of these tokens. Each token uses the best of them. The groups of experts that the
config still names are not used. This follows the design notes of the release, and a port that is tested against its
modelling file; we did not have the file itself.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter

from mdlm_lm_eval.families import llada2, register_family
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import OptionError

# From the model card.
DEFAULTS = {"steps_per_block": 32, "confidence_threshold": 0.5, "editing_threshold": 0.0, "max_post_steps": 16}
SUPPORTED = (
    "load_denoiser likelihood block_length n_masks mask_ratio max_gen_toks steps_per_block confidence_threshold "
    "editing_threshold max_post_steps max_steps_per_block early_exit seed suppress_eos trace"
)
DELETE_TOKEN_ID, SPLIT_TOKEN_ID = 156930, 156931  # in the release
OWN_KEYS = ("expert_capacity", "block_size", "delete_token_id", "split_token_id")


class BlockRouter(Glm4MoeTopkRouter):
    """Chooses experts by routing block. `note_positions` sets `position_ids` [1 or B, T] before each pass."""

    expert_capacity: int
    block_size: int
    position_ids: Tensor

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Router logits [B * T, E], and weights and indices [B * T, k] of each token's experts, from [B, T, H]."""
        positions = self.position_ids.to(hidden_states.device).expand(hidden_states.shape[:2])
        before = nn.functional.pad(positions[:, :-1], (1, 0), value=-2)
        # Padding repeats a position, so each padding token is a block of its own. A copy of a block begins with a lower
        # position than the token before it.
        begins = (positions != before + 1) | (positions % self.block_size == 0)
        block = begins.flatten().cumsum(0) - 1  # [B * T]
        logits = nn.functional.linear(hidden_states.flatten(0, 1).float(), self.weight.float())
        scores = logits.sigmoid()
        choice = scores + self.e_score_correction_bias
        row_of = block[:, None].expand_as(choice)
        of_block = torch.full_like(choice, -torch.inf).scatter_reduce(0, row_of, choice, "amax")  # a row per block
        allowed = torch.zeros_like(choice, dtype=torch.bool)
        allowed.scatter_(1, of_block.topk(self.expert_capacity, dim=-1).indices, True)
        indices = choice.masked_fill(~allowed[block], -torch.inf).topk(self.top_k, dim=-1, sorted=False).indices
        weights = scores.gather(1, indices)
        return logits, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.routed_scaling_factor, indices


def note_positions(layer: nn.Module, _inputs: Any, kwargs: dict[str, Any]) -> None:
    """A hook before a decoder layer: gives the token positions to its router, as the layer does not pass them on."""
    layer.mlp.gate.position_ids = kwargs["position_ids"]  # type: ignore[union-attr]


def route_by_blocks(model: Any) -> None:
    """Replaces GLM-4-MoE's routers by block routers."""
    for layer in model.model.layers[model.config.first_k_dense_replace :]:
        layer.mlp.gate.__class__ = BlockRouter
        layer.mlp.gate.expert_capacity = model.config.expert_capacity
        layer.mlp.gate.block_size = model.config.routing_block_length
        layer.register_forward_pre_hook(note_positions, with_kwargs=True)


def native_config(published: dict[str, Any]) -> Glm4MoeConfig:
    """Glm4MoeConfig for a LLaDA2.2 `config.json`; OptionError for a setting without equivalent."""
    capacity, experts = published["expert_capacity"], published["num_experts"]
    if not published["num_experts_per_tok"] <= capacity <= experts:
        raise OptionError(f"LLaDA2.2 config: expert_capacity={capacity} is not supported; it must be up to {experts}")
    config = llada2.native_config({name: value for name, value in published.items() if name not in OWN_KEYS})
    config.expert_capacity = capacity
    config.routing_block_length = config.block_length = published["block_size"]
    config.delete_token_id = published.get("delete_token_id", DELETE_TOKEN_ID)
    config.split_token_id = published.get("split_token_id", SPLIT_TOKEN_ID)
    return config


def attention(config: Glm4MoeConfig, block_length: int | None) -> AttentionPattern:
    """Block-causal attention. Raises OptionError if blocks do not consist of whole routing blocks."""
    length = block_length or config.block_length
    if length % config.routing_block_length:
        what = f"a multiple of {config.routing_block_length}, the tokens that share experts"
        raise OptionError(f"block_length must be {what}, not {length}")
    return AttentionPattern(length, whole_blocks=True)


register_family(
    replace(
        llada2.llada2("llada22", None, DEFAULTS),
        config_key="expert_capacity",
        native_config=native_config,
        adapt=route_by_blocks,
        attention=attention,
        draws=True,  # where a block would go round in circles
        supports=frozenset(SUPPORTED.split()),
        instead="its own decoding, which inserts and deletes tokens, has no such option",
    )
)
