"""Check how a checkpoint is read, whether it decodes as its authors' code does, and how much rounding changes answers.

    mdlm-check
    mdlm-check GSAI-ML/LLaDA-8B-Instruct --model_args dtype=bfloat16 block_length=32 --apply_chat_template \\
        --modeling LLaDA/modeling_llada.py:LLaDAModelLM --against LLaDA/generate.py:generate

Prints a table, and writes a JSON file into a cache folder. Later results with the same weights, version, dtype and
options name this file. The exit status is 1 if a fault was found.

Keys of the file: `applies_to` (weights, config, vocabulary, package_version, dtype, options), `verdict`, `recognised`,
`logits`, `choices`, `equal_strings`,
`theirs`, `unknown_share` (of the tokens of the task's prompts, or of its own without a task), and
`noise_floor`: task, change (model arguments of the second run), dtypes, answers, flipped, share and its Wilson interval
[low, high], first_differing_token (smallest, median; null if no text differs), scores ("task metric,filter" -> [first,
second]) and largest_move; or {"left_out": reason} if it was not measured.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdlm_lm_eval.command_line import ending_well, parser_of
from mdlm_lm_eval.models import BUILT_IN
from mdlm_lm_eval.options import OptionError

if TYPE_CHECKING:
    from mdlm_lm_eval.check.comparison import Theirs
    from mdlm_lm_eval.check.here import Subject
    from mdlm_lm_eval.lm import MDLM

COMMAND = "mdlm-check"
TEXTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three animals that can fly.",
    "Add 17 and 25. Explain each step.",
    "Why is the sky blue?",
    "Translate into German: good morning.",
    "List the first five prime numbers.",
    "Who wrote Hamlet, and when?",
)
_WITH_AUTHORS = 4  # texts that are compared with the authors' sampler
_TASK = "mdlm_country_smallest"
_NO_ENGLISH = (
    "the tokenizer does not know English; if it is the right one, name a task of yours (--task, --include_path)"
)
_MOST_UNKNOWN = 0.2  # share of the prompts' tokens


def main() -> None:
    """The command line."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with ending_well(COMMAND, after_stop="nothing was written"):
        given = _parser().parse_args()
        if given.reference_python and not (given.modeling or given.trust_remote_code):
            raise OptionError(f"--reference_python {given.reference_python}: needs --modeling or --trust_remote_code")
        for flag in ("modeling", "against"):  # before anything is loaded
            file, _, name = (getattr(given, flag) or "").rpartition(":")
            if getattr(given, flag) and not (name and file.endswith(".py") and Path(file).is_file()):
                raise OptionError(f"--{flag} {getattr(given, flag)}: there is no such file; it must be FILE.py:NAME")
        found = check(given)
    sys.exit(1 if found["verdict"].startswith("fault") else 0)


def _parser() -> argparse.ArgumentParser:
    from lm_eval._cli.utils import MergeDictAction

    parser = parser_of(COMMAND, __doc__.partition("\nKeys of the file")[0])
    named: dict[str, Any] = {"nargs": "+", "default": {}, "action": MergeDictAction, "metavar": "NAME=VALUE"}
    parser.add_argument("model", nargs="?", default=BUILT_IN, help="hub id, folder or name (default: built-in)")
    parser.add_argument("--model_args", help="as in lm_eval, without pretrained: dtype, steps, ...", **named)
    parser.add_argument("--apply_chat_template", action="store_true", help="use the tokenizer's chat template")
    parser.add_argument("--output_path", type=Path, metavar="FILE", help="also write the JSON file here")
    theirs = parser.add_argument_group("comparison with the authors' code, which is run; use only code that you trust")
    theirs.add_argument("--modeling", metavar="FILE.py:CLASS", help="their network, whose logits are compared")
    theirs.add_argument("--trust_remote_code", action="store_true", help="compare with the network in the checkpoint")
    theirs.add_argument("--against", metavar="FILE.py:FUNCTION", help="their sampler, whose choices are compared")
    theirs.add_argument("--reference_args", help="arguments of their sampler, instead of ours", **named)
    theirs.add_argument("--reference_python", metavar="PATH", help="Python that runs their code, if another")
    noise = parser.add_argument_group("noise floor: the answers that rounding alone changes")
    noise.add_argument("--task", default=_TASK, help=f"task to ask (default: {_TASK})")
    noise.add_argument("--requests", type=int, default=20, help="requests of the task (default: 20; 0: none)")
    noise.add_argument("--noise", help="what the second run changes (default: another dtype)", **named)
    noise.add_argument("--include_path", metavar="FOLDER", help="folder of your own tasks")
    noise.add_argument("--gen_toks", type=int, default=32, help="tokens of an answer in other parts (default: 32)")
    return parser


