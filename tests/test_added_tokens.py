"""Tokens that were added to a Hugging Face tokenizer are kept whole here as there, with their places in the text."""

import json
import pickle
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from model_utils.errors import DataError
from src.inference.exported_model import load_exported
from src.inference.exporting import export_model
from src.model_folder import ModelFolder, load_tokenizer
from src.pretraining_data.masking import MaskVocabulary
from src.tasks.fill_mask import encode_masked
from src.tasks.token_classification import EntityProcessor
from src.text.added_tokens import AddedTokens, AddedTokensSchema
from src.tokenization import FullTokenizer
from tests.helpers.conversions import PRE_TRAINING, SMALL, assert_same_bits, convert, random_values, write_hugging_face
from tests.helpers.small_text import train_model, write_text
from tests.helpers.trained_folders import ARCHITECTURE, make_folder, make_task_info

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "go", "##es", "天", "[", "]", "e1", "E1", "new"]
WORDS += [*"abcdefghijklmnopqrstuvwxyz0123456789.,<>-", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123")]
ADDED = [
    {"content": "[E1]", "special": True},
    {"content": "[E2]", "special": True, "lstrip": True, "rstrip": True},
    {"content": "New York", "normalized": True},
    {"content": "goes", "single_word": True, "normalized": True},
    {"content": "<Tag>", "lstrip": True},
    {"content": "[E1][E1]x", "special": True},
]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
PARTS = ["[E1]", "[e1]", "[E2]", "New York", "new york", "NEW  YORK", "goes", "Goes", "<Tag>", "<tag>", "[E1][E1]x"]
PARTS += [" ", "  ", "the", "The", "a", "s", "天", ".", "-", "café", "undergoes", "ab ", " cd"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)
KINDS = ["wordpiece", "sentencepiece"]


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vocabularies")
    wordpiece = folder / "vocab.txt"
    wordpiece.write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return {"wordpiece": wordpiece, "sentencepiece": train_model(folder, write_text(folder, 100))}


def size_of(vocabulary: Path) -> int:
    return len(WORDS) if vocabulary.suffix == ".txt" else 900


def tokens_with_ids(vocabulary: Path) -> list[dict[str, Any]]:
    flags = dict.fromkeys(FLAGS, False)
    return [{"id": number, **flags, **token} for number, token in enumerate(ADDED, size_of(vocabulary))]


def class_of(vocabulary: Path) -> str:
    return "BertTokenizer" if vocabulary.suffix == ".txt" else "AlbertTokenizer"


def tokenizer_of(vocabulary: Path) -> FullTokenizer:
    is_wordpiece = vocabulary.suffix == ".txt"
    return FullTokenizer(vocabulary, True) if is_wordpiece else FullTokenizer(None, True, vocabulary)


def folder_with(folder: Path, vocabulary: Path, rows: int, **files: Any) -> Path:
    """A folder of Hugging Face's with a model of so many rows, and with files of these contents (NAME.json)."""
    config = SMALL.replace(vocab_size=rows)
    theirs = write_hugging_face(folder, config, random_values(config, PRE_TRAINING))
    shutil.copy(vocabulary, theirs / ("vocab.txt" if vocabulary.suffix == ".txt" else "spiece.model"))
    for stem, content in ({"tokenizer_config": {"tokenizer_class": class_of(vocabulary)}} | files).items():
        (theirs / f"{stem}.json").write_text(json.dumps(content))
    return theirs


def folder_with_added(folder: Path, vocabulary: Path, rows: int) -> Path:
    """Such a folder, whose tokenizer has the tokens of ADDED."""
    tokens = {str(token.pop("id")): token for token in tokens_with_ids(vocabulary)}
    config = {"tokenizer_class": class_of(vocabulary), "added_tokens_decoder": tokens}
    return folder_with(folder, vocabulary, rows, tokenizer_config=config)


def check_offsets(tokenizer: FullTokenizer, text: str) -> None:
    """The tokens of all ways agree, and those that were added stand where the text has them."""
    tokens, offsets = tokenizer.tokenize_with_offsets(text)
    assert tokenizer.convert_tokens_to_ids(tokens) == tokenizer.encode(text), text
    if "  " not in text or not tokenizer.is_sentencepiece:  # preprocess, as google's, leaves single spaces
        assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize(tokenizer.preprocess(text))) == tokenizer.encode(text)
    last = 0
    for token, (start, end) in zip(tokens, offsets, strict=True):
        assert last <= start <= end <= len(text)
        last = max(last, start)
        if token in {entry["content"] for entry in ADDED}:
            assert " ".join(text[start:end].lower().split()) == token.lower(), text


