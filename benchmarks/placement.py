"""The built-in model's answers with the question before, between and after the examples, as placement.csv has them.

mdlm-sweep --tasks mdlm_rules --limit 63 --query_position prefix,middle,trailing --log_samples --output_path results
python benchmarks/placement.py results
"""

import csv
import sys
from pathlib import Path

from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.samples import scores_by_question
from mdlm_lm_eval.results.statistics import Score, difference, score_of_sets
from mdlm_lm_eval.results.suite import SUITE_METRIC
from mdlm_lm_eval.results.text import compact, markdown_table

FILE = Path(__file__).with_suffix(".csv")
PLACES = ("prefix", "middle", "trailing")


def write(folder: Path) -> None:
    """Of each place and task, the sets that were asked about and whether each answer is right."""
    with FILE.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["query_position", "task", "right", "sets"])
        for place in PLACES:
            (path,) = folder.rglob(f"*query_position={place}/results_cell.json")
            for task, scores in scores_by_question(read_result_file(path)).items():
                names, right = zip(*scores[SUITE_METRIC], strict=True)
                lines.writerow([place, task, "".join(str(int(one)) for one in right), " ".join(map(str, names))])


def scores() -> dict[str, Score]:
    """Of each place, with the questions of a set as one cluster."""
    by_place: dict[str, dict[str, list[tuple[str, float]]]] = {place: {} for place in PLACES}
    with FILE.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            own = zip(line["sets"].split(), map(float, line["right"]), strict=True)
            by_place[line["query_position"]][line["task"]] = list(own)
    return {place: score_of_sets(by_task) for place, by_task in by_place.items()}


def table() -> str:
    """What the docs show."""
    found = scores()
    rows = [[f"`{place}`", found[place].interval.scaled(100).in_words] for place in PLACES]
    lost = difference(found["trailing"], found["prefix"]).scaled(100).with_significance
    return compact(markdown_table(["place", "right (%)"], [*rows, ["`prefix` minus `trailing`", lost]]))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    print(table())
