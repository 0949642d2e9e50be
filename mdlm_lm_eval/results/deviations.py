"""The settings of a run that differ from their defaults, as fields. `str` puts one into words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from mdlm_lm_eval.command_line import LM_EVAL_SEEDS
from mdlm_lm_eval.declared import defaults_of, silent_names
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.results.result_file import OLD_SAMPLER, UNKNOWN, ResultFile, TaskResult
from mdlm_lm_eval.results.text import longer_in_words
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

# Options that set the number of masks or fillers: they are axes of figures, and identify no setting there.
MASKS = frozenset({"n_masks", "mask_ratio", "n_fillers", "filler"})
CHAT_TEMPLATE = "chat_template"
ONE_TURN = "examples in one turn"  # of a chat
# Model arguments that change no score, or that have a column of their own.
_SILENT_ARGUMENTS = frozenset(
    "audit backend base_url batch_size cache_audit cache_dir data_parallel_size device device_map "  # noqa: SIM905
    "device_map_option dtype engine engine_version force_download gpu_memory_utilization local_files_only "
    "low_cpu_mem_usage max_batch_size max_concurrent max_cpu_memory max_memory max_memory_per_gpu max_retries model "
    "num_concurrent offload_folder parallelize path peft plugins preset pretrained revision settings "
    "tensor_parallel_size timeout tokenizer_backend trust_remote_code use_fast_tokenizer use_safetensors "
    "verify_certificate".split()
)


@dataclass(frozen=True)
class Deviation:
    """A setting that differs from its default.

    said: its words, if they are not name=value.
    origin: name and digest of the file of others that registered it, as different plug-ins may share a name.
    is_guest: whether it names a function of others.
    """

    name: str
    value: str
    said: str = ""
    origin: str = ""
    is_guest: bool = False

    def __str__(self) -> str:
        origin = f" ({'guest, ' if self.is_guest else ''}{self.origin})" if self.origin else ""
        return (self.said or f"{self.name}={self.value}") + origin


def listed(deviations: Iterable[Deviation]) -> str:
    """Several settings, with commas between them."""
    return ", ".join(map(str, deviations))


def deviations_of(file: ResultFile, result: TaskResult) -> list[Deviation]:
    """The settings of a task's run that differ from the defaults: options, loading, chat template.

    Options that this version does not know are named, too. A setting in which the tasks of a group differ has all of
    its values.
    """
    tasks = [_of_one_task(file, task) for task in file.tasks_of(result)]
    counts: dict[str, Counter[Deviation]] = {}
    for one in chain.from_iterable(tasks):
        counts.setdefault(one.name, Counter())[one] += 1
    found = []
    for of_name in counts.values():
        (first, n), *others = of_name.items()
        if others or n < len(tasks):
            values = ", ".join(f"{one.value} in {n}" for one, n in of_name.items())
            first = replace(first, value=f"{values} of {len(tasks)} tasks", said="")
        found.append(first)
    if n := result.counts["longer_continuations"]:
        found.append(Deviation("longer_continuations", str(n), said=longer_in_words(n)))
    if n := result.counts["short_answers"]:
        found.append(Deviation("short_answers", str(n), said=f"{n} answers that the server ended before max_gen_toks"))
    return found


def prompts_of(file: ResultFile, result: TaskResult) -> list[str]:
    """What prompts depend on beside the task's version and the chat template: shots, `--metadata`, `--samples`."""
    tasks = file.tasks_of(result)
    shots = [*dict.fromkeys(task.shots for task in tasks)]
    words = [] if all(task.suite for task in tasks) else [f"{' and '.join(map(str, shots))}-shot"]
    given = dict.fromkeys(each for task in tasks for each in task.metadata.items() if isinstance(each[1], (str, int)))
    usual = {name: str(value) for name, value in DEFAULT_SETTINGS.items()}
    words += [
        f"{name}={value}"
        for name, value in given
        if name.startswith("infill_") or str(value).lower() != usual.get(name, str(value).lower())
    ]
    if any(shots) and str(file.config.get("fewshot_seed")) not in ("None", str(LM_EVAL_SEEDS[-1])):
        words.append(f"fewshot_seed={file.config['fewshot_seed']}")
    if file.limit is None and result.n_questions < result.n_original:  # by --samples
        words.append(f"{result.n_questions} chosen questions of {result.n_original}")
    return words + [ONE_TURN] * (file.chat_template and any(shots) and not file.fewshot_as_multiturn)


