"""What a single-token answer would be, before any ban: equal to enumeration, at no extra pass, and in results."""

from typing import Any

import pytest
import torch
from tokenizers import normalizers

from mdlm_lm_eval.decoding.canvas import FirstToken
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.jobs.generation import NO_LABELS, Labels, LabelTokens
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.results.samples import SHARES
from tests.conftest import instance_of, tiny_model, tiny_tokenizer
from tests.support.canvases import EOS, MASK, WAYS, RecordingDenoiser, canvas, model

LABELS = [3, 11, 20]
# A shadow and guidance mix several canvases' logits; there the others of this list stand for them.
PLAIN = [way for way in WAYS if not {"cfg_scale"} & way[2].keys() and way[2].get("remasking") != "wino"]


@pytest.mark.parametrize(("attention", "facts", "changes"), PLAIN)
def test_it_is_that_of_the_pass_that_filled_the_slot(
    attention: Any, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    options = DecodingOptions(**{**changes, "early_exit": False, "suppress_eos": True})
    for seed in range(3):
        denoiser = model(attention, **facts)
        one = canvas(denoiser, options, 5 + seed, seed=seed)
        (found,) = decode_canvases(denoiser, [one], options, eos_ids=[EOS], label_ids=LABELS)
        n_passes, inputs = denoiser.forward_passes, [*denoiser.inputs]
        slot, changed = one.slots[0], [*(each[0] for each in inputs[1:])]
        fills = [n for n, (a, b) in enumerate(zip(inputs, changed, strict=False)) if a[0][slot] == MASK != b[slot]]
        expected = enumerated(denoiser, inputs[fills[-1] if fills else -1], slot)
        assert found.first
        assert (found.first.token, found.first.label) == expected[:2]
        assert found.first.entropy == pytest.approx(expected[2], abs=1e-4)
        again = model(attention, **facts)
        (without,) = decode_canvases(again, [one], options, eos_ids=[EOS])
        assert (without.first, again.forward_passes) == (None, n_passes)
        assert without.token_ids == found.token_ids


def enumerated(denoiser: RecordingDenoiser, ids: torch.Tensor, slot: int) -> tuple[int, int, float]:
    """The likeliest token and label, and the entropy, by a sum over all tokens."""
    (logits,) = Denoiser.logits(denoiser, ids[:1], None, torch.tensor([slot - int(denoiser.shift)]))
    scores: list[float] = logits.tolist()
    entropy = -sum(float(p) * float(p.log()) for p in logits.double().softmax(0) if p > 0)
    return scores.index(max(scores)), max(LABELS, key=scores.__getitem__), entropy


def test_documents_say_their_labels() -> None:
    assert Labels.of({"options": ["x", "y", "z"], "answer": "C"}) == Labels(("A", "B", "C"), "C")
    assert Labels.of({"options": ["x", "y", "z"], "answer": "Y"}) == Labels(("X", "Y", "Z"), "Y")
    assert Labels.of({"options": ["x", "y"], "answer": "2"}) == Labels(("1", "2"), "2")
    assert Labels.of({"labels": ["yes", "no"]}) == Labels(("yes", "no"), "")
    assert Labels.of({"labels": ["yes", "no"], "answer": 1}) == Labels(("yes", "no"), "")
    others: list[Any] = [{"options": ["x", "y"], "answer": "Z"}, {"question": "?"}, "text", {"labels": [0, 1]}]
    others += [{"options": 2, "answer": "A"}, {"options": ["x"], "answer": 0}]
    assert [Labels.of(one) for one in others] == [NO_LABELS] * len(others)


def test_the_end_of_a_turn_is_told_from_the_end_of_text() -> None:
    tokens = LabelTokens(("A", "B"), tokenizer := tiny_tokenizer(), {1}, {7, 8})
    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend(" ")  # as SentencePiece's do
    assert LabelTokens(("A", "B"), tokenizer, {1}, {7, 8}).names == tokens.names
    ids = {name: token for token, name in tokens.names.items()}
    cases = {(1, "A"): "E", (7, "A"): "T", (8, "B"): "t", (9, "A"): "O", (ids["B"], "B"): "W", (ids["A"], "A"): "R"}
    for (token, label), letter in cases.items():
        assert tokens.letter(FirstToken(token, ids[label], 0.5), "A") == letter
    assert tokens.letter(FirstToken(7, ids["B"], 0.5), "") == "T"
    assert [name for name, letters in SHARES.items() if "t" in letters] == ["end_of_turn"]


def test_results_record_a_letter_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """As decoded only where nothing is banned: here the mask token is never the likeliest, and EOS is suppressed."""
    tokenizer = tiny_tokenizer()
    lm = MDLM(tiny_model(), tokenizer=tokenizer)
    documents = [{"set": f"s{n // 3}", "options": ["x", "y", "z"], "answer": "ABC"[n % 3]} for n in range(9)]
    requests = [
        instance_of("generate_until", (f"text {n} Answer:[", {"max_gen_toks": 1, "until": []}), "task", n, one)
        for n, one in enumerate(documents)
    ]
    lm.generate_until(requests[::-1], disable_tqdm=True)
    record = lm.get_model_info()["mdlm"]["tasks"]["task"]
    letters, tokens = record["first_token"]["letters"], LabelTokens(("A", "B", "C"), tokenizer, lm.eos_ids, frozenset())
    assert record["first_token"]["sets"] == "s0 s0 s0 s1 s1 s1 s2 s2 s2"
    expected = []
    for n, document in enumerate(documents):
        ids = [*lm.tok_encode(f"text {n} Answer:["), lm.mask_token_id]
        (logits,) = lm.denoiser.logits(torch.tensor([ids]), None, torch.tensor([len(ids) - 1]))
        top, label = int(logits.argmax()), max(tokens.names, key=lambda token: float(logits[token]))
        is_right = tokens.names[label] == document["answer"]
        kind = "E" if top in lm.eos_ids else "O"
        expected.append("RW"[not is_right] if top in tokens.names else kind if is_right else kind.lower())
    assert letters == "".join(expected)
    assert {*letters} <= {letter for counted in SHARES.values() for letter in counted} | set("Wo")
    lm.generate_until(
        [instance_of("generate_until", ("text", {"max_gen_toks": 3}), "several", 0, documents[0])],
        disable_tqdm=True,
    )
    several = lm.get_model_info()["mdlm"]["tasks"]["several"]
    assert "first_token" not in several
    assert several["endings"]["at_once"] <= 1
