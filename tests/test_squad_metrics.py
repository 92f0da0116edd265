"""The official metrics of SQuAD and CMRC 2018, on figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.create_squad_data import SquadAnswer, SquadQuestion
from src.tasks.squad_metrics import midway, score_answers, score_answers_v2


def questions(*answers: tuple[str, ...]) -> list[SquadQuestion]:
    """Questions "0", "1", ... with these answers; without any, impossible ones."""
    return [
        SquadQuestion(str(number), "?", "", tuple(SquadAnswer(text, 0) for text in texts), not texts)
        for number, texts in enumerate(answers)
    ]


def numbered(texts) -> dict:
    return {str(number): text for number, text in enumerate(texts)}


def one(prediction: str, *answers: str, **options) -> tuple[float, float]:
    figures = score_answers(questions(answers), {"0": prediction}, **options)
    return figures["exact_match"], figures["f1"]


def one_v2(prediction: str, *answers: str) -> tuple[float, float]:
    figures = score_answers_v2(questions(answers), {"0": prediction})
    return figures["exact"], figures["f1"]


# --- one question ---

SHARED_WORDS = [
    ("Denver Broncos", ["denver broncos"], 100, 100),
    ("The Denver-Broncos!", ["a  denverbroncos"], 100, 100),  # signs go without leaving a space, articles with one
    ("Denver Broncos", ["Broncos"], 0, 200 / 3),  # precision 1/2, recall 1
    ("Denver Broncos", ["Carolina Panthers", "Broncos", "Denver Bronco"], 0, 200 / 3),  # the best of several
    ("a b b c", ["b b b d"], 0, 400 / 7),  # words count as often as both have them: b, b of 3 and 4 words
    ("theory", ["ory"], 0, 0),  # articles are whole words
    ("an apple", ["apple"], 100, 100),
    ("1,000", ["1000"], 100, 100),
    ("“quoted”", ["quoted"], 0, 0),  # only ASCII signs are punctuation
    ("naïve", ["naive"], 0, 0),
    ("x\u00a0y", ["x y"], 100, 100),
    ("", ["x"], 0, 0),
]


@pytest.mark.parametrize(("prediction", "answers", "exact", "f1"), SHARED_WORDS)
def test_words_are_compared(prediction, answers, exact, f1):
    assert one(prediction, *answers) == (exact, pytest.approx(f1))
    assert one_v2(prediction, *answers) == (exact, pytest.approx(f1))


def test_texts_without_words_are_where_the_versions_differ():
    assert one("a", "the") == (100, 0)
    assert one_v2("a", "the") == (100, 100)
    assert one_v2("the", "?", "x") == (0, 0)  # "?" is no answer while there is another
    assert one_v2("", "?") == (100, 100)
    assert one_v2("!", "x") == (0, 0)


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("北京大学", ["北京大学"], 100, 100),
        ("《北京，大学》。", ["北京大学"], 100, 100),
        ("北京大学", ["南京大学"], 0, 75),  # the longest run in both, 京大学, of 4 and 4
        ("中国北京", ["北京中国"], 0, 50),  # one run only
        ("北京", ["上海", "北京市"], 0, 80),
        ("于1999年", ["1999年"], 0, 80),  # 1999 is one word
        ("使用 Word-Piece 分词", ["wordpiece"], 0, 100 / 3),  # 使 用 wordpiece 分 词
        ("3.5%", ["3.5"], 0, 200 / 3),
        ("约1,000人", ["1000人"], 0, 40),  # an ASCII comma stays
        ("，", ["。"], 100, 0),
        ("北…京", ["北京"], 0, 40),  # the official list has six dots, which no single character is
    ],
)
def test_chinese_is_compared_by_characters(prediction, answers, exact, f1):
    assert one(prediction, *answers, language="zh") == (exact, pytest.approx(f1))


def test_version_2_of_chinese_compares_characters():
    asked = questions(("北京大学",), ("1898年",), (), ("。",))
    figures = score_answers_v2(asked, numbered(["北京大学。", "1898年7月", "", ""]), language="zh")
    assert figures["HasAns_exact"] == pytest.approx(100 * 2 / 3)  # of 。 nothing is compared, as of no answer
    assert figures["HasAns_f1"] == pytest.approx(100 * (1 + 2 / 3 + 1) / 3)  # 1898, 年 of 1898, 年, 7, 月
    assert figures["NoAns_exact"] == figures["NoAns_f1"] == 100
    assert score_answers_v2(asked[:1], {"0": "北京大学。"})["exact"] == 0


@given(st.text(), st.text())
def test_f1_is_symmetric_and_at_least_exact(first, second):
    exact, f1 = one_v2(first, second)
    assert 0 <= exact <= f1 <= 100
    assert f1 == pytest.approx(one_v2(second, first)[1])
    assert one_v2(first, first) == (100, 100)
    assert one_v2(f" the {first.upper()}.", first.upper()) == (100, 100)


@given(st.text("北京大学1x ，", max_size=8), st.text("北京大学1x ，", max_size=8))
def test_chinese_f1_is_symmetric(first, second):
    assert one(first, second, language="zh") == pytest.approx(one(second, first, language="zh"))
    assert one(first, first, language="zh")[0] == 100


# --- means ---


def test_version_1_averages_over_questions():
    figures = score_answers(questions(("x",), ("y",), ("x y",)), numbered(["x", "", "x"]))
    assert figures == {"exact_match": pytest.approx(100 / 3), "f1": pytest.approx((100 + 200 / 3) / 3)}


def test_version_2_tells_questions_with_and_without_an_answer_apart():
    asked = questions(("x y",), (), ("z",), ())
    figures = score_answers_v2(asked, numbered(["x", "", "z", "x"]))
    assert figures == {
        "exact": 50,
        "f1": pytest.approx(100 * (2 / 3 + 2) / 4),
        "total": 4,
        "HasAns_exact": 50,
        "HasAns_f1": pytest.approx(100 * (2 / 3 + 1) / 2),
        "HasAns_total": 2,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
    }
    assert not any(name.startswith("NoAns") for name in score_answers_v2(asked[:1], {"0": "x"}))


FOUR = questions(("x",), (), ("z",), ())
NO_ANSWER = numbered([0.1, 0.5, 0.6, 0.9])


def test_the_best_threshold_is_the_lowest_of_equally_good_ones():
    figures = score_answers_v2(FOUR, numbered(["x", "x", "z", "x"]), NO_ANSWER)
    assert (figures["best_exact"], figures["best_exact_thresh"]) == (75, 0.1)
    # F1 of question 0 is 2/3 now, so that exact match is best without any answer, and F1 with it.
    figures = score_answers_v2(FOUR, numbered(["x y", "x", "", "x"]), NO_ANSWER)
    assert (figures["best_exact"], figures["best_exact_thresh"]) == (50, 0.0)
    assert (figures["best_f1"], figures["best_f1_thresh"]) == (pytest.approx(100 * (2 / 3 + 2) / 4), 0.1)


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(["", "x", "x y", "z"]), st.integers(1, 10**6)),
        min_size=1,
        unique_by=lambda row: row[2],
    )
)
def test_the_best_threshold_gives_the_best_scores(rows):
    asked = questions(*(("x",) if has else () for has, _, _ in rows))
    predictions = numbered(text for _, text, _ in rows)
    no_answer = numbered(number / 2e6 for _, _, number in rows)
    best = score_answers_v2(asked, predictions, no_answer)

    def at_threshold(threshold):
        written = {key: text if no_answer[key] <= threshold else "" for key, text in predictions.items()}
        return score_answers_v2(asked, written)

    at = {threshold: at_threshold(threshold) for threshold in (0.0, *no_answer.values())}
    for name in ("exact", "f1"):
        assert best[f"best_{name}"] == pytest.approx(max(figures[name] for figures in at.values()))
        assert best[f"best_{name}"] == pytest.approx(at[best[f"best_{name}_thresh"]][name])


def test_a_stored_threshold_lies_between_two_probabilities():
    assert midway(0.2, [0.9, 0.2, 0.4, 0.1]) == pytest.approx(0.3)
    assert midway(0.9, [0.9, 0.2]) == pytest.approx(0.95) and midway(1.0, [1.0]) == 1.0
    assert midway(0.0, [0.5]) == 0.0  # at which nothing is answered
