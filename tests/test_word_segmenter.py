"""Chinese words found by jieba: the same tokens, and all characters of a word masked or none."""

import sys
from pathlib import Path

import numpy as np
import pytest

from dataset import create_pretrain_dataset
from model_utils.errors import ConfigError, DataError, UserError
from src.data.batches import Loading
from src.pretraining_data.word_segmenter import INSIDE_WORD, encode_words
from src.tokenization import FullTokenizer
from tests.helpers.small_text import make_records
from tests.helpers.trained_folders import SPECIALS

TEXT = "我们在北京大学读书，Café 的T恤和卡拉OK很好。"
IN_TWOS = """__version__ = "1"
setLogLevel = int
def cut(text):
    return [text[i : i + 2] for i in range(0, len(text), 2)]
"""
JIEBA = {"spm_model_file": "", "word_segmenter": "jieba", "max_seq_length": 64}


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    tokens = [*SPECIALS, *sorted(set(TEXT) - set("Caé OKT")), "cafe", "t", "ok", "甲", "乙"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", "utf-8")
    (tmp_path / "text.txt").write_text("\n\n".join(["甲乙" * 60 + "。\n" + "甲乙" * 40] * 20), "utf-8")
    return tmp_path / "vocab.txt"


def test_jieba_marks_characters_inside_words(vocabulary: Path) -> None:
    pytest.importorskip("jieba", reason="needs jieba (requirements-chinese.txt)")
    tokenizer = FullTokenizer(vocabulary)
    texts = [TEXT, "", "䶮 不认识的字", "no Chinese ½ ﬁ"]
    encoded = encode_words(tokenizer, texts)
    assert [[index & ~INSIDE_WORD for index in ids] for ids in encoded] == tokenizer.encode_batch(texts)
    tokens = zip(encoded[0], tokenizer.tokenize(TEXT), strict=True)
    words = "".join(token if index & INSIDE_WORD else f" {token}" for index, token in tokens)
    assert words.split() == "我们 在 北京大学 读书 ， cafe 的 t恤 和 卡拉 ok 很 好 。".split()


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_words_are_masked_whole(vocabulary: Path, monkeypatch: pytest.MonkeyPatch, masking: str) -> None:
    """By a segmenter that cuts texts into pairs of characters; the manifest says so, and data without it is refused."""
    (vocabulary.parent / "jieba.py").write_text(IN_TWOS)
    monkeypatch.delitem(sys.modules, "jieba", raising=False)
    monkeypatch.syspath_prepend(vocabulary.parent)  # also that of worker processes
    output, text = vocabulary.parent / "out/pre.mindrecord", vocabulary.parent / "text.txt"
    settings = JIEBA | {"vocab_file": str(vocabulary), "masking": masking}
    make_records(output, text, vocabulary, **settings)
    batch = next(create_pretrain_dataset(output.parent, Loading(batch_size=40)).batches(0))
    rows, columns = np.nonzero(batch["masked_lm_weights"])
    positions = batch["masked_lm_positions"][rows, columns]
    masked = np.zeros(batch["input_ids"].shape, bool)
    masked[rows, positions] = True
    batch["input_ids"][rows, positions] = batch["masked_lm_ids"][rows, columns]
    first, second = (batch["input_ids"] == FullTokenizer(vocabulary).vocab[token] for token in "甲乙")
    words = first[:, :-1] & second[:, 1:]
    assert (masked[:, :-1] & words).sum() > 50
    assert not (words & (masked[:, :-1] != masked[:, 1:])).any()
    with pytest.raises(DataError, match=r"settings\.word_segmenter 'jieba', asked for is"):
        make_records(output, text, vocabulary, **settings | {"word_segmenter": "none"})


def test_what_jieba_cannot_do_is_refused(vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, text = vocabulary.parent / "out/pre.mindrecord", vocabulary.parent / "text.txt"
    with pytest.raises(ConfigError, match="needs a WordPiece vocabulary"):
        make_records(output, text, vocabulary, word_segmenter="jieba")
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(UserError, match=r"jieba .*pip install -r requirements-chinese\.txt"):
        make_records(output, text, vocabulary, **JIEBA, vocab_file=str(vocabulary))
    assert not output.parent.exists()
