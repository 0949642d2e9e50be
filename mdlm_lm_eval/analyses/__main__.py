"""Look into a model: what its answer depends on, how sure it is, and what masks cost against what shots bring.

    mdlm-attribution groups --limit 20 --output_path analyses
    mdlm-attribution examples --limit 20 --reorderings 30 --output_path analyses
    mdlm-attribution confidence --n_masks 1,2,10,50,100,200 --limit 50 --output_path analyses
    mdlm-attribution shots-against-masks results --output_path analyses

Without pretrained in --model_args it is the built-in model. Each writes CSV, JSON and, where there is a curve to show,
a figure. The same command continues a killed one, and several at once share the tasks.
"""

import argparse
from pathlib import Path
from typing import Any

from mdlm_lm_eval import __version__
from mdlm_lm_eval.command_line import NamedValues
from mdlm_lm_eval.ending import ending_well, importing
from mdlm_lm_eval.options import LARGEST_SEED, OptionError
from mdlm_lm_eval.values import must_be, parse_whole, typed_folder

COMMAND = "mdlm-attribution"
OPEN_ENDED, FIXED_SLOT = "mdlm_context", "mdlm_slot"
# The paper's (section 4.3).
QUESTIONS, REORDERINGS, TABLE_MASKS = 20, 30, 50
MOST_REORDERINGS = 100_000
CONFIDENCE_MASKS = "1,2,10,50,100,200"


def main() -> None:
    """The command line."""
    with ending_well(COMMAND, after_stop="the same command goes on after the last task that it finished"):
        given = _parser().parse_args()
        given.run(given)


def _parser() -> argparse.ArgumentParser:
    style: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, **style)
    parser.add_argument("--version", action="version", version=f"{COMMAND} {__version__}")
    commands = parser.add_subparsers(required=True, metavar="ANALYSIS")

    groups = commands.add_parser(
        "groups",
        help="gradient attribution to masks, the last 50 non-masks and all non-masks (table 1)",
        epilog="example:\n  mdlm-attribution groups --limit 20 --output_path analyses\n"
        "  mdlm-attribution groups --model hf --model_args pretrained=Qwen/Qwen2.5-7B,dtype=bfloat16 "
        "--output_path analyses/qwen",
        **style,
    )
    groups.add_argument("--n_masks", help=f"masks appended; {TABLE_MASKS}, with --model hf none")
    _add_model_options(groups, default_tasks=OPEN_ENDED, default_limit=QUESTIONS)
    groups.set_defaults(run=_run_groups)

    examples = commands.add_parser(
        "examples",
        help="gradient attribution to each in-context example over reorderings (figure 3; E3)",
        epilog="example:\n  mdlm-attribution examples --limit 20 --reorderings 30 --output_path analyses",
        **style,
    )
    examples.add_argument("--n_masks", help=f"masks appended; none, as the prompts of {FIXED_SLOT} hold one")
    examples.add_argument("--reorderings", default=str(REORDERINGS), help=f"of the examples; {REORDERINGS}")
    examples.add_argument("--seed", default="0", help="of the reorderings; 0")
    default_tasks = f"{FIXED_SLOT}, with --model hf {OPEN_ENDED}"
    _add_model_options(examples, default_tasks=default_tasks, default_limit=QUESTIONS)
    examples.set_defaults(run=_run_examples)

    confidence = commands.add_parser(
        "confidence",
        help="confidence and entropy at the answer mask against the mask count (figure 24; E13)",
        epilog="example:\n  mdlm-attribution confidence --n_masks 1,2,10,50,100,200 --limit 50 --output_path analyses",
        **style,
    )
    confidence.add_argument("--n_masks", default=CONFIDENCE_MASKS, help=f"mask counts; {CONFIDENCE_MASKS}")
    _add_model_options(confidence, default_tasks=OPEN_ENDED, default_limit=None)
    confidence.set_defaults(run=_run_confidence)

    shots = commands.add_parser(
        "shots-against-masks",
        help="gain from more shots against loss to more masks, from lm-eval result files (figure 20; E12)",
        epilog="example:\n  mdlm-sweep --tasks mdlm_context --n_masks 1,200 "
        "--metadata fewshot_relevant=5,25 fewshot_distractors=0 --output_path results\n"
        "  mdlm-attribution shots-against-masks results --output_path analyses",
        **style,
    )
    shots.add_argument("results", nargs="+", type=Path, help="result files of lm_eval or mdlm-sweep, or their folders")
    shots.add_argument("--shots", default="5,25", help="few and many shots; 5,25")
    shots.add_argument("--masks", default="1,200", help="few and many masks; 1,200")
    shots.add_argument("--output_path", type=typed_folder, required=True, metavar="FOLDER")
    shots.set_defaults(run=_run_shots_against_masks)
    return parser


