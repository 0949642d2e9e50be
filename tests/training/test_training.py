"""The training of the built-in models: what its documents give away, and that a killed training goes on."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from mdlm_lm_eval.tasks import questions
from training import train
from training.curriculum import STAGES, Stage, documents

N_DOCUMENTS = 12_000  # half of them are read, and the other half answered


def test_options_alone_do_not_tell_the_answer() -> None:
    """Logistic regression on all that options show is right in a third of new questions, as guessing is."""
    rng = Random(3)
    category_of = {word.lower(): name for name, words in questions.load_words().items() for word in words}
    found = []
    while len(found) < N_DOCUMENTS:
        stage = STAGES[len(found) % len(STAGES)]
        one = replace(stage, n_relevant=1, n_distractors=(0, 0), named=0.0)
        found += documents(one, 540, 0.1, rng)
    number_of: dict[object, int] = {}
    rows, keys = [], []
    for document in found[:N_DOCUMENTS]:
        options, key = document.pieces[1:6:2], document.pieces[7]
        keys.append("ABC".index(key))
        capitals = [option.istitle() for option in options]
        for place, option in enumerate(options):
            others = options[:place] + options[place + 1 :]
            name, *beside = (category_of[word.lower()] for word in (option, *others))
            case = capitals[place], sum(capitals)
            shown: list[object] = [("place", place), ("case", case), ("length", len(option)), ("category", name, case)]
            shown += [("beside", name, case, other) for other in beside]
            shown += [("letters", f"^{option}$"[at : at + 3].lower()) for at in range(len(option))]
            rows.append(torch.tensor([number_of.setdefault(one, 1 + len(number_of)) for one in shown]))
    features = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).unflatten(0, (-1, 3))  # [N, 3, F]
    right, n_read = torch.tensor(keys), N_DOCUMENTS // 2
    weights = torch.nn.Embedding(1 + len(number_of), 1, padding_idx=0)
    torch.nn.init.zeros_(weights.weight)
    optimiser = torch.optim.Adam(weights.parameters(), lr=0.03)
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(weights(features[:n_read]).sum((2, 3)), right[:n_read])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        answers = weights(features[n_read:]).sum((2, 3)).argmax(1)
    share = (answers == right[n_read:]).float().mean().item()
    assert share < 1 / 3 + 3 * (2 / 9 / n_read) ** 0.5


def test_a_killed_training_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "FEWEST_STEPS", 2)
    monkeypatch.setattr(train, "STAGES", (replace(STAGES[0], most=2), Stage("short", 0.9, 1, contrastive=0.5, most=2)))
    monkeypatch.setattr(train, "WALK_STEPS_SAVED", 1)
    monkeypatch.setattr(train, "measure", lambda *_: {})
    options = train.TrainingOptions(tokens=300, walk_steps=2, walk_length=60)
    train.pretrain(options, tmp_path / "whole")
    step, n_steps = train.Training.step, iter(range(100))

    def killed(*arguments: object) -> float:
        if next(n_steps) in (3, 6):
            raise KeyboardInterrupt
        return step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(train.Training, "step", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train.pretrain(options, tmp_path / "killed")
    train.pretrain(options, tmp_path / "killed")
    whole, again = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert whole == again
    assert next(n_steps) == 9  # six steps, one of which was done twice, and two that were killed
