"""Analyse a model: what its answers depend on, how sure it is, and in which order it fills them.

    mdlm-attribution groups --limit 20 --output_path analyses
    mdlm-attribution examples --limit 20 --reorderings 30 --output_path analyses
    mdlm-attribution confidence --n_masks 1,2,10,50,100,200 --limit 50 --output_path analyses
    mdlm-attribution order results --output_path analyses

Without pretrained in --model_args, the built-in model is analysed. Each command writes CSV and JSON, and `order` a
figure. The same command continues a killed run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval._cli.utils import MergeDictAction

from mdlm_lm_eval.command_line import ending_well, parser_of
from mdlm_lm_eval.options import ModelOptions, OptionError

COMMAND = "mdlm-attribution"
OPEN_ENDED, FIXED_SLOT = "mdlm_context", "mdlm_slot"
# Numbers of the paper (section 4.3).
QUESTIONS, REORDERINGS, TABLE_MASKS = 20, 30, 50
MASK_COUNTS = [1, 2, 10, 50, 100, 200]


def main() -> None:
    """The command line."""
    with ending_well(COMMAND, after_stop="the same command continues after the last task that it finished"):
        report = analyse(sys.argv[1:])
        print(f"written: {', '.join(str(path) for path in sorted(report.folder.glob(f'{report.name}.*')))}")


def analyse(words: Sequence[str], loaded: Any = None) -> Any:
    """Returns the report of a command line, whose model may be loaded already."""
    given = _parser().parse_args(words, argparse.Namespace(loaded=loaded))
    return given.run(given)


def count(text: str) -> int:
    """Parses a whole number from 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def counts(text: str) -> list[int]:
    """Parses whole numbers from 1, separated by commas. Returns each once, in ascending order."""
    return sorted({count(part) for part in text.split(",")})


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(COMMAND, __doc__)
    commands = parser.add_subparsers(required=True, metavar="ANALYSIS")

    def command(name: str, help: str, tasks: str = OPEN_ENDED, masks: int | None = None) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, allow_abbrev=False)
        made.add_argument("--output_path", type=Path, required=True, metavar="FOLDER")
        made.set_defaults(analysis=name, run=_run_analysis, default_tasks=tasks, default_masks=masks)
        return made

    what = "gradient attribution to masks, the last 50 non-masks and all non-masks (table 1)"
    groups = command("groups", what, masks=TABLE_MASKS)
    groups.add_argument("--n_masks", type=count, help=f"appended masks (default: {TABLE_MASKS}; with --model hf none)")
    _add_model_options(groups, default_tasks=OPEN_ENDED, default_limit=QUESTIONS)

    what = "gradient attribution to each in-context example over reorderings (figure 3; E3)"
    examples = command("examples", what, FIXED_SLOT)
    what = f"masks appended; none, as the prompts of {FIXED_SLOT} hold one"
    examples.add_argument("--n_masks", type=count, help=what)
    examples.add_argument("--reorderings", type=count, default=REORDERINGS, help=f"default: {REORDERINGS}")
    examples.add_argument("--seed", type=int, default=0, help="of the reorderings (default: 0)")
    default_tasks = f"{FIXED_SLOT}, with --model hf {OPEN_ENDED}"
    _add_model_options(examples, default_tasks=default_tasks, default_limit=QUESTIONS)

    confidence = command("confidence", "confidence and entropy at the answer mask by mask count (figure 24; E13)")
    what = f"mask counts; {','.join(map(str, MASK_COUNTS))}"
    confidence.add_argument("--n_masks", type=counts, default=MASK_COUNTS, help=what)
    _add_model_options(confidence, default_tasks=OPEN_ENDED, default_limit=None)
    for own in (groups, confidence):
        own.add_argument("--include_path", metavar="FOLDER", help="tasks of your own that --tasks names")

    order = command("order", "the order in which answers are filled, and calibration then, from results of trace=true")
    order.set_defaults(run=_run_order)
    order.add_argument("results", nargs="+", type=Path, help="result files of lm_eval or mdlm-sweep, or their folders")
    return parser


def _add_model_options(parser: argparse.ArgumentParser, *, default_tasks: str, default_limit: int | None) -> None:
    named: dict[str, Any] = {"nargs": "+", "default": {}, "action": MergeDictAction, "metavar": "KEY=VALUE"}
    parser.add_argument("--model", default="mdlm", choices=("mdlm", "hf"), help="hf for autoregressive models")
    parser.add_argument("--model_args", help="as lm_eval's: pretrained=...,peft=...,dtype=..., or JSON", **named)
    parser.add_argument("--plugins", metavar="FILES", help=ModelOptions.declared()["plugins"].help)
    what = f"tasks and groups of the few-shot suite; {default_tasks}"
    parser.add_argument("--tasks", type=lambda text: text.split(","), help=what)
    parser.add_argument("--metadata", help="of the tasks: fewshot_distractors=20", **named)
    what = f"questions per task (default: {default_limit or 'all'})"
    parser.add_argument("--limit", type=count, default=default_limit, help=what)
    parser.add_argument("--apply_chat_template", action="store_true", help="for instruct models")
    parser.add_argument("--batch_size", default="auto", help="default: auto")
    parser.add_argument("--device", help="default: the machine's accelerator, else cpu")


def _run_analysis(given: argparse.Namespace) -> Any:
    """Makes an analysis of a model, and prints its summary. Raises OptionError for masks of an autoregressive model."""
    from mdlm_lm_eval.analyses import runs

    given.tasks = given.tasks or [OPEN_ENDED if given.model == "hf" else given.default_tasks]
    given.model_args |= {"plugins": given.plugins} if given.plugins else {}
    if given.model != "hf":
        given.n_masks = given.n_masks or given.default_masks
    elif given.n_masks:
        raise OptionError(f"n_masks={given.n_masks} is not for model=hf: autoregressive models have no masks")
    report = runs.run(given)
    for name, (value, by) in runs.ANALYSES[given.analysis].summary.items():
        print(f"{value} by {' and '.join(by)}, mean over tasks")
        for row in report.summary[name]:
            print(f"{' '.join(str(row[column]) for column in by)}: {row[value]:.3f}{_band(row['band'])}")
    return report


def _run_order(given: argparse.Namespace) -> Any:
    from mdlm_lm_eval.analyses import order
    from mdlm_lm_eval.analyses.report import Report

    report = Report(given.output_path, "order", {"results": [path.name for path in given.results]})
    report.rows = order.read_orders(given.results)
    summary = order.order_by_model(report.rows)
    report.write(summary)
    order.draw_order(report.rows, summary["calibration"], report.path(""))
    for row in summary["tau"]:
        print(f"{row['model']}: Kendall's tau with left to right {row['tau']:.3f}{_band(row['band'])}")
    for row in summary["number_first"]:
        share = f"{100 * row['number_first']:.1f}%{_band(row['band'], 1, 100)} of answers with one"
        print(f"{row['model']}: the last number is there before half of what precedes it in {share}")
    for model, error in {row["model"]: row["error"] for row in summary["calibration"]}.items():
        print(f"{model}: calibration error {error:.3f}")
    return report


def _band(half_width: float | None, digits: int = 3, factor: float = 1) -> str:
    return "" if half_width is None else f" ± {factor * half_width:.{digits}f}"


if __name__ == "__main__":
    main()
