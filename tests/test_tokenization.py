"""Tokenizers against google's figures, an independent implementation, and their own promises."""

import io
import json
import pickle
import random
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from model_utils.errors import DataError
from src.text.sentence_piece import preprocess_text
from src.text.wordpiece import split_words
from src.tokenization import FullTokenizer

GOLDEN_TEXT = [json.loads(line) for line in (Path(__file__).parent / "golden/google_text.jsonl").open("rb")]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = "un ##aff ##able want ##want ##ed wa runn ##ing , 你 好 cafe σ $".split()
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
CHINESE = [  # BERT's ranges; its last three before U+F900 touch each other
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x2A6DF), (0x2A700, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
]
# Text with what the tokenizers treat specially, more often than chance would have it.
tricky = st.one_of(
    st.text(max_size=30),
    st.text(
        st.sampled_from("aéÉe\u0301\u0323Σσ İıﬁ½①你好,.'$ \t\n\u00a0\u2028\u200b\ud800\ue000각가0123456789[CLS]<>▁"),
        max_size=30,
    ),
)


def train_model(sentences: list[str], vocab_size: int, **settings) -> bytes:
    """A small SentencePiece model with ALBERT's special pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
        **settings,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def wordpiece_file(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("wordpiece") / "vocab.txt"
    file.write_text("\n".join([*SPECIALS, *PIECES, *LETTERS]) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    draw = random.Random(7)
    words = "the a cat dog house sat ran on near in big small old new year report".split()
    sentences = [" ".join(draw.choices(words, k=9)) + ", in 2018, and 2019, it ended." for _ in range(300)]
    file = tmp_path_factory.mktemp("sentencepiece") / "small.model"
    symbols = {"user_defined_symbols": ["▁2018,", "17,"]}  # pieces of the form that google splits
    file.write_bytes(train_model(sentences, 120, **symbols))
    return file


@pytest.fixture(scope="module")
def wordpiece(wordpiece_file) -> FullTokenizer:
    return FullTokenizer(wordpiece_file)


@pytest.fixture(scope="module")
def pieces(model_file) -> FullTokenizer:
    return FullTokenizer(spm_model_file=model_file)


# --- google's figures ---


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [("sentencepiece_en", {"spm_model_file": "30k-clean.model"}), ("wordpiece_zh", {"vocab_file": "vocab_zh.txt"})],
)
def test_tokens_and_ids_are_googles(shared, golden, name, vocabulary):
    tokenizer = FullTokenizer(**{key: shared / "data/vocab" / file for key, file in vocabulary.items()})
    rows = [json.loads(line) for line in (golden / f"tokenization/{name}.jsonl").open(encoding="utf-8")]
    assert len(rows) == 324
    for row in rows:
        tokens = tokenizer.tokenize(row["text"])
        assert tokens == row["tokens"]
        assert tokenizer.convert_tokens_to_ids(tokens) == row["ids"]


@pytest.mark.parametrize("row", GOLDEN_TEXT, ids=lambda row: ascii(row["text"][:20]))
def test_text_is_cleaned_and_split_as_by_google(row):
    assert split_words(row["text"], do_lower_case=True) == row["words_lower"]
    assert split_words(row["text"], do_lower_case=False) == row["words_cased"]
    if "\ud800" not in row["text"]:  # google's SentencePiece path fails on half a surrogate pair
        assert preprocess_text(row["text"], lower=True) == row["preprocessed_lower"]
        assert preprocess_text(row["text"], lower=False) == row["preprocessed_cased"]


def test_real_vocabularies(shared):
    english = FullTokenizer(spm_model_file=shared / "data/vocab/30k-clean.model")
    assert (english.vocab_size, english.pad_id, english.unk_id) == (30000, 0, 1)
    assert (english.cls_id, english.sep_id, english.mask_id) == (2, 3, 4)
    chinese = FullTokenizer(shared / "data/vocab/vocab_zh.txt")
    assert (chinese.vocab_size, len(chinese.vocab), chinese.pad_id) == (21128, 21128, 0)
    assert (chinese.unk_id, chinese.cls_id, chinese.sep_id, chinese.mask_id) == (100, 101, 102, 103)
    assert chinese.inv_vocab[21127] == "##😎"


# --- WordPiece ---


def bert_words(text: str, lower: bool) -> list[str]:
    """The words of BERT's basic tokenizer by the book, a character at a time."""
    spaced = ""
    for character in text:
        code, category = ord(character), unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            spaced += " "
        elif code not in (0, 0xFFFD) and category not in ("Cc", "Cf"):
            spaced += f" {character} " if any(first <= code <= last for first, last in CHINESE) else character
    words: list[str] = []
    for word in spaced.split():
        if lower:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        for character in word:
            is_ascii_sign = 32 < ord(character) < 127 and not character.isalnum()
            is_sign = is_ascii_sign or unicodedata.category(character).startswith("P")
            words.append(f" {character} " if is_sign else character)
        words.append(" ")
    return "".join(words).split()


