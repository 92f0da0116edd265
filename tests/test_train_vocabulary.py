"""Vocabularies trained on the spot: layout, reproducibility, and errors as sentences."""

import pydoc_data.topics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model_utils.errors import ConfigError, DataError
from src.tokenization import FullTokenizer
from src.train_vocabulary import TrainVocabularyConfig, main

ROOT = Path(__file__).resolve().parents[1]
ALBERT_PIECES = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]
CHINESE = "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。Python 3 的文档很好。"


@pytest.fixture(scope="module")
def text_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "topics.txt"
    topics = [text.replace("\n\n", "\n") for text in pydoc_data.topics.topics.values()]
    path.write_text("\n\n".join(topics) + "\n\n" + f"{CHINESE}\n" * 50, encoding="utf-8")
    return path


def train(text_file: Path, prefix: Path, **settings) -> FullTokenizer:
    """A tokenizer from a vocabulary trained by the command's own main."""
    config = TrainVocabularyConfig(input_file=str(text_file), output_prefix=str(prefix), **settings)
    main(config)
    if config.kind == "wordpiece":
        return FullTokenizer(f"{prefix}.vocab.txt", config.do_lower_case)
    return FullTokenizer(f"{prefix}.vocab", config.do_lower_case, f"{prefix}.model")


def test_sentencepiece_has_alberts_layout(text_file, tmp_path):
    tokenizer = train(text_file, tmp_path / "new/folder/small", vocab_size=900)
    assert tokenizer.vocab_size == 900
    assert tokenizer.convert_ids_to_tokens(range(13)) == ALBERT_PIECES
    ids = tokenizer.encode("The Statement (is) executed.")
    assert tokenizer.unk_id not in ids
    assert tokenizer.convert_ids_to_tokens(ids)[0] == "▁the"
    assert not [token for token in tokenizer.vocab if token != token.lower() and not token.startswith("[")]


def test_wordpiece_has_berts_layout(text_file, tmp_path):
    tokenizer = train(text_file, tmp_path / "small", vocab_size=900, kind="wordpiece")
    assert tokenizer.vocab_size == len(tokenizer.vocab) == 900
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.tokenize("The 天地") == ["the", "天", "地"]
    assert tokenizer.unk_id not in tokenizer.encode("Executed statements, and 3 zebras.")


def test_small_wordpiece_vocabulary_keeps_frequent_characters(text_file, tmp_path):
    tokenizer = train(text_file, tmp_path / "small", vocab_size=60, kind="wordpiece")
    assert tokenizer.vocab_size == 60
    assert tokenizer.tokenize("te") == ["t", "##e"]
    assert tokenizer.tokenize("昃") == ["[UNK]"]


