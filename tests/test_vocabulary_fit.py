"""How well a vocabulary fits a text is counted, kept, and said where it plainly does not."""

from types import SimpleNamespace

import numpy as np
import pytest

from src import create_pretraining_data
from src.data.feature_files import open_records
from src.finetuning.task_data import TaskData
from src.pretraining_data.diagnostics import VocabularyFit
from src.tasks.race_data import RaceQuestion, RaceSplit
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer
from tests.helpers.small_text import make_records

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. "


def wordpiece(folder, tokens) -> FullTokenizer:
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *tokens]) + "\n", encoding="utf-8")
    return FullTokenizer(vocab_file=folder / "vocab.txt")


def test_unknown_tokens_are_counted(tmp_path):
    tokenizer = wordpiece(tmp_path, ["a", "c", "##a", "##t", "##s", "dog", "'", "天", "地"])
    fit = VocabularyFit.of(np.array(tokenizer.encode("cats a dogs dog's 天地 elk")), tokenizer.unk_id)
    # Tokens: c, ##a, ##t, ##s; a; dog, ##s; dog, ', unknown (no word s); 天; 地; unknown.
    assert (fit.tokens, fit.unknown) == (13, 2)
    twice = fit + fit
    assert twice == VocabularyFit(26, 4) and VocabularyFit() + fit == fit
    assert fit.to_manifest() == {"tokens": 13, "unknown_share": 2 / 13}
    assert VocabularyFit.from_manifest(fit.to_manifest() | {"broken_share": 0.3}) == fit  # of older data
    assert str(fit) == "of 13 tokens 15.38% are unknown"


@pytest.mark.parametrize(("unknown", "fits"), [(0, True), (50, True), (51, False)])
def test_a_vocabulary_that_plainly_does_not_fit_is_named(unknown, fits, caplog):
    assert VocabularyFit(1000, unknown).warn("x.model") != fits
    assert ("the vocabulary x.model does not fit this text" in caplog.text) != fits


def test_a_vocabulary_of_its_own_text_fits(text_and_model, tmp_path, capsys):
    made = make_records(tmp_path / "pre.mindrecord", *text_and_model, dupe_factor=1)
    said = capsys.readouterr().out
    assert "tokens 0.01% are unknown" in said and "does not fit" not in said
    manifest = open_records(made, "pretrain").manifest["vocabulary_fit"]
    assert manifest["unknown_share"] < 0.001 and manifest["tokens"] > 10_000


@pytest.mark.parametrize("dry_run", [False, True])
def test_text_of_another_language_is_unknown(text_and_model, tmp_path, capsys, monkeypatch, dry_run):
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 1000)
    text = tmp_path / "russian.txt"
    text.write_text("\n".join([RUSSIAN * 5] * 20), encoding="utf-8")
    path = tmp_path / "out" / "pre.mindrecord"
    make_records(path, text, text_and_model[1], dry_run=dry_run)
    assert capsys.readouterr().out.count("the vocabulary small.model does not fit this text") == 1
    if not dry_run:
        assert open_records(path, "pretrain").manifest["vocabulary_fit"]["unknown_share"] > 0.3


def test_a_misfit_is_told_before_the_first_rows_are_written(text_and_model, tmp_path, capsys, monkeypatch):
    (tmp_path / "russian.txt").write_text("\n".join([RUSSIAN * 5] * 20), encoding="utf-8")
    monkeypatch.setattr(create_pretraining_data.RecordWriter, "write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_records(tmp_path / "pre.mindrecord", tmp_path / "russian.txt", text_and_model[1])
    assert "the vocabulary small.model does not fit this text" in capsys.readouterr().out


def test_padding_of_choices_is_no_text(tmp_path, caplog):
    tokenizer = wordpiece(tmp_path, ["dog", "##s", "?"])
    question = RaceQuestion("1", 0, "dogs " * 20, "?", ("dogs", "dogs dogs", "dogs", "dogs"), 0)
    task = SimpleNamespace(tokenizer=tokenizer, task_info=TaskInfo(task="test"))
    TaskData.make(SimpleNamespace(task=task), RaceSplit("train", [question], tokenizer, 128, 24))
    assert "does not fit" not in caplog.text
    unknown = RaceQuestion("1", 0, "elks " * 5, "?", ("dogs",) * 3 + ("dogs " * 40,), 0)
    TaskData.make(SimpleNamespace(task=task), RaceSplit("train", [unknown], tokenizer, 128, 100))
    assert "(of 122 tokens 16.39% are unknown" in caplog.text  # three choices of 11, one of 89; of each 5
