"""The command `mdlm-leaderboard`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mdlm_lm_eval.command_line import ending_well, parser_of, refuse_rest
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.text import printable

_COMMAND = "mdlm-leaderboard"
_EXAMPLE = """examples:
  mdlm-leaderboard build results/ --output_path site/
  mdlm-leaderboard report results/ --output_path report/
  mdlm-leaderboard show results/my-model/results_2026-01-31T12-00-00.json
  mdlm-leaderboard compare before/results_2026-01-31T12-00-00.json after/results_2026-02-01T12-00-00.json
  mdlm-leaderboard power --accuracy 60 --difference 2 --questions 1319
  mdlm-leaderboard samples before/ after/ --output_path page/
  mdlm-leaderboard validate results/my-model
"""

_ONE_FILE = "an lm-eval result file, or a folder, whose newest one is read"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    with ending_well(_COMMAND, after_stop="what was there before is as it was"):
        options, rest = _parser().parse_known_args(arguments)
        refuse_rest(rest, vars(options).keys() - {"run"})
        # Commands import their modules when they run, so that `--help` is fast.
        from mdlm_lm_eval.results.files import UnusableFile

        try:
            found: str | int = options.run(options)  # a text, or the exit status after the command has printed
        except UnusableFile as error:
            print(printable(f"{_COMMAND}: {error}"), file=sys.stderr)
            return 1
        if isinstance(found, int):
            return found
        print(printable(found, keep="\n"))
        return 0


def _parser() -> argparse.ArgumentParser:
    what = "Show and compare lm-eval's result files, and make a page with tables and figures."
    parser = parser_of(_COMMAND, what, epilog=_EXAMPLE)
    commands = parser.add_subparsers(required=True)

    def command(run: Callable[[argparse.Namespace], str | int], help: str, epilog: str = "") -> argparse.ArgumentParser:
        made = commands.add_parser(run.__name__.strip("_"), help=help, epilog=epilog)
        made.set_defaults(run=run)
        return made

    def takes_runs(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("first", type=Path, metavar="A", help=_ONE_FILE)
        parser.add_argument("second", type=Path, nargs="?", metavar="B", help="another result of the same tasks")

    build = command(_build, "make a page with tables and figures from a folder of result files")
    build.add_argument("results", type=Path, help="folder in which to search for result files (*.json)")
    folder: dict[str, Any] = {"dest": "output", "type": Path, "required": True}
    build.add_argument("--output_path", "--output", help="folder for the page, Markdown, CSV and JSON", **folder)
    build.add_argument("--title", default="", help="title of the page (default: names of its models)")
    build.add_argument(
        "--baseline", default="", metavar="WORDS", help="row to compare all others with, such as steps=8"
    )
    build.add_argument("--samples", action="store_true", help="add pages of single questions (needs --log_samples)")
    build.add_argument("--strict", action="store_true", help="exit with status 1 if a file or score cannot be used")
    report = command(_report, "write the report of mdlm-sweep --config paper, with a verdict on each claim")
    report.add_argument("results", type=Path, help="--output_path of mdlm-sweep")
    report.add_argument("--output_path", "--output", help="folder for the page, figures, Markdown and JSON", **folder)
    show = command(_show, "show one result in a few lines: score, settings, speed and audit")
    show.add_argument("file", type=Path, metavar="PATH", help=_ONE_FILE)
    by_question = "If both runs had lm_eval's --log_samples, questions are compared one by one."
    compare = command(_compare, "compare two results, and test whether they differ significantly", by_question)
    takes_runs(compare)
    compare.add_argument("--published", action="store_true", help="compare A with the published scores of its preset")
    clusters = "count questions as related if their documents have the same value in this field"
    compare.add_argument("--cluster", default="", metavar="FIELD", help=clusters)
    power = command(_power, "compute how many questions a difference needs, before a run")
    power.add_argument("--accuracy", type=float, required=True, help="expected accuracy of the first run, in percent")
    power.add_argument("--difference", type=float, required=True, help="difference to find, in points")
    power.add_argument(
        "--correlation", type=float, metavar="R", help="correlation of two answers to a question (default: several)"
    )
    power.add_argument("--repeats", type=int, default=1, metavar="K", help="answers to each question (default: 1)")
    power.add_argument("--cluster", type=int, default=1, metavar="N", help="number of questions about one text")
    power.add_argument("--questions", type=int, metavar="N", help="also show the power with this number of questions")
    what = "make a page of single questions and answers of one or two results"
    needs = "Needs runs with lm_eval's --log_samples. If they also had trace=true, the page replays each decoding step."
    samples = command(_samples, what, needs)
    takes_runs(samples)
    samples.add_argument("--output_path", help="folder for the page", **folder)
    validate = command(_validate, "check result files before you submit them")
    validate.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a result file, or a folder of them")
    what = "compare a cache's or server's scores with exact decoding, on questions decoded twice"
    audit = command(_audit, what, "Needs a run with lm_eval's --log_samples.")
    of_audit = "result of a run with cache_audit or audit, or a folder, whose newest one is read"
    audit.add_argument("file", type=Path, metavar="PATH", help=of_audit)
    audit.add_argument("--include_path", help="folder of your own tasks")
    return parser


def _build(options: argparse.Namespace) -> int:
    from mdlm_leaderboard.build import build

    board = build(options.results, options.output, options.title, options.samples, options.baseline)
    for path, reason in board.scores.refused:
        print(printable(f"not used: {path}: {reason}"), file=sys.stderr)
    for section in board.sections:
        if section.why_apart:
            words = f"set apart: {section.title} ({len(section.rows)}): {section.why_apart}"
            print(printable(words), file=sys.stderr)
    rows = sum(len(section.rows) for section in board.sections)
    print(f"{rows} row{'s' * (rows != 1)} in {options.output / 'index.html'} and {options.output / 'LEADERBOARD.md'}")
    return int(options.strict and bool(board.scores.refused))


def _report(options: argparse.Namespace) -> str:
    from mdlm_leaderboard.report_page import write_report

    found = write_report(options.results, options.output)
    lines = [printable(f"{one.model.title}: {' '.join(one.findings)}") for one in found]
    return "\n".join([*lines, f"written: {options.output / 'index.html'}"])


def _show(options: argparse.Namespace) -> str:
    from mdlm_leaderboard.show import show

    return "\n".join(map(printable, show(options.file)))


def _compare(options: argparse.Namespace) -> str:
    if options.published == bool(options.second):
        raise OptionError("compare needs two results, `compare A B`, or `compare A --published`")
    if options.published:
        from mdlm_leaderboard.compare import beside_published

        return "\n".join(beside_published(options.first))
    from mdlm_leaderboard.compare import compare

    return "\n\n".join(compare(options.first, options.second, options.cluster))


def _power(options: argparse.Namespace) -> str:
    from mdlm_leaderboard.compare import power_in_words

    return power_in_words(
        options.accuracy,
        options.difference,
        correlation=options.correlation,
        repeats=options.repeats,
        cluster=options.cluster,
        questions=options.questions,
    )


def _samples(options: argparse.Namespace) -> str:
    from mdlm_leaderboard.samples import write_samples

    n = write_samples([path for path in (options.first, options.second) if path], options.output)
    return f"{n} questions in {options.output / 'index.html'}"


def _validate(options: argparse.Namespace) -> int:
    from mdlm_leaderboard.validate import problems_of
    from mdlm_lm_eval.results.result_file import find_result_files

    files = [file for path in options.paths for file in (find_result_files(path) if path.is_dir() else [path])]
    found = {file: problems_of(file) for file in files} or {path: ["holds no *.json file"] for path in options.paths}
    for file, problems in found.items():
        for problem in problems:
            print(printable(f"{file}: {problem}"), file=sys.stderr)
        if not problems:
            print(printable(f"{file}: ok"))
    return int(any(found.values()))


def _audit(options: argparse.Namespace) -> str:
    from mdlm_leaderboard.audit import audit

    return audit(options.file, options.include_path)


if __name__ == "__main__":
    sys.exit(main())