def test_rare_characters_leave_room_for_words(tmp_path):
    text = "".join(f"{chr(0x4E00 + number)}" for number in range(100)) + "\n" + "the old garden of the king\n" * 10_000
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    sizes = {"kind": "wordpiece", "vocab_size": 41}
    assert train(tmp_path / "text.txt", tmp_path / "frequent", **sizes).tokenize("the garden") == ["the", "garden"]
    (tmp_path / "tiny.txt").write_text("ab ab\n")
    with pytest.raises(ConfigError, match=r"this text gives \d entries; .* 16"):
        train(tmp_path / "tiny.txt", tmp_path / "tiny", kind="wordpiece", vocab_size=30)
    every = train(tmp_path / "text.txt", tmp_path / "all", character_coverage=1, **sizes)
    assert every.tokenize("the")[0] == "t" and "\u4e00" in every.vocab
    text = "".join(chr(0x4E00 + number) for number in range(100)) + " a b" * 5_000
    (tmp_path / "less.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"at least \d+ with this character_coverage") as error:
        train(tmp_path / "less.txt", tmp_path / "many", vocab_size=100)
    assert (error.value.key, error.value.value) == ("vocab_size", 100)
    assert train(tmp_path / "less.txt", tmp_path / "few", vocab_size=17, character_coverage=0.99).vocab_size == 17
    with pytest.raises(ConfigError, match=r"character_coverage is 0\.9, allowed is 0 or from 0\.98 to 1"):
        TrainVocabularyConfig(input_file="x", output_prefix="y", character_coverage=0.9)


def test_case_is_kept_on_request(text_file, tmp_path):
    for kind in ("sentencepiece", "wordpiece"):
        tokenizer = train(text_file, tmp_path / kind, vocab_size=900, kind=kind, do_lower_case=False)
        assert tokenizer.tokenize("The")[0].removeprefix("▁") == "The"


@pytest.mark.parametrize("settings", [{"max_sentences": 1000}, {"kind": "wordpiece"}])
def test_same_text_gives_the_same_vocabulary(text_file, tmp_path, settings):
    # In another process, where hashes are seeded otherwise.
    tokenizer = train(text_file, tmp_path / "first", vocab_size=600, **settings)
    flags = " ".join(f"--{key} {value}" for key, value in settings.items())
    run = run_command(f"--input_file {text_file} --output_prefix {tmp_path}/second --vocab_size 600 {flags}")
    assert run.returncode == 0, run.stderr
    assert tokenizer.sha256 in run.stdout


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_size_that_the_text_cannot_fill(text_file, tmp_path, kind):
    with pytest.raises(ConfigError, match=r"vocab_size is 90000, .*this text"):
        train(text_file, tmp_path / "large", vocab_size=90000, kind=kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_damaged_text_is_named(tmp_path, kind):
    path = tmp_path / "latin.txt"
    path.write_bytes("ein Café\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.txt: byte 0xe9 at offset 7 is not UTF-8"):
        train(path, tmp_path / "small", vocab_size=100, kind=kind)


@pytest.mark.parametrize("name", ["small.model", "small.vocab"])
def test_existing_vocabulary_is_not_overwritten(text_file, tmp_path, name):
    existing = tmp_path / name
    existing.write_bytes(b"precious")
    with pytest.raises(ConfigError, match=f"{name} exists already"):
        train(text_file, tmp_path / "small", vocab_size=900)
    assert existing.read_bytes() == b"precious"


def test_a_prefix_without_a_name_is_refused(text_file, tmp_path):
    with pytest.raises(ConfigError, match="the beginning of a file's name") as error:
        train(text_file, f"{tmp_path}/vocab/", vocab_size=900)
    assert (error.value.key, error.value.value) == ("output_prefix", f"{tmp_path}/vocab/")
    assert list(tmp_path.iterdir()) == []


def test_very_long_lines_are_used(tmp_path):
    path = tmp_path / "one_line.txt"
    path.write_text("abc def " * 10_000)
    tokenizer = train(path, tmp_path / "small", vocab_size=21)
    assert tokenizer.unk_id not in tokenizer.encode("abc def")


def test_a_line_without_a_space_or_stop_is_used(tmp_path):
    path = tmp_path / "one_line.txt"
    generator = np.random.default_rng(0)
    path.write_text("".join(map(chr, 0x4E00 + generator.zipf(1.3, 300_000) % 500)), encoding="utf-8")
    tokenizer = train(path, tmp_path / "small", vocab_size=530)
    assert "\u4e01" in tokenizer.vocab and tokenizer.vocab_size == 530


def test_words_that_wordpiece_leaves_unknown_take_no_entries(tmp_path):
    (tmp_path / "text.txt").write_text("the old garden of the king\n" * 100 + "x" * 201 + "\n" + "y" * 200 + "\n")
    tokenizer = train(tmp_path / "text.txt", tmp_path / "small", vocab_size=50, kind="wordpiece", character_coverage=1)
    assert "y" in tokenizer.vocab and "x" not in tokenizer.vocab and "##x" not in tokenizer.vocab


def test_names_of_special_tokens_in_the_text_are_text(tmp_path):
    (tmp_path / "text.txt").write_text("the <unk> garden of the <unk> king [MASK] of\n" * 500)
    for kept in (False, True):
        tokenizer = train(tmp_path / "text.txt", tmp_path / f"{kept}", vocab_size=35, do_lower_case=not kept)
        assert tokenizer.unk_id not in tokenizer.encode("the <unk> garden [MASK]")


def test_command_answers_mistakes_in_a_sentence(tmp_path):
    run = run_command(f"--input_file {tmp_path}/none --output_prefix {tmp_path}/small")
    assert run.returncode == 2
    assert run.stderr.startswith("error: no file matches") and "Traceback" not in run.stderr


def run_command(arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "src.train_vocabulary", *arguments.split()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
