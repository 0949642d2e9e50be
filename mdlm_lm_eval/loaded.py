"""A loaded checkpoint as lm-eval's HFLM: its denoiser, its tokenizer and its ends of text. `lm` answers requests."""

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import hash_string
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.arguments import config_of, settings_of, source_of, tokenizer_of
from mdlm_lm_eval.command_line import check_output_path, runs_lm_eval
from mdlm_lm_eval.jobs.shared import Batches
from mdlm_lm_eval.loader import load_plugins
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.grouped_attention import use_grouped_attention
from mdlm_lm_eval.model.text import closing_ids, encode_without_masks, stop_ids
from mdlm_lm_eval.models import BUILT_IN, MODEL_FOLDERS, model_path
from mdlm_lm_eval.options import OptionError, parse_whole
from mdlm_lm_eval.record import digest_of_settings
from mdlm_lm_eval.resolve import loading_names
from mdlm_lm_eval.results.names import model_name
from mdlm_lm_eval.silence import silenced

logger = logging.getLogger(__name__)

# `batch_size=auto` starts from the rows that fit into a GPU, and halves when memory runs out. A CPU swaps long before.
_MAX_AUTO_BATCH, _MAX_AUTO_BATCH_ON_CPU = 1024, 16
# HFLM's arguments that are passed on to it, as its methods read them.
_OF_HFLM = "mixed_precision_dtype max_length batch_size max_batch_size add_bos_token prefix_token_id think_end_token"
_OF_METHODS = (*_OF_HFLM.split(), "enable_thinking", "chat_template_args")
_OF_TOKENIZER = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")
_WITHOUT_EFFECT = ("backend", "logits_cache", "softmax_dtype", "truncation")


