"""Guests: generating functions that are not part of this package, called as their authors call them.

    options = DecodingOptions(sampler="generate.py:generate", n_masks=64, steps=32)
    takes = signature_of(options)
    ids = takes.call(takes.network(denoiser), prompts, mask, takes.arguments(options, 64, 64))

A function gets the network and the prompts [B, L], and values for its own parameters: the mask token, ends of text, an
attention mask, the length, and those of our options that it takes, under any name that scripts use for them.
"""

import inspect
import random
import sys
import typing
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mdlm_lm_eval.declared import declarations, defaults_of
from mdlm_lm_eval.loader import Foreign, load_foreign
from mdlm_lm_eval.options import DecodingOptions, OptionError, shown

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.model.denoiser import Denoiser

# The authors' names for parameters that are filled in, and for our options beside the declared ones.
MASKS, _PAD = ("mask_id", "mask_token_id"), ("pad_token_id", "pad_id")
_END, _ENDS = ("eos_id", "eos_token_id"), ("eos_ids", "eos_token_ids", "stop_ids", "stopping_criteria_idx")
_PROMPTS = ("prompt", "input_ids", "inputs", "prompts", "prompt_ids")
_MORE_NAMES = {"n_masks": ("gen_len", "max_gen_length"), "steps_per_block": ("denoising_steps", "max_denoising_steps")}
WORDS = {"remasking": {"confidence": "low_confidence"}, "alg": {"confidence": "maskgit_plus", "margin": "topk_margin"}}
# Options that work with any guest: they are passed on in a special way, or applied to its answers.
_OF_ANY = {"sampler", "sampler_args", "n_masks", "mask_ratio", "max_gen_toks", "steps", "steps_per_block", "seed"}
_OF_ANY |= {"block_length", "escape_until", "unfinished_thinking"}


class GuestError(Exception):
    """A guest's answer that cannot be used; `index` is that of the canvas."""

    def __init__(self, index: int, sentence: str) -> None:
        super().__init__(sentence)
        self.index = index


class Network:
    """The model as authors call it: without a cache unless they ask for one, and with SDAR's masks for each row.

    aligned: whether outputs are moved so that each predicts its own token, if the model's predict the next one.
    """

    def __init__(self, denoiser: "Denoiser", *, aligned: bool) -> None:
        self._of_us = denoiser.model, denoiser.without_cache, aligned and denoiser.shift

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_of_us"][0], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model, defaults, shifts = self._of_us
        args = tuple(None if isinstance(each, str) else each for each in args)  # Dream's "full" is no mask
        stored: Any = kwargs.get("past_key_values", kwargs.get("cache"))  # its name before and since transformers 5.24
        mask: Any = kwargs.get("attention_mask")
        if getattr(mask, "ndim", 0) == 3:
            kwargs["attention_mask"] = mask[:, None].bool()
        is_kept = kwargs.pop("store_kv", True)  # SDAR's, whose cache is one of transformers
        before = 0 if is_kept else stored.get_seq_length()
        output = model(*args, **{**defaults, **kwargs})
        if before:
            stored.crop(before - stored.get_seq_length())
        elif not is_kept:
            stored.layers.clear()
        if shifts:
            output.logits = output.logits.roll(1, 1)
            output.logits[:, 0] = output.logits[:, 1]
        return output


