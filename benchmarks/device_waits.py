# ruff: noqa: C408, E501, B023, E731, SIM102, SIM905
"""Counts, on a CPU, what each decoding mode would make a CUDA device wait for.

    OMP_NUM_THREADS=1 python benchmarks/device_waits.py            # all tables
    ... device_waits.py --only cache         # rows whose name holds this
    ... device_waits.py --where dual         # also: which source lines (of mdlm_lm_eval, transformers) cause each event
    ... device_waits.py --plans              # attention plans of an evaluation whose rows leave as they finish
    ... device_waits.py --host               # host time of a pass outside the model

How: every tensor "on the device" is a wrapper (`OnDevice`) that says device=cuda:0 and computes with a CPU tensor. A
TorchFunctionMode turns factories and `.to("cuda")` into such wrappers; __torch_dispatch__ sees every ATen operation.

D2H   the host waits for the device: .item()/bool()/int(), .tolist(), .cpu(), nonzero, boolean index, masked_select, ...
H2D   blocking copies host -> device: `.to(device)` without pinned memory + non_blocking, torch.tensor(..., device=).
      PyTorch runs them as memcpy_and_sync (ATen/native/cuda/Copy.cu): each one waits for the stream too.
H2Da  copies that are not waited for (pinned + non_blocking, CPU index tensors).
D2Ha  the same from the device: the host reads the copy a pass later.
out   kernels launched outside the model's forward, in the pass; in: inside it.
plans distinct attention problems (sizes and strides of Q, K, mask): on Hopper, torch>=2.10 takes cuDNN attention first,
      which builds a plan of tens of ms for each of them.
"""

import argparse
import ast
import collections
import contextlib
import time
import traceback
from random import Random
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

FAKE = torch.device("cuda:0")
VIEWS = set(
    """
    view _unsafe_view reshape _reshape_alias expand slice select transpose permute t unsqueeze squeeze
    unbind split split_with_sizes chunk detach alias as_strided lift_fresh view_as unfold diagonal narrow
    empty empty_like empty_strided new_empty new_empty_strided _fused_sdp_choice sym_size sym_stride
    is_same_size _to_copy_noop
    """.split()
)
WAITS = set(
    """
    _local_scalar_dense is_nonzero nonzero equal masked_select unique _unique2 unique_dim
    unique_consecutive argwhere bincount
    """.split()
)


class Counter:
    def __init__(self):
        self.clear()
        self.zone = "out"
        self.quiet = 0

    def clear(self):
        self.n = collections.Counter()
        self.bytes = collections.Counter()
        self.where = collections.Counter()
        self.ops = collections.Counter()
        self.plans = set()
        self.masks = collections.Counter()

    def add(self, kind, what, nbytes=0):
        if self.quiet:
            return
        self.n[kind, self.zone] += 1
        self.bytes[kind] += nbytes
        if kind != "kernel":
            self.where[kind, what, self.zone, place() if WHERE else ""] += 1
        else:
            self.ops[what, self.zone] += 1


C = Counter()
PINNED: set[int] = set()


def place():
    for frame in reversed(traceback.extract_stack()):
        for part in ("mdlm_lm_eval/", "mdlm_finetune/", "transformers/", "peft/"):
            if part in frame.filename and "device_waits" not in frame.filename:
                return f"{part}{frame.filename.rsplit(part, 1)[1]}:{frame.lineno}"
    return "?"


