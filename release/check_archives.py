"""Checks the archives in a folder: each holds the tracked files that belong to it, and nothing else.

python release/check_archives.py dist
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PLACES = {"mdlm_lm_eval": "mdlm_lm_eval", "tasks": "mdlm_lm_eval/tasks"}
PLACES |= {"finetune/mdlm_finetune": "mdlm_finetune", "leaderboard/mdlm_leaderboard": "mdlm_leaderboard"}


def tracked() -> set[str]:
    """The repository's files; links are no files."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and not Path(name).is_symlink()}


def in_wheel(name: str) -> str | None:
    """Where a tracked file lies in the wheel; None for those that are not installed."""
    if name == "mdlm_lm_eval_hook.pth":
        return name
    return next(
        (place + name.removeprefix(part) for part, place in PLACES.items() if name.startswith(f"{part}/")), None
    )


def main(folder: Path) -> None:
    """Raises SystemExit with what is missing or too much, or prints the sizes."""
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    names, files = zipfile.ZipFile(wheel).namelist(), tracked()
    installed = {name for name in names if ".dist-info/" not in name}
    with tarfile.open(source) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    expected = {place for name in files if (place := in_wheel(name))}
    # The package's link to the tasks is a folder there, in the place of the one that it points to.
    files = {f"mdlm_lm_eval/{name}" if name.startswith("tasks/") else name for name in files}
    wanted = {name for name in files if not name.startswith(".ci/")}
    faults = {
        "missing in the wheel": expected - installed,
        "too much in the wheel": installed - expected,
        "missing in the source archive": wanted - packed,
        "too much in the source archive": packed - files - {"PKG-INFO"},
    }
    latest = re.search(r"^## (\S+)", Path("CHANGELOG.md").read_text(), re.MULTILINE)
    if latest is None or f"-{latest[1]}-" not in wheel.name:
        raise SystemExit(f"{wheel.name} has another version than the first heading of CHANGELOG.md")
    if any(faults.values()):
        raise SystemExit(
            "\n".join(f"{fault}: {len(found)}, such as {min(found)}" for fault, found in faults.items() if found)
        )
    for path in (wheel, source):
        print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
