"""From scores of tokens to answers: google's rules told by plain loops, and the official files."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.create_squad_data import SquadQuestion, SquadSplit, SquadWindows, read_squad
from src.data.feature_files import Ragged
from src.squad_get_predictions import beam_predictions, independent_predictions
from src.squad_postprocess import answer_texts, write_predictions
from src.tasks.squad_metrics import score_answers, score_answers_v2
from src.tokenization import FullTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrst"
QUESTIONS = [
    SquadQuestion("long", "a", "a b c d e f a b i"),
    SquadQuestion("short", "b c", "Ä b"),
    SquadQuestion("cut", "c", "d e f g h d e"),
]
QUERY, WIDTH, STRIDE = 1, 8, 2  # rows hold 4 tokens of a context


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, *LETTERS]))
    return FullTokenizer(path)


def windows_of(questions, tokenizer, width=WIDTH, stride=STRIDE) -> SquadWindows:
    features = SquadSplit("dev", questions, tokenizer, width, stride, QUERY).features()
    return SquadWindows.of(features.arrays.__getitem__)


@pytest.fixture(scope="module")
def windows(tokenizer) -> SquadWindows:
    return windows_of(QUESTIONS, tokenizer)


def logits(windows, width=WIDTH, start=None, end=None):
    """start_logits and end_logits: 0, and where a row and a token of it are named, another score."""
    outputs = {}
    for name, scores in (("start_logits", start or {}), ("end_logits", end or {})):
        outputs[name] = np.zeros((len(windows.token_counts), width), np.float32)
        for (row, token), score in scores.items():
            outputs[name][row, windows.context_starts[row] + token] = score
    return flat(outputs)


def flat(outputs):
    """Dense scores of rows as tokens of one row after the other."""
    return {name: Ragged(dense.ravel(), np.full(len(dense), dense.shape[1])) for name, dense in outputs.items()}


def best_plainly(questions, windows, candidates, n_best_size):
    """Lists of (text, start score, end score), by google's order and rule of equal texts.

    candidates: (row, first token, last token, start score, end score); tokens from the beginning of the row.
    """
    most = windows.max_context()
    found = [[] for _ in questions]
    for row, start, end, start_score, end_score in candidates:
        first, last = start - windows.context_starts[row], end - windows.context_starts[row]
        if 0 <= first <= last < windows.token_counts[row] and most[row, first]:
            found[windows.questions[row]].append((row, first, last, float(start_score), float(end_score)))
    answers = []
    for question, spans in zip(questions, found, strict=True):
        texts = {}
        for row, first, last, *scores in sorted(spans, key=lambda span: (-(span[3] + span[4]), *span[:3])):
            characters = (
                windows.token_spans[windows.first_tokens[row] + first, 0],
                windows.token_spans[windows.first_tokens[row] + last, 1],
            )
            texts.setdefault(question.context[slice(*characters)].strip(), scores)
        texts.pop("", None)
        answers.append([(text, *scores) for text, scores in texts.items()][:n_best_size])
    return answers


def compare(predictions, expected, questions):
    for question, prediction, spans in zip(questions, predictions, expected, strict=True):
        assert [(span.text, span.start_score, span.end_score) for span in prediction.best] == spans
        weights = [math.exp(start + end) for _, start, end in spans]
        assert [span.probability for span in prediction.best] == pytest.approx([w / sum(weights) for w in weights])
        assert all(question.context[span.start : span.end] == span.text for span in prediction.best)


# --- independent starts and ends ---


def test_the_best_span_of_all_windows(windows):
    start, end = {(0, 1): 3.0, (2, 0): 1.0}, {(0, 2): 2.0, (2, 1): 3.5}
    (long, short, cut) = independent_predictions(QUESTIONS, windows, logits(windows, start=start, end=end), 3, 4)
    assert (long.best[0].text, long.best[0].start, long.best[0].end) == ("b c", 2, 5)
    assert (long.best[0].start_score, long.best[0].end_score) == (3.0, 2.0)
    assert long.no_answer_probability is None and len(long.best) == 3
    assert short.best[0].text == "Ä" and cut.best[0].text == "d"  # all equal: the first window, start and end


@pytest.mark.parametrize("n_best_size", [1, 3, 20])
def test_spans_without_a_character_take_no_place(windows, n_best_size):
    """A lone first piece of a word, as before an emoji, comes from no character."""
    spans = windows.token_spans.copy()
    (row,) = np.flatnonzero(windows.questions == 1)  # of "short", which has two tokens
    spans[windows.first_tokens[row]] = 0
    bare = replace(windows, token_spans=spans)
    outputs = logits(bare, start={(row, 0): 9.0}, end={(row, 0): 9.0, (row, 1): 1.0})
    short = independent_predictions(QUESTIONS, bare, outputs, n_best_size, 4)[1]
    assert (short.best[0].text, short.best[0].start_score, short.best[0].end_score) == ("Ä b", 9.0, 1.0)


def test_answers_are_the_original_text(tokenizer):
    questions = [SquadQuestion("1", "a", "  Ab,  Á\u0301B  c ")]
    windows = windows_of(questions, tokenizer, 16)
    tokens = windows.token_counts[0]
    outputs = logits(windows, 16, start={(0, 2): 9.0}, end={(0, tokens - 2): 9.0})
    (prediction,) = independent_predictions(questions, windows, outputs, 1, 9)
    assert prediction.best[0].text == "Á\u0301B" and prediction.best[0].start == 7


def test_answers_end_after_they_start_and_are_not_too_long(windows):
    outputs = logits(windows, start={(4, 1): 5.0, (0, 0): 5.0}, end={(4, 0): 4.0, (0, 3): 5.0})
    long, short, _ = independent_predictions(QUESTIONS, windows, outputs, 50, 3)
    assert short.best[0].text == "b" and {span.text for span in short.best} == {"Ä", "b", "Ä b"}
    assert max(len(span.text.split()) for span in long.best) == 3
    long, *_ = independent_predictions(QUESTIONS, windows, outputs, 50, 4)
    assert long.best[0].text == "a b c d"


def test_scores_outside_the_context_do_not_count(windows):
    outputs = logits(windows)
    expected = independent_predictions(QUESTIONS, windows, outputs, 5, 3)
    for row, (place, count) in enumerate(zip(windows.context_starts, windows.token_counts, strict=True)):
        for scores in outputs.values():
            of_row = scores.values[row * WIDTH : (row + 1) * WIDTH]
            of_row[:place] = of_row[place + count :] = 100.0
    assert independent_predictions(QUESTIONS, windows, outputs, 5, 3) == expected


def test_a_text_counts_once(windows):
    outputs = logits(windows, start={(0, 0): 1.0, (2, 2): 3.0}, end={(0, 0): 1.0, (2, 2): 3.0})
    long, *_ = independent_predictions(QUESTIONS, windows, outputs, 50, 2)
    assert [span.text for span in long.best].count("a") == 1
    assert (long.best[0].text, long.best[0].start) == ("a", 12)


def test_equal_scores_have_an_order(tokenizer):
    questions = [SquadQuestion(str(number), "a", " ".join(LETTERS)) for number in range(70)]
    windows = windows_of(questions, tokenizer, 24)
    predictions = independent_predictions(questions, windows, logits(windows, 24), 4, 3)
    for prediction in predictions:
        assert [span.text for span in prediction.best] == ["a", "a b", "a b c", "b"]
        assert [span.probability for span in prediction.best] == [0.25] * 4


def test_a_context_without_tokens_has_no_answer(tokenizer):
    questions = [SquadQuestion("1", "a", "\u200b")]
    windows = windows_of(questions, tokenizer)
    (prediction,) = independent_predictions(questions, windows, logits(windows), 5, 3)
    assert prediction.best == () and prediction.answer().text == ""


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6), st.booleans())
def test_all_spans_are_compared(windows, seed, n_best_size, max_answer_length, many_equal):
    random = np.random.default_rng(seed)
    shape = (len(windows.token_counts), WIDTH)
    outputs = {
        name: random.integers(0, 3 if many_equal else 1000, shape).astype(np.float32) / 64
        for name in ("start_logits", "end_logits")
    }
    every_span = [
        (row, start, end, outputs["start_logits"][row, start], outputs["end_logits"][row, end])
        for row, start in np.ndindex(shape)
        for end in range(start, min(WIDTH, start + max_answer_length))
    ]
    predictions = independent_predictions(QUESTIONS, windows, flat(outputs), n_best_size, max_answer_length)
    expected = best_plainly(QUESTIONS, windows, every_span, n_best_size)
    assert answer_texts(QUESTIONS, predictions) == {
        question.id: spans[0][0] for question, spans in zip(QUESTIONS, expected, strict=True)
    }
    if n_best_size == 12:  # enough for all texts of a window
        compare(predictions, expected, QUESTIONS)


# --- starts with ends of their own ---


def beam(random, windows, starts, ends):
    """Outputs of the network with S starts and E ends of each."""
    rows = len(windows.token_counts)
    places = np.stack([random.permutation(WIDTH)[:starts] for _ in range(rows)])
    following = np.stack([random.permutation(WIDTH)[:ends] for _ in range(rows * starts)])
    return {
        "start_top_index": places.astype(np.float32),
        "start_top_log_probs": -random.integers(0, 99, (rows, starts)).astype(np.float32) / 16,
        "end_top_index": following.reshape(rows, -1).astype(np.float32),
        "end_top_log_probs": -random.integers(0, 99, (rows, starts * ends)).astype(np.float32) / 16,
        "cls_logits": random.normal(0, 3, rows).astype(np.float32),
    }


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20))
def test_the_spans_of_the_search_are_compared(windows, seed, starts, ends, max_answer_length, n_best_size):
    outputs = beam(np.random.default_rng(seed), windows, starts, ends)
    spans = []
    for row, s, e in itertools.product(range(len(windows.token_counts)), range(starts), range(ends)):
        first, last = int(outputs["start_top_index"][row, s]), int(outputs["end_top_index"][row, s * ends + e])
        scores = outputs["start_top_log_probs"][row, s], outputs["end_top_log_probs"][row, s * ends + e]
        if last - first < max_answer_length:
            spans.append((row, first, last, *scores))
    predictions = beam_predictions(QUESTIONS, windows, outputs, n_best_size, max_answer_length)
    compare(predictions, best_plainly(QUESTIONS, windows, spans, n_best_size), QUESTIONS)
    for number, prediction in enumerate(predictions):
        least = min(outputs["cls_logits"][windows.questions == number].astype(float))
        assert prediction.no_answer_probability == pytest.approx(1 / (1 + math.exp(-least)))


def test_a_search_that_finds_nothing_allowed(windows):
    outputs = beam(np.random.default_rng(0), windows, 2, 2)
    outputs["start_top_index"][:] = 0
    predictions = beam_predictions(QUESTIONS, windows, outputs, 5, 3)
    assert answer_texts(QUESTIONS, predictions) == dict.fromkeys(["long", "short", "cut"], "")


# --- files ---


def read(folder):
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def test_files_of_version_1(windows, tmp_path):
    predictions = independent_predictions(QUESTIONS, windows, logits(windows, end={(0, 1): 1.0}), 2, 3)
    write_predictions(tmp_path, QUESTIONS, predictions)
    files = read(tmp_path)
    assert set(files) == {"predictions.json", "nbest_predictions.json"}
    assert files["predictions.json"] == {"long": "a b", "short": "Ä", "cut": "d"}
    first, second = files["nbest_predictions.json"]["long"]
    assert first.keys() == {"text", "start", "end", "probability", "start_logit", "end_logit"}
    assert (first["text"], first["start_logit"], first["end_logit"]) == ("a b", 0.0, 1.0)
    assert first["probability"] + second["probability"] == pytest.approx(1)


def test_files_of_version_2(windows, tmp_path):
    outputs = beam(np.random.default_rng(3), windows, 5, 4)
    outputs["start_top_index"][windows.questions == 1] = 0
    outputs["cls_logits"] = np.choose(windows.questions, [0.0, 1.0, -1.0])
    predictions = beam_predictions(QUESTIONS, windows, outputs, 5, 3)
    write_predictions(tmp_path, QUESTIONS, predictions, threshold=0.4, suffix="_dev")
    files = read(tmp_path)
    assert set(files) == {"predictions_dev.json", "nbest_predictions_dev.json", "null_odds_dev.json"}
    texts, n_best = files["predictions_dev.json"], files["nbest_predictions_dev.json"]
    odds = {"long": 0.5, "short": 1 / (1 + math.exp(-1)), "cut": 1 / (1 + math.e)}
    assert files["null_odds_dev.json"] == pytest.approx(odds)
    best = n_best["long"][0]
    assert best.keys() == {"text", "start", "end", "probability", "start_log_prob", "end_log_prob"}
    assert texts == {"long": "", "short": "", "cut": n_best["cut"][0]["text"]}
    assert [span["text"] for span in n_best["short"]] == [""]
    assert best["text"]
    for threshold in ((), (files["null_odds_dev.json"]["long"],)):  # above it there is no answer, not at it
        assert answer_texts(QUESTIONS, predictions, *threshold)["long"] == best["text"]


# --- real data ---


@pytest.mark.parametrize("version", [1, 2])
def test_a_network_that_knows_the_answers_gets_full_marks(shared, version):
    """Answers that begin or end inside a token are out of reach; there are few."""
    english = FullTokenizer(spm_model_file=shared / "data/vocab/30k-clean.model")
    questions = read_squad(shared / f"data/squad_v{version}/dev.json", version == 2)
    lengths = (192, 64, 32)
    training = SquadSplit("train", questions, english, *lengths).features().values
    features = SquadSplit("dev", questions, english, *lengths).features()
    windows = SquadWindows.of(features.arrays.__getitem__)
    assert len(windows.token_counts) > len(questions)
    starts, ends = (training[name].values[:, None] for name in ("start_positions", "end_positions"))
    if version == 1:
        outputs = {
            "start_logits": (np.arange(192) == starts).astype(np.float32),
            "end_logits": (np.arange(192) == ends).astype(np.float32),
        }
        predictions = independent_predictions(questions, windows, flat(outputs), 3, 60)
        figures = score_answers(questions, answer_texts(questions, predictions))
        assert figures["exact_match"] > 98
        assert figures["f1"] > 99
    else:
        outputs = {
            "start_top_index": starts,
            "end_top_index": ends,
            "start_top_log_probs": np.zeros(starts.shape),
            "end_top_log_probs": np.zeros(ends.shape),
            "cls_logits": np.where(training["is_impossible"].values, 5.0, -5.0),
        }
        predictions = beam_predictions(questions, windows, outputs, 3, 60)
        no_answer = {q.id: p.no_answer_probability for q, p in zip(questions, predictions, strict=True)}
        figures = score_answers_v2(questions, answer_texts(questions, predictions), no_answer)
        assert figures["NoAns_f1"] == 100
        assert figures["HasAns_exact"] > 98
        assert figures["best_exact"] == figures["exact"]