class OnDevice(torch.Tensor):
    @staticmethod
    def __new__(cls, elem, requires_grad=False):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device="cpu",
            requires_grad=requires_grad,
        )
        made.elem = elem
        return made

    def __repr__(self):
        return f"OnDevice({self.elem})"

    @property
    def device(self):
        return FAKE

    @property
    def is_cuda(self):
        return True

    @property
    def is_cpu(self):
        return False

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = op.overloadpacket.__name__
        flat = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if name == "copy_" and not isinstance(args[0], OnDevice):
            is_async = (kwargs.get("non_blocking") or args[2:3] == (True,)) and id(args[0]) in PINNED
            C.add("D2Ha" if is_async else "D2H", "copy_(to host)", args[0].nbytes)
            return args[0].copy_(args[1].elem)
        for x in flat:
            if not isinstance(x, OnDevice) and x.dim() > 0:  # CPU index tensors, or a bug
                C.add("H2Da", f"{name}(cpu tensor)", x.nbytes)
        if name in WAITS:
            C.add("D2H", name)
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        ):
            values = args[2] if name.startswith(("index_put", "_index_put")) else None
            if not (values is not None and values.numel() == 1 and len(args[1]) == 1):  # that one is masked_fill
                C.add("D2H", f"{name}(bool)")
        elif name == "repeat_interleave" and flat:
            C.add("D2H", name)
        elif name not in VIEWS:
            C.add("kernel", name)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu" and name == "_to_copy":
            pass
        kwargs = {k: ("cpu" if k == "device" and v is not None else v) for k, v in kwargs.items() if k != "pin_memory"}
        unwrap = lambda x: x.elem if isinstance(x, OnDevice) else x
        if name == "histc":
            args = (args[0].elem.float(), *args[1:])
        out = op(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
        if (name.endswith("_") and not name.startswith("_")) or name in ("_index_put_impl_",):
            if isinstance(args[0], OnDevice) and out is args[0].elem:
                return args[0]
        return tree_map(lambda x: OnDevice(x) if isinstance(x, torch.Tensor) else x, out)


class NoEvent:
    """What is recorded after a copy to the host; waiting for it a pass later costs nothing."""

    def __init__(self, device):
        pass

    def synchronize(self):
        pass


def is_fake(device):
    return device is not None and not isinstance(device, int) and torch.device(device).type == "cuda"


def put(x, non_blocking=False, pinned=False):
    if isinstance(x, OnDevice):
        return x
    C.add("H2Da" if non_blocking and pinned else "H2D", "to(device)", x.nbytes)
    return OnDevice(x.detach().clone())


class Interceptor(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.pinned = PINNED
        self._keep = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.nn.functional.scaled_dot_product_attention:
            q, k, mask = args[0], args[1], kwargs.get("attn_mask")
            key = (
                tuple(q.shape),
                tuple(k.shape),
                tuple(k.stride()),
                kwargs.get("is_causal"),
                None if mask is None else (tuple(mask.shape), tuple(mask.stride()), str(mask.dtype)),
            )
            C.plans.add(key)
            what = (
                "none"
                if mask is None
                else f"{str(mask.dtype)[6:]}[{'B' if mask.shape[0] > 1 else 1},{mask.shape[1]},{'Q' if mask.shape[2] > 1 else 1},K]"
            )
            C.masks[what] += 1
        if func in (torch.Tensor.to, torch.Tensor.cuda):
            device = kwargs.get("device", args[1] if len(args) > 1 else None)
            if isinstance(device, torch.Tensor):
                device = device.device
            if isinstance(device, (str, torch.device)):
                if is_fake(device):
                    x = args[0]
                    if not isinstance(x, OnDevice):
                        return put(x, kwargs.get("non_blocking", False), id(x) in self.pinned)
                    rest = list(args[2:])
                    kwargs.pop("device", None)
                    return x if not rest and not kwargs.get("dtype") else func(x, *rest, **kwargs)
                if isinstance(args[0], OnDevice):
                    C.add("D2H", "to(cpu)", args[0].nbytes)
                    return args[0].elem.clone()
        if func in (torch.Tensor.cpu, torch.Tensor.numpy) and isinstance(args[0], OnDevice):
            C.add("D2H", func.__name__, args[0].nbytes)
            return func(args[0].elem)
        if func is torch.Tensor.tolist and isinstance(args[0], OnDevice):
            C.add("D2H", "tolist", args[0].nbytes)
            return args[0].elem.tolist()
        if func is torch.tensor and is_fake(kwargs.get("device")):
            kwargs.pop("device")
            return put(func(*args, **kwargs))
        pin = kwargs.pop("pin_memory", False)
        if is_fake(kwargs.get("device")):
            kwargs["device"] = "cpu"
            out = func(*args, **kwargs)
            if not isinstance(out, OnDevice):
                C.add("kernel", getattr(func, "__name__", str(func)))
                out = OnDevice(out)
            return out
        out = func(*args, **kwargs)
        if pin:
            self.pinned.add(id(out))
            self._keep.append(out)
        return out


def put_model(model):
    """Parameters and buffers onto the fake device, uncounted."""
    C.quiet += 1
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[name] = torch.nn.Parameter(OnDevice(p.data), requires_grad=p.requires_grad)
        for name, b in list(module._buffers.items()):
            if b is not None:
                module._buffers[name] = OnDevice(b)
    C.quiet -= 1

    def enter(*_):
        C.zone = "in"

    def leave(*_):
        C.zone = "out"

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave, always_call=True)
    return model


# Models


def dense(layers=4, kv=4, vocabulary=512):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=kv,
        max_position_embeddings=2048,
        is_causal=False,
        initializer_range=0.05,
    )
    return LlamaForCausalLM(config).to(DTYPE).eval()