def check(given: argparse.Namespace) -> dict[str, Any]:
    """Runs all parts of a check, prints the table, writes the file and returns its content."""
    # Heavy imports wait until the command line is known to be right.
    from mdlm_lm_eval.arguments import settings_of
    from mdlm_lm_eval.check import here
    from mdlm_lm_eval.lm import MDLM
    from mdlm_lm_eval.model.text import count_unknown
    from mdlm_lm_eval.provenance import check_file, checked
    from mdlm_lm_eval.results.files import write_whole

    subject = here.Subject.of(given.model, given.model_args, given.gen_toks)
    settings_of(subject.config, {**subject.arguments, **given.noise})  # its errors come before a long check
    prompts = subject.prompts(TEXTS[:_WITH_AUTHORS], True)  # with the chat template if there is one
    theirs = _theirs(given, subject, prompts)
    loaded = [MDLM(**subject.arguments)]  # one model is in memory at a time
    found: dict[str, Any] = {"applies_to": checked(loaded[0]), "recognised": here.recognised(loaded[0], subject)}
    found |= _against(given, subject, loaded[0], theirs, prompts)
    own_prompts = subject.prompts(TEXTS, given.apply_chat_template)
    canvases = [subject.canvas(prompt) for prompt in own_prompts]
    found["equal_strings"] = here.equal_strings(loaded[0], canvases, subject.request)
    count = count_unknown(subject.tokenizer, [id for prompt in own_prompts for id in prompt])
    share = count["unknown"] / count["tokens"]
    knows_english = share <= _MOST_UNKNOWN or given.task != _TASK
    found["noise_floor"] = here.noise_floor(subject, loaded, given) if knows_english else {"left_out": _NO_ENGLISH}
    found["unknown_share"] = found["noise_floor"].get("unknown_share", share)
    found["verdict"] = _verdict(found)
    text = json.dumps(found, indent=1)
    path = check_file(found["applies_to"])
    write_whole(path, text)
    if given.output_path:
        write_whole(given.output_path, text)
    print(table(found, path))
    return found


def _theirs(given: argparse.Namespace, subject: "Subject", prompts: list[list[int]]) -> "Theirs | None":
    """Results of the authors' code, None if no comparison with it was asked for."""
    from mdlm_lm_eval.check.comparison import ask_authors

    if not (given.modeling or given.trust_remote_code or given.against):
        return None
    job = {name: getattr(given, name) for name in ("modeling", "trust_remote_code", "against")}
    canvases = subject.whole if given.modeling or given.trust_remote_code else []
    job |= {"given": given.reference_args, "prompts": prompts, "canvases": canvases}
    return ask_authors(job | subject.as_job(), given.reference_python)


def _against(
    given: argparse.Namespace, subject: "Subject", lm: "MDLM", theirs: "Theirs | None", prompts: list[list[int]]
) -> dict[str, Any]:
    """The comparisons with the authors' code that were asked for."""
    from mdlm_lm_eval.check.comparison import compare_choices, compare_logits, differing_arguments

    if theirs is None:
        return {}
    found: dict[str, Any] = {"theirs": {name: theirs.report[name] for name in ("python", "torch", "transformers")}}
    if given.modeling or given.trust_remote_code:
        found["logits"] = compare_logits(lm.denoiser, subject.whole, theirs)
    if given.against:
        end_ids = sorted(lm.eos_ids | lm.end_of_turn_ids)
        canvases, options = [subject.canvas(prompt) for prompt in prompts], subject.request.options
        called = subject.called_with(differing_arguments(theirs), prompts)
        found["choices"] = compare_choices(lm.denoiser, canvases, options, theirs, end_ids=end_ids, called=called)
        found["choices"]["arguments"] = theirs.report["arguments"]
        if subject.tokenizer.chat_template is not None and not given.apply_chat_template:
            cause = "their prompts have the chat template; with lm_eval that needs --apply_chat_template"
            found["choices"]["causes"].append(cause)
    return found


def _verdict(found: dict[str, Any]) -> str:
    """The findings in one line, for results and boards."""
    faults = []
    if found["unknown_share"] > _MOST_UNKNOWN:
        faults.append(f"{found['unknown_share']:.0%} of the prompts' tokens are unknown to the tokenizer")
    if found.get("logits", {}).get("is_fault"):
        faults.append("the networks differ")
    if n := len(found.get("choices", {}).get("faults", ())):
        faults.append(f"{n} of {found['choices']['passes']} passes choose otherwise")
    same = found["equal_strings"]
    if found["recognised"]["dtype"] == "float32" and min(same["same_strings"].values()) < same["answers"]:
        faults.append("float32 strings differ")
    compared = [name for name, rows in (("logits", "canvases"), ("choices", "passes")) if found.get(name, {}).get(rows)]
    return f"fault: {'; '.join(faults)}" if faults else f"no fault, compared {' and '.join(compared) or 'nothing'}"


def table(found: Mapping[str, Any], path: Path) -> str:
    """The findings in words, a line for each."""
    from jinja2 import Environment, PackageLoader

    templates = Environment(loader=PackageLoader("mdlm_lm_eval", "check"), trim_blocks=True)
    templates.filters["shown"] = _shown
    return templates.get_template("table.txt.jinja").render({"logits": None, "choices": None, **found, "path": path})


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_shown(each)}" for name, each in value.items())
    return " ".join(map(_shown, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


if __name__ == "__main__":
    main()
