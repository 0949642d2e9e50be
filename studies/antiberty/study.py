"""Converts AntiBERTy, asks it, and writes the record of the study, whose plan is in plan.txt.

    git clone https://github.com/Merck/BioPhi-2021-publication
    pip download --no-deps antiberty==0.1.3
    python3 -m venv reference
    reference/bin/pip install torch transformers==4.49.0 safetensors antiberty==0.1.3
    export OMP_NUM_THREADS=1
    python studies/antiberty/study.py prepare antiberty-0.1.3-py3-none-any.whl \\
        BioPhi-2021-publication/data/tasks/humab_25_pairs/pairs/parental.fa
    reference/bin/python studies/antiberty/theirs.py
    mdlm-check antiberty/checkpoint --modeling studies/antiberty/theirs.py:Network \\
        --reference_python reference/bin/python --task antibody_residue \\
        --include_path studies/antiberty/tasks --output_path antiberty/check.json
    mdlm-sweep --config studies/antiberty/residues.yaml --log_samples --output_path antiberty/results
    mdlm-sweep --config studies/antiberty/loops.yaml --log_samples --output_path antiberty/results
    python studies/antiberty/study.py ask
    python studies/antiberty/study.py record
    python studies/antiberty/study.py table

All files but the record are in the folder `antiberty`, as the tasks name it.
"""

import argparse
import gzip
import hashlib
import json
import platform
import re
import resource
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

FOLDER = Path("antiberty")
CHECKPOINT = FOLDER / "checkpoint"
RECORD = Path(__file__).with_name("record.json.gz")
WEIGHTS = "antiberty/trained_models/AntiBERTy_md_smooth/"
# What the package has beside a BERT for masked language modelling: other heads, and a buffer of older transformers.
DROPPED = {"bert.embeddings.position_ids", "bert.pooler.dense.weight", "bert.pooler.dense.bias"} | {
    f"cls.{head}.{kind}" for head in ("species", "chain", "graft") for kind in ("weight", "bias")
}
MASKS = (0, 5, 10, 20, 50, 100, 200)
FILLERS = ("G", "S", "X")
PLACES = ("before", "none")  # of [SEP] to the masks, beside "after", the tasks' own
PLACED = (0, 20, 200)
RESIDUES = 5  # single questions of a chain
SLOT = "<|mask|>"
PSEUDO_CHAINS = 10
LEAST = 5.0  # points: a smaller difference does not count

Scores = Mapping[str, Sequence[float]]  # pair -> the scores of its questions


# Questions


def chains(fasta: str) -> dict[tuple[str, str], str]:
    """(pair, VH or VL) -> sequence."""
    found = {}
    for block in fasta.split(">")[1:]:
        name, *lines = block.splitlines()
        pair, _, chain = name.strip().rpartition(" ")
        found[pair, chain] = "".join(lines).strip()
    return found


def regions(sequence: str, chain: str) -> tuple[range, range, range]:
    """CDR1, CDR2 and CDR3 by IMGT, from the residues that every chain has: C23, W41, C104, and W or F118.

    IMGT counts 3 residues between C23 and CDR1, 2 between CDR1 and W41, 14 between W41 and CDR2, and in framework 3
    mostly 37 (VH) or 35 (VL) between CDR2 and C104.
    """
    c23 = sequence.index("C", 18)
    w41 = max(found.start() for found in re.finditer("W[YVIFL][RQKL]", sequence) if 10 <= found.start() - c23 <= 22)
    end = max(found.start() for found in re.finditer("[WF]G.G", sequence))
    c104 = sequence.rindex("C", 0, end)
    third = 37 if chain == "VH" else 35
    return range(c23 + 4, w41 - 2), range(w41 + 15, c104 - third), range(c104 + 1, end)


