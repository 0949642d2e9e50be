"""What made a row: settings that all of its runs share, said once, and every command with the files it wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mdlm_leaderboard.rows import LeaderboardRow


@dataclass(frozen=True)
class File:
    """A result file. `own` are the settings and versions that other runs of the row do not share."""

    path: str
    date: str
    own: Mapping[str, str]


@dataclass(frozen=True)
class Command:
    """A command and the files that it wrote."""

    text: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class Provenance:
    """Settings and versions common to all runs, and the commands."""

    settings: Mapping[str, str]
    versions: Mapping[str, str]
    commands: tuple[Command, ...]


def provenance_of(row: LeaderboardRow) -> Provenance:
    """Commands in the order of their files."""
    settings = _common([run.settings for run in row.runs])
    versions = _common([run.versions for run in row.runs])
    files: dict[str, list[File]] = {}
    for run in row.runs:
        own = {name: _text(value) for name, value in run.settings.items() if name not in settings}
        own |= {name: value for name, value in run.versions.items() if name not in versions}
        files.setdefault(run.command, []).append(File(run.path, run.date, own))
    commands = tuple(Command(text, tuple(made)) for text, made in files.items())
    return Provenance(settings, versions, commands)


def _common(mappings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    if not mappings:
        return {}
    first, *rest = mappings
    return {
        name: _text(value)
        for name, value in first.items()
        if all(name in other and _text(other[name]) == _text(value) for other in rest)
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
