"""Vocabularies go along with a conversion, and cut text as before; what cannot be kept is refused."""

import json
import shutil
from pathlib import Path

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer, models, normalizers

from model_utils.errors import DataError
from src.conversion.tokenizer_json import build_tokenizer_json, extract_vocabulary, lower_cases
from src.model_folder import load_tokenizer
from src.tokenization import FullTokenizer
from tests.helpers.conversions import (
    PRE_TRAINING,
    SMALL,
    convert,
    random_values,
    read_json_file,
    write_hugging_face,
)
from tests.helpers.small_text import train_model, write_text


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    return train_model(folder, write_text(folder, 100))


@pytest.fixture(scope="module")
def wordpiece_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "天", "##s", *(f"word{i}" for i in range(891))]
    file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return file


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder as transformers writes it, without a vocabulary."""
    return write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", ["sentencepiece_model", "wordpiece_vocabulary"])
def test_vocabulary_goes_along(
    tmp_path: Path, theirs: Path, request: pytest.FixtureRequest, kind: str, lower: bool
) -> None:
    file = request.getfixturevalue(kind)
    is_sentencepiece = kind == "sentencepiece_model"
    name = "spiece.model" if is_sentencepiece else "vocab.txt"
    shutil.copy(file, theirs / name)
    (theirs / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    text = "The words of 天, (2018,) Straße."
    expected = tokenizer_of(file, lower).encode(text)
    assert load_tokenizer(ours).encode(text) == expected
    back = convert("mindspore", "hf", ours, tmp_path / "back")
    assert (back / name).read_bytes() == file.read_bytes()
    settings = read_json_file(back / "tokenizer_config.json")
    assert settings["do_lower_case"] is lower
    assert settings["model_max_length"] == 20
    assert settings["tokenizer_class"] == ("PreTrainedTokenizerFast" if is_sentencepiece else "BertTokenizer")
    if is_sentencepiece:
        written = Tokenizer.from_file(str(back / "tokenizer.json"))
        assert written.encode(text, add_special_tokens=False).ids == expected


def tokenizer_of(vocabulary: Path, lower: bool) -> FullTokenizer:
    is_sentencepiece = vocabulary.suffix == ".model"
    return FullTokenizer(None, lower, vocabulary) if is_sentencepiece else FullTokenizer(vocabulary, lower, None)


def test_other_kinds_of_sentencepiece_models_have_no_tokenizer_there(sentencepiece_model: Path) -> None:
    proto = ModelProto.FromString(sentencepiece_model.read_bytes())
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    with pytest.raises(DataError, match="Unigram"):
        build_tokenizer_json(proto.SerializeToString(), True)


def test_vocabulary_of_another_size_is_refused(tmp_path: Path, sentencepiece_model: Path) -> None:
    larger = SMALL.replace(vocab_size=901)
    theirs = write_hugging_face(tmp_path / "hf", larger, random_values(larger, PRE_TRAINING))
    shutil.copy(sentencepiece_model, theirs / "spiece.model")
    with pytest.raises(DataError, match=r"900 entries.* says 901"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


@pytest.mark.parametrize(
    ("kind", "settings", "found"),
    [
        ("sentencepiece_model", {"keep_accents": True}, r"keep_accents is True, .* False"),
        ("wordpiece_vocabulary", {"strip_accents": False}, r"strip_accents is False, .* True"),
        (
            "wordpiece_vocabulary",
            {"do_lower_case": False, "strip_accents": True},
            r"strip_accents is True, .* False",
        ),
        ("wordpiece_vocabulary", {"remove_space": False}, r"remove_space is False, .* True"),
    ],
)
def test_tokenizers_that_cannot_be_kept_are_refused(
    tmp_path: Path, theirs: Path, request: pytest.FixtureRequest, kind: str, settings: dict, found: str
) -> None:
    name = "spiece.model" if kind == "sentencepiece_model" else "vocab.txt"
    shutil.copy(request.getfixturevalue(kind), theirs / name)
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match=found):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


@pytest.mark.parametrize("text", ["हिन्दी में", "1\ufe0f\u20e3 café naïve", "a\u20dd the"])
def test_marks_that_combine_with_nothing_are_kept(sentencepiece_model: Path, text: str) -> None:
    """As google's code keeps them: vowel signs, the frame of a key."""
    theirs = build_tokenizer_json(sentencepiece_model.read_bytes(), True)
    ours = FullTokenizer(None, True, sentencepiece_model)
    assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", ["bert", "sequence", "albert"])