def spaced(region: Sequence[int], n: int) -> list[int]:
    """`n` evenly spaced members."""
    return [region[(2 * i + 1) * len(region) // (2 * n)] for i in range(n)]


def masked(sequence: str, places: Sequence[int], mask: str) -> list[str]:
    """The residues, with masks at some places."""
    return [mask if place in places else residue for place, residue in enumerate(sequence)]


def questions(found: Mapping[tuple[str, str], str], places_of: Callable[[str, str], list[list[int]]]) -> Iterator[Any]:
    """Documents with the places that they ask for."""
    for (pair, chain), sequence in found.items():
        for places in places_of(sequence, chain):
            yield {
                "pair": pair,
                "chain": chain,
                "text": " ".join(masked(sequence, places, SLOT)),
                "answer": " ".join(sequence[place] for place in places),
            }


def single(sequence: str, chain: str) -> list[list[int]]:
    """The places of a chain's single questions."""
    every = [place for region in regions(sequence, chain) for place in region]
    return [[place] for place in spaced(every, RESIDUES)]


def prepare(wheel: Path, fasta: Path) -> None:
    """Converts the weights strictly, and writes the questions."""
    import torch
    from safetensors.torch import save_file
    from transformers import BertConfig, BertForMaskedLM

    CHECKPOINT.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as package:
        published = json.loads(package.read(f"{WEIGHTS}config.json"))
        with package.open(f"{WEIGHTS}pytorch_model.bin") as file:
            weights = torch.load(file, weights_only=True, map_location="cpu")
        (CHECKPOINT / "vocab.txt").write_bytes(package.read("antiberty/trained_models/vocab.txt"))
    assert weights.keys() >= DROPPED
    kept = {name: tensor.clone() for name, tensor in weights.items() if name not in DROPPED}
    config = published | {"architectures": ["BertForMaskedLM"]}
    with torch.device("meta"):
        needed = BertForMaskedLM(BertConfig(**config)).state_dict()
    assert {name: tensor.shape for name, tensor in kept.items()} == {k: v.shape for k, v in needed.items()}
    save_file(kept, CHECKPOINT / "model.safetensors", metadata={"format": "pt"})
    (CHECKPOINT / "config.json").write_text(json.dumps(config, indent=1))
    # Its runner says so; without this file the tokenizer would lower the case, and know no residue.
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (CHECKPOINT / "tokenizer_config.json").write_text(json.dumps(tokenizer))

    found = chains(fasta.read_text())
    third = lambda sequence, chain: [[*regions(sequence, chain)[2]]]  # noqa: E731
    for name, places_of in (("residues", single), ("loops", third)):
        lines = [json.dumps(one) for one in questions(found, places_of)]
        (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    every = {key: [p for region in regions(sequence, key[1]) for p in region] for key, sequence in found.items()}
    asked = {
        "source": {"file": fasta.name, "sha256": hashlib.sha256(fasta.read_bytes()).hexdigest(), "chains": len(found)},
        "masked": ["".join(masked(sequence, every[key], "_")) for key, sequence in found.items()],
        "pseudo": [*found.values()][:PSEUDO_CHAINS],
    }
    (FOLDER / "chains.json").write_text(json.dumps(asked))


# Answers that no task asks for


def ask() -> None:
    """Fills and pseudo-log-likelihoods to compare with theirs, and single residues with other places of [SEP]."""
    import torch

    from mdlm_lm_eval import DecodingOptions, LikelihoodOptions, fill, load, log_likelihood

    torch.set_num_threads(1)
    begin, asked = time.process_time(), json.loads((FOLDER / "chains.json").read_text())
    denoiser, tokenizer = load(str(CHECKPOINT), device="cpu")
    texts = [" ".join(text.replace("_", "@")).replace("@", SLOT) for text in asked["masked"]]
    options = LikelihoodOptions(likelihood="pseudo", check_greedy=False)
    scored = log_likelihood(denoiser, "", [" ".join(one) for one in asked["pseudo"]], options, tokenizer=tokenizer)
    answers = {
        "fills": [
            text.replace(" ", "") for text in fill(denoiser, texts, DecodingOptions(steps=1), tokenizer=tokenizer)
        ],
        "pseudo": [one.per_token for one in scored],
        "placed": {f"{place} {n}": placed(denoiser, tokenizer, place, n) for place, n in cells_of_places()},
        "seconds": time.process_time() - begin,
    }
    (FOLDER / "ours.json").write_text(json.dumps(answers))


def cells_of_places() -> list[tuple[str, int]]:
    """Places and mask counts; without masks, "before" is the tasks' own."""
    return [(place, n) for place in PLACES for n in PLACED if (place, n) != ("before", 0)]


def placed(denoiser: Any, tokenizer: Any, place: str, n: int) -> dict[str, list[float]]:
    """Scores of the single questions with `n` masks before [SEP], or with masks and no [SEP]."""
    from mdlm_lm_eval import DecodingOptions
    from mdlm_lm_eval.decoding.canvas import build_infill_canvas
    from mdlm_lm_eval.decoding.engine import decode_canvases
    from mdlm_lm_eval.decoding.way import way_of

    options = DecodingOptions(steps=1)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    documents, canvases = read_questions("residues"), []
    for one in documents:
        before, after = map(encode, one["text"].split(SLOT))
        ends = [[]] * n if place == "none" else [*[[]] * (n - 1), [tokenizer.sep_token_id]]
        segments = [[tokenizer.cls_token_id, *before], after, *ends]
        limits = {"mask_token_id": denoiser.mask_token_id, "max_length": denoiser.max_length}
        canvases.append(build_infill_canvas(segments, way_of(options, denoiser.attention), **limits)[0])
    found: dict[str, list[float]] = {}
    for one, answer in zip(documents, decode_canvases(denoiser, canvases, options, batch_size=16), strict=True):
        right = tokenizer.convert_ids_to_tokens(answer.token_ids[0]) == one["answer"]
        found.setdefault(one["pair"], []).append(float(right))
    return found


def read_questions(name: str) -> list[dict[str, Any]]:
    """The documents of a task."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


# The record


def record() -> None:
    """Writes scores by pair, passes of loops, and agreement with their code; no sequence and no weight."""
    import torch
    import transformers

    from mdlm_lm_eval.results.result_file import find_result_files, read_result_file

    asked, theirs, ours = (json.loads((FOLDER / f"{name}.json").read_text()) for name in ("chains", "theirs", "ours"))
    check = json.loads((FOLDER / "check.json").read_text())
    found: dict[str, Any] = {"residues": {}, "loops": {}, "passes": {}}
    peak = 0.0
    for path in find_result_files(FOLDER / "results"):
        file = read_result_file(path)
        (task,) = file.tasks.values()
        kind, words = f"{task.name.removeprefix('antibody_')}s", cell_of(task.options)
        found[kind][words] = scores_of(file)
        peak = max(peak, task.cost["peak_memory_bytes"])
        if kind == "loops":
            found["passes"][words] = passes_of(file)
    logits = check["logits"]
    record = {
        "source": asked["source"],
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "theirs": theirs["versions"],
        },
        "agreement": {
            "logits": {name: logits[name] for name in ("largest_difference", "canvases")},
            "same_strings": check["equal_strings"],
            "noise_floor": check["noise_floor"],
            "fills": [len(asked["masked"]), sum(whole(asked, n, ours) != one for n, one in enumerate(theirs["fills"]))],
            "pseudo": [[mine, its] for mine, its in zip(ours["pseudo"], theirs["pseudo"], strict=True)],
        },
        "cost": {
            "seconds_of_ask": round(ours["seconds"]),
            "seconds_of_theirs": round(theirs["seconds"]),
            "peak_bytes": peak,
        },
        **found,
        "placed": ours["placed"],
    }
    RECORD.write_bytes(gzip.compress(json.dumps(record, indent=1).encode(), mtime=0))


def whole(asked: Mapping[str, Any], n: int, ours: Mapping[str, Any]) -> str:
    """The sequence with our fills in the place of its masks."""
    fills = iter(ours["fills"][n])
    return "".join(next(fills) if residue == "_" else residue for residue in asked["masked"][n])


def cell_of(options: Mapping[str, Any]) -> str:
    """A cell's setting in words, such as "20 masks", "20 G" or "left_to_right, 20 masks"."""
    order = "one step" if options["steps"] == 1 else options["unmasking"]
    n, fillers = options["n_masks"], options["n_fillers"]
    appended = f"{fillers} {options['filler']}" if fillers else f"{0 if n == 'auto' else n} masks"
    shares = ", shared passes" if options["steps"] == "auto" and n != "auto" else ""
    return f"{order}, {appended}{shares}"


def scores_of(file: Any) -> dict[str, list[float]]:
    """Pair -> the scores of its questions, in their order."""
    from mdlm_lm_eval.results.samples import scores_by_question

    ((by_metric,),) = (tuple(scores_by_question(file).values()),)
    found: dict[str, list[float]] = {}
    for pair, score in by_metric["recovered,none"]:
        found.setdefault(str(pair).removeprefix("pair "), []).append(round(score, 4))
    return found


def passes_of(file: Any) -> dict[str, float]:
    """Residues of the loops, the passes that filled at least one of them, and all passes until a loop was full."""
    ((_, recorded),) = file.mdlm["tasks"].items()
    steps = [trace["steps"].split() for trace in recorded["trace"]]
    all_passes = recorded["cost"]["forward_passes"]
    return {"residues": sum(map(len, steps)), "own": sum(len({*one}) for one in steps), "all": all_passes}


# Tables


def table() -> str:
    """The tables of README.md."""
    import numpy as np

    from mdlm_lm_eval.results.statistics import Score, comparisons, difference, holm, score_of_sets

    recorded = json.loads(gzip.decompress(RECORD.read_bytes()))

    def score(by_pair: Scores) -> Score:
        return score_of_sets({"": [(pair, one) for pair, own in by_pair.items() for one in own]})

    def change(first: Score, second: Score, mark: str = "") -> str:
        if first == second:
            return "equal"
        found = difference(first, second).scaled(100)
        within = found.low is not None and found.high is not None and found.low > -LEAST and found.high < LEAST
        return f"{found.signed}{mark}{' =' if within else ''}"

    def stars(pairs: Sequence[tuple[Score, Score]]) -> list[str]:
        refused = holm(np.array([comparisons(pair)[0, 1] for pair in pairs]))
        return ["*" if one else "" for one in refused]

    def mean_of(cells: Sequence[Scores]) -> dict[str, list[float]]:
        return {pair: [fmean(own) for own in zip(*(cell[pair] for cell in cells), strict=True)] for pair in cells[0]}

    lines = ["|extra tokens|masks|masks − none|G, S, X|masks − G, S, X|G|S|X|", "|---|---|---|---|---|---|---|---|"]
    own = recorded["residues"]
    masks = {n: score(own[f"confidence, {n} masks" + (", shared passes" if n else "")]) for n in MASKS}
    cells = {n: [own[f"confidence, {n} {filler}"] for filler in FILLERS] for n in MASKS[1:]}
    fillers = {n: score(mean_of(found)) for n, found in cells.items()}
    losses = [(masks[0], masks[n]) for n in MASKS[1:]]
    beside = [(fillers[n], masks[n]) for n in MASKS[1:]]
    rows = zip(MASKS[1:], losses, stars(losses), beside, stars(beside), strict=True)
    lines.append(f"|0|{100 * masks[0].mean:.1f}|||||||")
    for n, loss, mark, other, other_mark in rows:
        alone = "|".join(f"{100 * score(cell).mean:.1f}" for cell in cells[n])
        own_share, of_fillers = 100 * masks[n].mean, 100 * fillers[n].mean
        lines.append(
            f"|{n}|{own_share:.1f}|{change(*loss, mark)}|{of_fillers:.1f}|{change(*other, other_mark)}|{alone}|"
        )

    lines += [
        "",
        "|extra masks|after [SEP]|before [SEP]|before − after|no [SEP]|none − after|",
        "|---|---|---|---|---|---|",
    ]
    for n in PLACED:
        found = [
            score(recorded["placed"][f"{place} {n}"]) if (place, n) in cells_of_places() else None for place in PLACES
        ]
        parts = [f"{100 * one.mean:.1f}|{change(masks[n], one)}" if one else "|" for one in found]
        lines.append(f"|{n}|{100 * masks[n].mean:.1f}|{'|'.join(parts)}|")

    loops = {name: score(own) for name, own in recorded["loops"].items()}
    lines += ["", "|CDR3, filled|recovered|difference|passes that fill residues, of all|residues in such a pass|"]
    lines.append("|---|---|---|---|---|")
    orders = [f"{order}, 0 masks" for order in ("one step", "margin", "entropy", "random", "left_to_right")]
    against = dict.fromkeys(orders, "confidence, 0 masks")
    against |= {f"confidence, {n} masks, shared passes": "confidence, 0 masks" for n in (20, 200)}
    own_passes = {f"left_to_right, {n} masks": "left_to_right, 0 masks" for n in (20, 200)}
    own_passes |= {f"left_to_right, {n} G": "left_to_right, 0 masks" for n in (20, 200)}
    marks = dict(zip(orders, stars([(loops[against[name]], loops[name]) for name in orders]), strict=True))
    marks |= zip(own_passes, stars([(loops[first], loops[name]) for name, first in own_passes.items()]), strict=True)
    against |= own_passes
    for name in ["confidence, 0 masks", *against]:
        passes, first = recorded["passes"][name], against.get(name)
        beside_first = change(loops[first], loops[name], marks.get(name, "")) if first else ""
        of_all = f"{passes['own']:.0f} of {passes['all']:.0f}"
        per_pass = f"{passes['residues'] / passes['own']:.2f}"
        words = name.removesuffix(", 0 masks").replace("_", " ")
        lines.append(f"|{words}|{100 * loops[name].mean:.1f}|{beside_first}|{of_all}|{per_pass}|")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "ask", "record", "table"):
        command = commands.add_parser(name)
        if name == "prepare":
            command.add_argument("wheel", type=Path)
            command.add_argument("fasta", type=Path)
    given = parser.parse_args()
    if given.command == "prepare":
        prepare(given.wheel, given.fasta)
    elif given.command == "table":
        print(table())
    else:
        {"ask": ask, "record": record}[given.command]()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{given.command}: {time.process_time():.0f} s of a core, {peak:.0f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