def _of_one_task(file: ResultFile, result: TaskResult) -> list[Deviation]:
    revision = (file.mdlm or file.model_args).get("revision")
    found = [*_of_options(file, result), *_of_task(result), *_drawn(file, result)]
    found += [] if revision in (None, "", "main") else [Deviation("revision", revision)]
    found += [Deviation("dtype", file.dtype, said=file.dtype)] if file.dtype else []
    in_columns = {*defaults_of(DecodingOptions), *defaults_of(LikelihoodOptions), *silent_names(), OLD_SAMPLER}
    silent = _SILENT_ARGUMENTS | in_columns | result.options.keys()  # those of plug-ins, too
    found += [Deviation(name, str(value)) for name, value in sorted(file.model_args.items()) if name not in silent]
    if method := file.mdlm.get("quantised_by"):
        found.append(Deviation("quantised_by", str(method), said=f"quantised by {method}"))
    if base := file.mdlm.get("adapter_base"):
        found.append(Deviation("adapter_base", base, said=f"an adapter of {base}"))
    if file.system_instruction:
        said = f"system instruction {file.system_instruction!r}"
        found.append(Deviation("system_instruction", file.system_instruction, said=said))
    if not file.says_prompts:
        template = "" if "chat_template_sha" in file.mdlm else "chat template and "
        found.append(Deviation("system_instruction", UNKNOWN, said=f"{template}system instruction unknown"))
    found = [_with_origin(file, one) for one in found]
    family = _with_origin(file, Deviation("family", str(file.mdlm.get("family"))))
    found += [family] if family.origin else []
    return found + ([Deviation(CHAT_TEMPLATE, "true", said="chat template")] if file.chat_template else [])


def _with_origin(file: ResultFile, one: Deviation) -> Deviation:
    if one.name == "tokenizer":
        return replace(one, origin=str(file.mdlm.get("vocabulary_digest") or "")[:8])
    for plugin in file.mdlm.get("plugins", ()):
        if {str(one), one.name} & {*plugin["registers"]}:
            origin = f"{plugin['name']} {str(plugin['sha256'])[:8]}"
            return replace(one, origin=origin, is_guest=bool(plugin.get("guest")))
    return one


def _of_options(file: ResultFile, result: TaskResult) -> Iterator[Deviation]:
    """The options in effect, in the same order for files of every version; and how many are unknown."""
    options, drop = dict(result.options), {*silent_names(), "seed"}
    generates = result.config.get("output_type") == "generate_until"
    # The default of a block-diffusion model is its own block length.
    if "block_length" in result.effective and ("masks_in_block" in result.effective or not generates):
        options["block_length"] = result.effective["block_length"][1]
    if generates:
        defaults = defaults_of(DecodingOptions)
        is_asked = "max_gen_toks" in {*file.gen_kwargs, *file.mdlm.get("explicit_options", ())}
        drop |= set() if is_asked else {"max_gen_toks"}
        drop |= set() if options.get("n_fillers") else {"filler"}
    else:
        defaults = defaults_of(LikelihoodOptions)
        # Whether greedy decoding gives the continuation is a score only if there is one continuation.
        drop |= {"check_greedy"} if result.config.get("output_type") == "multiple_choice" else set()
    for name in [*defaults, *sorted(options.keys() - defaults.keys())]:
        value, default = options.get(name), defaults.get(name)
        # An option that this version does not know is off at 0, at false and at "".
        is_off = not value and not default and (value is None or name not in defaults)
        if name not in drop and name in options and value not in (UNKNOWN, default) and not is_off:
            yield Deviation(name, str(value))
    if n_unknown := sum(value == UNKNOWN for value in result.options.values()):
        yield Deviation(UNKNOWN, str(n_unknown), said=f"{n_unknown} settings unknown")


def _of_task(result: TaskResult) -> Iterator[Deviation]:
    if result.repeats > 1:
        yield Deviation("repeats", str(result.repeats))
    if (place := result.metadata.get("query_position", "trailing")) != "trailing":
        yield Deviation("query_position", str(place))


def _drawn(file: ResultFile, result: TaskResult) -> Iterator[Deviation]:
    """The seed, if anything is drawn, and generation settings that no option of ours says."""
    options: Mapping[str, Any] = result.options
    if result.config.get("output_type") == "generate_until":
        # In older files, `auto` is the cache in effect only where the family's own method or a guest decodes.
        draws = result.counts["drawn"] or options.get("temperature") or options.get("unmasking") == "random"
        draws = draws or result.cache == "auto"
    else:
        draws = options.get("likelihood") in ("auto", "mc", "read")
    seed = options.get("seed", UNKNOWN)
    if draws and seed not in (UNKNOWN, LM_EVAL_SEEDS[-1]):
        yield Deviation("seed", str(seed))
    generation = result.config.get("generation_kwargs") or {}
    if not file.mdlm and generation.get("do_sample"):
        yield Deviation("temperature", str(generation.get("temperature")))
    in_columns = {*defaults_of(DecodingOptions), OLD_SAMPLER, "do_sample"}
    yield from (Deviation(name, str(value)) for name, value in file.gen_kwargs.items() if name not in in_columns)
