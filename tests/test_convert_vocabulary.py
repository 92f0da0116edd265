"""Vocabularies go along with a conversion, and cut text as before; what cannot be kept is a sentence."""

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
from tests.helpers.conversions import PRE_TRAINING, SMALL, convert, random_values, write_hugging_face
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


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", ["sentencepiece_model", "wordpiece_vocabulary"])
def test_vocabulary_goes_along(tmp_path: Path, request: pytest.FixtureRequest, kind: str, lower: bool) -> None:
    file = request.getfixturevalue(kind)
    name, files = ("spiece.model", (None, file)) if kind == "sentencepiece_model" else ("vocab.txt", (file, None))
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    shutil.copy(file, theirs / name)
    (theirs / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    text = "The words of 天, (2018,) Straße."
    expected = FullTokenizer(files[0], lower, files[1]).encode(text)
    assert load_tokenizer(ours).encode(text) == expected
    back = convert("mindspore", "hf", ours, tmp_path / "back")
    assert (back / name).read_bytes() == file.read_bytes()
    settings = json.loads((back / "tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is lower and settings["model_max_length"] == 20
    assert settings["tokenizer_class"] == ("PreTrainedTokenizerFast" if name == "spiece.model" else "BertTokenizer")
    if name == "spiece.model":
        written = Tokenizer.from_file(str(back / "tokenizer.json"))
        assert written.encode(text, add_special_tokens=False).ids == expected


def test_other_kinds_of_sentencepiece_models_have_no_tokenizer_there(sentencepiece_model: Path) -> None:
    proto = ModelProto.FromString(sentencepiece_model.read_bytes())
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    with pytest.raises(DataError, match="is no Unigram model, which transformers' ALBERT needs"):
        build_tokenizer_json(proto.SerializeToString(), True)


def test_vocabulary_of_another_size_is_refused(tmp_path: Path, sentencepiece_model: Path) -> None:
    larger = SMALL.replace(vocab_size=901)
    theirs = write_hugging_face(tmp_path / "hf", larger, random_values(larger, PRE_TRAINING))
    shutil.copy(sentencepiece_model, theirs / "spiece.model")
    with pytest.raises(DataError, match=r"900 entries.* says 901"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"strip_accents": False}, "strip_accents is False, the tokenization here has True"),
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents is True, the tokenization here has False"),
        ({"remove_space": False}, "remove_space is False, allowed is True"),
        ({"keep_accents": True}, "keep_accents is True, allowed is False"),
    ],
)
def test_tokenizers_that_cannot_be_kept_are_refused(
    tmp_path: Path, wordpiece_vocabulary: Path, settings: dict, found: str
) -> None:
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    shutil.copy(wordpiece_vocabulary, theirs / "vocab.txt")
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match=found):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


def test_marks_that_combine_with_nothing_are_kept(sentencepiece_model: Path) -> None:
    """google's code keeps vowel signs and the frame of a key."""
    theirs, ours = (
        build_tokenizer_json(sentencepiece_model.read_bytes(), True),
        FullTokenizer(None, True, sentencepiece_model),
    )
    for text in ("हिन्दी में", "1\ufe0f\u20e3 café naïve", "a\u20dd the"):
        assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text), text


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", ["bert", "sequence", "albert"])
def test_a_tokenizer_of_a_general_class_says_itself_whether_it_lower_cases(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, lower: bool
) -> None:
    """Where its settings do not; transformers takes it as it is."""
    if kind == "albert":
        model = request.getfixturevalue("sentencepiece_model")
        theirs_tokenizer, files = build_tokenizer_json(model.read_bytes(), lower), (None, model)
    else:
        vocabulary = request.getfixturevalue("wordpiece_vocabulary")
        numbers = {word: number for number, word in enumerate(vocabulary.read_text().splitlines())}
        theirs_tokenizer, files = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]")), (vocabulary, None)
        steps = [normalizers.NFD(), *([normalizers.Lowercase(), normalizers.StripAccents()] if lower else [])]
        bert = normalizers.BertNormalizer(lowercase=lower)
        theirs_tokenizer.normalizer = bert if kind == "bert" else normalizers.Sequence(steps)
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    theirs_tokenizer.save(str(theirs / "tokenizer.json"))
    (theirs / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    ours = load_tokenizer(convert("hf", "mindspore", theirs, tmp_path / "ours"))
    assert ours.do_lower_case is lower
    assert ours.encode("The words") == FullTokenizer(files[0], lower, files[1]).encode("The words")


LOWER = normalizers.Lowercase()


@pytest.mark.parametrize(
    ("model", "steps", "normalized"),
    [
        (models.WordPiece, [normalizers.BertNormalizer(lowercase=True, strip_accents=False)], "é"),
        (models.WordPiece, [normalizers.BertNormalizer(lowercase=False, strip_accents=True)], "E"),
        (models.WordPiece, [normalizers.NFC(), LOWER], "é"),
        (models.Unigram, [normalizers.NFKC(), LOWER], "é"),
        (models.Unigram, [normalizers.NFKC()], "É"),
    ],
)
def test_normalizers_that_treat_accents_otherwise_are_refused(
    tmp_path: Path, model: type, steps: list, normalized: str
) -> None:
    tokenizer = Tokenizer(model())
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match=rf"tokenizer\.json: its normalizer makes '{normalized}' of 'É'"):
        lower_cases(tmp_path / "tokenizer.json")


def test_normalizers_that_leave_chinese_characters_in_words_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.Sequence([normalizers.BertNormalizer(handle_chinese_chars=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="handle_chinese_chars is False"):
        lower_cases(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", ["{", "[]", '{"normalizer": "Lowercase"}', '{"normalizer": [{"a": 1}]}'])
def test_files_that_are_no_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged or no tokenizer"):
        lower_cases(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer", "do_lower_case": False}, "is 'BertJapaneseTokenizer', allowed"),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}, "do_lower_case is False, but .* True"),
    ],
)
def test_tokenizers_that_are_not_rebuilt_here_are_refused(
    tmp_path: Path, wordpiece_vocabulary: Path, settings: dict, found: str
) -> None:
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    shutil.copy(wordpiece_vocabulary, theirs / "vocab.txt")
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.save(str(theirs / "tokenizer.json"))
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match=rf"tokenizer_config\.json: .*{found}"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "Unigram"}}', '{"model": {"type": "BPE"}}'])
def test_broken_tokenizer_json_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        extract_vocabulary(tmp_path / "tokenizer.json")
