"""The command that makes pre-training data, and the statistics of its output beside google's own."""

import gzip
import json
import os
import pydoc_data.topics
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
import zstandard

from model_utils.errors import ConfigError, DataError
from src import create_pretraining_data, merge_parts
from src.create_pretraining_data import CreateDataConfig, UnitMaker, group_documents
from src.data import mindrecord_file
from src.data.feature_files import open_records
from src.data.row_reader import RowReader
from src.pretraining_data.instances import join_documents, sample_pairs
from src.pretraining_data.masking import InstanceSettings, MaskVocabulary
from src.tokenization import FullTokenizer
from tests.helpers.pretraining_rows import CLS, MASK, SEP, SETTINGS, masked_runs, original_ids, rows_of, word_numbers
from tests.helpers.small_text import make_records, write_text


@pytest.fixture(scope="module")
def made(text_and_model, tmp_path_factory):
    return make_records(tmp_path_factory.mktemp("data") / "pre.mindrecord", *text_and_model, dupe_factor=2)


def test_what_was_made_says_how(made, text_and_model):
    text, model = text_and_model
    manifest = open_records(made, "pretrain").manifest
    assert manifest["vocab_file"] == "small.model" and manifest["vocab_size"] == 900
    assert manifest["vocab_sha256"] == FullTokenizer(spm_model_file=model).sha256
    assert (made.parent / "small.model").read_bytes() == model.read_bytes()
    assert (manifest["max_seq_length"], manifest["max_predictions_per_seq"], manifest["seed"]) == (128, 20, 12345)
    assert manifest["settings"]["dupe_factor"] == 2
    assert manifest["source"]["text.txt"]["bytes"] == text.stat().st_size
    assert str(text.parent) not in json.dumps(manifest)


def read_rows(path: Path) -> list[dict]:
    import mindspore.dataset as ds

    files = [str(file) for file in open_records(path, "pretrain").files]
    return list(ds.MindDataset(files, shuffle=False).create_dict_iterator(output_numpy=True, num_epochs=1))


def test_unigram_counts_are_those_of_the_predicted_tokens(made):
    counts = open_records(made, "pretrain").array("unigram")
    labels = np.concatenate([row["masked_lm_ids"] for row in read_rows(made)])
    np.testing.assert_array_equal(counts, np.bincount(labels, minlength=900))


def test_the_output_does_not_depend_on_the_number_of_processes(text_and_model, tmp_path, monkeypatch):
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 20_000)
    paths = [
        make_records(tmp_path / str(workers) / "pre.mindrecord", *text_and_model, num_workers=workers, dupe_factor=1)
        for workers in (1, 3)
    ]
    contents = [{file.name: file.read_bytes() for file in path.parent.iterdir()} for path in paths]
    assert len(contents[0]) == 7 and contents[0] == contents[1]


def test_seeds_and_duplicates_differ(text_and_model, tmp_path):
    maker = make_maker(FullTokenizer(spm_model_file=text_and_model[1]), seed=1, dupe_factor=2)
    documents = next(group_documents(create_pretraining_data.read_documents([text_and_model[0]])))[:40]
    rows = maker.make(0, documents).packed.rows
    assert len(set(rows)) == len(rows)
    assert rows == maker.make(0, documents).packed.rows
    assert rows != maker.make(1, documents).packed.rows
    assert rows != make_maker(maker.tokenizer, seed=2, dupe_factor=2).make(0, documents).packed.rows


def make_maker(
    tokenizer: FullTokenizer, seed: int = 0, dupe_factor: int = 1, settings: InstanceSettings = SETTINGS
) -> UnitMaker:
    return UnitMaker(tokenizer, settings, seed, dupe_factor)


def test_a_second_run_has_nothing_to_do_and_another_one_is_refused(made, text_and_model, capsys):
    before = {file: file.stat().st_mtime_ns for file in made.parent.iterdir()}
    make_records(made, *text_and_model, dupe_factor=2)
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"settings\.dupe_factor 2, asked for is 3; give another output_file"):
        make_records(made, *text_and_model, dupe_factor=3)
    assert before == {file: file.stat().st_mtime_ns for file in made.parent.iterdir()}


