"""Runs the commands of README and docs, and writes what came out into docs/commands.md.

    python docs/run_commands.py
    python docs/run_commands.py mdlm-attribution "lm_eval --model mdlm"

Each runs in one scratch folder, without a network, on the built-in model, unless an entry of NOT_RUN fits it. The
second form runs those that hold one of these texts, and keeps what the report says of the others.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mdlm_lm_eval.results.markdown import markdown_table

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "commands.md"
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "tasks/*.md", "finetune/*.md", "leaderboard/**/*.md", "benchmarks/*.md")
    for page in ROOT.glob(pattern)
    # The presets' commands are checked one by one in tests/test_presets.py.
    if page not in (REPORT, ROOT / "docs" / "benchmarks.md", ROOT / "CHANGELOG.md")
)
PROGRAM = (
    r"(?:lm_eval|mdlm-(?:sweep|attribution|finetune|leaderboard)"
    r"|(?:python )?-m (?:lm_eval|mdlm_\w+(?:\.\w+)*)|python (?:docs|benchmarks)/\w+\.py)"
)
# The first entry that fits says why a command is not run.
NOT_RUN = {
    r"benchmarks/(?!study_cost)": "a measurement: benchmarks/README.md says when and where it ran",
    r"pretrained=(?!built-in)|--config (llada|fast)": "needs a checkpoint from the hub and a GPU",
    r"gsm8k|single_token|hotpotqa": "needs data from the hub",
    r"--executor ray": "needs a cluster",
    r"\b(A|OUTPUT|MODEL)\b|2026-|answers\.jsonl": "names a file of the reader's own",
    r"right_to_left|_tree_": "needs an example of docs/extending.md, which tests/test_extending.py tries",
    r"tasks\.generate|docs/figures|python docs/": "writes into the repository; tests compare what it writes",
    r"--config|--reorderings|path leaderboard/results|lm_eval (?!.*--limit)": "takes more than 3 minutes on one core",
    r"classification_random|--n_masks 1,2,10,50,100,200 --steps 1": "takes more than 3 minutes on one core",
}
INTRODUCTION = """# Do the documented commands run?

Written by `python docs/run_commands.py`: the commands of README and docs that run offline with the built-in model, each
with its last lines of output, and why the others were not run. Seconds are the clock's, on a machine that may have been
busy. `tests/test_documented_commands.py` parses all of them, `tests/test_presets.py` those of
[benchmarks.md](benchmarks.md).
"""


def commands(page: Path) -> Iterator[str]:
    """Every command of a page, with single spaces: of blocks, and of `spans` of at least three words."""
    text = page.read_text(encoding="utf-8")
    fenced = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fenced.findall(text) if language in ("bash", "sh")]
    rest = fenced.sub("", text)
    lines = [*blocks, *re.findall(r"^(?: {4}.*\n)+", rest, re.MULTILINE)]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        for part in line.split(" && "):
            if found := re.search(rf"(?:^|\s)({PROGRAM}(?:\s.*)?)$", part.strip()):
                yield " ".join(found[1].split())
    for span in re.findall(r"`([^`]+)`", rest):
        words = span.split()
        if re.match(PROGRAM, span) and (len(words) > 2 or words[0] == "python") and "..." not in words:
            yield " ".join(words)


def all_commands() -> dict[str, list[str]]:
    """Command -> the pages that it stands on, in their order."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for command in dict.fromkeys(commands(page)):
            found.setdefault(command, []).append(str(page.relative_to(ROOT)))
    return found


def why_not(command: str) -> str | None:
    """Why a command is not run here, or None."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, command)), None)


def run(command: str, folder: Path, at_most: float) -> list[str]:
    """What a command wrote last, and how and when it ended."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    begin = time.monotonic()
    try:
        done = subprocess.run(
            shlex.split(command),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=at_most,
        )
        end, output = f"exit status {done.returncode}", done.stdout if done.returncode == 0 else done.stderr
    except subprocess.TimeoutExpired:
        end, output = "stopped before its end", ""
    for path, shown in ((folder, "."), (ROOT, "REPOSITORY"), (sys.prefix, "ENVIRONMENT")):
        output = output.replace(str(path), shown)
    last = [line for line in output.splitlines() if line.strip()][-5:]
    return [*last, f"({end} after {time.monotonic() - begin:.0f} s, {time.strftime('%Y-%m-%d')})"]


def read_report() -> dict[str, list[str]]:
    """Command -> its lines in the report."""
    blocks = re.findall(r"```text\n\$ (.*)\n((?:.*\n)*?)```", REPORT.read_text(encoding="utf-8"))
    return {command: lines.splitlines() for command, lines in blocks}


def write_report(ran: dict[str, list[str]]) -> None:
    """Puts the report together."""
    found = all_commands()
    blocks = [
        "\n".join(["```text", f"$ {command}", *ran.get(command, ["(not run yet)"]), "```"])
        for command in found
        if why_not(command) is None
    ]
    rows = [[f"`{command}`", ", ".join(pages), why_not(command) or ""] for command, pages in found.items()]
    REPORT.write_text(
        "\n".join(
            [
                INTRODUCTION,
                *blocks,
                "",
                "## Not run",
                "",
                markdown_table(["command", "page", "why"], [row for row in rows if row[2]]),
                "",
            ]
        ),
        encoding="utf-8",
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="run the commands that hold one of these; all without")
    parser.add_argument("--at_most", type=float, default=600, help="seconds for one command; 600")
    given = parser.parse_args()
    chosen = [
        command
        for command in all_commands()
        if why_not(command) is None and (not given.texts or any(text in command for text in given.texts))
    ]
    # What reads a folder of results comes after what fills it.
    chosen.sort(key=lambda command: bool(re.search(r" results\b", command)) and "--output_path results" not in command)
    ran = read_report() if given.texts else {}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("benchmarks", "leaderboard/results"):
            shutil.copytree(ROOT / part, Path(folder) / part)
        for command in chosen:
            ran[command] = run(command, Path(folder), given.at_most)
            print(f"$ {command}", *ran[command], sep="\n", flush=True)
            write_report(ran)


if __name__ == "__main__":
    main()
