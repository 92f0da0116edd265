"""Formats of named entities: the same sentences in every one give the same words and tags, and bad files are told."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_utils.errors import ConfigError, DataError
from model_utils.schema import load_config
from src.tasks.entities import OUTSIDE, find_entities
from src.tasks.ner_data import EntityColumns, find_format, read_sentences
from src.tasks.token_classification import NerConfig, NerTask
from tests.helpers.finetune_arguments import arguments

NAMES = EntityColumns("review", "dish_name", "DISH")
TAG_NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
Tagged = list[tuple[list[str], list[str]]]


def spans_of(words: list[str], tags: list[str]) -> tuple[str, list[tuple[int, int, str]]]:
    """Text of words between spaces, and its entities: start, end and label of each."""
    starts = [len(" ".join([*words[:index], ""])) for index in range(len(words))]
    ends = [start + len(word) for start, word in zip(starts, words, strict=True)]
    return " ".join(words), [(starts[one.first], ends[one.end - 1], one.label) for one in find_entities(tags)]


def cluener(words: list[str], tags: list[str]) -> dict[str, Any]:
    text, spans = spans_of(words, tags)
    labels: defaultdict[str, defaultdict[str, list]] = defaultdict(lambda: defaultdict(list))
    for start, end, label in spans:
        labels[label][text[start:end]].append([start, end - 1])
    return {"text": text, "label": labels}


def doccano(words: list[str], tags: list[str], text_key: str = "text", key: str = "label") -> dict[str, Any]:
    text, spans = spans_of(words, tags)
    return {"id": 1, text_key: text, key: [list(span) for span in spans]}


def doccano_objects(words: list[str], tags: list[str]) -> dict[str, Any]:
    text, spans = spans_of(words, tags)
    entities = [{"id": 7, "start_offset": start, "end_offset": end, "label": label} for start, end, label in spans]
    return {"id": 1, "text": text, "entities": entities, "relations": []}


def label_studio(words: list[str], tags: list[str]) -> dict[str, Any]:
    text, spans = spans_of(words, tags)
    values = [{"start": a, "end": b, "text": text[a:b], "labels": [label]} for a, b, label in spans]
    results = [{"value": value, "type": "labels", "from_name": "label"} for value in values]
    skipped = {"result": [], "was_cancelled": True}
    return {"id": 1, "data": {"text": text}, "annotations": [skipped, {"result": results, "was_cancelled": False}]}


def tokens(words: list[str], tags: list[str]) -> dict[str, Any]:
    return {"id": "0", "tokens": words, "ner_tags": tags, "pos_tags": [1] * len(words)}


def tokens_by_number(words: list[str], tags: list[str]) -> dict[str, Any]:
    return {"tokens": words, "ner_tags": [TAG_NAMES.index(tag) for tag in tags]}


HEADER = {"features": {"ner_tags": {"feature": {"names": TAG_NAMES, "_type": "ClassLabel"}, "_type": "Sequence"}}}
JSON_FORMS: dict[str, tuple[Callable[..., dict], str, list[dict]]] = {
    "cluener": (cluener, "spans", []),
    "doccano": (doccano, "spans", []),
    "doccano of 2019": (lambda *pair: doccano(*pair, "data", "labels"), "spans", []),
    "lists of entities": (lambda *pair: doccano(*pair, "text", "entities"), "spans", []),
    "doccano objects": (doccano_objects, "spans", []),
    "label studio": (label_studio, "spans", []),
    "tokens": (tokens, "tokens", []),
    "tokens by number": (tokens_by_number, "tokens", [HEADER]),
}


def json_text(records: list[dict], is_list: bool) -> str:
    return json.dumps(records) if is_list else "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)


@st.composite
def tagged_sentences(draw: Callable) -> Tagged:
    """At least one entity, so that the tags have a scheme; words that split_words keeps whole."""
    words = st.sampled_from(["Bonn", "is", "北", "京", ".", "U.S", "3,500.50", "well-known", "é"])
    sentences = [(["Ann", "Lee", "left"], ["B-PER", "I-PER", "O"])]
    for some in draw(
        st.lists(st.lists(st.tuples(words, st.sampled_from(TAG_NAMES)), min_size=1, max_size=6), max_size=4)
    ):
        tags: list[str] = []
        for _, tag in some:
            continues = bool(tags) and tags[-1][1:] == tag[1:]
            tags.append(tag.replace("I-", "B-") if tag.startswith("I-") and not continues else tag)
        sentences.append(([word for word, _ in some], tags))
    return sentences


def read(path: Path, text: str, columns: EntityColumns = NAMES, **settings: Any) -> Tagged:
    path.write_text(text, encoding="utf-8")
    return [(list(one.words), list(one.tags)) for one in read_sentences(path, "auto", columns, **settings)]


@given(tagged_sentences(), st.booleans())
@pytest.mark.parametrize("form", JSON_FORMS)
def test_json_gives_the_sentences_back(
    form: str, tmp_path_factory: pytest.TempPathFactory, sentences: Tagged, is_list: bool
) -> None:
    write, data_format, header = JSON_FORMS[form]
    file = tmp_path_factory.getbasetemp() / "train.json"
    text = json_text([*header, *(write(*pair) for pair in sentences)], is_list)
    assert read(file, text) == sentences
    assert find_format(file, "auto", NAMES) == data_format


@given(tagged_sentences(), st.sampled_from(["\t", " "]))
def test_columns_with_the_tag_first_give_the_sentences_back(
    tmp_path_factory: pytest.TempPathFactory, sentences: Tagged, separator: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "train.bio"
    rows = [[f"{tag}{separator}{word}" for word, tag in zip(*pair, strict=True)] for pair in sentences]
    text = "\n\n".join("\n".join(block) for block in rows)
    assert read(file, text) == sentences
    assert read(file, f"label{separator}token\n{text}") == sentences
    assert read(file, text.replace("-PER", "").replace("-LOC", ""))[0] == (sentences[0][0], ["B", "I", "O"])


def test_numbers_are_named_by_label_list(tmp_path: Path) -> None:
    text = json_text([tokens_by_number(["Ann", "left"], ["B-PER", "O"])], False)
    columns = EntityColumns("review", "dish_name", "DISH", tag_names=tuple(TAG_NAMES))
    assert read(tmp_path / "a.jsonl", text, columns, labels=TAG_NAMES) == [(["Ann", "left"], ["B-PER", "O"])]
    with pytest.raises(DataError, match=r"line 1 has the number 1 in ner_tags, of which 0 have names.*label_list"):
        read(tmp_path / "a.jsonl", text)
    with pytest.raises(DataError, match=r"line 1 has the number 1 in ner_tags, of which 1 have names"):
        read(tmp_path / "a.jsonl", text, EntityColumns("", "", "", tag_names=("O",)))


def test_other_keys_of_words_and_tags(tmp_path: Path) -> None:
    text = json_text([{"form": ["a", "b"], "ner_tags": ["O", "O"], "upos": ["DT", "NN"]}], False)
    columns = EntityColumns("review", "dish_name", "DISH", "form", "upos")
    assert read(tmp_path / "a.jsonl", text, columns) == [(["a", "b"], ["DT", "NN"])]


@pytest.mark.parametrize(
    ("text", "spans", "tags", "warning"),
    [
        ("Ann Lee left", [[0, 3, "PER"], [0, 7, "PER"]], "B-PER I-PER O", "overlap.* line 2 ('Ann')"),
        ("Ann Lee left", [[0, 3, "A"], [0, 3, "B"], [0, 3, "A"]], "B-A O O", "1 spans overlap"),
        ("Ann Lee left", [[0, 5, "PER"]], "B-PER I-PER O", "1 spans cut a word.* line 2 ('Ann L')"),
        ("Ann Lee left", [[3, 8, "PER"]], "O B-PER O", "1 spans begin or end with blanks"),
        ("Ann Lee left", [[3, 4, "PER"], [4, 4, "X"]], "O O O", "2 spans hold no word"),
        ("Ann Lee left", [[4, 7, "FULL NAME"]], "O B-FULL_NAME O", ""),
        ("王小明在", [[0, 3, "人"]], "B-人 I-人 I-人 O", ""),
    ],
)
def test_spans_that_are_no_words(
    tmp_path: Path, capsys: pytest.CaptureFixture, text: str, spans: list, tags: str, warning: str
) -> None:
    records = [{"text": "a", "label": []}, {"text": text, "label": spans}]
    sentences = read(tmp_path / "train.jsonl", json_text([*records, cluener(["x"], ["B-LOC"])], False))
    assert sentences[1][1] == tags.split()
    output = capsys.readouterr().out
    assert all(part in output for part in warning.split(".*"))


def test_tasks_without_an_annotation_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    task = label_studio(["Ann"], ["B-PER"])
    choice = {"value": {"choices": ["good"]}, "type": "choices"}
    more = task | {"annotations": [{"result": [*task["annotations"][1]["result"], choice]}, {"result": []}]}
    without = task | {"annotations": task["annotations"][:1]}
    file = tmp_path / "train.json"
    assert read(file, json_text([task, without, more], True)) == [(["Ann"], ["B-PER"])] * 2
    said = capsys.readouterr().out
    assert "1 texts are blank or have no annotation" in said and "line 2" in said
    assert "1 tasks have several annotations" in said and "1 tasks have results without labels" in said
    # To predict, every task has its text; one without gold spans makes the file unlabelled.
    assert [one.tags for one in read_sentences(file, "auto", NAMES, labelled=False)] == [None] * 3


def test_keys_that_are_not_read_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    records = [doccano(["Ann"], ["B-PER"]), doccano(["Ann"], ["B-PER"]) | {"lable": []}]
    read(tmp_path / "train.jsonl", json_text(records, False))
    assert "1 texts have the key 'lable', which is not read: line 2" in capsys.readouterr().out
    annotated = {"text": "Ann", "annotations": label_studio(["Ann"], ["B-PER"])["annotations"]}
    assert read(tmp_path / "train.jsonl", json_text([annotated], False)) == [(["Ann"], ["B-PER"])]
    assert "not read" not in capsys.readouterr().out


GOOD = {"text": "Ann left", "label": [[0, 3, "PER"]]}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "Ann", "label": [[0, 4, "PER"]]}, "from 0 to 4.*0 to 3"),
        ({"text": "Ann", "label": [[-1, 2, "PER"]]}, "from -1 to 2"),
        ({"text": "Ann", "label": [[2, 1, "PER"]]}, "from 2 to 1"),
        ({"text": "Ann", "label": [[0, 1.5, "PER"]]}, "1.5"),
        ({"text": "Ann", "label": [[True, 2, "PER"]]}, "True"),
        ({"text": "Ann", "label": [["0", "1", "PER"]]}, "'0'"),
        ({"text": "Ann", "label": [[0, 3, ""]]}, "span '' from 0 to 3"),
        ({"text": "Ann", "label": [[0, 3, None]]}, "span None from 0 to 3"),
        ({"text": "Ann", "label": [[0, 3]]}, "as label, allowed"),
        ({"text": "Ann", "label": ["PER"]}, "as label, allowed"),
        ({"text": "Ann", "label": [7]}, "as label, allowed"),
        ({"text": "Ann", "label": "PER"}, "'PER' as label, allowed"),
        ({"text": "Ann", "label": [{"from": 0, "to": 3, "label": "PER"}]}, "from None to None"),
        ({"text": "Ann", "label": [{"start": 0, "end": 3, "labels": []}]}, r"span \[\] from 0 to 3"),
        ({"text": "Ann", "label": {"PER": {"Ann": [[0, 3]]}}}, "from 0 to 4"),  # CLUENER's ends are included
        ({"text": "Ann", "label": {"PER": {"Ben": [[0, 2]]}}}, "'Ben'.*'Ann'"),
        ({"text": "Ann", "label": {"PER": {"Ann": [0, 2]}}}, "as label, allowed"),
        ({"text": "Ann", "label": {"PER": [[0, 2]]}}, "as label, allowed"),
        ({"text": "Ann", "label": {"PER": {"Ann": [[0, "2"]]}}}, "as label, allowed"),
        ({"text": "Ann", "label": [], "entities": []}, "label and entities"),
        ({"text": "Ann"}, "no label, labels, entities"),
        ({"text": "Ann", "label": None}, "no label, labels, entities"),
        ({"text": 3, "label": []}, "3 as text"),
        ({"sentence": "Ann", "label": []}, "None as text.*'sentence'"),
        ({"data": {"review_text": "Ann"}, "annotations": []}, "None as text.*'review_text'"),
        ({"data": {"text": "Ann"}, "annotations": ["x"]}, "annotations"),
        ({"data": {"text": "Ann"}, "annotations": [{}]}, "annotations"),
        ({"data": {"text": "Ann"}, "annotations": [{"result": None}]}, "annotations"),
        ({"data": {"text": "Ann"}, "annotations": [{"result": [{"value": None}]}]}, "annotations"),
        ([], "needed is a JSON object"),
        ("Ann", "needed is a JSON object"),
    ],
)
def test_bad_spans(tmp_path: Path, record: Any, reason: str) -> None:
    with pytest.raises(DataError, match=rf"(?s)train\.jsonl: line 2 .*({reason})"):
        read(tmp_path / "train.jsonl", json_text([GOOD, record], False))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "2 tokens and 1 ner_tags"),
        ({"tokens": ["a"]}, "no list ner_tags"),
        ({"tokens": "a", "ner_tags": ["O"]}, "no list tokens"),
        ({"words": ["a"], "ner_tags": ["O"]}, "no list tokens"),
        ({"tokens": ["a b"], "ner_tags": ["O"]}, "'a b' in tokens"),
        ({"tokens": [""], "ner_tags": ["O"]}, "'' in tokens"),
        ({"tokens": [3], "ner_tags": ["O"]}, "3 in tokens"),
        ({"tokens": ["a"], "ner_tags": [None]}, "None in ner_tags"),
        ({"tokens": ["a"], "ner_tags": [True]}, "True in ner_tags"),
        ({"tokens": ["a"], "ner_tags": [-100]}, "number -100 in ner_tags"),
        ({"tokens": ["a"], "ner_tags": ["per"]}, "tag 'per'"),
        (3, "needed is a JSON object"),
    ],
)
def test_bad_tokens(tmp_path: Path, record: Any, reason: str) -> None:
    good = {"tokens": ["a", "b"], "ner_tags": ["B-PER", "O"]}
    with pytest.raises(DataError, match=rf"train\.json: line 2 .*{reason}"):
        read(tmp_path / "train.json", json_text([good, record], False))


@pytest.mark.parametrize("features", [{}, [], 3, {"ner_tags": {}}, {"ner_tags": 1}, {"ner_tags": {"names": 3}}])
def test_headers_without_names(tmp_path: Path, features: Any) -> None:
    records = [{"features": features}, {"tokens": ["a"], "ner_tags": [0]}]
    with pytest.raises(DataError, match=r"train\.jsonl: the first line has features, but no names of ner_tags"):
        read(tmp_path / "train.jsonl", json_text(records, False))


@pytest.mark.parametrize("text", ["[\n", "{", "[{]", '{"text": "a"', "[]", "", '{"features": {}}'])
def test_damaged_json(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"train\.json"):
        read(tmp_path / "train.json", text)


def test_a_table_of_names_in_json_stays_one(tmp_path: Path) -> None:
    text = json_text([{"review": "Good soup.", "dish_name": "soup", "labels": [], "tokens": []}], False)
    assert read(tmp_path / "a.json", text) == [(["Good", "soup", "."], [OUTSIDE, "B-DISH", OUTSIDE])]
    with pytest.raises(DataError, match="has no column 'review'"):
        read(tmp_path / "a.json", json_text([{"text": "Good soup.", "dish_name": "soup"}], False))


@pytest.mark.parametrize("text", ["word,tag\nBonn,B-LOC\n", "Sentence #,Word,POS,Tag\nSentence: 1,Bonn,NNP,B-geo\n"])
def test_a_table_of_words_says_what_is_read(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"a\.csv is read as a table of texts and names, .*with a word, TAB, its tag"):
        read(tmp_path / "a.csv", text)


def test_a_column_without_values_is_not_one_of_tags(tmp_path: Path) -> None:
    """The last column of CoNLL-U is mostly empty."""
    text = "1\tIt\tit\tPRON\t_\n2\tis\tbe\tAUX\tSpaceAfter=No\n3\told\told\tADJ\t_\n\n"
    with pytest.raises(DataError, match=r"column 5 has no value \(_\) in most lines: give tag_column"):
        read(tmp_path / "a.conllu", text)
    columns = EntityColumns("review", "dish_name", "DISH", tag="4")
    assert read(tmp_path / "a.conllu", text, columns) == [(["It", "is", "old"], ["PRON", "AUX", "ADJ"])]


def test_what_joins_no_entities_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text("Ann PER-B\nSmith PER-I\nin O\nBonn LOC-B\n\nold O\n")
    ner_task(tmp_path)
    assert "tags such as 'LOC-B' are no entities; write the letter first: B-PER" in caplog.text
    (tmp_path / "train.txt").write_text("Ann B-PER\nin O\n" * 501)
    ner_task(tmp_path, dev_file=tmp_path / "train.txt")
    assert "train.txt is one sentence of 1,002 words: put a blank line behind each" in caplog.text


def ner_task(folder: Path, **settings: Any) -> NerTask:
    return NerTask(load_config(NerConfig, arguments({}, {"data_dir": folder, "do_predict": True} | settings)), None)


def test_cluener_as_published(tmp_path: Path) -> None:
    """The texts to predict have no labels."""
    for split in ("train", "dev"):
        records = [cluener([*"王小明在北京"], "B-PER I-PER I-PER O B-LOC I-LOC".split())]
        records[0]["text"] = "王小明在北京"
        records[0]["label"] = {"PER": {"王小明": [[0, 2]]}, "LOC": {"北京": [[4, 5]]}}
        (tmp_path / f"{split}.json").write_text(json_text(records, False), encoding="utf-8")
    (tmp_path / "test.json").write_text('{"id": 0, "text": "四川敦煌学"}\n', encoding="utf-8")
    task = ner_task(tmp_path)
    assert task.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert [(one.words, one.tags) for one in task.read("test")] == [(tuple("四川敦煌学"), None)]
    assert task.read("train")[0].tags == ("B-PER", "I-PER", "I-PER", "O", "B-LOC", "I-LOC")
    assert not task.task_info.words_are_characters  # texts are split by split_words, as raw text in prediction
    with pytest.raises(ConfigError, match="it has no effect") as error:
        ner_task(tmp_path, tag_column="ner")
    assert (error.value.key, error.value.value) == ("tag_column", "ner")


def test_texts_are_split_as_the_words_of_training_are(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("2 B-DATE\n0 I-DATE\n年 I-DATE\n在 O\n", encoding="utf-8")
    (tmp_path / "dev.jsonl").write_text(
        json_text([{"text": "20 年", "label": [[0, 4, "DATE"]]}], False), encoding="utf-8"
    )
    expected = [(("2", "0", "年"), ("B-DATE", "I-DATE", "I-DATE"))]
    task = ner_task(tmp_path, do_predict=False)
    assert [(one.words, one.tags) for one in task.read("dev")] == expected
    settings = load_config(NerConfig, arguments({}, {"dev_file": tmp_path / "dev.jsonl", "do_train": False}))
    trained = NerTask(settings, None, task.task_info)
    assert [(one.words, one.tags) for one in trained.read("dev")] == expected
