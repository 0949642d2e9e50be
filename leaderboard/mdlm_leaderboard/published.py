"""Rows that a paper published, from `published.yaml` beside this file."""

from importlib.resources import files
from typing import Any

import yaml
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

from mdlm_leaderboard.experiments import SUMMARIES
from mdlm_leaderboard.rows import LeaderboardRow, Setting
from mdlm_leaderboard.slugs import slug

# The paper's own questions: version and hash of our suite say nothing of them.
_SETTING = Setting(
    suite_version="of the paper",
    suite_hash=None,
    **DEFAULT_SETTINGS | {"fewshot_seed": None},
    limit=None,
    chat_template=False,
)


def published_rows() -> list[LeaderboardRow]:
    """The rows of all sources, in the order of the file."""
    sources = yaml.safe_load((files(__package__) / "published.yaml").read_text(encoding="utf-8"))
    return [_row({**source, **row}) for source in sources for row in source["rows"]]


def _row(entry: dict[str, Any]) -> LeaderboardRow:
    kind = "mdlm_context" if entry.get("degradation_percent") is None else "degradation"
    words = f"published {kind} {entry['model']} {entry.get('adapter', '')} {entry['steps']}"
    return LeaderboardRow(
        id=slug(words),
        model=entry["model"],
        adapter=entry.get("adapter"),
        origin="published",
        citation=entry["citation"],
        family=entry["family"],
        setting=_SETTING,
        steps=entry["steps"],
        unmasking=entry["unmasking"],
        other=entry.get("other", ""),
        stated={summary.name: entry[summary.name] for _, summary in SUMMARIES if summary.name in entry},
    )