def test_a_tokenizer_of_a_general_class_says_itself_whether_it_lower_cases(
    tmp_path: Path, theirs: Path, request: pytest.FixtureRequest, kind: str, lower: bool
) -> None:
    """Where its settings do not; transformers takes it as it is."""
    if kind == "albert":
        vocabulary = request.getfixturevalue("sentencepiece_model")
        tokenizer = build_tokenizer_json(vocabulary.read_bytes(), lower)
    else:
        vocabulary = request.getfixturevalue("wordpiece_vocabulary")
        numbers = {word: number for number, word in enumerate(vocabulary.read_text().splitlines())}
        tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
        lowering = [normalizers.Lowercase(), normalizers.StripAccents()] if lower else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), *lowering])
        if kind == "bert":
            tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.save(str(theirs / "tokenizer.json"))
    (theirs / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    ours = load_tokenizer(convert("hf", "mindspore", theirs, tmp_path / "ours"))
    assert ours.do_lower_case is lower
    assert ours.encode("The words") == tokenizer_of(vocabulary, lower).encode("The words")


BERT = normalizers.BertNormalizer


@pytest.mark.parametrize(
    ("model", "steps", "found"),
    [
        ("WordPiece", [BERT(lowercase=True, strip_accents=False)], "keeps accents and lower-cases"),
        ("WordPiece", [BERT(lowercase=False, strip_accents=True)], "takes accents and keeps capitals"),
        ("WordPiece", [normalizers.NFC(), normalizers.Lowercase()], r"keeps accents and .* from lower-cased text"),
        ("WordPiece", [BERT(handle_chinese_chars=False)], "handle_chinese_chars is False"),
        ("Unigram", [normalizers.NFKC(), normalizers.Lowercase()], r"keeps accents and .* from all text"),
        ("Unigram", [normalizers.NFKC()], "keeps accents and keeps capitals"),
        ("Unigram", [normalizers.Replace("a", "")], "keeps accents and keeps capitals"),
        ("WordPiece", "Lowercase", "normalizer is"),
        ("WordPiece", [{"a": 1}], "normalizer is"),
    ],
)
def test_normalizers_that_treat_accents_otherwise_are_refused(
    tmp_path: Path, model: str, steps: list | str, found: str
) -> None:
    normalizer = steps
    if isinstance(steps[0], normalizers.Normalizer):
        normalizer = json.loads(normalizers.Sequence(steps).__getstate__())
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": model}, "normalizer": normalizer}))
    with pytest.raises(DataError, match=rf"tokenizer\.json.*{found}"):
        lower_cases(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("BertJapaneseTokenizer", "BertJapaneseTokenizer"),
        ("PreTrainedTokenizerFast", r"do_lower_case is False, .*True"),
    ],
)
def test_tokenizers_that_are_not_rebuilt_here_are_refused(
    tmp_path: Path, theirs: Path, wordpiece_vocabulary: Path, kind: str, found: str
) -> None:
    shutil.copy(wordpiece_vocabulary, theirs / "vocab.txt")
    bert = json.loads(normalizers.BertNormalizer().__getstate__())
    (theirs / "tokenizer.json").write_text(json.dumps({"normalizer": bert}))
    settings = {"tokenizer_class": kind, "do_lower_case": False}
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match=rf"tokenizer_config\.json: .*{found}"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "Unigram"}}', '{"model": {"type": "BPE"}}'])
def test_a_broken_tokenizer_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        extract_vocabulary(tmp_path / "tokenizer.json")
