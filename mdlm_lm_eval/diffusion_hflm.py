"""HFLM with masked diffusion checkpoints: loads them bidirectional and shares the work among all processes."""

import json
import logging
from functools import cached_property
from typing import Any, Literal

import torch
from accelerate import PartialState
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils_hf import get_dtype
from lm_eval.utils import hash_string, simple_parse_args_string
from transformers import PretrainedConfig, PreTrainedModel

from mdlm_lm_eval import families
from mdlm_lm_eval.default_model import BUILT_IN, model_path
from mdlm_lm_eval.families.loading.errors import refusing
from mdlm_lm_eval.fitting import fit, prefix_token_id
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import share_cpu_among_processes, usable_device
from mdlm_lm_eval.model.text import closing_ids, encode_without_masks
from mdlm_lm_eval.model_arguments import (
    KNOWN_NAMES,
    LOADING_NAMES,
    OWN_NAMES,
    ModelArguments,
    bitsandbytes_arguments,
    split_model_arguments,
)
from mdlm_lm_eval.options import OptionError, unknown_option
from mdlm_lm_eval.request_cache import RequestCache
from mdlm_lm_eval.results.record import RunRecord
from mdlm_lm_eval.values import must_be, shown

logger = logging.getLogger(__name__)

# Of HFLM's arguments: they belong to methods that are others here.
_WITHOUT_EFFECT = frozenset({"logits_cache", "softmax_dtype", "truncation"})