# --- reading: every file that may name them ---


def naming_files(source: str, first: int, second: int) -> dict[str, Any]:
    """The file, one of those that may, that names the tokens [E1] and [E2] by their ids."""
    flags = dict.fromkeys(FLAGS, False) | {"special": True}
    tokens = [{"id": first, "content": "[E1]", **flags}, {"id": second, "content": "[E2]", **flags}]
    by_id = {str(token["id"]): token for token in tokens}
    return {
        "added_tokens_decoder": {"tokenizer_config": {"added_tokens_decoder": by_id}},
        "tokenizer_json": {"tokenizer": {"added_tokens": tokens}},
        "added_tokens": {"added_tokens": {"[E1]": first, "[E2]": second}},
        "special_tokens_map": {"special_tokens_map": {"additional_special_tokens": ["[E1]", {"content": "[E2]"}]}},
        "extra_special_tokens": {"tokenizer_config": {"extra_special_tokens": {"1": "[E1]", "2": "[E2]"}}},
    }[source]


SOURCES = ["added_tokens_decoder", "tokenizer_json", "added_tokens", "special_tokens_map", "extra_special_tokens"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_files_that_name_added_tokens(tmp_path: Path, vocabularies: dict[str, Path], kind: str, source: str) -> None:
    size = size_of(vocabularies[kind])
    theirs = folder_with(tmp_path / "hf", vocabularies[kind], size + 2, **naming_files(source, size, size + 1))
    ours = load_tokenizer(convert("hf", "mindspore", theirs, tmp_path / "ours"))
    assert ours.vocab_size == size + 2
    ids = ours.encode("the[E1]the [E2]")
    assert ids[-1] == size + 1 and ids.count(size) == 1
    check_offsets(ours, "[E1]the [E2][E2] new")


def test_a_token_that_the_vocabulary_has(tmp_path: Path, vocabularies: dict[str, Path]) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text(vocabularies["wordpiece"].read_text() + "[E1]\n")
    names = {"additional_special_tokens": ["[E1]"]}
    theirs = folder_with(tmp_path / "hf", vocabulary, len(WORDS) + 1, special_tokens_map=names)
    tokenizer = load_tokenizer(convert("hf", "mindspore", theirs, tmp_path / "ours"))
    assert tokenizer.tokenize("the [E1]a") == ["the", "[E1]", "a"] and tokenizer.vocab_size == len(WORDS) + 1


@pytest.mark.parametrize("value", [5, True, 1.5])
def test_lists_of_tokens_that_are_none_are_refused(tmp_path: Path, vocabularies: dict[str, Path], value: float) -> None:
    names = {"additional_special_tokens": value}
    theirs = folder_with(tmp_path / "hf", vocabularies["wordpiece"], len(WORDS), special_tokens_map=names)
    with pytest.raises(DataError, match=rf"special_tokens_map\.json: additional_special_tokens is {value}"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


@pytest.mark.parametrize(
    ("token", "number", "found"),
    [("[E1]", 3, "3"), ("[E1]", 300, "300"), ("[E1]", -1, "-1"), ("[E1]", "x", "x"), ("the", len(WORDS), "the")],
)
def test_ids_that_do_not_fit_are_refused(
    tmp_path: Path, vocabularies: dict[str, Path], token: str, number: int | str, found: str
) -> None:
    theirs = folder_with(tmp_path / "hf", vocabularies["wordpiece"], len(WORDS) + 1, added_tokens={token: number})
    with pytest.raises(DataError, match=found):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


# --- rows of the embedding ---


@pytest.mark.parametrize("multiple", [8, 64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_spare_rows_are_cut_and_said(
    tmp_path: Path, vocabularies: dict[str, Path], kind: str, multiple: int, caplog: pytest.LogCaptureFixture
) -> None:
    size = size_of(vocabularies[kind]) + len(ADDED)
    rows = -(-size // multiple) * multiple
    theirs = folder_with_added(tmp_path / "hf", vocabularies[kind], rows)
    with caplog.at_level("INFO"):
        ours = ModelFolder.load(convert("hf", "mindspore", theirs, tmp_path / "ours"))
    assert ours.architecture.vocab_size == ours.tokenizer.vocab_size == size
    expected = random_values(SMALL.replace(vocab_size=rows), PRE_TRAINING)
    for name in ("albert.embeddings.word_embeddings", "mlm.bias"):
        expected[name] = expected[name][:size]
    assert_same_bits(ours.weights, expected)
    assert rows == size or f"{rows - size} spare rows" in caplog.text


@pytest.mark.parametrize("difference", [-1, -len(ADDED), 1, 64])
def test_embeddings_of_another_size_are_refused(tmp_path: Path, vocabularies: dict[str, Path], difference: int) -> None:
    size = len(WORDS) + len(ADDED)
    rows = size + difference
    rows += rows % 8 == 0  # spare rows would be allowed
    theirs = folder_with_added(tmp_path / "hf", vocabularies["wordpiece"], rows)
    with pytest.raises(DataError, match=rf"{size} .*{len(ADDED)} .*{rows} "):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


# --- kept with the vocabulary ---


@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_belong_to_the_vocabulary(tmp_path: Path, vocabularies: dict[str, Path], kind: str) -> None:
    vocabulary = vocabularies[kind]
    rows = size_of(vocabulary) + len(ADDED)
    ours = convert("hf", "mindspore", folder_with_added(tmp_path / "hf", vocabulary, rows), tmp_path / "ours")
    tokenizer = load_tokenizer(ours)
    text = "go[E1] to New York, [E2] <Tag> the"
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode(text) == tokenizer.encode(text) and again.sha256 == tokenizer.sha256
    assert tokenizer_of(vocabulary).sha256 != tokenizer.sha256
    assert tokenizer.convert_ids_to_tokens([size_of(vocabulary) + 2]) == ["New York"]
    assert len(tokenizer.characters()) == rows and tokenizer.is_word_start("[E1]")
    specials = {token["id"] for token in tokens_with_ids(vocabulary) if token["special"]}
    assert specials.isdisjoint(MaskVocabulary.of(tokenizer).replacements.tolist())
    ids = encode_masked("[E1] [MASK][E2] a", tokenizer, 20)
    assert {tokenizer.mask_id, tokenizer.vocab["[E1]"], tokenizer.vocab["[E2]"]} <= set(ids)

    back = convert("mindspore", "hf", ours, tmp_path / "back")
    twice = load_tokenizer(convert("hf", "mindspore", back, tmp_path / "twice"))
    assert [token.model_dump() for token in twice.added_tokens] == tokens_with_ids(vocabulary)
    assert twice.encode(text) == tokenizer.encode(text)

    file = ours / f"{tokenizer.file.name}.added_tokens.json"
    file.write_text(file.read_text().replace("[E2]", "[E3]"))
    with pytest.raises(DataError, match="sha256"):
        load_tokenizer(ours)
    file.unlink()
    with pytest.raises(DataError, match="sha256"):
        load_tokenizer(ours)


TOKEN = {"id": len(WORDS), "content": "[E1]"}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"tokens": []},
        {"tokens": [TOKEN, TOKEN]},
        {"tokens": [TOKEN, TOKEN | {"id": len(WORDS) + 1}]},
        {"tokens": [TOKEN | {"lstrip": 1}]},
        {"tokens": [TOKEN], "normalizer": {"type": "Unknown"}},
        {"tokens": [TOKEN | {"content": ""}]},
        {"tokens": [TOKEN | {"content": "\0"}]},
    ],
)
def test_a_damaged_list_is_named(tmp_path: Path, vocabularies: dict[str, Path], content: dict) -> None:
    vocabulary = Path(shutil.copy(vocabularies["wordpiece"], tmp_path / "vocab.txt"))
    (tmp_path / "vocab.txt.added_tokens.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"vocab\.txt\.added_tokens\.json"):
        FullTokenizer(vocabulary)


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_has_places(tmp_path: Path, vocabularies: dict[str, Path], kind: str) -> None:
    vocabulary = Path(shutil.copy(vocabularies[kind], tmp_path / vocabularies[kind].name))
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    normalizer |= {"strip_accents": None, "lowercase": True}
    listed = {"tokens": tokens_with_ids(vocabulary), "normalizer": normalizer}
    (tmp_path / f"{vocabulary.name}.added_tokens.json").write_text(json.dumps(listed))
    tokenizer = tokenizer_of(vocabulary)

    @settings(max_examples=150, derandomize=True, database=None, suppress_health_check=list(HealthCheck), deadline=None)
    @given(st.one_of(TEXTS, st.text(max_size=20).map(lambda text: f"{text}[E1]{text}")))
    def check(text: str) -> None:
        check_offsets(tokenizer, text)

    check()
    assert tokenizer.vocab["[E1]"] in tokenizer.encode("\ud800[E1]\udfff")


# --- transformers as the oracle ---


@pytest.mark.oracles
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("torch")
def test_texts_are_cut_as_by_transformers(
    transformers: ModuleType, tmp_path: Path, vocabularies: dict[str, Path], kind: str, lower: bool
) -> None:
    """With tokens added there, what was saved there is converted here, and written back for it."""
    vocabulary = vocabularies[kind]
    rows = size_of(vocabulary) + len(ADDED)
    config = {"tokenizer_class": class_of(vocabulary), "do_lower_case": lower}
    theirs = folder_with(tmp_path / "hf", vocabulary, rows, tokenizer_config=config)
    oracle = getattr(transformers, class_of(vocabulary)).from_pretrained(theirs)
    oracle.add_tokens([AddedToken(**{"normalized": False} | token) for token in ADDED])
    assert len(oracle) == rows
    oracle.save_pretrained(theirs)
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    tokenizer = load_tokenizer(ours)
    back = transformers.AutoTokenizer.from_pretrained(convert("mindspore", "hf", ours, tmp_path / "back"))
    assert tokenizer.vocab_size == len(back) == rows

    @settings(max_examples=300, derandomize=True, database=None, suppress_health_check=list(HealthCheck), deadline=None)
    @given(TEXTS.map(lambda text: text.replace(".", "").replace("-", " ")))  # user-defined symbols, cut otherwise there
    def check(text: str) -> None:
        expected = oracle(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(text) == expected, text
        if "NEW  YORK" not in text:
            assert back(text, add_special_tokens=False)["input_ids"] == expected, text
        check_offsets(tokenizer, text)

    check()
    for text in ("the [MASK] [E1]", "[E1][MASK] a", "a[E2] [MASK]"):
        assert np.array_equal(encode_masked(text, tokenizer, 64), oracle(text)["input_ids"]), text


# --- answers and exports ---


def with_entity_token(folder: Path, task: str) -> ModelFolder:
    """A model of a task whose vocabulary has one token more, [E1]."""
    architecture = ARCHITECTURE.replace(vocab_size=ARCHITECTURE.vocab_size + 1)
    run = make_folder(folder / task, task, architecture)
    listed = {"tokens": [{"id": ARCHITECTURE.vocab_size, "content": "[E1]", "special": True}]}
    tokenizer = FullTokenizer(run / "vocab.txt").with_added_tokens(
        AddedTokens(AddedTokensSchema.model_validate(listed), "test")
    )
    (run / "tokenizer_config.json").unlink()
    ModelFolder(architecture, tokenizer, make_task_info(task)).save_artifacts(run)
    return ModelFolder.load(run)


def test_an_added_token_is_a_word_of_a_text(tmp_path: Path) -> None:
    """Words of raw text end at brackets, for named entities, too."""
    model = with_entity_token(tmp_path, "token_classification")
    processor = EntityProcessor(model.usage(), model.tokenizer)
    text = "ab [E1]cd."
    _, spans = processor.parse({"text": text})
    assert [text[start:end] for start, end in spans] == ["ab", "[E1]", "cd", "."]


@pytest.mark.slow
def test_an_export_holds_the_added_tokens(tmp_path: Path) -> None:
    model = with_entity_token(tmp_path, "classification")
    export_model(model.predictor(portable=True), tmp_path / "out" / "model", "MINDIR")
    file = tmp_path / "out" / "model.vocab.txt.added_tokens.json"
    exported = load_exported(tmp_path / "out" / "model.mindir")
    assert exported.tokenizer.encode("a[E1]b") == model.tokenizer.encode("a[E1]b")
    file.unlink()
    with pytest.raises(DataError, match=r"model\.vocab\.txt"):
        load_exported(tmp_path / "out" / "model.mindir")


def test_more_spare_rows_than_padding_adds_are_refused(tmp_path: Path, vocabularies: dict[str, Path]) -> None:
    rows = (len(WORDS) + len(ADDED)) // 16 * 16 + 24  # a multiple of 8 alone, which adds at most 7
    theirs = folder_with_added(tmp_path / "hf", vocabularies["wordpiece"], rows)
    with pytest.raises(DataError, match=rf"{rows} "):
        convert("hf", "mindspore", theirs, tmp_path / "ours")