class AtOnce(torch.nn.Module):
    """A model that answers at once, with the same random logits: what is left is the host's work alone."""

    def __init__(self, vocabulary, positions=8192):
        super().__init__()
        self.config = dense(layers=1, vocabulary=vocabulary).config
        self.config.num_hidden_layers = 0  # nothing to remember
        self.table = torch.nn.Parameter(torch.randn(positions, vocabulary), requires_grad=False)
        self.head = torch.nn.Identity()

    def get_output_embeddings(self):
        return self.head

    def can_generate(self):
        return True

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.head(self.table[: input_ids.numel()].view(*input_ids.shape, -1)))


def moe(layers=2, experts_implementation="grouped_mm"):
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    torch.manual_seed(0)
    config = Glm4MoeConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        max_position_embeddings=2048,
        is_causal=False,
        use_qk_norm=True,
    )
    config._experts_implementation = experts_implementation
    return Glm4MoeForCausalLM(config).to(DTYPE).eval()


def settings(text):
    """Options from "name=value name=value"."""
    pairs = (each.split("=") for each in text.split())
    return {name: value if value.isalpha() else ast.literal_eval(value) for name, value in pairs}


MASK, PAD = 2, 0
DTYPE = torch.bfloat16  # as on a GPU: normalisation and softmax then cast


def prompts(n, low=40, high=60, seed=0):
    rng = Random(seed)
    return [[rng.randrange(3, 500) for _ in range(rng.randint(low, high))] for _ in range(n)]


def denoiser_of(model, **kw):
    from mdlm_lm_eval.model.denoiser import Denoiser

    return Denoiser(put_model(model), mask_token_id=MASK, pad_token_id=PAD, **kw)


@contextlib.contextmanager
def watched():
    from mdlm_lm_eval.decoding import engine

    C.clear()
    engine._event = NoEvent
    with Interceptor():
        yield


def report(name, passes, layers, rows, table, extra=""):
    n = C.n
    every = lambda kind, zone=None: sum(v for (k, z), v in n.items() if k == kind and zone in (None, z))
    p = max(1, passes)
    table.append(
        [
            name,
            rows,
            passes,
            f"{every('D2H') / p:.2f}",
            f"{every('H2D') / p:.2f}",
            f"{every('H2Da') / p:.2f}",
            f"{(every('D2H') + every('H2D')) / p:.1f}",
            f"{every('kernel', 'out') / p:.0f}",
            f"{every('kernel', 'in') / p:.0f}",
            f"{every('kernel', 'in') / p / layers:.1f}",
            len(C.plans),
            " ".join(f"{k}" for k in C.masks),
            extra,
        ]
    )
    print("| " + " | ".join(map(str, table[-1])) + " |", flush=True)
    if WHERE and WHERE in name:
        for (kind, what, zone, where), count in sorted(C.where.items(), key=lambda x: -x[1]):
            print(f"      {kind:5} {count / p:6.2f}/pass  {zone:3}  {what:28} {where}")
        print("      kernels outside:", {k[0]: round(v / p, 1) for k, v in C.ops.most_common() if k[1] == "out"})
        print("      kernels inside:", {k[0]: round(v / p, 1) for k, v in C.ops.most_common() if k[1] == "in"})


HEADER = [
    "mode",
    "rows",
    "passes",
    "D2H/pass",
    "H2D/pass",
    "H2Da/pass",
    "waits/pass",
    "kernels out/pass",
    "kernels in/pass",
    "in/layer",
    "attn plans",
    "mask",
    "",
]
WHERE = ""


