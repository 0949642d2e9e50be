"""Lists the presets, or shows one: the whole `lm_eval` command, the published score, the options.

python -m mdlm_lm_eval.presets
python -m mdlm_lm_eval.presets show llada-8b-base/gsm8k-256
"""

import shlex

from mdlm_lm_eval.command_line import ending_well, parser_of, typed
from mdlm_lm_eval.presets import load_preset, preset_names, repeated_by, run_of


def shown(name: str) -> str:
    """Comments about a preset, followed by its command."""
    options, run = load_preset(name), run_of(name)
    unsafe = "HF_ALLOW_CODE_EVAL=1 " if "--confirm_run_unsafe_code" in run.flags else ""
    target = "" if run.is_target else "; settings only: the authors' task differs from lm-eval's, expect another number"
    lines = [f"# published: {run.score or 'no score'} ({run.where}){target}"]
    lines += [f"# repeated: {repeated.score} ({other})" for other, repeated in repeated_by(name).items()]
    lines.append(f"# source: {run.source}, {run.dated}")
    if run.differs:
        lines.append(f"# differs: {run.differs}")
    if run.texts and "likelihood" not in options:
        lines.append(f"# texts: {run.texts}")
    lines.append(f"# options: {typed(options)}")
    lines.append(f"{unsafe}lm_eval --model mdlm {shlex.join(run.flags)} --output_path results")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = parser_of("python -m mdlm_lm_eval.presets", __doc__)
    parser.add_argument("what", nargs="?", choices=("list", "show"), default="list")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    if given.what == "show" and not given.names:
        parser.error("show needs the name of a preset; without `show`, all names are listed")
    with ending_well("presets", after_stop="run it again"):
        print("\n".join(map(shown, given.names) if given.what == "show" else preset_names()))
