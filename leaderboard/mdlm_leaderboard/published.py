"""What papers state of models that were not measured here, from `published.yaml` beside this file."""

from importlib.resources import files

import pandas as pd
import yaml

MEASURES = {
    "drop_points": "drop over mask counts (points)",
    "dots_drop_points": "drop over dots (points)",
    "degradation_percent": "degradation (%)",
}


def published() -> pd.DataFrame:
    """One line per model and adapter: `model`, `adapter`, `citation`, and a column per measure and number of steps."""
    sources = yaml.safe_load((files(__package__) / "published.yaml").read_text(encoding="utf-8"))
    stated = [
        {"model": row["model"], "adapter": row.get("adapter", ""), "citation": source["citation"]}
        | {"what": f"{words}, {steps} step{'' if steps == '1' else 's'}", "value": row[name]}
        for source in sources
        for row in source["rows"]
        for name, words in MEASURES.items()
        if name in row and (steps := row.get("steps", source.get("steps")))
    ]
    table = pd.DataFrame(stated)
    who = ["model", "adapter"]
    citations = table.groupby(who, sort=False)["citation"].agg(lambda found: "; ".join(dict.fromkeys(found)))
    values = table.pivot(index=who, columns="what", values="value")[list(dict.fromkeys(table["what"]))]
    return values.join(citations).loc[citations.index].reset_index()
