"""Which tokens end a text."""

from mdlm_lm_eval.families import end_of_turn_ids, eos_ids
from tests.conftest import tiny_tokenizer


def test_ends_of_turn_are_no_eos_even_where_the_generation_config_lists_them() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot_id|>"]})
    turn = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    assert end_of_turn_ids(tokenizer) == {turn}
    assert eos_ids(tokenizer, None) == {tokenizer.eos_token_id}
    assert eos_ids(tokenizer, [turn, 7]) == {tokenizer.eos_token_id, 7}