def decoding_rows(only, table):
    from mdlm_lm_eval.decoding import decode_canvases
    from mdlm_lm_eval.decoding.canvas import attention_in_effect, build_canvas
    from mdlm_lm_eval.model.attention import AttentionPattern
    from mdlm_lm_eval.options import DecodingOptions

    blocks, blocks_of_4 = {"attention": AttentionPattern(16)}, {"attention": AttentionPattern(4)}
    behind = {"attention": AttentionPattern(16, "prompt_end")}
    R = 8
    # Name, the model's facts and heads of keys, options.
    cases = [
        ("one step, 200 masks, 1 token returned", {}, 4, "n_masks=200 steps=1"),
        ("one step, 200 masks, all returned", {}, 4, "n_masks=200 steps=1"),
        ("full attention, 64 steps, equal lengths", {}, 4, "n_masks=64 steps=64"),
        ("full attention, 64 steps, ragged", {}, 4, "n_masks=64 steps=64"),
        ("full attention, 64 steps, temperature 1", {}, 4, "n_masks=64 steps=64 temperature=1.0"),
        ("full attention, 64 steps, cfg 1", {}, 4, "n_masks=64 steps=64 cfg_scale=1.0"),
        ("full attention, threshold 0.9", {}, 4, "n_masks=64 block_length=16 confidence_threshold=0.9"),
        ("full attention, entropy_bound 5", {}, 4, "n_masks=64 block_length=16 entropy_bound=5.0"),
        ("cache=prefix, 1 token a step", {}, 4, "n_masks=64 steps=64 block_length=16 cache=prefix"),
        ("cache=dual, 1 token a step", {}, 4, "n_masks=64 steps=64 block_length=16 cache=dual"),
        ("cache=dual, threshold 0.9", {}, 4, "n_masks=64 block_length=16 cache=dual confidence_threshold=0.9"),
        ("cache=dual, factor 1", {}, 4, "n_masks=64 block_length=16 cache=dual parallel_factor=1.0"),
        ("cache=dual, entropy_bound 5", {}, 4, "n_masks=64 block_length=16 cache=dual entropy_bound=5.0"),
        ("cache=dual, Dream (shift, GQA)", {"shift": True}, 2, "n_masks=64 steps=64 block_length=16 cache=dual"),
        ("blocks of 16 (LLaDA2-like, GQA)", blocks, 2, "n_masks=64 steps_per_block=16 confidence_threshold=0.95"),
        ("blocks of 4 (SDAR b4-like, GQA)", blocks_of_4, 2, "n_masks=64 steps_per_block=4"),
        ("blocks of 16, cache=none", blocks, 2, "n_masks=64 steps_per_block=16 cache=none"),
        (
            "blocks of 16, editing (LLaDA2.1-like)",
            {**blocks, "edits": True},
            2,
            "n_masks=64 confidence_threshold=0.95 editing_threshold=0.9",
        ),
        (
            "blocks of 16, shift (Fast-dLLM v2-like)",
            {**blocks, "shift": True},
            2,
            "n_masks=64 confidence_threshold=0.9 small_block_length=8",
        ),
        ("blocks of 16 from prompt end (A2D-like)", behind, 2, "n_masks=64 steps_per_block=16"),
        ("blocks of 16 from prompt end, shift", {**behind, "shift": True}, 2, "n_masks=64 steps_per_block=16"),
        ("blocks of 16, 1 row", blocks, 2, "n_masks=64 steps_per_block=16"),
    ]
    for name, kw, kv, opts in cases:
        if only not in name:
            continue
        d = denoiser_of(dense(kv=kv), **kw)
        options = DecodingOptions().override(settings(opts))
        lengths = {"high": 40} if "equal" in name else {}
        returned, n_rows = 1 if "1 token returned" in name else None, 1 if "1 row" in name else R
        attention = attention_in_effect(d.attention, options)
        canvases = [
            build_canvas(
                p, options, mask_token_id=MASK, max_length=2048, request_gen_toks=returned, seed=i, attention=attention
            )[0]
            for i, p in enumerate(prompts(n_rows, **lengths))
        ]
        with watched():
            decode_canvases(d, canvases, options, eos_ids=(), end_of_turn_ids=(), is_decided=lambda ids: False)
        report(name, d.forward_passes, 4, n_rows, table)


def likelihood_rows(only, table):
    from mdlm_lm_eval.likelihood import LikelihoodRequest, score
    from mdlm_lm_eval.model.attention import AttentionPattern
    from mdlm_lm_eval.options import LikelihoodOptions

    rng = Random(1)
    cases = {
        "likelihood, 1 token (exact)": ({}, dict(), 1),
        "likelihood mc, 16 tokens, mc_num 32": ({}, dict(mc_num=32), 16),
        "likelihood mc, 16 tokens, check_greedy=false": ({}, dict(mc_num=32, check_greedy=False), 16),
        "likelihood chain, 16 tokens": ({}, dict(likelihood="chain"), 16),
        "likelihood duel, 16 tokens": ({}, dict(likelihood="duel"), 16),
        "likelihood mc, 16 tokens, block diffusion 8": (dict(attention=AttentionPattern(8)), dict(mc_num=32), 16),
        "likelihood duel, 16 tokens, block diffusion 8": (
            dict(attention=AttentionPattern(8)),
            dict(likelihood="duel"),
            16,
        ),
    }
    for name, (kw, opts, n) in cases.items():
        if only not in name:
            continue
        d = denoiser_of(dense(), **kw)
        requests = []
        for context in prompts(16, seed=3):
            requests += [LikelihoodRequest(context, [rng.randrange(3, 500) for _ in range(n)], s) for s in range(4)]
        with watched():
            score(d, requests, LikelihoodOptions().override(opts), batch_size=32, max_length=2048)
        report(name, d.forward_passes, 4, 32, table)