class DiffusionHFLM(HFLM):
    """What `MDLM` needs before its first request: options, tokenizer, denoiser, rank and world size.

    `pretrained` is a hub id, a folder, a model object, or the name of a model that comes with the package. Raises
    OptionError, before anything is loaded, for a model argument that nobody knows or whose value is not allowed.
    """

    _model: Any  # set by HFLM
    peft: str | None
    chat_template_args: dict[str, Any]

    def __init__(self, pretrained: str | PreTrainedModel | None = BUILT_IN, **arguments: Any) -> None:
        # lm-eval seeds torch with --seed right before it builds the model.
        split = split_model_arguments(arguments, default_seed=torch.initial_seed() % 2**63)
        self._take(split)
        for name in sorted(_WITHOUT_EFFECT & split.loading.keys()):
            logger.warning("%s has no effect with --model mdlm", name)
        self.compiled = split.compile
        self.subfolder = split.loading.get("subfolder") or ""
        self.start_record()
        loading = split.loading | {"device": usable_device(split.loading.get("device"))}
        # HFLM sets it after loading; texts are encoded with it before.
        self.custom_prefix_token_id = loading.get("prefix_token_id")
        self._quantization_config = loading.pop("quantization_config", None)  # HFLM passes the config's own beside it
        share_cpu_among_processes()
        if not isinstance(pretrained, (str, torch.nn.Module)):  # lm-eval reads JSON, and the word None
            what = "a text (a hub id, a folder or built-in) or a model object"
            raise must_be("pretrained", what, "none" if pretrained is None else pretrained)
        if isinstance(pretrained, str):
            pretrained = model_path(pretrained)
        else:
            _refuse_loading_arguments(split.loading)
        super().__init__(pretrained, **loading)
        if not isinstance(pretrained, str):
            families.check_config(self.config)
            self._check_before_loading()
        elif split.loading.get("tp_plan") is None:
            # HFLM takes the local process index, and only where there are several GPUs.
            processes = PartialState()
            self._rank, self._world_size = processes.process_index, processes.num_processes
        self._given_template_args = self.chat_template_args
        # Now, as somebody may train into these folders while the model is evaluated.
        self.checkpoint = pretrained if isinstance(pretrained, str) else self.model.name_or_path
        self.weights = families.files_digest(self.checkpoint, self.subfolder) if self.checkpoint else None
        self.adapter_weights = self.peft and families.files_digest(self.peft)
        if self.compiled:
            families.compile_layers(self.model)
        self.denoiser = Denoiser(
            self.model,
            mask_token_id=self.mask_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
            shift=self._shift_logits,
            attention=self._attention,
            edits=families.family_of(self.config).edits,
        )
        # Encoders have no generation config.
        generation_eos = self.model.generation_config.eos_token_id if self.model.can_generate() else None
        self.eos_ids = families.eos_ids(self.tokenizer, generation_eos)
        self.end_of_turn_ids = families.end_of_turn_ids(self.tokenizer)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "DiffusionHFLM":
        """What `lm_eval` builds the model by; `batch_size` and `device` may stand among the model arguments too."""
        given = {name: value for name, value in (additional_config or {}).items() if value is not None} | arg_dict
        if isinstance(given.get("pretrained"), (int, float)):
            given["pretrained"] = str(given["pretrained"])  # lm-eval reads a folder named 5 as a number
        if "self" in given:  # no argument's name, but Python's own
            raise unknown_option("model argument", "self", given["self"], KNOWN_NAMES, listed=OWN_NAMES)
        return cls(**given)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> "DiffusionHFLM":
        """The same of arguments in one string."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # Other settings over the same weights, for sweeps

    def use_options(self, arguments: ModelArguments) -> None:
        """Decodes and scores with other options from now on, and forgets what was recorded so far."""
        self._take(arguments)
        self._check_before_loading()
        self.denoiser.attention = self._attention
        self.start_record()
        self.denoiser.forward_passes = self.denoiser.canvases = 0

    def start_record(self) -> None:
        """Forgets what was recorded so far, and the request cache that it was kept in."""
        self.request_cache = RequestCache(None)
        self.record = RunRecord()
        self.records = [self.record]  # of all processes
        self.is_told = False  # whether results hold what was recorded

    def _take(self, arguments: ModelArguments) -> None:
        self._arguments = arguments
        self.decoding, self.likelihood, self.explicit = arguments.decoding, arguments.likelihood, arguments.explicit
        self.preset, self.from_family = arguments.preset, arguments.from_family
        self.cache_audit = arguments.cache_audit

    def use_adapter(self, peft: str | None) -> None:
        """Puts another adapter, or none, over the base model's weights. Raises OptionError where it does not fit."""
        if peft == self.peft:
            return
        base = self._model if self.peft is None else self._model.unload()
        self._model = base if peft is None else families.load_adapter(base, peft, revision=self.revision)
        self._model.eval()
        self.peft = peft
        self.adapter_weights = peft and families.files_digest(peft)
        self.denoiser.model = self._model

    # Loading, called by HFLM.__init__ in this order

    def _get_config(
        self,
        pretrained: str,
        *,
        revision: str = "main",
        trust_remote_code: bool = False,
        gguf_file: str | None = None,
        subfolder: str = "",
    ) -> None:
        self._config = families.load_config(
            pretrained, revision=revision, subfolder=subfolder, trust_remote_code=trust_remote_code
        )

    def _get_backend(
        self,
        config: PretrainedConfig,
        backend: Literal["default", "causal", "seq2seq"] = "default",
        trust_remote_code: bool | None = False,
    ) -> None:
        self.backend = "causal"  # in lm-eval's sense: context and continuation are one sequence

    def _create_tokenizer(
        self,
        pretrained: str | PreTrainedModel,
        tokenizer: Any,
        revision: str | None = "main",
        trust_remote_code: bool | None = False,
        use_fast_tokenizer: bool | None = True,
        gguf_file: str | None = None,
        add_bos_token: bool | None = None,
        subfolder: str | None = "",
    ) -> None:
        if tokenizer is not None and not isinstance(tokenizer, str):
            self.tokenizer = tokenizer
            return
        source = tokenizer or (pretrained if isinstance(pretrained, str) else pretrained.name_or_path)
        if not source:
            raise OptionError("tokenizer is not set; a model object that names no checkpoint needs it")
        self.tokenizer = families.load_tokenizer(
            source,
            config=self.config,
            revision=revision,
            subfolder=subfolder,
            trust_remote_code=trust_remote_code,
            use_fast_tokenizer=use_fast_tokenizer,
            add_bos_token=add_bos_token,
        )

    def _create_model(
        self,
        pretrained: str,
        revision: str | None = "main",
        dtype: str | torch.dtype | None = "auto",
        trust_remote_code: bool | None = False,
        parallelize: bool | None = False,
        gpus: int | None = None,
        max_memory_per_gpu: int | str | None = None,
        max_cpu_memory: int | str | None = None,
        offload_folder: str | None = "./offload",
        tp_plan: str | dict | None = None,
        peft: str | None = None,
        delta: str | None = None,
        autogptq: bool | str | None = False,
        gptqmodel: bool | None = False,
        gguf_file: str | None = None,
        quantization_config: Any = None,
        subfolder: str = "",
        **kwargs: Any,
    ) -> None:
        self._check_before_loading()
        loading = bitsandbytes_arguments(kwargs)
        if self._quantization_config is not None:
            loading["quantization_config"] = self._quantization_config
        elif quantization_config is not None:
            loading.setdefault("quantization_config", quantization_config)
        if tp_plan is not None:
            loading["tp_plan"] = tp_plan
        else:
            placement = self._get_accelerate_args(
                parallelize=parallelize,
                device_map=loading.get("device_map"),
                max_memory_per_gpu=max_memory_per_gpu,
                max_cpu_memory=max_cpu_memory,
                offload_folder=offload_folder,
                gpus=gpus,
            )
            loading |= {name: value for name, value in placement.items() if value is not None}
        self._model = families.load_model(
            pretrained,
            self.config,
            revision=revision,
            subfolder=subfolder,
            dtype=get_dtype(dtype),
            trust_remote_code=trust_remote_code,
            **loading,
        )
        if peft:
            self._model = families.load_adapter(self._model, peft, revision=revision)

    def _check_before_loading(self) -> None:
        """What config and tokenizer decide. Raises OptionError."""
        fitted = fit(self._arguments, self.config, self.tokenizer)
        self._take(fitted.arguments)
        self.mask_token_id, self._shift_logits = fitted.mask_token_id, fitted.shift_logits
        self._attention, self._canvas_length = fitted.attention, fitted.max_length

    @property
    def max_length(self) -> int:
        """Tokens that fit on a canvas."""
        return self._canvas_length

    @property
    def prefix_token_id(self) -> int:
        """Stands before a text that has no context. Raises OptionError where there is none."""
        return prefix_token_id(self.tokenizer, self.custom_prefix_token_id)

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a text that goes on: without a closing token, and the mask token's own string stays text."""

        def encode(piece: str, first: bool) -> list[int]:
            return super(DiffusionHFLM, self).tok_encode(piece, add_special_tokens if first else False)

        ids = encode_without_masks(self.tokenizer, string, self.mask_token_id, encode)
        if self._closing_ids and ids[-len(self._closing_ids) :] == self._closing_ids:
            ids = ids[: -len(self._closing_ids)]
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's template, or the one of a name, which prompts have from now on.

        Raises OptionError, before prompts are built, without one.
        """
        named = chat_template if isinstance(chat_template, str) else None
        if named is not None and not isinstance(self.tokenizer.chat_template, dict):
            has = "no template" if self.tokenizer.chat_template is None else "one template, without a name"
            raise OptionError(
                f"--apply_chat_template {shown(named)}: this model's tokenizer has {has}; leave the name out"
            )
        with refusing("--apply_chat_template cannot be used with this model's tokenizer"):
            found: str | None = super().chat_template(chat_template)
        # Without its name lm-eval shows that template, and builds prompts with the one named default.
        self.chat_template_args = self._given_template_args | ({} if named is None else {"chat_template": named})
        if chat_template:
            self.apply_chat_template([{"role": "user", "content": "a"}])
        return found

    @property
    def tokenizer_name(self) -> str:
        """What `--cache_requests` knows built prompts by: the tokenizer, and how its chat template is used."""
        name: str = super().tokenizer_name
        how = json.dumps(self.chat_template_args, sort_keys=True, default=str)
        return f"{name}-{hash_string(how)}" if self.chat_template_args else name

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text. Raises OptionError where the template fails."""
        with refusing("--apply_chat_template cannot be used with this model's tokenizer"):
            text: str = super().apply_chat_template(chat_history, add_generation_prompt)
        return text

    @cached_property
    def _closing_ids(self) -> list[int]:
        return closing_ids(self.tokenizer)

    def barrier(self) -> None:
        """Waits for all processes and shares their records.

        lm-eval calls it in every process after each kind of request; a process whose requests all came from the request
        cache runs none of the methods above, so no exchange can happen there.
        """
        if self.world_size > 1:
            records: list[RunRecord | None] = [None] * self.world_size
            torch.distributed.all_gather_object(records, self.record)
            self.records = [record for record in records if record is not None]


def _refuse_loading_arguments(loading: dict[str, Any]) -> None:
    for name in sorted(LOADING_NAMES & loading.keys()):
        if loading[name] not in (None, False):
            raise OptionError(
                f"{name}={loading[name]!r} does not work with a model object, which is loaded already; give a folder "
                "or hub id as pretrained, or an object that was loaded so"
            )