class LoadedModel(HFLM):
    """A checkpoint with its adapter and settings, in memory.

    `pretrained` is a hub id, a folder, a model object, or the name of a model that comes with the package. These models
    are small, and their default `batch_size` is auto. Other arguments are those of HFLM and transformers, and the
    fields of `DecodingOptions`, `LikelihoodOptions` and `ModelOptions`.
    Raises OptionError, before it reads weights, for an unknown argument and for an option that the model does not
    support.
    """

    _model: Any  # set by HFLM
    think_end_token: Any
    peft: str | None
    used_template: str | None = None  # the chat template of this evaluation's prompts

    def __init__(self, pretrained: str | PreTrainedModel | None = BUILT_IN, **arguments: Any) -> None:
        load_plugins(arguments.get("plugins"))
        if (size := arguments.get("batch_size")) is not None and not str(size).startswith("auto"):
            parse_whole("batch_size", size, least=1)
        model: Any = pretrained if isinstance(pretrained, torch.nn.Module) else None
        if model is not None:
            self._config, name = model.config, model.name_or_path
        else:
            self._config, name = config_of(pretrained, arguments), model_path(str(pretrained or BUILT_IN))
            if size is None and (pretrained or BUILT_IN) in MODEL_FOLDERS:
                arguments["batch_size"] = "auto"
        checkpoints.check_config(self._config, name or "a model object")
        self.family = checkpoints.family_of(self._config)
        self.quantisation = self._config.to_dict().get("quantization_config")  # transformers may drop it, below
        self.settings = settings_of(self._config, arguments)
        for key in sorted(set(_WITHOUT_EFFECT) & self.settings.loading.keys()):
            logger.warning("%s has no effect with --model mdlm", key)
        tokenizer = self.settings.loading.get("tokenizer", name)
        if isinstance(tokenizer, (str, int, float)):
            tokenizer = tokenizer_of(str(tokenizer), self._config, self.settings.loading)
        else:
            checkpoints.check_tokenizer(tokenizer, self._config, tokenizer.name_or_path)
        self.mask_token_id = checkpoints.resolve_mask_token_id(
            self._config, tokenizer, self.settings.model.mask_token_id
        )
        self._context_length = checkpoints.context_length(self._config, tokenizer)
        self._start(model, name, tokenizer)
        self.pretrained, self.own_decoder = name, checkpoints.own_decoder(name or "")
        self.name = model_name(name) if name else type(model).__name__
        generation = getattr(self.model, "generation_config", None)  # encoders have none
        self.eos_ids = checkpoints.eos_ids(tokenizer, generation and generation.eos_token_id)
        self.end_of_turn_ids = checkpoints.end_of_turn_ids(tokenizer)
        self._closing_ids = closing_ids(tokenizer)
        self.ids_after_answers = checkpoints.ids_after_answers(tokenizer, self._config)
        if self.max_length > self._context_length:
            logger.warning("max_length=%d: the model was made for %d tokens", self.max_length, self._context_length)

    def _start(self, model: Any, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        """Loads the network, unless it is there, and the adapter, and starts HFLM with both."""
        loading, source = self.settings.loading, source_of(self.settings.loading)
        of_methods = {key: loading[key] for key in _OF_METHODS if key in loading}
        peft = str(loading.get("peft") or "") or None
        processes, self.is_object = None, model is not None
        if source["trust_remote_code"] and not self.family.remote_code and self.settings.model.modeling is None:
            said = "trust_remote_code=true: the family %s computes by transformers' code, not by the checkpoint's"
            logger.warning(said, self.family.name)
        if model is None:
            known = {*source, *of_methods, "tokenizer", "use_fast_tokenizer", "peft", *_WITHOUT_EFFECT}
            model, processes = self._network_from(name, source, {key: loading[key] for key in loading.keys() - known})
        if peft:
            model = checkpoints.load_adapter(model, peft, revision=source["revision"])
        with silenced(HFLM.__module__):  # it warns of models that it did not load itself
            super().__init__(model, backend="causal", tokenizer=tokenizer, peft=peft, **source, **of_methods)
        if processes is not None and processes.num_processes > 1:
            self.accelerator = processes
            self._rank, self._world_size = processes.process_index, processes.num_processes
        self.enable_thinking = of_methods.get("enable_thinking")
        if isinstance(self.think_end_token, str):  # a decoded text does not show special tokens
            self.think_end_token = next(iter(stop_ids(self.tokenizer, {self.think_end_token})), self.think_end_token)
        # Computed at once, as a training may write into these folders during the evaluation.
        revision, identity = source["revision"], checkpoints.checkpoint_digest
        self.weights = None if self.is_object else identity(name, source["subfolder"], revision=revision)
        self.adapter_weights = peft and identity(peft, revision=revision)
        self.denoiser = self._denoiser()

    def _network_from(self, name: str, source: Mapping[str, Any], loading: dict[str, Any]) -> tuple[Any, Any]:
        """Loads the network by the arguments of HFLM and transformers. Returns it, and the processes that share it."""
        dtype = loading.pop("torch_dtype", None) or loading.pop("dtype", None)
        loading, processes = checkpoints.device_placement(loading)
        loading["ignore_weights"] = self.settings.model.ignore_weights
        if (named := self.settings.model.modeling) is not None:
            model = checkpoints.load_network(name, named, dtype=dtype, **source, **loading)
        else:
            model = checkpoints.load_model(name, self._config, dtype=dtype, **source, **loading)
        use_grouped_attention(model.config)  # a user's own model object stays as it is
        return model, processes

    def _denoiser(self) -> Denoiser:
        """Returns the model as a denoiser. Raises OptionError for kernels that do not work with mixed precision."""
        options, family = self.settings.model, self.family
        if options.fused and self.mixed_precision_dtype is not None:
            raise OptionError(
                "fused must be false with mixed_precision_dtype, which changes dtypes between its kernels"
            )
        return checkpoints.denoiser_of(
            self.model,
            family,
            mask_token_id=self.mask_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
            shift=family.shift(self._config) if options.shift_logits is None else options.shift_logits,
            attention=self.settings.attention,
            compiled=options.compile,
            fused=options.fused,
            cuda_graphs=options.cuda_graphs,
        )

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
        """Returns the model as `lm_eval` builds it. `batch_size` and `device` may be model arguments, too."""
        check_output_path()
        given = loading_names(arg_dict)
        # After the model is built, lm-eval reads the name for the folder of results from the same dictionary.
        arg_dict["pretrained"] = given["pretrained"] = given.get("pretrained") or BUILT_IN
        own = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if own.get("batch_size") == 1 and runs_lm_eval():  # the command's default; a typed value would be text
            del own["batch_size"]
        return cls(**own | given)

    @cached_property
    def batches(self) -> Batches:
        """The batch size in use, for all requests of a run."""
        most = int(self.settings.loading.get("max_batch_size") or _MAX_AUTO_BATCH)
        return Batches(self.batch_size, min(most, _MAX_AUTO_BATCH_ON_CPU) if self.device.type == "cpu" else most)

    # Text

    @property
    def tokenizer_name(self) -> str:
        """A part of the key of lm-eval's `--cache_requests`: chats depend on the template and its arguments, too."""
        template = repr((self.tokenizer.chat_template, self.chat_template_args))
        return f"{super().tokenizer_name}-{hash_string(template)}"

    @cached_property
    def vocabulary_digest(self) -> str:
        """A digest of the tokenizer's vocabulary and of how it reads and writes texts, computed once for a model."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        rules = {name: getattr(backend, name, None) for name in _OF_TOKENIZER}
        states = {name: rule.__getstate__().decode() for name, rule in rules.items() if rule is not None}
        return digest_of_settings({"tokens": self.tokenizer.get_vocab(), **states})

    @cached_property
    def max_length(self) -> int:
        """The number of tokens that fit on a canvas."""
        return int(self._max_length or self._context_length)

    @cached_property
    def prefix_token_id(self) -> int:
        """The token in front of a text without context; [CLS] for an encoder."""
        found = super().prefix_token_id
        return self.tokenizer.cls_token_id if found is None else found

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Returns the token ids of a text that goes on: without a closing token such as [SEP].

        The string of the mask token is encoded as plain text.
        """
        encode = lambda piece, first: HFLM.tok_encode(self, piece, add_special_tokens if first else False)  # noqa: E731
        ids = encode_without_masks(self.tokenizer, string, self.mask_token_id, encode)
        closed = self._closing_ids and ids[-len(self._closing_ids) :] == self._closing_ids
        return ids[: -len(self._closing_ids)] if closed else ids