def expert_rows(only, table):
    for implementation in ("grouped_mm", "batched_mm", "eager"):
        name = f"MoE forward, experts={implementation}"
        if only not in name:
            continue
        import transformers.integrations.moe as integration

        integration._can_use_grouped_mm = lambda *_: True
        d = denoiser_of(moe(experts_implementation=implementation))
        with watched():
            ids = torch.tensor(prompts(4, high=40)).to(FAKE)
            d.logits(ids, None, torch.arange(4).to(FAKE))
        report(name, d.forward_passes, 2, 4, table)


# Host time


def host_times():
    """CPU time of a pass outside the model's forward, and how much of it a GPU would still wait for.

    With 512 tokens of vocabulary it contains the kernels' arithmetic over [N, V], which a GPU's host does not do; with
    16 that is next to nothing, and what remains is Python and the dispatch of operations. Behind a model that runs on
    this CPU, too, they find the caches of the CPU full of its numbers; behind one that answers at once they do not.
    """
    from mdlm_lm_eval import DecodingOptions, Denoiser, LikelihoodOptions
    from mdlm_lm_eval.decoding import decode_canvases
    from mdlm_lm_eval.decoding.canvas import build_canvas
    from mdlm_lm_eval.likelihood import LikelihoodRequest, score
    from mdlm_lm_eval.model.attention import AttentionPattern

    global DTYPE
    DTYPE = torch.float32  # matrices this small are slow in bfloat16 on a CPU
    torch.set_num_threads(1)

    def timed(model, run, passes_of):
        """Milliseconds a pass outside the model, the least of five runs, and passes."""
        spent = [0.0, 0.0]

        def enter(*_):
            spent[1] = time.process_time()

        def leave(*_):
            spent[0] += time.process_time() - spent[1]

        a, b = model.register_forward_pre_hook(enter), model.register_forward_hook(leave)
        run()
        times = []
        for _ in range(5):
            spent[0], before, start = 0.0, passes_of(), time.process_time()
            run()
            outside = time.process_time() - start - spent[0]
            n = passes_of() - before
            times.append(outside / n * 1e3)
        a.remove(), b.remove()
        return min(times), n

    print("\n| host time, ms a pass outside the model | 512 tokens of vocabulary | 16 | 16, model at once | passes |")
    print("|---|---|---|---|---|")
    for name, kw, opts, rows in (
        ("cache=dual, block 32, 8 rows", {}, "n_masks=64 steps=64 block_length=32 cache=dual", 8),
        ("cache=dual, block 32, 32 rows", {}, "n_masks=64 steps=64 block_length=32 cache=dual", 32),
        ("blocks of 32, exact, 32 rows", {"attention": AttentionPattern(32)}, "n_masks=64 steps_per_block=32", 32),
        ("blocks of 4, exact, 64 rows", {"attention": AttentionPattern(4)}, "n_masks=64 steps_per_block=4", 64),
        ("full attention, 64 steps, 32 rows", {}, "n_masks=64 steps=64", 32),
    ):
        times = []
        for vocabulary, is_at_once in ((512, False), (16, False), (16, True)):
            model = AtOnce(vocabulary) if is_at_once else dense(layers=1, vocabulary=vocabulary)
            d = Denoiser(model, mask_token_id=MASK, pad_token_id=PAD, **kw)
            options = DecodingOptions().override(settings(opts))
            texts = [[3 + token % (vocabulary - 3) for token in p] for p in prompts(rows, 40, 56)]
            facts = {"mask_token_id": MASK, "max_length": 2048, "attention": d.attention}
            canvases = [build_canvas(p, options, **facts)[0] for p in texts]
            run = lambda: decode_canvases(d, canvases, options, is_decided=lambda i: False)
            out, n = timed(model, run, lambda: d.forward_passes)
            times.append(f"{out:.2f}")
        print(f"| {name} | {' | '.join(times)} | {n} |", flush=True)
    model = dense(layers=1)
    d = Denoiser(model, mask_token_id=MASK, pad_token_id=PAD)
    rng = Random(1)
    for n_tokens, opts in ((1, {}), (16, dict(mc_num=128, check_greedy=False))):
        requests = []
        for context in prompts(16, 700, 720, seed=3):
            requests += [
                LikelihoodRequest(context, [rng.randrange(3, 500) for _ in range(n_tokens)], s) for s in range(4)
            ]
        requests = requests[: 64 if n_tokens == 1 else 4]
        options = LikelihoodOptions().override(opts)
        run = lambda: score(d, requests, options, batch_size=64, max_length=2048)
        out, n = timed(model, run, lambda: d.forward_passes)
        print(
            f"| likelihood {n_tokens}-token choices, contexts of 710, 64 canvases a pass | {out:.2f} | | | {n} |",
            flush=True,
        )


