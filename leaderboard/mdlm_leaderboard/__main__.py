"""The command `mdlm-leaderboard`."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdlm_lm_eval import __version__
from mdlm_lm_eval.ending import ending_well, importing
from mdlm_lm_eval.values import typed_folder

if TYPE_CHECKING:
    from mdlm_leaderboard.rows import Board, Refused

_COMMAND = "mdlm-leaderboard"
_EXAMPLE = """examples:
  mdlm-leaderboard build results/ --output site/
  mdlm-leaderboard validate results/my-model
  mdlm-leaderboard compare before/results_2026-01-31T12-00-00.json after/results_2026-02-01T12-00-00.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    with ending_well(_COMMAND, after_stop="what was there before is as it was"):
        options = _parser().parse_args(arguments)
        if options.command == "validate":
            return _validate(options.paths)
        if options.command == "compare":
            return _compare(options.first, options.second)
        if options.command == "audit":
            return _audit(options.file, options.include_path)
        return _build(options.results, options.output, options.readme_figures, strict=options.strict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description="Tables, figures and a static page from the result files of lm-eval.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{_COMMAND} {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser(
        "build",
        help="build the leaderboard from a folder of result files",
        epilog="example:\n  mdlm-leaderboard build results/ --output site/ --readme_figures docs/figures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    builder.add_argument("results", type=_folder, help="folder that is searched for lm-eval's result files (*.json)")
    builder.add_argument(
        "--output", type=_folder, required=True, help="folder for LEADERBOARD.md, CSV, JSON, figures, page"
    )
    builder.add_argument(
        "--readme_figures", type=_folder, help="folder for a copy of the headline's figure, light and dark (*.svg)"
    )
    builder.add_argument("--strict", action="store_true", help="exit with 1 where any file or score is not used")
    validator = commands.add_parser(
        "validate",
        help="check result files before they are submitted",
        epilog="example:\n  mdlm-leaderboard validate results/my-model",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    validator.add_argument(
        "paths", type=Path, nargs="+", metavar="PATH", help="a folder, with every result file below it, or a file"
    )
    comparer = commands.add_parser(
        "compare",
        help="the difference between two result files on the same questions, with its 95%% interval",
        epilog="example:\n  mdlm-leaderboard compare before/results_1.json after/results_2.json\n\n"
        "With the files of lm_eval's --log_samples beside the results, questions are compared one by one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    comparer.add_argument("first", type=Path, metavar="A", help="an lm-eval result file")
    comparer.add_argument("second", type=Path, metavar="B", help="another of the same tasks")
    auditor = commands.add_parser(
        "audit",
        help="the score with a cache and without, on the questions that cache_audit decoded exactly too",
        epilog="example:\n  mdlm-leaderboard audit results/built-in/results_2026-01-31T12-00-00.json\n\n"
        "The files of lm_eval's --log_samples must lie beside the results.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    auditor.add_argument("file", type=Path, metavar="FILE", help="an lm-eval result file of a run with cache_audit")
    auditor.add_argument("--include_path", help="folder of tasks that are not lm-eval's or the suite's")
    return parser


def _folder(name: str) -> Path:
    """A folder that may be replaced."""
    folder = typed_folder(name)
    if "://" in name or not folder.resolve().name:
        raise argparse.ArgumentTypeError(f"must be a folder on a disk, and not all of it, not {name}")
    return folder


def _build(results: Path, output: Path, readme_figures: Path | None, *, strict: bool) -> int:
    # Here and below, what the command needs is imported where it is needed: `--help` needs none of it.
    with importing(_COMMAND):
        from mdlm_leaderboard.build import LeaderboardError, build
        from mdlm_lm_eval.options import OptionError

    try:
        board = build(results, output, readme_figures)
    except (LeaderboardError, OptionError, OSError) as error:
        _say_refused(error.refused if isinstance(error, LeaderboardError) else ())
        _say(f"mdlm-leaderboard: {_not_written(output, error) if isinstance(error, OSError) else error}")
        return 1
    _say_refused(board.refused)
    _say_set_apart(board)
    measured = sum(row.origin == "measured" for row in board.rows)
    print(f"{measured} measured and {len(board.rows) - measured} published rows in {output / 'LEADERBOARD.md'}")
    return int(strict and bool(board.refused))


def _not_written(output: Path, error: OSError) -> str:
    # What the system says may name a file that is ours alone.
    return f"--output {output} cannot be written: {error.strerror or error}"


def _say_refused(refused: "Iterable[Refused]") -> None:
    for one in refused:
        _say(f"not used: {one.path!r}: {one.reason}")


def _say_set_apart(board: "Board") -> None:
    for section in board.sections:
        if section.why_apart:
            rows = f"{len(section.rows)} row" + "s" * (len(section.rows) != 1)
            _say(f"set apart: {section.title!r} ({rows}): {section.why_apart}")


def _validate(paths: Iterable[Path]) -> int:
    from mdlm_leaderboard.validate import files_of, problems_of

    wrong = 0
    for path in paths:
        files = files_of(path)
        wrong += not files
        if not files:
            _say(f"{str(path)!r}: holds no *.json file; it must be a folder of lm-eval's result files")
        for file in files:
            wrong += not _is_valid(file, problems_of(file))
    return int(wrong > 0)


def _is_valid(file: Path, problems: Sequence[str]) -> bool:
    """Says what is wrong with a file, or that nothing is."""
    for problem in problems:
        _say(f"{str(file)!r}: {problem}")
    if not problems:
        print(f"{file}: ok")
    return not problems


def _compare(first: Path, second: Path) -> int:
    from mdlm_leaderboard.compare import as_text, compare
    from mdlm_lm_eval.results.files import UnusableFile

    try:
        comparisons = compare(first, second)
    except UnusableFile as error:
        _say(f"mdlm-leaderboard: {error}")
        return 1
    print("\n\n".join(as_text(comparison) for comparison in comparisons))
    return 0


def _audit(file: Path, include_path: str | None) -> int:
    # Imported here, as lm-eval takes longer to load than `--help` takes.
    from lm_eval.tasks import TaskManager

    from mdlm_leaderboard.audit import as_text, audit_scores
    from mdlm_lm_eval.results.files import UnusableFile

    def load_task(name: str, metadata: Mapping[str, Any]) -> Any:
        return TaskManager(include_path=include_path, metadata=dict(metadata)).load([name])["tasks"][name]

    try:
        print(as_text(audit_scores(file, load_task)))
    except UnusableFile as error:
        _say(f"mdlm-leaderboard: {error}")
        return 1
    return 0


def _say(line: str) -> None:
    """One line on stderr, in which nothing that a file brought can steer the terminal."""
    print("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