def bert_tokens(text: str, vocab: dict[str, int], lower: bool) -> list[str]:
    return [token for word in bert_words(text, lower) for token in longest_first(word, vocab)]


def longest_first(part: str, vocab: dict[str, int]) -> list[str]:
    found: list[str] = []
    rest = part
    while rest and len(part) <= 200:
        prefix = "##" if found else ""
        fits = [rest[:end] for end in range(1, len(rest) + 1) if prefix + rest[:end] in vocab]
        if not fits:
            break
        found.append(prefix + fits[-1])
        rest = rest[len(fits[-1]) :]
    return ["[UNK]"] if rest else found


@given(tricky, st.booleans())
def test_wordpiece_equals_the_definition(wordpiece_file, text, lower):
    tokenizer = FullTokenizer(wordpiece_file, do_lower_case=lower)
    assert tokenizer.tokenize(text) == bert_tokens(text, tokenizer.vocab, lower)


@pytest.mark.parametrize("lower", [True, False])
def test_characters_of_every_kind_are_split_as_defined(lower):
    ends = [*(end for span in CHINESE for end in span), 0x2B73F, 0x2B740, 0x2B81F, 0x2B820]
    edges = {end + step for end in ends for step in (-1, 0, 1)}
    for code in sorted({*range(0x3000), *range(0xFE00, 0x10000), *range(0x3000, 0x110000, 97), *edges}):
        word = f"x{chr(code)}y"
        assert split_words(word, lower) == bert_words(word, lower), hex(code)


def test_wordpiece_takes_the_longest_piece(wordpiece):
    assert wordpiece.tokenize("Unaffable wanted, runnings!") == [
        *("un", "##aff", "##able", "want", "##ed", ",", "runn", "##ing", "##s", "[UNK]")
    ]
    assert wordpiece.tokenize("a" * 200)[:2] == ["a", "##a"]
    assert wordpiece.tokenize("a" * 201) == ["[UNK]"]


def test_wordpiece_ids_are_line_numbers(tmp_path):
    # U+2028 and U+0085 are line breaks for str.splitlines, but entries of real vocabularies.
    file = tmp_path / "vocab.txt"
    file.write_bytes("\r\n".join([*SPECIALS, "\u2028", "a\u0085", "b"]).encode() + b"\r\n")
    tokenizer = FullTokenizer(file)
    assert tokenizer.vocab_size == 8
    assert tokenizer.convert_tokens_to_ids(["[MASK]", "a", "b"]) == [4, 6, 7]


def test_wordpiece_survives_more_words_than_its_cache_holds(wordpiece_file, monkeypatch):
    monkeypatch.setattr("src.text.wordpiece.CACHE_SIZE", 3)
    tokenizer = FullTokenizer(wordpiece_file)
    texts = ["ab cd ef gh ij", "ij gh ef cd ab"] * 3
    fresh = [bert_tokens(text, tokenizer.vocab, lower=True) for text in texts]
    assert [tokenizer.tokenize(text) for text in texts] == fresh


# --- SentencePiece ---


def test_numbers_before_commas_are_split_as_by_google(pieces):
    assert {"▁2018,", "17,"} <= set(pieces.vocab)
    number = pieces.tokenize("2018")
    assert number[0].startswith("▁")
    assert pieces.tokenize("in 2018, it") == [*pieces.tokenize("in"), *number, ",", *pieces.tokenize("it")]
    # google's correction for pieces inside a word never fires: the number gets a "▁" of its own there.
    assert pieces.tokenize("a17,")[-len(pieces.tokenize("17")) - 1 :] == [*pieces.tokenize("17"), ","]
    assert pieces.tokenize("17")[0].startswith("▁")