def test_text_of_another_key_is_other_text(made, text_and_model):
    with pytest.raises(DataError, match=r"settings\.text_key 'text', asked for is 'content'"):
        make_records(made, *text_and_model, dupe_factor=2, text_key="content")


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_text_gives_the_same_examples_and_estimates(text_and_model, tmp_path, capsys, monkeypatch, pack):
    text, model = text_and_model
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 20_000)
    (tmp_path / "packed").write_bytes(pack(text.read_bytes()))
    estimates, lengths = [], []
    for name, file in (("one", text), ("two", tmp_path / "packed")):
        output = tmp_path / name / "pre.mindrecord"
        make_records(output, file, model, dupe_factor=1, dry_run=True)
        estimates.append(int(re.search(r"about ([\d,]+) examples", capsys.readouterr().out)[1].replace(",", "")))
        lengths.append(open_records(make_records(output, file, model, dupe_factor=1), "pretrain").lengths.tolist())
    assert estimates[0] == pytest.approx(estimates[1], rel=0.02)
    assert lengths[0] == lengths[1]


def test_other_text_of_the_same_name_and_size_is_refused(made, text_and_model, tmp_path):
    text, model = text_and_model
    other = tmp_path / "text.txt"
    other.write_bytes(text.read_bytes().replace(b"statement", b"stetement"))
    with pytest.raises(DataError, match=r"source\.text\.txt\.sha256"):
        make_records(made, other, model, dupe_factor=2)


def test_text_that_was_taken_away_is_noticed(text_and_model, tmp_path):
    text, model = text_and_model
    output = tmp_path / "pre.mindrecord"
    for name in ("first", "second"):
        (tmp_path / f"{name}.txt").write_text(text.read_text("utf-8")[:5000], encoding="utf-8")
    make_records(output, tmp_path / "*.txt", model, dupe_factor=1)
    with pytest.raises(DataError, match=r"made with source\.second\.txt\.bytes \d+, asked for is '\(absent\)'"):
        make_records(output, tmp_path / "first.txt", model, dupe_factor=1)


def test_names_may_be_absolute_and_relative(text_and_model, tmp_path, monkeypatch):
    text, model = text_and_model
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.txt").write_text(text.read_text("utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    output = make_records(tmp_path / "pre.mindrecord", f"own/a.txt,{text}", model, dry_run=False, dupe_factor=1)
    assert len(open_records(output, "pretrain").manifest["source"]) == 2


@pytest.mark.parametrize("packing", ["cut", "google"])
def test_a_long_document_is_never_alone_where_a_second_one_is_needed(packing, text_and_model, tmp_path, monkeypatch):
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 100)
    settings = {"random_next_sentence": True, "dupe_factor": 1, "segment_packing": packing}
    output = make_records(tmp_path / "pre.mindrecord", *text_and_model, **settings)
    assert open_records(output, "pretrain").num_rows > 100


def test_what_is_left_over_joins_the_unit_before_it(monkeypatch):
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 5)
    a, b, short = ["aaaaaa"], ["bbbbbb"], ["c"]
    assert list(group_documents([a, b, short])) == [[a], [b], [short]]
    assert list(group_documents([a, b, short], 5)) == [[a, b, short]]
    assert list(group_documents([a, b, b, a], 5)) == [[a, b], [b, a]]
    assert list(group_documents([a, short, short, b, a], 5)) == [[a, short, short, b, a]]
    assert list(group_documents([a], 5)) == [[a]] and list(group_documents([], 5)) == []


def test_short_documents_between_long_ones_leave_these_in_next_sentence_pairs(text_and_model, tmp_path, monkeypatch):
    """The short ones can lend no segment, so that a unit must have a second long one."""
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 4000)
    text, model = text_and_model
    lines = [line for line in text.read_text("utf-8").splitlines() if line]
    long = ["\n".join(lines[start : start + 60]) for start in range(0, 240, 60)]
    (tmp_path / "mixed.txt").write_text("\n\n".join(f"{document}\n\na b" for document in long), encoding="utf-8")
    settings = {"random_next_sentence": True, "dupe_factor": 1}
    path = make_records(tmp_path / "pre.mindrecord", tmp_path / "mixed.txt", model, **settings)
    words = sum(len(line.split()) for document in long for line in document.splitlines())
    assert sum(row["input_mask"].sum() for row in read_rows(path)) > 0.9 * words


def test_as_many_tokens_are_masked_as_are_asked_for(text_and_model, tmp_path):
    given = {"max_seq_length": 256, "short_seq_prob": 0.0, "dupe_factor": 1}
    shares = {}
    for name, most in ("all", {}), ("few", {"max_predictions_per_seq": 10}):
        path = make_records(tmp_path / f"{name}/pre.mindrecord", *text_and_model, **given, **most)
        rows = [row for row in read_rows(path) if row["input_mask"].sum() == 256]
        shares[name] = np.mean([row["masked_lm_weights"].sum() for row in rows]) / 256
    assert shares == pytest.approx({"all": 0.15, "few": 0.039}, abs=0.004)


