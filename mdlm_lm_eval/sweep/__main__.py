"""Evaluate a model under every combination of some settings, over one loaded model.

    mdlm-sweep --tasks mdlm_context --n_masks 1,2,10,50,100,200 --steps 1 --limit 50 --output_path results
    mdlm-sweep --config e07 --model_args pretrained=GSAI-ML/LLaDA-8B-Base,dtype=bfloat16 --output_path results
    mdlm-sweep --config e09 --peft none,out/adapter --output_path results

Every cell is written as an ordinary lm-eval result file as soon as it is done. The same command continues a killed
sweep.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from mdlm_lm_eval.options import OptionError

RECIPES = Path(__file__).parent / "recipes"


def main() -> None:
    """The command line."""
    # Option values such as none,out/adapter are for us; argparse must not guess at abbreviations of ours.
    parser = argparse.ArgumentParser(
        prog="mdlm-sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="Any decoding or likelihood option of --model mdlm is an axis too: --OPTION value,value,...",
    )
    recipes = ", ".join(sorted(path.stem for path in RECIPES.glob("*.yaml")))
    parser.add_argument("--config", help=f"a YAML of these settings: a file, or the beginning of one of {recipes}")
    parser.add_argument("--model", help="mdlm (default), or hf for autoregressive models, which have no masks")
    parser.add_argument("--model_args", help="as lm_eval's; without pretrained the built-in model")
    parser.add_argument("--peft", help="adapters, none for the model without one: none,DIR,DIR")
    parser.add_argument("--tasks", help="tasks and groups, which make one cell together")
    parser.add_argument("--n_masks", help="masks appended after the prompt: 1,2,10,50,100,200")
    parser.add_argument("--steps", help="denoising steps: 1,40")
    parser.add_argument("--unmasking", help="unmasking orders: confidence,random")
    parser.add_argument(
        "--metadata", nargs="+", metavar="key=values", help="of the tasks: fewshot_distractors=0,10,20,30"
    )
    parser.add_argument("--limit", help="questions a task")
    parser.add_argument("--batch_size", help="auto by default")
    parser.add_argument("--device")
    parser.add_argument("--seed", help="of random choices; 1234 as lm_eval's")
    parser.add_argument("--include_path", help="a folder with tasks of your own")
    parser.add_argument("--log_samples", action="store_true", help="keep prompts and answers beside each result")
    parser.add_argument("--output_path", type=Path, required=True)
    given, rest = parser.parse_known_args()
    try:
        settings = _settings(given, rest)
        # Heavy imports wait until the command line is known to be right.
        from mdlm_lm_eval.sweep.plan import plan
        from mdlm_lm_eval.sweep.runner import run

        failures = run(
            plan(settings), given.output_path, log_samples=given.log_samples, include_path=given.include_path
        )
    except OptionError as error:
        sys.exit(f"mdlm-sweep: {error}")
    for failure in failures:
        print(f"mdlm-sweep: failed: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


def _settings(given: argparse.Namespace, rest: list[str]) -> dict[str, Any]:
    """The sweep file's settings with the command line's on top."""
    settings = {} if given.config is None else _read(given.config)
    for name in ("model", "peft", "tasks", "n_masks", "steps", "unmasking", "limit", "batch_size", "device", "seed"):
        if vars(given)[name] is not None:
            settings[name] = vars(given)[name]
    if given.model_args is not None:
        settings["model_args"] = dict(_pair("--model_args", pair) for pair in given.model_args.split(",") if pair)
    if given.metadata is not None:
        settings["metadata"] = dict(_pair("--metadata", pair) for pair in given.metadata)
    words = iter(rest)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise OptionError(f"{word} is not understood; allowed are --OPTION value,value,...")
        settings[name] = value if equals else next(words, None)
    return settings


def _read(config: str) -> dict[str, Any]:
    """A file, or the packaged one whose name begins so."""
    path = Path(config)
    if not path.exists():
        packaged = sorted(RECIPES.glob(f"{config}*.yaml"))
        if len(packaged) != 1:
            names = ", ".join(sorted(path.stem for path in RECIPES.glob("*.yaml")))
            raise OptionError(f"--config {config}: no such file; packaged are {names}")
        path = packaged[0]
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise OptionError(f"--config {config}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise OptionError(f"--config {config}: must hold settings, a line each")
    if isinstance(settings.get("model_args"), str):
        settings["model_args"] = dict(_pair("model_args", pair) for pair in settings["model_args"].split(","))
    return settings


def _pair(option: str, pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise OptionError(f"{option} {pair}: must be name=value")
    return name, value


if __name__ == "__main__":
    main()