def test_sentencepiece_leaves_case_to_preprocess(pieces):
    assert pieces.tokenize("The CAT") != pieces.tokenize("the cat")
    assert pieces.preprocess(" The  CÁT\n") == "the cat"
    assert pieces.encode(" The  CÁT\n") == pieces.convert_tokens_to_ids(pieces.tokenize("the cat"))
    cased = FullTokenizer(spm_model_file=pieces.file, do_lower_case=False)
    assert cased.preprocess(" The  CÁT\n") == "The CAT"


def test_text_that_reads_like_a_control_symbol_has_googles_id(pieces):
    # "[CLS]" is one unknown piece here, and google looks ids up by the piece.
    cased = FullTokenizer(spm_model_file=pieces.file, do_lower_case=False)
    assert cased.tokenize("[CLS]") == ["▁", "[CLS]"]
    assert cased.encode("[CLS]") == [cased.vocab["▁"], cased.cls_id]


@given(st.text(st.sampled_from("abcdeghilnorstuw ,."), max_size=60))
def test_known_characters_can_be_put_together_again(pieces, text):
    assert "".join(pieces.tokenize(text)).replace("▁", " ").split() == text.split()


# --- both ---


@pytest.fixture(scope="module", params=["wordpiece", "sentencepiece"])
def tokenizer(request, wordpiece, pieces) -> FullTokenizer:
    return {"wordpiece": wordpiece, "sentencepiece": pieces}[request.param]


@given(text=tricky)
def test_every_way_to_tokenize_agrees(tokenizer, text):
    tokens = tokenizer.tokenize(tokenizer.preprocess(text))
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert all(0 <= index < tokenizer.vocab_size for index in ids)
    assert tokenizer.encode(text) == ids
    assert tokenizer.encode_batch([text, "the cat", text]) == [ids, tokenizer.encode("the cat"), ids]
    with_offsets, offsets = tokenizer.tokenize_with_offsets(text)
    assert with_offsets == tokens
    assert all(0 <= start <= end <= len(text) for start, end in offsets)


@given(text=tricky)
def test_white_space_does_not_count(tokenizer, text):
    assert tokenizer.encode("\u3000 " + text.replace(" ", " \t ") + "\n") == tokenizer.encode(text)


@given(
    st.lists(st.text(st.sampled_from("abcdefz"), min_size=1, max_size=9), max_size=6),
    st.sampled_from([" ", "  ", "\t"]),
)
def test_offsets_cut_out_the_words(tokenizer, words, space):
    text = space.join(words)
    tokens, offsets = tokenizer.tokenize_with_offsets(text)
    sources = [text[start:end] for start, end in offsets]
    for token, source in zip(tokens, sources, strict=True):
        assert source == token.removeprefix("##").removeprefix("▁")
    assert "".join(sources) == "".join(words)


def test_offsets_follow_changed_text(wordpiece, pieces):
    text = "  Cafe\u0301S,\u00a0ÉA ½"
    tokens, offsets = wordpiece.tokenize_with_offsets(text)
    assert tokens == ["cafe", "##s", ",", "e", "##a", "[UNK]"]
    assert [text[start:end] for start, end in offsets] == ["Cafe\u0301", "S", ",", "É", "A", "½"]
    tokens, offsets = pieces.tokenize_with_offsets("Á  DOG\tin 2018, ﬁ½")
    spans = dict(zip(tokens, offsets, strict=True))
    assert spans["▁a"] == (0, 1) and spans["▁dog"] == (3, 6) and spans["▁in"] == (7, 9)
    assert spans[","] == (14, 15)
    assert {position for span in offsets for position in range(*span)} == {0, 3, 4, 5, 7, 8, *range(10, 15), 16, 17}
    assert pieces.tokenize_with_offsets("cafe\u0301")[1][-1][1] == 5  # with its accent