def test_every_share_of_masked_tokens_has_a_most(tmp_path):
    sizes = {"input_file": "x", "output_file": "y.mindrecord", "max_seq_length": 64}
    shares = (0.15, 10), (0.99, 63)
    assert all(CreateDataConfig(**sizes, masked_lm_prob=share).predictions == most for share, most in shares)


def test_dry_run_estimates_and_keeps_nothing(text_and_model, tmp_path, capsys):
    make_records(tmp_path / "new" / "pre.mindrecord", *text_and_model, dry_run=True)
    said = capsys.readouterr().out
    assert re.search(r"MB on disk in 1 file\(s\) and 0:00:\d\d with 1 process", said) and "Nothing was kept" in said
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_that_has_read_all_text_counts_its_examples(text_and_model, tmp_path, capsys):
    """Escapes make the files of JSON larger than their text."""
    lines = [json.dumps({"text": "天地玄黄，宇宙洪荒。" * 40 + name}) for name in pydoc_data.topics.topics]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    given = tmp_path / "pre.mindrecord", tmp_path / "text.jsonl", text_and_model[1]
    make_records(*given, dry_run=True)
    said = capsys.readouterr().out
    examples = open_records(make_records(*given), "pretrain").num_rows
    assert f"about {examples:,} examples" in said and "estimated from all of" in said


def test_the_number_of_files_follows_from_the_size_and_too_few_are_refused_at_the_start(
    text_and_model, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 20_000)
    monkeypatch.setattr(mindrecord_file, "HEADER_BYTES", 1 << 14)
    monkeypatch.setattr(mindrecord_file, "PAGE_BYTES", 1 << 15)
    for dry_run in (True, False):
        with pytest.raises(
            DataError, match=r"do not fit into 1 file\(s\) of 1 MB; give output_file_num 0, or at least 1\d"
        ):
            make_records(
                tmp_path / "one" / "pre.mindrecord", *text_and_model, output_file_num=1, dupe_factor=5, dry_run=dry_run
            )
    assert not list(tmp_path.glob("*/*"))
    make_records(tmp_path / "new" / "pre.mindrecord", *text_and_model, dupe_factor=1, dry_run=True)
    files = int(re.search(r"in (\d+) file", capsys.readouterr().out)[1])
    made = make_records(tmp_path / "new" / "pre.mindrecord", *text_and_model, dupe_factor=1)
    assert abs(len(open_records(made, "pretrain").files) - files) <= 1 and files > 2


def test_several_files_and_short_sequences(text_and_model, tmp_path):
    settings = {"output_file_num": 2, "max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 1}
    made = make_records(tmp_path / "pre.mindrecord", *text_and_model, **settings)
    rows = read_rows(made)
    assert sorted(file.name for file in tmp_path.glob("*.mindrecord*")) == [
        *("pre.mindrecord0", "pre.mindrecord0.db", "pre.mindrecord1", "pre.mindrecord1.db")
    ]
    assert max(len(row["input_ids"]) for row in rows) == 32
    assert max(len(row["masked_lm_ids"]) for row in rows) == 5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "no file matches"),
        (b"", "empty"),
        (b"\n\n  \n", "no text"),
        (b"Good text first. Then a byte:\xff\n", r"offset 29 is not UTF-8"),
        (b"Too short.\n\nThis too.\n", "gives no example; needed are documents of 16 tokens"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_nothing(text_and_model, tmp_path, content, sentence):
    text = tmp_path / "bad.txt"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        make_records(tmp_path / "out" / "pre.mindrecord", text, text_and_model[1])
    assert not list((tmp_path / "out").glob("*"))


def test_a_pipe_is_no_vocabulary(text_and_model, tmp_path):
    os.mkfifo(tmp_path / "pipe.model")
    with pytest.raises(DataError, match=r"pipe\.model cannot be read: it is a folder, a device or a pipe"):
        make_records(tmp_path / "pre.mindrecord", text_and_model[0], tmp_path / "pipe.model")


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("dupe_factor", 100),
        ("max_seq_length", 16_384),
        ("max_predictions_per_seq", 16_384),
        ("ngram", 100),
        ("num_workers", 1024),
        ("random_seed", 2**32 - 1),
    ],
)
def test_numbers_have_upper_bounds(key, most):
    with pytest.raises(ConfigError, match=rf"{key} is {most + 1}, allowed is .* at most "):
        CreateDataConfig(**{key: most + 1})