def _add_model_options(parser: argparse.ArgumentParser, *, default_tasks: str, default_limit: int | None) -> None:
    parser.add_argument("--model", default="mdlm", choices=("mdlm", "hf"), help="hf for autoregressive models")
    parser.add_argument(
        "--model_args",
        nargs="+",
        default={},
        action=NamedValues,
        help="as lm_eval's: pretrained=...,peft=...,dtype=...,revision=..., or JSON",
    )
    parser.add_argument("--tasks", help=f"tasks and groups of the few-shot suite; {default_tasks}")
    parser.add_argument(
        "--metadata",
        nargs="+",
        default={},
        action=NamedValues,
        metavar="KEY=VALUE",
        help="of the tasks: fewshot_distractors=20",
    )
    limit = "all" if default_limit is None else str(default_limit)
    parser.add_argument("--limit", default=default_limit, help=f"questions a task; {limit}")
    parser.add_argument("--apply_chat_template", action="store_true", help="for instruct models")
    parser.add_argument("--batch_size", default="auto", help="auto")
    parser.add_argument("--device", help="the machine's accelerator, else cpu")
    parser.add_argument("--output_path", type=typed_folder, required=True, metavar="FOLDER")


def _run_groups(given: argparse.Namespace) -> None:
    default = None if given.model == "hf" else TABLE_MASKS
    options = _options("attribution_groups", given, OPEN_ENDED, _whole("n_masks", given.n_masks, default))
    with importing(COMMAND):
        from mdlm_lm_eval.analyses.output import over_tasks
        from mdlm_lm_eval.analyses.runner import group_rows, run

    report = run(options, group_rows)
    groups = over_tasks(report.rows, "gradient", ["group"])
    report.write({"groups": groups})
    for row in groups:
        print(f"{row['group']}: {row['gradient']:.3f}{_band(row['band'])}")
    _say_where(report)


def _run_examples(given: argparse.Namespace) -> None:
    tasks = OPEN_ENDED if given.model == "hf" else FIXED_SLOT
    reordering = {
        "reorderings": parse_whole("reorderings", given.reorderings, least=1, most=MOST_REORDERINGS),
        "seed": parse_whole("seed", given.seed, most=LARGEST_SEED),
    }
    n_masks = _whole("n_masks", given.n_masks, None)
    options = _options("attribution_examples", given, tasks, n_masks, **reordering)
    with importing(COMMAND):
        from mdlm_lm_eval.analyses.figures import draw_examples
        from mdlm_lm_eval.analyses.output import over_tasks
        from mdlm_lm_eval.analyses.runner import example_rows, run

    report = run(options, example_rows)
    places = over_tasks(report.rows, "gradient", ["place"])
    kinds = over_tasks(report.rows, "gradient", ["example"])
    places_by_kind = over_tasks(report.rows, "gradient", ["example", "place"])
    places_by_kind.sort(key=lambda row: row["place"])
    report.write({"kinds": kinds, "places": places, "places_by_kind": places_by_kind})
    draw_examples(places_by_kind, report.path(""), options.model_name)
    for row in kinds:
        print(f"{row['example']} examples: {row['gradient']:.4f}{_band(row['band'], 4)}")
    largest = max(places, key=lambda row: row["gradient"])
    for name, row in (("first", places[0]), ("last", places[-1]), ("largest", largest)):
        print(f"{name}, at place {row['place']} of {len(places)}: {row['gradient']:.4f}{_band(row['band'], 4)}")
    _say_where(report, figure=True)


def _run_confidence(given: argparse.Namespace) -> None:
    if given.model == "hf":
        raise OptionError("model must be mdlm, not hf: autoregressive models have no masks")
    counts = sorted({parse_whole("n_masks", count.strip(), least=1) for count in given.n_masks.split(",")})
    options = _options("confidence", given, OPEN_ENDED, *counts)
    with importing(COMMAND):
        from mdlm_lm_eval.analyses.figures import draw_confidence
        from mdlm_lm_eval.analyses.output import over_tasks
        from mdlm_lm_eval.analyses.runner import confidence_rows, run

    report = run(options, confidence_rows)
    values = ("confidence", "entropy", "correct")
    summary = {value: over_tasks(report.rows, value, ["n_masks"]) for value in values}
    report.write(summary)
    draw_confidence(summary, report.path(""), options.model_name)
    for sure, unsure, right in zip(*summary.values(), strict=True):
        print(
            f"{sure['n_masks']} masks: confidence {sure['confidence']:.3f}{_band(sure['band'])}, "
            f"entropy {unsure['entropy']:.3f}{_band(unsure['band'])} nats, "
            f"accuracy {right['correct']:.3f}{_band(right['band'])}"
        )
    _say_where(report, figure=True)


def _run_shots_against_masks(given: argparse.Namespace) -> None:
    with importing(COMMAND):
        from mdlm_lm_eval.analyses.figures import draw_shots_against_masks
        from mdlm_lm_eval.analyses.output import Report
        from mdlm_lm_eval.analyses.shots_against_masks import by_model, gains_and_losses, read_scores

    shots, masks = _few_and_many("shots", given.shots), _few_and_many("masks", given.masks)
    rows = gains_and_losses(read_scores(given.results), shots=shots, masks=masks)
    settings = {"results": [str(path) for path in given.results], "shots": shots, "masks": masks}
    report = Report(given.output_path, "shots_against_masks", settings)
    report.rows = rows
    summary = by_model(rows)
    report.write({"models": summary})
    draw_shots_against_masks(rows, summary, report.path(""))
    for row in summary:
        r = "undefined" if row["pearson_r"] is None else f"{row['pearson_r']:.2f}"
        gain, loss = (f"{100 * row[name]:.1f}{_band(row[f'{name}_band'], 1, 100)}" for name in ("gain", "loss"))
        print(f"{row['model']}: gain {gain} points, loss {loss}, Pearson r {r} over {row['tasks']} tasks")
    _say_where(report, figure=True)


def _options(
    analysis: str, given: argparse.Namespace, default_tasks: str, *n_masks: int | None, **reordering: int
) -> Any:
    from mdlm_lm_eval.analyses.options import AnalysisOptions

    return AnalysisOptions(
        analysis=analysis,
        model=given.model,
        model_args=given.model_args,
        tasks=tuple(task for task in (default_tasks if given.tasks is None else given.tasks).split(",") if task),
        metadata=given.metadata,
        n_masks=n_masks,
        limit=_whole("limit", given.limit, None),
        batch_size=given.batch_size,
        device=given.device,
        apply_chat_template=given.apply_chat_template,
        output_path=given.output_path,
        **reordering,
    )


def _whole(name: str, value: str | int | None, default: int | None) -> int | None:
    return default if value is None else parse_whole(name, value, least=1)


def _few_and_many(name: str, text: str) -> tuple[int, int]:
    numbers = [parse_whole(name, part.strip()) for part in text.split(",")]
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise must_be(name, "two whole numbers with a comma between them, the smaller first", text)
    return numbers[0], numbers[1]


def _band(half_width: float | None, digits: int = 3, factor: float = 1) -> str:
    return "" if half_width is None else f" ± {factor * half_width:.{digits}f}"


def _say_where(report: Any, *, figure: bool = False) -> None:
    suffixes = (".csv", ".json", ".png", ".svg") if figure else (".csv", ".json")
    tasks = f" ({len(report.own)} of {len(report.finished)} tasks by this process)" if report.finished else ""
    print(f"written: {', '.join(str(report.path(suffix)) for suffix in suffixes)}{tasks}")


if __name__ == "__main__":
    main()