def test_pickled_tokenizer_is_the_same(tokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert (copy.vocab, copy.sha256, copy.do_lower_case) == (tokenizer.vocab, tokenizer.sha256, tokenizer.do_lower_case)
    assert len(pickle.dumps(tokenizer)) < 1000  # the file's name, not its content


def test_ids_go_back_to_tokens(tokenizer):
    assert tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)) == list(tokenizer.vocab)
    with pytest.raises(DataError, match="ids 0 to"):
        tokenizer.convert_ids_to_tokens([tokenizer.vocab_size])


def test_unknown_tokens(wordpiece, pieces):
    assert pieces.convert_tokens_to_ids(["nonsense"]) == [pieces.unk_id]
    with pytest.raises(DataError, match="'nonsense'"):
        wordpiece.convert_tokens_to_ids(["nonsense"])


def test_word_starts(wordpiece, pieces):
    assert wordpiece.is_word_start("want") and not wordpiece.is_word_start("##want")
    starts = ["▁the", "▁", ",", "'", "2018", "<unk>", "é", "é.", "[MASK]", "你"]
    assert [token for token in starts if not pieces.is_word_start(token)] == []
    assert [token for token in ["the", "ing", "X", ".com"] if pieces.is_word_start(token)] == []


# --- wrong files ---


def test_characters_are_those_of_the_text_with_the_space_before_a_word(wordpiece, pieces):
    text = "the cat sat on the mat"
    assert pieces.characters()[pieces.encode(text)].sum() == len(" " + text)
    assert pieces.characters()[pieces.unk_id] == 1
    counted = dict(zip(wordpiece.vocab, wordpiece.characters(), strict=True))
    expected = {"un": 3, "##aff": 3, "want": 5, "cafe": 5, ",": 1, "$": 1, "你": 1, "[UNK]": 1}
    assert {token: counted[token] for token in expected} == expected


def test_kinds_are_told_apart_by_content(wordpiece_file, model_file, tmp_path):
    with pytest.raises(DataError, match=r"not a SentencePiece model: it looks like a WordPiece vocabulary.*vocab_file"):
        FullTokenizer(spm_model_file=wordpiece_file)
    with pytest.raises(DataError, match="is a SentencePiece model; give it as spm_model_file"):
        FullTokenizer(model_file)
    text = tmp_path / "renamed.model"
    text.write_text("not a model at all\n")
    with pytest.raises(DataError, match=r"renamed.model is not a SentencePiece model"):
        FullTokenizer(spm_model_file=text)


def test_listing_of_a_model(pieces, model_file, wordpiece_file, tmp_path):
    listing = tmp_path / "small.vocab"
    listing.write_text("".join(f"{token}\t-1.5\n" for token in pieces.vocab), encoding="utf-8")
    assert FullTokenizer(listing, spm_model_file=model_file).is_sentencepiece  # as google's commands name both
    with pytest.raises(DataError, match="listing of a SentencePiece model"):
        FullTokenizer(listing)
    with pytest.raises(DataError, match=r"give the .model file"):
        FullTokenizer(spm_model_file=listing)
    with pytest.raises(DataError, match="is not the listing"):
        FullTokenizer(wordpiece_file, spm_model_file=model_file)


def test_missing_files_and_entries(tmp_path):
    with pytest.raises(DataError, match="no vocabulary is given"):
        FullTokenizer()
    with pytest.raises(DataError, match=r"nowhere.txt cannot be read: No such file"):
        FullTokenizer(tmp_path / "nowhere.txt")
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(DataError, match=r"empty.txt is empty"):
        FullTokenizer(empty)
    few = tmp_path / "few.txt"
    few.write_text("[PAD]\n[UNK]\n[CLS]\nword\n")
    with pytest.raises(DataError, match=r"few.txt has no entry \[SEP\], \[MASK\]"):
        FullTokenizer(few)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("[PAD]\ncafé\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.txt is not UTF-8 text at byte 9"):
        FullTokenizer(latin)


def test_sentencepiece_model_without_special_pieces(tmp_path):
    model = io.BytesIO()
    sentences = iter(["a b c", "d e f"] * 5)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences, model_writer=model, vocab_size=20, hard_vocab_limit=False, minloglevel=2
    )
    file = tmp_path / "plain.model"
    file.write_bytes(model.getvalue())
    with pytest.raises(DataError, match=r"plain.model has no entry <pad>, \[CLS\], \[SEP\], \[MASK\]"):
        FullTokenizer(spm_model_file=file)