def plan_rows():
    """Distinct attention problems of an evaluation: several batches of ragged prompts, rows leaving as answers end."""
    from mdlm_lm_eval.decoding import decode_canvases
    from mdlm_lm_eval.decoding.canvas import build_canvas
    from mdlm_lm_eval.likelihood import LikelihoodRequest, score
    from mdlm_lm_eval.model.attention import AttentionPattern
    from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions

    global DTYPE
    DTYPE = torch.float32
    torch.set_num_threads(1)
    print(
        "\n| 96 ragged rows in 32 slots, an answer ends about every 30 tokens | passes | attention plans | plans a pass |"
    )
    print("|---|---|---|---|")
    for name, kw, opts in (
        ("full attention, 1 token a step", {}, "n_masks=64 steps=64 block_length=8"),
        ("cache=dual, 1 token a step", {}, "n_masks=64 steps=64 block_length=8 cache=dual"),
        ("cache=prefix, 1 token a step", {}, "n_masks=64 steps=64 block_length=8 cache=prefix"),
        ("cache=dual, 4 tokens a step", {}, "n_masks=64 steps=16 block_length=8 cache=dual"),
        ("blocks of 8, 1 token a step", {"attention": AttentionPattern(8)}, "n_masks=64 steps_per_block=8"),
        ("blocks of 8, 4 tokens a step", {"attention": AttentionPattern(8)}, "n_masks=64 steps_per_block=2"),
        ("blocks of 4, 2 tokens a step", {"attention": AttentionPattern(4)}, "n_masks=64 steps_per_block=2"),
    ):
        d = denoiser_of(dense(layers=1), **kw)
        options = DecodingOptions().override(settings(opts))
        C.clear()
        texts = sorted(prompts(96, 60, 100), key=len, reverse=True)
        with watched():
            canvases = [
                build_canvas(p, options, mask_token_id=MASK, max_length=2048, attention=d.attention)[0] for p in texts
            ]
            decode_canvases(
                d,
                canvases,
                options,
                batch_size=32,
                is_decided=lambda ids: any(hash((n, *ids[: n + 1])) % 30 == 0 for n in range(len(ids))),
            )
        print(f"| {name} | {d.forward_passes} | {len(C.plans)} | {len(C.plans) / d.forward_passes:.2f} |", flush=True)
    rng = Random(1)
    d = denoiser_of(dense(layers=1))
    requests = []
    for context in prompts(200, 60, 200, seed=3):
        requests += [
            LikelihoodRequest(context, [rng.randrange(3, 500) for _ in range(rng.randint(1, 12))], s) for s in range(4)
        ]
    requests.sort(key=lambda r: -len(r.context_ids) - len(r.continuation_ids))
    with watched():
        for start in range(0, len(requests), 16):
            score(d, requests[start : start + 16], LikelihoodOptions(mc_num=32), batch_size=32, max_length=2048)
    print(
        f"| likelihood mc, 1-12 tokens, contexts of 60-200, 32 canvases a pass | {d.forward_passes} | {len(C.plans)} | "
        f"{len(C.plans) / d.forward_passes:.2f} |",
        flush=True,
    )


def main():
    global WHERE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--where", default="")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--plans", action="store_true")
    a = parser.parse_args()
    WHERE = a.where
    if a.where and not a.only:
        a.only = a.where
    if a.host or a.plans:
        if a.host:
            host_times()
        if a.plans:
            plan_rows()
        return
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    table = []
    for part in (decoding_rows, likelihood_rows, expert_rows):
        part(a.only, table)


if __name__ == "__main__":
    main()