class Signature:
    """The parameters of a guest's function.

    names: their names; with `**kwargs`, also the fields of its generation config and the string constants of its code.
    prompts: the name of the parameter for prompts.
    config: the class of its generation config if that is the authors' own, else None.
    """

    def __init__(self, named: str, foreign: Foreign) -> None:
        self.named, self.foreign = named, foreign
        self.config: Any = None
        plain = inspect.unwrap(foreign.thing)
        self.parameters = inspect.signature(plain).parameters
        kinds = {each.kind for each in self.parameters.values()}
        self.names = {
            name for name, each in self.parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        }
        if inspect.Parameter.VAR_KEYWORD in kinds:
            words = getattr(getattr(plain, "__code__", None), "co_consts", ())
            self.names |= {word for word in words if isinstance(word, str) and word.isidentifier()}
            config = _config_of(plain) if "generation_config" in self.parameters else None
            self.names |= set() if config is None else vars(config()).keys()
            self.config = None if config is None or config.__module__.startswith("transformers.") else config
        of_model, *others = self.parameters
        self.prompts = next((name for name in _PROMPTS if name in others), "".join(others[:1]))
        self.names = {name for name in self.names - {of_model, self.prompts} if not name.startswith("_")}

    def own_name(self, option: str) -> str | None:
        """The name of the parameter for one of our options; None if it has none."""
        each = declarations(DecodingOptions)[option]
        names = (option, each.llada, each.dream, *each.also.split(), *_MORE_NAMES.get(option, ()))
        return next((name for name in names if name in self.names), None)

    def own_arguments(self, options: DecodingOptions) -> dict[str, Any]:
        """The arguments in `sampler_args`. Raises OptionError for one that is no parameter."""
        found = {}
        for word in filter(None, (options.sampler_args or "").split(";")):
            name, _, value = word.partition("=")
            if name.strip() not in self.names:
                raise OptionError(
                    f"sampler_args={options.sampler_args}: {self.named} has no parameter {name.strip()}; its own are "
                    f"{', '.join(sorted(self.names))}"
                )
            found[name.strip()] = _value(value.strip())
        return found

    def check(self, options: DecodingOptions) -> None:
        """Raises OptionError for an option that is set, but that the function does not take."""
        defaults = defaults_of(DecodingOptions)
        self.own_arguments(options)
        values = options.as_dict()
        for name in sorted(options.given & values.keys() - _OF_ANY):
            value = values[name]
            is_set = value if name == "early_exit" else value != defaults.get(name)
            if is_set and self.own_name(name) is None:
                raise OptionError(
                    f"{name}={shown(value)} does not work with sampler={self.named}, which takes "
                    f"{', '.join(sorted(self.names))}"
                )

    def block(self, n_tokens: int, options: DecodingOptions) -> int:
        """The length of its blocks: the user's, or its own default, which is at most `n_tokens`."""
        own = self.parameters.get(self.own_name("block_length") or "")
        default = None if own is None else own.default
        return options.block_length or min(default if isinstance(default, int) else n_tokens, n_tokens)

    def length(self, n_tokens: int, options: DecodingOptions) -> int:
        """The number of tokens that it is asked for: `n_tokens`, in whole blocks."""
        block = self.block(n_tokens, options) if self.own_name("block_length") else 1
        return -(-n_tokens // block) * block

    def arguments(self, options: DecodingOptions, n_tokens: int, n_returned: int) -> dict[str, Any]:
        """Its arguments from our options and `sampler_args`. Without `steps`, one step for each returned token."""
        length, block = self.length(n_tokens, options), self.block(n_tokens, options)
        n_blocks = -(-length // block)
        given: dict[str, Any] = {"n_masks": length, "steps": length, "block_length": block}
        if isinstance(options.steps, int):
            given["steps"] = options.steps
        elif options.steps_per_block is not None:
            given |= {"steps_per_block": options.steps_per_block, "steps": options.steps_per_block * n_blocks}
        elif not options.is_parallel:
            given["steps"] = -(-n_returned * length // (n_tokens * n_blocks)) * n_blocks
        values = options.as_dict()
        given |= {name: values[name] for name in options.given & values.keys() - _OF_ANY}
        found = {own: value for name, value in given.items() if (own := self.own_name(name)) and value is not None}
        found |= {name: words.get(found[name], found[name]) for name, words in WORDS.items() if name in found}
        return found | self.own_arguments(options)

    def filled_in(self, denoiser: "Denoiser", ends: list[int]) -> dict[str, Any]:
        """The ids of special tokens, by all names that authors have for them."""
        config_end = getattr(denoiser.model.config, "eos_token_id", None)
        end = config_end if config_end in ends else next(iter(ends), None)
        filled: dict[str, Any] = dict.fromkeys(MASKS, denoiser.mask_token_id) | dict.fromkeys(_ENDS, ends)
        filled |= dict.fromkeys(_PAD, denoiser.pad_token_id)
        return filled | dict.fromkeys(_END, ends if "generation_config" in self.parameters else end)

    def network(self, denoiser: "Denoiser") -> Any:
        """What the function takes as its network. Raises OptionError for a method of a network that is not loaded."""
        from torch import nn

        owner = self.foreign.owner
        if owner is None:
            return Network(denoiser, aligned=getattr(self.foreign.thing, "aligned", False))
        if isinstance(denoiser.model, owner):
            return denoiser.model
        if issubclass(owner, nn.Module):
            raise OptionError(f"sampler={self.named} is a method of a network, which modeling=FILE.py:CLASS loads")
        # Methods without a network, as Dream's, are put before ours.
        return type(owner.__name__, (Network, owner), {})(denoiser, aligned=False)

    def call(self, network: Any, ids: "Tensor", mask: "Tensor", arguments: dict[str, Any]) -> Any:
        """The tokens that it returns for prompts [B, L], without other results.

        A generation config of the authors' own class is made here, as transformers 5 would not make it.
        """
        if self.config is not None:
            fields = vars(self.config()).keys()
            config = self.config(**{name: value for name, value in arguments.items() if name in fields})
            arguments = {name: value for name, value in arguments.items() if name not in fields}
            arguments["generation_config"] = config
        takes_a_dictionary = self.foreign.thing.__name__ == "block_diffusion_generate"  # SDAR's
        prompts = {"input_ids": ids, "attention_mask": mask} if takes_a_dictionary else ids
        output = self.foreign.thing(network, **{self.prompts: prompts}, **arguments)
        output = getattr(output, "sequences", output)
        return output[0] if isinstance(output, tuple) else output


def signature_of(options: DecodingOptions) -> Signature:
    """The signature of the guest that options name. Raises OptionError if it cannot be loaded."""
    assert options.guest is not None
    return Signature(options.guest, load_foreign("sampler", options.guest))


def asked_tokens(options: DecodingOptions, n_slots: int, n_returned: int) -> int:
    """The number of tokens that a request asks a guest for."""
    if options.mask_ratio is not None:
        return n_slots
    return max(n_returned, options.n_masks) if isinstance(options.n_masks, int) else n_returned


def _config_of(function: Any) -> Any:
    """The class of a function's `generation_config`, None if it has none.

    transformers 5 calls its `validate` with arguments that older classes, such as Dream's, do not take.
    """
    annotation = typing.get_type_hints(function).get("generation_config")
    config = next((each for each in (*typing.get_args(annotation), annotation) if each is not type(None)), None)
    if config is None:
        return None
    validate = config.validate
    is_own = config.__module__.startswith("transformers.")
    if not is_own and not {"user_set_attributes", "kwargs"} & inspect.signature(validate).parameters.keys():
        config.validate = lambda self, is_init=False, **_: validate(self, is_init)
    return config


@contextmanager
def forked_random(seed: int, device: Any) -> Iterator[None]:
    """Seeds all random numbers of the process, and restores their state afterwards."""
    import numpy as np
    import torch

    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def _value(text: str) -> Any:
    """The value of a Python literal; any other text is a string."""
    words = {"true": "True", "false": "False", "none": "None"}
    try:
        return literal_eval(words.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text


class Snapshot:
    """The state of a model and of the code that runs it, for comparison after a guest.

    code: functions and classes of the model's classes, and of the modules that define these.
    own: its modules with their hooks, methods and settings, and its weights with the number of changes in place.
    """

    def __init__(self, model: Any) -> None:
        from torch.nn import functional

        self.model, self.own = model, _own_state(model)
        classes = {each for module in model.modules() for each in type(module).__mro__[:-1]}
        # The modules of a guest's own network are not there: the loader removes them.
        modules = {sys.modules[each.__module__] for each in classes if each.__module__ in sys.modules}
        self.owners = [*classes, *modules, functional]
        self.code = [(owner, _callables(owner)) for owner in self.owners]

    def restore(self) -> bool:
        """Restores the code; returns whether the model itself is unchanged."""
        for owner, before in self.code:
            now = _callables(owner)
            for name in before.keys() | now.keys():
                if name not in before and isinstance(owner, type):
                    delattr(owner, name)  # which hid the method of a base class
                elif name in before and now.get(name) is not before[name]:
                    setattr(owner, name, before[name])
        return _own_state(self.model) == self.own


def _callables(owner: Any) -> dict[str, Any]:
    return {name: each for name, each in vars(owner).items() if callable(each) and not name.startswith("_abc")}


def _own_state(model: Any) -> list[Any]:
    plain = (bool, int, float, str, type(None))
    found: list[Any] = []
    for name, module in model.named_modules():
        values = vars(module)
        kept = {key: each for key, each in values.items() if isinstance(each, plain)}
        named = {key: id(each) for key, each in values.items() if callable(each)}
        hooks = {key: [*map(id, each.values())] for key, each in values.items() if key.endswith("_hooks") and each}
        found.append((name, id(module), type(module), kept, named, hooks))
    tensors = (*model.named_parameters(), *model.named_buffers())
    return [*found, *((name, id(each), each._version) for name, each in tensors)]
