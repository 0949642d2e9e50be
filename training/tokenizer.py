"""The built-in model's tokenizer: every word, number up to 1000 and fixed piece of the prompts is one token."""

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import Unigram
from transformers import PreTrainedTokenizerFast

from training import corpus

MASK, EOS, PAD = "<|mask|>", "<|endoftext|>", "<|pad|>"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A Unigram tokenizer with equal costs for all pieces, so that a text is cut into as few pieces as possible.

    Other text is encoded as single characters and bytes, so every string can be encoded and decodes to itself.
    """
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    pieces = list(dict.fromkeys([*corpus.pieces(), *characters]))
    unknown = "<0x00>"  # other text is encoded as bytes, so the unknown token is never used
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = [(piece, -20.0) for piece in byte_pieces] + [(piece, -1.0) for piece in pieces]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=byte_pieces.index(unknown), byte_fallback=True))
    # A cut before every question shortens the search for the best segmentation. No piece contains such a cut.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?=\n\nOptions)"), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, mask_token=MASK, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )
