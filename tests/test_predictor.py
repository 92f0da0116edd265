"""Records in, answers out: order, errors in their places, cuts, windows, masks, and which shapes are compiled."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_utils.errors import ConfigError
from src.data.feature_cache import Features
from src.data.feature_files import Ragged
from src.inference.predictor import Predictor
from src.model_folder import ModelFolder, load_tokenizer, store_calibration
from src.tasks.fill_mask import encode_masked, fill_masks
from tests.helpers.answers import assert_close
from tests.helpers.messages import messages_of
from tests.helpers.trained_folders import ARCHITECTURE, TAGS, TASK_INFOS, make_folder


def test_order_and_errors_in_their_places(classify: Predictor) -> None:
    texts = [f"word number {'abcdefghij'[index % 10] * (1 + index % 7)}" for index in range(41)]
    records: list[dict[str, Any]] = [{"text_a": text} for text in texts]
    records[3], records[20], records[40] = {"text": "x"}, {"text_a": 5}, {"text_a": " \n"}
    answers = classify.predict(records)
    for index, error in ((3, "text_a is missing"), (20, "text_a is int"), (40, "text_a is blank")):
        assert list(answers[index]) == ["error"] and answers[index]["error"].startswith(error)
    for index in (0, 19, 39):
        alone = classify.predict([records[index]])[0]
        assert alone["label"] == answers[index]["label"]
        assert alone["probabilities"] == pytest.approx(answers[index]["probabilities"], abs=1e-5)
    assert classify.predict([]) == []


def test_what_is_null_is_missing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "classification", text_columns={"text_a": "review"})
    predictor = ModelFolder.load(folder).predictor()
    assert predictor.predict([{"review": None, "text_a": "good"}]) == predictor.predict([{"review": "good"}])


RECORDS_WITH = {  # a record whose text holds a word
    "classification": lambda word: {"text_a": f"a {word} c"},
    "regression": lambda word: {"text_a": "b", "text_b": word},
    "multi_label": lambda word: {"text_a": f"a {word} c"},
    "multiple_choice": lambda word: {"article": "a b", "question": "c", "options": ["a", "b", word, "d"]},
    "squad_v1": lambda word: {"context": "a b c d " * 15 + word, "question": "what"},  # several windows
    "squad_v2": lambda word: {"context": "a b c d " * 15 + word, "question": "what"},
    "token_classification": lambda word: {"text": "a b c d " * 15 + word},
    "embedding_pairs": lambda word: {"text_a": "b", "text_b": word},
    "fill_mask": lambda word: {"text": f"a [MASK] {word}"},
}


@pytest.mark.parametrize("task", RECORDS_WITH)
def test_outputs_that_are_no_numbers_cost_their_own_records_only(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", task)).predictor()
    records = [RECORDS_WITH[task](word) for word in ("x", "z", "y", "z", "x")]
    expected = predictor.predict(records)
    run = predictor._run

    def damaged(features: Features) -> dict[str, Any]:
        outputs = run(features)
        ids = features.values["input_ids"]
        rows = np.repeat(np.arange(len(ids.counts)), ids.counts)[ids.values == predictor.tokenizer.vocab["z"]]
        for output in outputs.values():
            if isinstance(output, Ragged):
                output.values[np.isin(np.repeat(np.arange(len(ids.counts)), ids.counts), rows)] = np.nan
            else:
                output[rows] = np.inf
        runs.append(len(ids.counts))
        return outputs

    runs: list[int] = []
    monkeypatch.setattr(predictor, "_run", damaged)
    answers = predictor.predict(records)
    error = {"error": "the network's outputs are not finite: its weights may be damaged"}
    assert_close(answers, [expected[0], error, expected[2], error, expected[4]])
    assert len(runs) == 1


def test_another_thread_may_ask(classify: Predictor) -> None:
    """The server predicts in a thread of its own."""
    records = [{"text_a": "some words"}, {"text_a": "a"}]
    with ThreadPoolExecutor(max_workers=1) as thread:
        assert thread.submit(classify.predict, records).result() == classify.predict(records)


def test_text_of_which_nothing_is_left_harms_no_other(classify: Predictor) -> None:
    """Control characters and such are dropped by the tokenizer."""
    answers = classify.predict([{"text_a": "fine"}, {"text_a": "\x00\u200b\ufffd"}])
    assert answers[0]["probabilities"] == pytest.approx(classify.predict([{"text_a": "fine"}])[0]["probabilities"])
    assert "label" in answers[1]


def test_what_is_cut_says_so(classify: Predictor) -> None:
    short, long = classify.predict([{"text_a": "a" * 38}, {"text_a": "a" * 39}])
    assert "truncated" not in short and long["truncated"] is True
    assert long["probabilities"] == pytest.approx(short["probabilities"], abs=1e-5)


def test_texts_may_have_the_names_of_their_columns_in_training(
    classifier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(classifier, tmp_path / "run")
    columns = {"text_a": "review", "text_b": "title"}
    store_calibration(folder, {"text_columns": columns})
    predictor = ModelFolder.load(folder).predictor()
    pair = {"text_a": "fine", "text_b": "words"}
    same = [{"review": "fine", "title": "words"}, {"review": "fine", "text_b": "words"}, pair | {"review": "fine"}]
    assert predictor.predict(same) == predictor.predict([pair] * 3)
    assert "a record has no" not in caplog.text
    assert predictor.predict([{"review": "fine"}]) == predictor.predict([{"text_a": "fine"}])
    assert caplog.text.count("a record has no title") == 1
    assert predictor.predict([{"body": "fine"}]) == [{"error": "review or text_a is missing; the record has body"}]
    assert predictor.predict([{"review": None}]) == [{"error": "review is null, but must be a text"}]

    named = ModelFolder.load(folder).predictor(text_columns=("body", "head"))
    asked = [{"body": "fine", "head": "words"}, {"review": "fine", "head": "a"}, {"body": "fine", "title": "words"}]
    answers = named.predict(asked)
    alone = ModelFolder.load(folder).predictor()  # which has no larger graph, of other kernels and other last bits
    assert answers[:1] == alone.predict([pair])
    assert answers[1:] == [
        {"error": "body is missing; the record has review, head"},
        {"error": "head is missing; the record has body, title"},
    ]
    for columns, sentence in (
        (("", "head"), "text_b_column is 'head', .* embeddings have text_a"),
        (("body", "head"), "text_b_column is 'head'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            ModelFolder.load(folder).predictor(embeddings=True, text_columns=columns)


def test_a_model_of_one_segment_takes_no_second_text(tmp_path: Path) -> None:
    """transformers ends with an IndexError; the segment has no embedding."""
    folder = make_folder(tmp_path / "run", "classification", ARCHITECTURE.replace(type_vocab_size=1))
    alone, pair = {"text_a": "fine"}, {"text_a": "fine", "text_b": "words"}
    predictor = ModelFolder.load(folder).predictor()
    first, refused, last = predictor.predict([alone, pair, alone])
    assert list(refused) == ["error"] and "type_vocab_size 1" in refused["error"]
    assert first["label"] == last["label"] and first["probabilities"] == pytest.approx(last["probabilities"], abs=1e-6)


def test_a_second_text_is_no_part_of_records_of_a_model_of_single_texts(
    classifier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(classifier, tmp_path / "run")
    alone, pair = {"text_a": "fine"}, {"text_a": "fine", "text_b": "words"}
    store_calibration(folder, {"text_columns": {"text_a": "text_a"}})
    predictor = ModelFolder.load(folder).predictor()
    assert predictor.predict([pair]) == predictor.predict([alone])
    predictor.predict([pair])
    assert caplog.text.count("a record has text_b") == 1
    asked = ModelFolder.load(folder).predictor(text_columns=("", "text_b")).predict([pair])
    assert asked == ModelFolder.load(classifier).predictor().predict([pair]) != predictor.predict([pair])

    store_calibration(folder, {"text_columns": {"text_a": "text_b"}})
    named = ModelFolder.load(folder).predictor()
    assert named.predict([{"text_a": "fine", "text_b": "words"}]) == named.predict([{"text_a": "words"}])


def test_probabilities_are_of_all_labels(classify: Predictor) -> None:
    (answer,) = classify.predict([{"text_a": "fine", "text_b": "words"}])
    assert list(answer["probabilities"]) == ["bad", "good", "so so"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-6)
    assert answer["label"] == max(answer["probabilities"], key=answer["probabilities"].get)


def test_choices_need_options(tmp_path: Path) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", "multiple_choice")).predictor()
    good = {"article": "a b c", "question": "why", "options": ["a", "b", "c", "d"]}
    answers = predictor.predict([good | {"options": ["a"]}, good, good | {"options": ["a", "b", "c", ""]}])
    assert "2 to 26" in answers[0]["error"]
    assert answers[1]["answer"] in "ABCD" and list(answers[1]["probabilities"]) == list("ABCD")
    assert answers[2]["error"].startswith("an option is blank")


@pytest.mark.parametrize("portable", [False, True])
def test_questions_with_different_numbers_of_options_are_answered_together(tmp_path: Path, portable: bool) -> None:
    folder = ModelFolder.load(make_folder(tmp_path / "run", "multiple_choice"))
    predictor = folder.predictor(portable=True) if portable else folder.predictor()
    records = [
        {"article": "a b c", "question": "why", "options": [chr(97 + index) for index in range(count)]}
        for count in (5, 2, 26, 3)
    ]
    together = predictor.predict(records)
    for record, answer in zip(records, together, strict=True):
        letters = [chr(65 + index) for index in range(len(record["options"]))]
        shares = answer["probabilities"]
        assert list(shares) == letters and sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert answer["answer"] == max(shares, key=shares.get)
        [alone] = predictor.predict([record])
        assert alone["probabilities"] == pytest.approx(shares, abs=1e-5)


@pytest.mark.parametrize("task", ["squad_v1", "squad_v2"])
def test_spans_are_parts_of_long_contexts(task: str, tmp_path: Path) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", task)).predictor()
    context = "  It is, by any word; a long “text” é of many windows. " * 4
    (answer,) = predictor.predict([{"context": context, "question": "what is it?"}])
    assert 1 <= len(answer["n_best"]) <= 4
    assert sum(span["score"] for span in answer["n_best"]) == pytest.approx(1.0)
    assert all(context[span["start"] : span["end"]] == span["answer"] for span in answer["n_best"])
    scores = [span["score"] for span in answer["n_best"]]
    assert scores == sorted(scores, reverse=True)
    fits, cut = predictor.predict([{"context": "it is", "question": "a" * length} for length in (12, 13)])
    assert "truncated" not in answer and "truncated" not in fits and cut["truncated"] is True
    assert cut["n_best"] == fits["n_best"]
    if task == "squad_v1":
        assert answer["no_answer_probability"] is None and answer["answer"] == answer["n_best"][0]["answer"]
    else:
        assert (answer["answer"] == "") == (answer["no_answer_probability"] > 0.5)


def test_entities_have_their_surface_text(tmp_path: Path) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", "token_classification")).predictor()
    text = "Anna's  friend (of Lyon) came, with 3.5 others; " * 5  # several windows
    entities = predictor.predict([{"text": text}])[0]["entities"]
    assert entities and all(text[each["start"] : each["end"]] == each["text"] for each in entities)
    assert {each["label"] for each in entities} <= {tag[2:] for tag in TAGS if tag != "O"}
    tokens = ["Anna", "came", "to", "Lyon"]
    records = [{"tokens": tokens}, {"text": "Anna came to Lyon"}, {"tokens": []}]
    answers = predictor.predict(records + [records[1] | {"tokens": other} for other in (7, None, ["x"])])
    assert answers[0] == answers[1]
    assert answers[2]["error"].startswith("tokens is an empty list")
    assert answers[3:] == [answers[1]] * 3  # a key that is passed through
    assert predictor.predict([{"tokens": tokens, "text": text} for text in ("", None, 5)]) == answers[:1] * 3
    named = ModelFolder.load(tmp_path / "run").predictor(text_columns=("review", ""))
    (without,) = named.predict([{"tokens": tokens}])
    assert "review" in without["error"]  # which is needed where it is named
    assert "review" in named.task_info.text_columns.values()  # a server's requests have it


def test_text_is_split_into_characters_where_training_text_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "2018年 iPhone在北京"
    characters = [character for character in text if character != " "]
    answers = []
    for words_are_characters in (True, False):
        of_task = TASK_INFOS["token_classification"] | {"words_are_characters": words_are_characters}
        monkeypatch.setitem(TASK_INFOS, "token_classification", of_task)
        folder = make_folder(tmp_path / str(words_are_characters), "token_classification")
        answers.append(ModelFolder.load(folder).predictor().predict([{"text": text}, {"tokens": characters}]))
    (of_text, of_tokens), (of_words, _) = ([one["entities"] for one in pair] for pair in answers)
    found = [(each["label"], each["score"]) for each in of_text]
    assert found == [(each["label"], pytest.approx(each["score"], abs=1e-5)) for each in of_tokens]
    assert found != [(each["label"], each["score"]) for each in of_words]


def test_masks_are_filled_in(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "fill_mask")
    predictor = ModelFolder.load(folder).predictor(top_k=3)
    texts = ["[MASK] ab", "a [MASK] c [MASK]", "none", "[MASK]" + "a" * 38]
    answers = predictor.predict([{"text": text} for text in texts])
    assert [len(answer.get("predictions", ())) for answer in answers] == [1, 2, 0, 0]
    vocabulary = load_tokenizer(folder).vocab
    for tokens in (tokens for answer in answers for tokens in answer.get("predictions", ())):
        probabilities = [token["probability"] for token in tokens]
        assert len(tokens) == 3 and probabilities == sorted(probabilities, reverse=True) and sum(probabilities) <= 1
        assert all(token["token"] in vocabulary for token in tokens)
    first = answers[0]["predictions"][0][0]["token"]
    assert answers[0]["filled"] == fill_masks(texts[0], [first], is_sentencepiece=False)
    assert answers[2]["error"] == "the text 'none' has no [MASK] to fill in"
    assert answers[3]["error"].endswith("has 41 tokens, the network takes at most 40")
    classifier = ModelFolder.load(make_folder(tmp_path / "classifier", "classification"))
    with pytest.raises(ConfigError, match="top_k is 5, but the model's task is classification, not fill_mask"):
        classifier.predictor(top_k=5)


@pytest.mark.parametrize(
    ("text", "tokens", "is_sentencepiece", "expected"),
    [
        ("[MASK] is [MASK].", ["▁paris", "▁big"], True, "paris is big."),
        ("a walk [MASK] home [MASK]", ["ing", "."], True, "a walking home."),
        ("a walk [MASK] to [MASK]", ["##ing", "##."], False, "a walking to."),
        ("[MASK] [MASK]", ["▁", "paris"], False, "▁ paris"),
        ("in [MASK][MASK]", ["▁new", "▁york"], True, "in new york"),
        ("a\n[MASK][MASK].", ["new", "##er"], False, "a\nnewer."),
        ("天[MASK]好", ["气"], False, "天气好"),
    ],
)
def test_tokens_are_joined_as_their_prefixes_say(
    text: str, tokens: list[str], is_sentencepiece: bool, expected: str
) -> None:
    assert fill_masks(text, tokens, is_sentencepiece) == expected


def test_many_masks_are_computed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mask has scores for the whole vocabulary: memory, not the number of records, bounds what goes together."""
    predictor = ModelFolder.load(make_folder(tmp_path / "run", "fill_mask")).predictor()
    records = [{"text": "a [MASK] " * count} for count in (1, 1, 9, 1, 2, 2)]
    expected = predictor.predict(records)
    calls: list[tuple[int, ...]] = []
    compute = type(predictor.network).__call__
    monkeypatch.setattr(
        type(predictor.network),
        "__call__",
        lambda self, *columns: (calls.append(columns[-1].shape), compute(self, *columns))[1],
    )
    monkeypatch.setattr("src.inference.predictor._OUTPUTS_AT_ONCE", 4 * predictor.architecture.vocab_size)
    for answer, before in zip(predictor.predict(records), expected, strict=True):
        assert [len(one) for one in answer["predictions"]] == [len(one) for one in before["predictions"]]
        for one, other in zip(answer["predictions"], before["predictions"], strict=True):
            assert one[0]["probability"] == pytest.approx(other[0]["probability"], abs=1e-6)
    assert calls == [(2, 1), (1, 16), (2, 2), (1, 2)]


