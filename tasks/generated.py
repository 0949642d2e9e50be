"""The YAML files of the generated groups beside the suite: parallel, infill and planning."""

import re
from collections.abc import Iterator, Mapping

PARALLEL = (
    *(
        (f"{operation}{end}", f"operation: {operation}", f"length: {length}")
        for end, length in (("", "short"), ("_15", "long"))
        for operation in (
            *("copy", "reverse", "sort", "shuffle", "insert_index", "insert_anywhere"),
            *("remove_index", "remove_any", "replace_index", "replace_any"),
        )
    ),
    ("latin_square", "operation: latin_square", "length: short"),
)
#: Folder -> version, as in its `_*_yaml`.
VERSIONS = {"parallel": "1.0", "infill": "1.1", "planning": "1.1", "humaneval_infill": "1.0"}
# Tokens for 7 and for 16 names, at three a name, and for the end.
SHORT, LONG = 24, 48
COUNTDOWN, EMPTY_CELLS = (3, 4, 5), range(4, 13)
HUMANEVAL = ("SingleLine", "MultiLine", "RandomSpan", "RandomSpanLight")


def files() -> dict[str, str]:
    """Path in the tasks folder -> text."""
    texts = {}
    groups: dict[str, list[str]] = {}
    for folder, group, name, lines, arguments in _tasks():
        groups.setdefault(f"{folder}/{group}", []).append(name)
        own = ["dataset_kwargs:", *(f"  {argument}" for argument in arguments)] if arguments else []
        texts[f"{folder}/{name}.yaml"] = "\n".join(
            [f"include: _{folder}_yaml", f"task: {name}", f"task_alias: {name.removeprefix('mdlm_')}", *lines, *own, ""]
        )
    for path, members in groups.items():
        metric = "pass@1" if "humaneval" in path else "exact_match"
        folder, _, name = path.partition("/")
        texts[f"{path}.yaml"] = group_file(name, members, VERSIONS[folder], metric)
    planning = ["mdlm_countdown", "mdlm_sudoku", "mdlm_reversal"]
    texts["planning/mdlm_planning.yaml"] = group_file("mdlm_planning", planning, VERSIONS["planning"])
    return texts


def _tasks() -> Iterator[tuple[str, str, str, tuple[str, ...], tuple[str, ...]]]:
    """Folder, group, task, own lines and the arguments of its documents."""
    for name, *arguments in PARALLEL:
        answer = {"custom_dataset": "lists.list_documents", "process_results": "lists.grade_list"}
        tokens = LONG if "length: long" in arguments or name == "latin_square" else SHORT
        yield "parallel", "mdlm_parallel", f"mdlm_parallel_{name}", _lines(answer, tokens), tuple(arguments)
    walk = {"custom_dataset": "lists.walk_documents", "process_results": "lists.grade_walk"}
    yield "parallel", "mdlm_parallel", "mdlm_parallel_walk", _lines(walk, SHORT), ()
    for n in COUNTDOWN:
        answer = {"custom_dataset": "countdown.documents", "process_results": "countdown.grade"}
        yield "planning", "mdlm_countdown", f"mdlm_countdown_{n}", _lines(answer, 12 * (n - 1)), (f"n_numbers: {n}",)
    for n in EMPTY_CELLS:
        answer = {"custom_dataset": "sudoku.documents", "process_results": "sudoku.grade"}
        yield "planning", "mdlm_sudoku", f"mdlm_sudoku_{n}", _lines(answer, 20, until="\\n\\n"), (f"n_empty: {n}",)
    for order, is_reversed in (("as_given", "false"), ("reversed", "true")):
        answer = {"custom_dataset": "reversal.documents", "process_results": "reversal.grade"}
        yield "planning", "mdlm_reversal", f"mdlm_reversal_{order}", _lines(answer, 8), (f"is_reversed: {is_reversed}",)
    for kind, tokens in (("sentence", 32), ("line", 24)):
        answer = {"custom_dataset": "passages.documents", "process_results": "passages.grade"}
        slot = (*_lines(answer, tokens, until=None), "  infill: true")
        yield "infill", "mdlm_infill", f"mdlm_infill_{kind}", slot, (f"kind: {kind}",)
        prefix = (f"kind: {kind}", "is_prefix_only: true")
        yield "infill", "mdlm_infill", f"mdlm_infill_{kind}_prefix", _lines(answer, tokens), prefix
    for kind in HUMANEVAL:
        name = f"mdlm_humaneval_infill_{re.sub('(?<=[a-z])(?=[A-Z])', '_', kind).lower()}"
        subset = f"subset: HumanEval-{kind.removesuffix('Light')}Infilling{'Light' * kind.endswith('Light')}"
        yield "humaneval_infill", "mdlm_humaneval_infill", name, (), (subset,)


def _lines(functions: Mapping[str, str], tokens: int, *, until: str | None = "\\n") -> tuple[str, ...]:
    calls = (f"{key}: !function {function}" for key, function in functions.items())
    stops = "[]" if until is None else f'["{until}"]'
    return (*calls, "generation_kwargs:", f"  max_gen_toks: {tokens}", f"  until: {stops}")


def group_file(name: str, members: list[str], version: str, metric: str = "exact_match") -> str:
    """A group's file: the mean over its tasks, each of which counts the same.

    It includes no other file, as lm-eval 0.5 takes what a group includes for settings of its tasks.
    """
    lines = [f"group: {name}", "task:", *(f"  - {member}" for member in members)]
    lines += ["aggregate_metric_list:", f"  - metric: {metric}", "    aggregation: mean", "    weight_by_size: false"]
    return "\n".join([*lines, "metadata:", f'  version: "{version}"', ""])
