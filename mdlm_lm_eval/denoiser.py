"""A masked diffusion model's predictions: logits at chosen positions of a canvas, and nowhere else."""

from typing import Any

import torch
from torch import Tensor, nn

from mdlm_lm_eval.families.attention import FULL_ATTENTION, AttentionPattern


class Denoiser:
    """A model with what must be known to denoise with it.

    `model` is a transformers model with bidirectional attention (or a PEFT model around one); `shift` says that its
    output at position i predicts the token at i + 1, as Dream's does. `attention` says what each position sees, `edits`
    whether decoding may change what it has written. `forward_passes` counts the model's calls (NFE).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mask_token_id: int,
        pad_token_id: int,
        shift: bool = False,
        attention: AttentionPattern = FULL_ATTENTION,
        edits: bool = False,
    ) -> None:
        self.model: Any = model
        self.attention, self.edits = attention, edits
        self.mask_token_id, self.pad_token_id, self.shift = mask_token_id, pad_token_id, shift
        self.forward_passes = 0
        # No pass continues another: a cache would hold every layer's keys and values for nothing.
        config: Any = model.config
        config.use_cache = False
        self._broadcast_mask = _may_broadcast_mask(config)

    @property
    def device(self) -> torch.device:
        """Where inputs go. Weights that are offloaded have no device."""
        devices = (parameter.device for parameter in self.model.parameters() if not parameter.is_meta)
        return next(devices, torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.dtype

    @property
    def vocab_size(self) -> int:
        """Rows of the output projection."""
        return self.model.get_output_embeddings().weight.shape[0]

    @property
    def max_length(self) -> int:
        """Tokens of context that the model was made for."""
        return self.model.config.max_position_embeddings

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        at: Tensor,
        *,
        n_at: int | None = None,
        cfg_scale: float = 0.0,
        prompt_mask: Tensor | None = None,
        gradient: bool = False,
    ) -> Tensor:
        """Logits [N, V] of the tokens at the N positions where `at` is true, row by row.

        `input_ids`, `attention_mask` and `at` are [B, T]; padding may stand on either side, and without a mask there is
        none. Only those N rows reach the output projection. `n_at`, where the caller knows N, saves a wait for the
        device.

        With `cfg_scale` s > 0: u + (s + 1)(c - u), u from the same canvas with the prompt (`prompt_mask`, [B, T] bool)
        masked (LLaDA, appendix on classifier-free guidance). Without `gradient` nothing is kept for a backward pass.
        """
        if cfg_scale > 0.0:
            if prompt_mask is None:
                raise ValueError("cfg_scale needs prompt_mask, the positions that the unconditional canvas masks")
            input_ids = torch.cat([input_ids, input_ids.masked_fill(prompt_mask, self.mask_token_id)])
            attention_mask = None if attention_mask is None else attention_mask.repeat(2, 1)
            at = at.repeat(2, 1)
            n_at = None if n_at is None else 2 * n_at
        with torch.set_grad_enabled(gradient):
            logits = self._forward(input_ids, attention_mask, at, n_at)
            if cfg_scale > 0.0:
                conditional, unconditional = logits.chunk(2)
                logits = unconditional + (cfg_scale + 1.0) * (conditional - unconditional)
        return logits

    def _forward(self, input_ids: Tensor, attention_mask: Tensor | None, at: Tensor, n_at: int | None) -> Tensor:
        if attention_mask is not None:
            # Padding goes to the right, so that positions count from each row's first token in every family's own way.
            to_right = attention_mask.argsort(dim=1, descending=True, stable=True)  # [B, T]
            input_ids, attention_mask, at = (t.gather(1, to_right) for t in (input_ids, attention_mask, at))
            if self._broadcast_mask:
                attention_mask = attention_mask.bool()[:, None, None, :]  # [B, 1, 1, T], for all heads and queries
        flat = at.flatten()
        chosen = torch.nonzero(flat) if n_at is None else torch.nonzero_static(flat, size=n_at)
        chosen = chosen.squeeze(1)  # [N], indices into the flattened canvas
        if self.shift:
            # The first token of a row has nothing on its left and keeps its own output, as in Dream's sampler.
            chosen = chosen - (chosen % input_ids.shape[1] != 0).long()

        def keep_chosen(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (inputs[0].flatten(0, 1)[chosen.to(inputs[0].device)], *inputs[1:])  # [B, T, H] -> [N, H]

        head = self.model.get_output_embeddings()
        if head is None or isinstance(head, nn.Embedding):
            # Remote code may project with its input embeddings, so that no module is there to be given fewer rows.
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits  # [B, T, V]
            logits = logits.flatten(0, 1)[chosen]
        else:
            handle = head.register_forward_pre_hook(keep_chosen)
            try:
                logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits  # [N, V]
            finally:
                handle.remove()
        self.forward_passes += 1
        return logits


def _may_broadcast_mask(config: Any) -> bool:
    """Whether the model takes a mask of shape [B, 1, 1, T] as it is.

    Of one of shape [B, T], transformers asks whether it masks anything at all, in every forward pass, which waits for
    the device. Models with local attention and remote code make masks of their own from it.
    """
    settings = config.to_dict()
    return (
        config._attn_implementation == "sdpa"
        and settings.get("is_causal") is False
        and settings.get("diffusion_family") != "remote"
        and settings.get("sliding_window") is None
        and all(layer == "full_attention" for layer in settings.get("layer_types") or ())
    )