def test_a_mask_stands_where_the_text_has_it(classifier: Path) -> None:
    tokenizer = load_tokenizer(classifier)
    ids = encode_masked("A [MASK] bc [MASK].", tokenizer, 40)
    assert tokenizer.convert_ids_to_tokens(ids) == "[CLS] a [MASK] b ##c [MASK] . [SEP]".split()


def test_after_a_mask_no_piece_becomes_the_start_of_a_word(shared: Path) -> None:
    from src.tokenization import FullTokenizer

    tokenizer = FullTokenizer(spm_model_file=shared / "data/vocab/30k-clean.model")
    ids = encode_masked("The capital of [MASK], paris, is [MASK].", tokenizer, 40)
    tokens = "[CLS] ▁the ▁capital ▁of [MASK] , ▁paris , ▁is [MASK] . [SEP]".split()
    assert tokenizer.convert_ids_to_tokens(ids) == tokens


def test_numbers_of_masks_share_shapes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", "fill_mask")).predictor()
    with caplog.at_level("INFO", logger="src.inference.network_batches"):
        for masks in range(1, 9):
            (answer,) = predictor.predict([{"text": "a " * (9 - masks) + "[MASK] " * masks}])
            assert len(answer["predictions"]) == masks
    said = [message.rpartition(", ")[2] for message in messages_of(caplog, "compiling")]
    assert [int(shape.split()[0]) for shape in said] == [1, 2, 4, 8]


def test_few_shapes_are_compiled_and_said(classifier: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictor = ModelFolder.load(classifier).predictor(batch_tokens=256)
    records = [{"text_a": " ".join(["good"] * (number % 37 + 1))} for number in range(300)]
    with caplog.at_level("INFO", logger="src.inference.network_batches"):
        answers = predictor.predict(records)
        said = messages_of(caplog, "compiling")
        assert predictor.predict(records) == answers
    assert messages_of(caplog, "compiling") == said == ["compiling the network for batches of 256 tokens"]
    alike = [answer for record, answer in zip(records, answers, strict=True) if record == records[0]]
    assert len(alike) > 5
    for answer in alike[1:]:
        assert answer["probabilities"] == pytest.approx(alike[0]["probabilities"], abs=1e-5)