def test_chinese_words_are_characters(tmp_path):
    text = "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。闰余成岁，律吕调阳。"
    file = tmp_path / "vocab.txt"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "py", "##thon", *sorted(set(text))]
    file.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    tokenizer = FullTokenizer(vocab_file=file)
    vocab = MaskVocabulary.of(tokenizer)
    assert vocab.word_start.tolist() == [token != "##thon" for token in tokenizer.vocab]
    assert 4 not in vocab.replacements and len(vocab.replacements) == tokenizer.vocab_size - 5
    result = make_maker(tokenizer, dupe_factor=20).make(0, [[text, "python 天地" + text], ["python"]])
    assert (result.documents, result.short_documents) == (2, 1)
    assert len(result.packed.rows) == 20 and result.token_counts[1] == 0
    assert result.token_counts[tokenizer.vocab["py"]] == result.token_counts[tokenizer.vocab["##thon"]] > 0


# --- beside google's own output ---


@pytest.fixture(scope="module")
def google_and_ours(golden, shared):
    """Rows of google's file without their padding, rows made here from the same text, and the word starts."""
    import mindspore.dataset as ds

    file = str(golden / "wikitext2_valid.tfrecord")
    columns = ["input_ids", "input_mask", "segment_ids", "token_boundary", "next_sentence_labels"]
    columns += ["masked_lm_positions", "masked_lm_ids", "masked_lm_weights"]
    google = []
    for row in ds.TFRecordDataset([file], columns_list=columns, shuffle=False).create_dict_iterator(1, True):
        ends = {128: int(row["input_mask"].sum()), 20: int(row["masked_lm_weights"].sum()), 1: 1}
        google.append({name: values[: ends[len(values)]] for name, values in row.items()})
    tokenizer = FullTokenizer(spm_model_file=shared / "data/vocab/30k-clean.model")
    maker = make_maker(tokenizer)
    ours = []
    documents = create_pretraining_data.read_documents([shared / "data/corpus/wikitext2_valid.txt"])
    for unit in group_documents(documents):
        joined = join_documents(maker.encode(unit))
        pairs = sample_pairs(joined, SETTINGS, Random(0))
        ours += rows_of(joined, pairs, SETTINGS, maker.vocabulary, 0)
    return google, ours, maker.vocabulary.word_start


def test_token_boundaries_are_google_s(google_and_ours):
    google, _, word_start = google_and_ours
    for row in google:
        ids = original_ids(row)
        expected = word_start[ids] | np.isin(ids, (CLS, SEP))
        np.testing.assert_array_equal(row["token_boundary"], expected)


def test_statistics_are_google_s(google_and_ours):
    google, ours, word_start = google_and_ours
    assert len(google) == 10_182 and len(ours) > 2000

    def statistics(rows) -> dict[str, float]:
        # google makes its shortest examples of headings, which are no documents here.
        rows = [row for row in rows if len(row["input_ids"]) > 32]
        lengths = np.array([len(row["input_ids"]) for row in rows])
        shown = np.concatenate([row["input_ids"][row["masked_lm_positions"]] for row in rows])
        labels = np.concatenate([row["masked_lm_ids"] for row in rows])
        runs = np.concatenate([masked_runs(row, word_numbers(row, word_start)) for row in rows])
        return {
            "masked share": len(labels) / lengths.sum(),
            "[MASK]": np.mean(shown == MASK),
            "kept": np.mean(shown == labels),
            "full length": np.mean(lengths == 128),
            "mean length / 128": lengths.mean() / 128,
            **{f"runs of {size}": np.mean(runs == size) for size in (1, 2, 3, 4)},
        }

    expected, found = statistics(google), statistics(ours)
    assert found == pytest.approx(expected, abs=0.025)
    labels = [row["next_sentence_labels"][0] for row in ours]
    assert abs(np.mean(labels) - 0.5) < 0.03  # google's are 0.93 here: its one-sentence documents all count as swapped


def test_chinese_wikipedia(shared):
    tokenizer = FullTokenizer(vocab_file=shared / "data/vocab/vocab_zh.txt")
    file = min((shared / "data/corpus/wiki_zh").iterdir())
    unit = next(group_documents(create_pretraining_data.read_documents([file])))
    result = make_maker(tokenizer).make(0, unit)
    assert len(result.packed.rows) > 500
    assert np.mean(result.packed.lengths == 128) > 0.6
    unknown = result.token_counts[tokenizer.unk_id] / result.token_counts.sum()
    assert unknown < 0.02


# --- parts ---


