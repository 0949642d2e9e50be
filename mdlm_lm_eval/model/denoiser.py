"""A masked diffusion model's predictions: logits at chosen positions of a canvas."""

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern, block_causal_mask
from mdlm_lm_eval.model.compiled import CACHE, Graphs, NotCapturableError, can_capture, compile_layers, most_tokens
from mdlm_lm_eval.model.devices import POSITIONS
from mdlm_lm_eval.model.fused import fuse
from mdlm_lm_eval.model.grouped_attention import NAME
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import OptionError, must_be

logger = logging.getLogger(__name__)
ROWS = 8  # rows of a pass in fixed shapes


class NonFiniteLogitsError(ArithmeticError):
    """A model's logits are NaN or infinite; `index` is the number of the row or request, in the caller's order."""

    def __init__(self, index: int) -> None:
        super().__init__(
            f"the model's logits for row {index} are not finite (NaN or infinity): its weights are damaged, or its "
            "dtype is too narrow"
        )
        self.index = index


class Denoiser:
    """A loaded model, as `load` returns it, with the facts that are needed to decode with it.

    - `model`: the model of transformers, or an adapter of PEFT around it.
    - `mask_token_id`, `pad_token_id`: the ids of the mask token and of the padding token.
    - `shift`: whether the output at position i predicts the token at i + 1, as in Dream.
    - `attention`: which positions see each other.
    - `forward_passes`: how often the model was called so far.
    - `canvas_count`, `token_count`: the rows and positions of these calls, including guidance and padding.
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
        read: Callable[..., Iterator[Tensor]] | None = None,
        generate: Callable[..., tuple[list[int], int, int]] | None = None,
        rows_alone: bool = False,
        compiled: bool = False,
        fused: bool = False,
        cuda_graphs: bool = True,
    ) -> None:
        """Binds a model. Raises OptionError for one that cannot be compiled or fused.

        edits: whether it was trained to correct tokens that it wrote, like LLaDA2.1.
        read, generate: as in `Family`, for a model without a mask token, and one with a method of its own.
        rows_alone: whether padding would change its logits, so that each row of a padded batch runs alone.
        compiled: whether to compile its layers. If they, or a GPU's graphs, cannot be made, an error is raised.
        fused: whether to bind kernels that join small operations; the attribute is the number of these by kind.
        cuda_graphs: whether passes that come again run as CUDA graphs, on a GPU and if the model can be captured.
        """
        self.model: Any = model
        self.mask_token_id, self.pad_token_id, self.shift = mask_token_id, pad_token_id, shift
        self.attention, self.edits, self.read, self.generate = attention, edits, read, generate
        self.rows_alone = rows_alone
        self.forward_passes = self.canvas_count = self.token_count = 0
        self._has_fixed_shapes = False
        self._broadcast_mask = _may_broadcast_mask(model.config)
        if self.device.type == "cuda":
            # cuDNN plans each new shape for tens of milliseconds, which other kernels do not.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.compiled = compiled
        if compiled and fused:
            raise OptionError("fused must be false with compile=true, which joins the same operations")
        if compiled:
            compile_layers(model)
        self.fused = fuse(model) if fused else {}
        # Graphs of passes without a cache, by the model with its adapter. Passes with a cache have theirs in the cache.
        self.graphs: WeakKeyDictionary[nn.Module, Graphs] | None = None
        self.most_in_graph = 0  # tokens
        if cuda_graphs and can_capture(model):
            self.graphs = WeakKeyDictionary()
            self.most_in_graph = most_tokens(model)
        # Without this argument, every pass would keep all keys and values, which nothing reads.
        parameters = inspect.signature(model.forward).parameters
        takes_it = "use_cache" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.without_cache = {"use_cache": False} if takes_it else {}

    def __repr__(self) -> str:
        settings, length = self.model.config.to_dict(), self.attention.block_length
        family = settings.get("diffusion_family", settings["model_type"])
        n_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        attention = "full attention" if length is None else f"block-causal attention in blocks of {length}"
        shift = ", shifted logits" if self.shift else ""
        return f"Denoiser({family}, {n_parameters:,} parameters, {attention}{shift}, {self.dtype}, {self.device})"

    @property
    def device(self) -> torch.device:
        """The device of the inputs: that of the first weight that is not offloaded."""
        devices = (parameter.device for parameter in self.model.parameters() if not parameter.is_meta)
        return next(devices, torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.model.dtype

    @property
    def vocab_size(self) -> int:
        """The number of rows of the output projection."""
        return self.model.get_output_embeddings().weight.shape[0]

    @property
    def max_length(self) -> int:
        """The context length in tokens, from the model's config."""
        return self.model.config.max_position_embeddings

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        positions: Tensor,
        *,
        cfg_scale: float = 0.0,
        prompt_mask: Tensor | None = None,
        prompt_lengths: Tensor | None = None,
        gradient: bool = False,
        is_aligned: bool = False,
    ) -> Tensor:
        """Logits [N, V] of the tokens at `positions` [N], indices into the flattened canvases, in their order.

        `input_ids` and `attention_mask` are [B, T]. Padding may be on either side, with `is_aligned` on the right;
        without a mask there is none. Only the N chosen states reach the output projection. `prompt_lengths` [B], in
        tokens, are needed if blocks are counted from the prompt's end.

        With `cfg_scale` s > 0, logits are u + (s + 1)(c - u), where c are the canvas's logits and u those of the same
        canvas with its prompt (`prompt_mask`, [B, T] bool) masked (LLaDA, appendix on classifier-free guidance).
        Without `gradient`, nothing is kept for a backward pass. Raises ValueError if needed `prompt_lengths` are
        missing.
        """
        length = input_ids.shape[1]
        inputs: dict[str, Any] = dict(self.without_cache)
        if not self.attention.is_block_causal:
            if attention_mask is not None and not is_aligned:
                # Padding is moved to the right, so that all families count positions from each row's first token.
                to_right = attention_mask.argsort(dim=1, descending=True, stable=True)  # [B, T]
                input_ids, attention_mask = input_ids.gather(1, to_right), attention_mask.gather(1, to_right)
                prompt_mask = None if prompt_mask is None else prompt_mask.gather(1, to_right)
                positions = positions - positions % length + to_right.argsort(1).flatten()[positions]
            real = attention_mask
            if attention_mask is not None:  # [B, 1, 1, T], for all heads and queries
                broadcast = self._broadcast_mask
                attention_mask = attention_mask.bool()[:, None, None] if broadcast else attention_mask.long()
            if self.shift:
                # The first token of a row has no token on its left, and keeps its own output, as in Dream's sampler.
                positions = positions - (positions % length).clamp(max=1)
            if self.rows_alone and real is not None:
                with torch.set_grad_enabled(gradient):
                    return self._each_alone(input_ids, real.sum(1), positions, cfg_scale, prompt_mask)
        else:
            if prompt_lengths is None:
                if self.attention.blocks_from == "prompt_end":
                    raise ValueError("blocks that are counted from the prompt's end need prompt_lengths")
                prompt_lengths = input_ids.new_zeros(len(input_ids))
            real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            inputs["position_ids"] = position_ids = (real.cumsum(1) - 1).clamp(min=0)  # [B, T]
            order = self.attention.order_of(position_ids, prompt_lengths[:, None]).masked_fill(real == 0, -1)  # [B, T]
            if self.shift:
                positions = positions - (position_ids.flatten()[positions] != 0).long()
            attention_mask = self._as_attention_takes_it(block_causal_mask(order))
        inputs |= {"input_ids": input_ids, "attention_mask": attention_mask}
        with torch.set_grad_enabled(gradient):
            return self._forward(positions, inputs, cfg_scale=cfg_scale, prompt_mask=prompt_mask)

    def _each_alone(
        self, input_ids: Tensor, lengths: Tensor, positions: Tensor, cfg_scale: float, prompt_mask: Tensor | None
    ) -> Tensor:
        """Logits [N, V] at `positions` [N] from a pass of each row [B, T] without its padding, which is on the right.

        lengths: [B], the number of a row's tokens.
        """
        row_of, columns = positions // input_ids.shape[1], positions % input_ids.shape[1]
        found, order = [], []
        for row, length in enumerate(lengths.tolist()):
            asked = (row_of == row).nonzero().flatten()
            if not len(asked):
                continue
            inputs = {"input_ids": input_ids[row : row + 1, :length], "attention_mask": None, **self.without_cache}
            prompt = None if prompt_mask is None else prompt_mask[row : row + 1, :length]
            found.append(self._forward(columns[asked], inputs, cfg_scale=cfg_scale, prompt_mask=prompt))
            order.append(asked)
        return torch.cat(found)[torch.cat(order).argsort()]

    def window_logits(
        self,
        input_ids: Tensor,
        columns: Tensor,
        sees: Tensor | None,
        outputs: Tensor | None,
        *,
        position_ids: Tensor | None = None,
        cache: CanvasCache | None = None,
        cache_rows: Tensor | None = None,
        n_seen: int | None = None,
        cfg_scale: float = 0.0,
        prompt_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [N, V] from a pass over a window of each canvas, with the remembered keys and values of the rest.

        `input_ids` [B, W] are the tokens at `columns` [B, W] of the canvases, which begin at column 0 without padding.
        `sees` [B, W, K] bool says which of K columns each column of a window sees; it is [B, 1, K] if all see the same,
        and None if they see all. `outputs` [N] are indices into the flattened window, None for all in order. Logits are
        the model's outputs there, also if these predict the next token. `position_ids` [B, W] are needed only if
        several columns hold copies of one position.

        `cache` remembers the window's keys and values, in its rows `cache_rows` [B] or in all of them (2 B under
        guidance). `n_seen` is K, the columns of the cache that are seen; with None the window sees only itself.
        """
        mask = None if sees is None else self._as_attention_takes_it(sees[:, None])
        position_ids = columns if position_ids is None else position_ids
        inputs = {"input_ids": input_ids, "attention_mask": mask, "position_ids": position_ids, **self.without_cache}
        if cache is not None:
            cache.move_to(columns.repeat(2, 1) if cfg_scale > 0.0 else columns, n_seen, cache_rows)
            inputs |= {CACHE: cache, "use_cache": True}
        with torch.no_grad():
            return self._forward(outputs, inputs, cfg_scale=cfg_scale, prompt_mask=prompt_mask)

    def noisy_reads(
        self,
        token_ids: Sequence[int],
        slots: Sequence[int],
        *,
        n_read: int,
        noise_num: int,
        seed: int,
        batch_size: int,
    ) -> Iterator[Tensor]:
        """Reads of a model whose noise is random tokens: one denoising step over a canvas with noisy slots.

        Yields log-probabilities [k, n_read, V] float32 at the first `n_read` slots, for k draws of noise at a time. The
        tokens before the first slot are the prompt; the rest is the canvas, whose slots are filled with random tokens
        `noise_num` times. A pass runs at most `batch_size` draws.
        """
        assert self.read is not None
        start, noise = slots[0], torch.Generator().manual_seed(seed)
        canvases = torch.tensor(token_ids[start:]).repeat(noise_num, 1)  # [K, T]
        positions = torch.tensor(slots) - start
        canvases[:, positions] = torch.randint(self.vocab_size, (noise_num, len(slots)), generator=noise)
        batches = canvases.split(batch_size)
        passes = self.read(self.model, list(token_ids[:start]), batches, positions[:n_read])
        for batch, logits in zip(batches, passes, strict=True):
            self.forward_passes += 1
            self.canvas_count += len(batch)
            yield logits.float().log_softmax(-1)

    @contextmanager
    def in_fixed_shapes(self, wanted: bool) -> Iterator[None]:
        """With `wanted`, each call of the model has `ROWS` rows, and each call of the output layer `POSITIONS` states.

        The last call is filled up with copies. So no kernel's choice depends on the number of rows; the caller must fix
        the number of columns and keys. Raises OptionError for a model that changes the logits of its output layer, and
        for mixtures of experts, whose kernels depend on how many tokens all rows send to each expert.
        """
        settings = self.model.config.to_dict()
        if wanted and settings.get("num_experts_per_tok"):
            raise must_be("batch_invariant", "false with a mixture of experts", "true")
        self._has_fixed_shapes = wanted
        try:
            yield
        except NotCapturableError as error:
            raise must_be("batch_invariant", f"false with {type(self.model).__name__}: {error}", "true") from error
        finally:
            self._has_fixed_shapes = False

    def _in_fixed_shapes(self, head: nn.Module, chosen: Tensor | slice, inputs: dict[str, Any]) -> Tensor:
        """The logits of `_forward`, computed in fixed shapes."""
        ids, states = inputs["input_ids"], []
        cache: CanvasCache | None = inputs.get(CACHE)
        now = None if cache is None else replace(cache.now)
        for first in range(0, len(ids), ROWS):
            real = min(ROWS, len(ids) - first)
            rows = (torch.arange(ROWS, device=ids.device) + first).clamp(max=len(ids) - 1)
            part = {name: each[rows] if isinstance(each, Tensor) else each for name, each in inputs.items()}
            if cache is not None and now is not None:
                columns = now.columns[rows]
                columns[real:] = cache.canvas_layers[0].width - 1  # which nothing reads
                cache.move_to(columns, now.n_seen, rows if now.rows is None else now.rows[rows])
            found = self._from_graph(head, part)
            found = self._states(head, part) if found is None else found.clone()
            states.append(found[: real * ids.shape[1]])
        of_outputs = torch.cat(states)[chosen]
        filled = nn.functional.pad(of_outputs, (0, 0, 0, -len(of_outputs) % POSITIONS))
        return torch.cat([head(part) for part in filled.split(POSITIONS)])[: len(of_outputs)]

    def _as_attention_takes_it(self, sees: Tensor) -> Tensor:
        """A mask [B, 1, queries, keys] that attention adds to its scores; transformers passes it on unchanged.

        A boolean mask would be converted in every layer on a GPU, and be silently wrong in eager attention.
        """
        return torch.where(sees, 0.0, -torch.inf).to(self.dtype)

    def _forward(
        self, outputs: Tensor | None, inputs: dict[str, Any], *, cfg_scale: float = 0.0, prompt_mask: Tensor | None
    ) -> Tensor:
        """The model's logits [N, V] at `outputs` [N], indices into its flattened outputs, or at all if that is None.

        With `cfg_scale`, every canvas runs twice, with and without its prompt (`prompt_mask`).
        """
        if cfg_scale > 0.0:
            assert prompt_mask is not None
            ids = inputs["input_ids"]
            outputs = None if outputs is None else torch.cat([outputs, outputs + ids.numel()])
            twice = {name: torch.cat([each, each]) for name, each in inputs.items() if isinstance(each, Tensor)}
            twice["input_ids"] = torch.cat([ids, ids.masked_fill(prompt_mask, self.mask_token_id)])
            inputs = inputs | twice

        def keep_outputs(_module: nn.Module, hidden: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            assert outputs is not None
            return (hidden[0].flatten(0, 1)[outputs.to(hidden[0].device)], *hidden[1:])  # [B, T, H] -> [N, H]

        self.forward_passes += 1
        self.canvas_count += len(inputs["input_ids"])
        self.token_count += inputs["input_ids"].numel()
        head = self.model.get_output_embeddings()
        chosen = slice(None) if outputs is None else outputs
        if self._has_fixed_shapes:
            logits = self._in_fixed_shapes(head, chosen, inputs)
        elif (hidden := self._from_graph(head, inputs)) is not None:
            logits = head(hidden[chosen])
        elif outputs is None or head is None or isinstance(head, nn.Embedding):
            # Remote code may project with its input embeddings; then no output layer can be given fewer states.
            logits = self.model(**inputs).logits.flatten(0, 1)[chosen]
        else:
            with head.register_forward_pre_hook(keep_outputs):
                logits = self.model(**inputs).logits
        if cfg_scale > 0.0:
            conditional, unconditional = logits.chunk(2)
            logits = unconditional + (cfg_scale + 1.0) * (conditional - unconditional)
        return logits

    def _from_graph(self, head: nn.Module, inputs: dict[str, Any]) -> Tensor | None:
        """The states [B * T, H] before the output layer, which the next pass overwrites; None if graphs are not used.

        A model whose passes cannot be captured continues without graphs, but raises OptionError if it is compiled.
        """
        # Autocast keeps narrower copies of weights, which a graph must not own.
        if self.graphs is None or self.rows_alone or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
            return None
        if inputs["input_ids"].numel() > self.most_in_graph:
            return None
        cache: CanvasCache | None = inputs.get(CACHE)
        now = None if cache is None else cache.now
        tensors = {name: inputs.get(name) for name in ("input_ids", "attention_mask", "position_ids")}
        if now is not None:
            tensors |= {"columns": now.columns, "rows": now.rows}
        n_seen = None if now is None else now.n_seen

        def forward(columns: Tensor | None = None, rows: Tensor | None = None, **of_model: Tensor | None) -> Tensor:
            if cache is not None and columns is not None:
                cache.move_to(columns, n_seen, rows)
            return self._states(head, inputs | of_model)

        of_model = self.graphs.setdefault(self.model, Graphs())
        graphs = of_model if cache is None else cache.graphs
        try:
            with torch.cuda.device_of(inputs["input_ids"]):
                return graphs.run(forward, n_seen, tensors, of_model, compiles=self.compiled)
        except NotCapturableError as error:
            if self.compiled:
                raise OptionError(f"compile must be false with {type(self.model).__name__}: {error}") from error
            logger.info("%s runs without CUDA graphs: %s", type(self.model).__name__, error)
            self.graphs = None
            return None

    def _states(self, head: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """The states [B * T, H] that a pass gives to the output layer. Raises NotCapturableError."""
        given: list[Tensor] = []
        made: list[Tensor] = []

        def keep(_module: nn.Module, hidden: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            given.append(hidden[0].flatten(0, 1))
            return (given[0][:1], *hidden[1:])

        with head.register_forward_pre_hook(keep), head.register_forward_hook(lambda *each: made.append(each[2])):
            if self.model(**inputs).logits is not made[0]:
                raise NotCapturableError("the model changes the logits that its output layer computes")
        return given[0]


def _may_broadcast_mask(config: Any) -> bool:
    """Whether the model accepts a mask of shape [B, 1, 1, T].

    For a mask of shape [B, T], transformers checks in every forward pass whether it masks anything, which waits for the
    device. Models with local attention, and remote code, make masks of their own from such a mask.
    """
    settings = config.to_dict()
    return (
        config._attn_implementation in ("sdpa", NAME)
        and settings.get("is_causal") is False
        and settings.get("diffusion_family") != "remote"
        and settings.get("sliding_window") is None
        and all(layer == "full_attention" for layer in settings.get("layer_types") or ())
    )