@pytest.fixture
def few_topics(text_and_model, tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A small text in many units, and the vocabulary."""
    monkeypatch.setattr(create_pretraining_data, "UNIT_CHARACTERS", 2_000)
    (tmp_path / "text").mkdir()
    return write_text(tmp_path / "text", topics=20), text_and_model[1]


def make_part(folder: Path, text_and_model, part: str, **settings) -> Path:
    settings = {"part": part, "dupe_factor": 1} | settings
    return make_records(folder / "pre.mindrecord", *text_and_model, **settings)


def rows_by_checksum(path: Path) -> dict[int, bytes]:
    """Return the rows of a set, known by their checksums, in no order."""
    records = open_records(path, "pretrain")
    rows = {}
    for checksum, row in zip(records.array("checksums"), read_rows(path), strict=True):
        rows[int(checksum)] = b"".join(row[name].tobytes() for name in sorted(row))
    return rows


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_parts_hold_the_rows_of_the_whole(few_topics, tmp_path, masking):
    settings = {"masking": masking, "dupe_factor": 1}
    whole = make_records(tmp_path / "whole/pre.mindrecord", *few_topics, **settings)
    for part in ("2/3", "0/3", "1/3"):
        make_part(tmp_path / "parts", few_topics, part, **settings)
    merged = tmp_path / "parts/pre.mindrecord"
    config = merge_parts.MergeConfig(output_file=str(merged))
    for _ in range(2):  # a second run finds it complete
        merge_parts.main(config)
        assert rows_by_checksum(merged.parent) == rows_by_checksum(whole)
    ours, theirs = (open_records(path, "pretrain") for path in (merged, whole))
    assert (ours.array("unigram") == theirs.array("unigram")).all() and len(ours.files) == 3
    different = {"files", "record_files"}
    assert {**ours.manifest, **dict.fromkeys(different)} == {**theirs.manifest, **dict.fromkeys(different)}
    reader = RowReader(ours)
    with reader.open_files() as streams:
        reader.read(streams, np.arange(ours.num_rows))  # verifies the checksum of every row


def test_parts_that_do_not_fit_are_refused(few_topics, tmp_path):
    config = merge_parts.MergeConfig(output_file=str(tmp_path / "pre.mindrecord"))
    with pytest.raises(DataError, match="no parts"):
        merge_parts.main(config)
    make_part(tmp_path, few_topics, "0/2")
    with pytest.raises(DataError, match=r"pre-1-of-2\.mindrecord has no finished"):
        merge_parts.main(config)
    make_part(tmp_path, few_topics, "1/2", random_seed=7)
    with pytest.raises(DataError, match=r"seed.*12345.*7"):
        merge_parts.main(config)
    make_part(tmp_path, few_topics, "1/3")
    with pytest.raises(DataError, match="parts of 2 and of 3"):
        merge_parts.main(config)


def test_other_sets_of_the_folder_stay(few_topics, tmp_path):
    """A set whose name begins like that of the merged one, and parts made after the merge."""
    make_records(tmp_path / "pre-de.mindrecord", *few_topics, part="0/2", dupe_factor=1)
    for part in ("0/2", "1/2"):
        make_part(tmp_path, few_topics, part)
    merge_parts.main(merge_parts.MergeConfig(output_file=str(tmp_path / "pre.mindrecord")))
    assert open_records(tmp_path / "pre-de-0-of-2.mindrecord", "pretrain").num_rows
    with pytest.raises(DataError, match="is there already"):
        make_part(tmp_path, few_topics, "0/3")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_part_without_text_is_told(text_and_model, tmp_path, caplog, dry_run):
    if dry_run:
        make_part(tmp_path, text_and_model, "98/99", dry_run=True)
        assert create_pretraining_data.NO_EXAMPLE in caplog.text
    else:
        with pytest.raises(DataError, match=r"200,000 characters .* each part"):
            make_part(tmp_path, text_and_model, "98/99")


@pytest.mark.parametrize("part", ["2/2", "-1/2", "1", "a/b", "0/0"])
def test_a_part_is_an_index_and_a_number(part):
    with pytest.raises(ConfigError) as error:
        CreateDataConfig(input_file="x", output_file="x.mindrecord", part=part).check_together()
    assert error.value.key == "part"


def test_processes_are_not_many_more_than_cores(text_and_model, tmp_path, monkeypatch):
    monkeypatch.setattr(create_pretraining_data.os, "sched_getaffinity", lambda _: {0, 1})
    for limit, workers in ((8.0, 2), (1.5, 2), (0.5, 1)):
        monkeypatch.setattr(create_pretraining_data, "cpu_limit", lambda limit=limit: limit)
        assert create_pretraining_data.number_of_workers(0) == workers
    monkeypatch.setattr(create_pretraining_data, "cpu_limit", lambda: 2.0)
    with pytest.raises(ConfigError, match=r"num_workers is 9, allowed is at most 8"):
        make_records(tmp_path / "pre.mindrecord", *text_and_model, num_workers=9)
