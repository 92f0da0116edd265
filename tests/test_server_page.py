"""The page in a headless Chromium, before a server with a scripted predictor: what a person types, submits and sees."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from src.inference.server import Limits, create_app
from tests.helpers.browser import chromium
from tests.helpers.scripted_predictor import SCRIPTS, ScriptedPredictor

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """open_page(task or predictor, limits, **context) -> the page, ready for input.

    At the end no script has failed, nothing came from another site and nothing was against the content security policy.
    """
    endings, faults = [], []

    def open_page(predictor: str | ScriptedPredictor, limits: Limits | None = None, **context: Any) -> Any:
        if isinstance(predictor, str):
            predictor = ScriptedPredictor(predictor)
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(predictor, limits or Limits()), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        window = browser.new_context(**({"locale": "en-GB"} | context))

        def end() -> None:
            window.close()
            predictor.go.set()
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()

        endings.append(end)
        page = window.new_page()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Security Policy" in line.text else None)
        page.on("request", lambda sent: faults.append(sent.url) if not sent.url.startswith(address) else None)
        page.goto(address)
        page.wait_for_selector("#form:not([hidden])")
        return page

    yield open_page
    for end in endings:
        end()
    assert faults == []


def submit(page: Any) -> None:
    page.click("#submit")
    page.wait_for_selector("#result:not([hidden])[aria-busy=false]")


def texts(page: Any, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def before(page: Any, selector: str) -> str:
    """The text of the answer's paragraph that stands before an element."""
    script = """(node) => {
        const range = document.createRange();
        range.setStart(node.closest("p"), 0);
        range.setEndBefore(node);
        return range.toString();
    }"""
    return page.locator(selector).evaluate(script)


# --- each task ---


def test_an_answer_is_marked_at_its_characters_behind_an_emoji(open_page: Open) -> None:
    page = open_page("squad_v2")
    page.fill("#context", "A 👩‍🚀 née Łucja 😀 saw <b>Mars</b> & Mars.\nTwice.")
    page.fill("#question", "What did she see? Twice")
    page.press("#question", "Control+Enter")
    page.wait_for_selector("mark")
    assert texts(page, "mark") == ["Twice"] and texts(page, "h2") == ["Twice"]
    assert before(page, "mark") == "A 👩‍🚀 née Łucja 😀 saw <b>Mars</b> & Mars.\n"
    assert page.text_content("p.text") == "A 👩‍🚀 née Łucja 😀 saw <b>Mars</b> & Mars.\nTwice."
    assert page.text_content("#status") == "Twice"
    assert "10.0%" in page.inner_text(".bars >> nth=0")


def test_another_candidate_can_be_marked(open_page: Open) -> None:
    page = open_page("squad_v1")
    page.fill("#context", "Ice melts 😀 in spring")
    page.fill("#question", "When does it melt? spring")
    submit(page)
    assert texts(page, "mark") == ["spring"] and "Probability that" not in page.inner_text("#result")
    page.get_by_role("button", name="Ice").press("Enter")
    assert texts(page, "mark") == ["Ice"] and before(page, "mark") == ""
    assert page.get_by_role("button", name="Ice").get_attribute("aria-pressed") == "true"
    assert page.get_by_role("button", name="spring").get_attribute("aria-pressed") == "false"


def test_no_answer_is_said(open_page: Open) -> None:
    page = open_page("squad_v2")
    page.fill("#question", "Where is Atlantis?")
    submit(page)
    assert texts(page, "h2") == ["No answer in this passage"] and texts(page, "mark") == []
    assert "95.0%" in page.inner_text("#result")


def test_entities_are_coloured_by_label_with_a_legend(open_page: Open) -> None:
    page = open_page("token_classification")
    page.fill("#text", "😀 Anna left Airbus 🛫 for Lyon.")
    submit(page)
    assert texts(page, "mark") == ["AnnaPER", "AirbusORG", "LyonLOC"]
    assert before(page, "mark >> nth=2") == "😀 AnnaPER left AirbusORG 🛫 for "
    assert texts(page, ".legend li") == ["PER × 1", "LOC × 1", "ORG × 1"]
    colour = "(node) => getComputedStyle(node).backgroundColor"
    marks = [page.locator(f"mark >> nth={i}").evaluate(colour) for i in range(3)]
    legend = [page.locator(f".legend li >> nth={i}").evaluate(colour) for i in (0, 2, 1)]
    assert marks == legend and len(set(marks)) == 3
    assert "3 entities found" in page.text_content("#status")


def test_labels_come_with_bars_the_likeliest_first(open_page: Open) -> None:
    page = open_page("classification")
    page.fill("#text_a", "a good film")
    submit(page)
    assert texts(page, "h2") == ["good"]
    assert [row.split() for row in texts(page, ".bars li")] == [["good", "90.0%"], ["bad", "10.0%"]]
    shares = [page.locator(f".track > span >> nth={i}").evaluate("(bar) => bar.offsetWidth") for i in range(2)]
    assert shares[0] > 8 * shares[1] > 0


def test_a_second_text_is_sent_only_when_there_is_one(open_page: Open) -> None:
    predictor = ScriptedPredictor("regression")
    page = open_page(predictor)
    page.fill("#text_a", "four")
    page.fill("#text_b", "")
    submit(page)
    assert texts(page, ".number") == ["4"]
    page.fill("#text_a", "seven is")
    page.fill("#text_b", "eight")
    page.click("#submit")
    page.wait_for_selector('.number >> text="8"')
    assert predictor.calls == [[{"text_a": "four"}], [{"text_a": "seven is", "text_b": "eight"}]]


def test_a_model_of_pairs_asks_for_both_texts(open_page: Open) -> None:
    """The training data had two texts, whatever the labels are called."""
    predictor = ScriptedPredictor("classification")
    predictor.task_info = predictor.task_info.model_copy(
        update={"labels": ("0", "1"), "text_columns": {"text_a": "sentence1", "text_b": "sentence2"}}
    )
    page = open_page(predictor)
    assert page.is_visible("#text_b") and page.input_value("#text_b")
    page.fill("#text_b", "")
    page.click("#submit")
    assert page.evaluate("document.activeElement.id") == "text_b" and not predictor.calls


def test_a_model_of_single_texts_asks_for_one(open_page: Open) -> None:
    predictor = ScriptedPredictor("regression")
    predictor.task_info = predictor.task_info.model_copy(update={"text_columns": {"text_a": "review"}})
    page = open_page(predictor)
    assert page.input_value("#text_a") and page.locator("#text_b").count() == 0


def test_the_chosen_option_is_shown(open_page: Open) -> None:
    page = open_page("multiple_choice")
    for index, option in enumerate(["one", "two", "three 😀", "four"]):
        page.get_by_label("ABCD"[index], exact=True).fill(option)
    submit(page)
    assert texts(page, "h2") == ["C. three 😀"]
    assert texts(page, ".best") == ["C. three 😀\n70.0%"] and len(texts(page, ".bars li")) == 4


def test_masks_are_filled_in_and_alternatives_can_be_chosen(open_page: Open) -> None:
    page = open_page("fill_mask")
    page.fill("#text", "😀 from  to [MASK].")
    page.locator("#text").evaluate("(field) => field.setSelectionRange(8, 8)")  # the emoji counts twice here
    page.click("text=Insert [MASK]")
    assert page.input_value("#text") == "😀 from [MASK] to [MASK]."
    submit(page)
    assert page.text_content("p.text") == "😀 from paris to paris."
    page.get_by_role("group", name="Mask 2").get_by_role("radio", name="lyon").press("Space")
    assert page.text_content("p.text") == "😀 from paris to lyon." and texts(page, "mark") == ["paris", "lyon"]


def test_a_text_that_was_cut_says_so(open_page: Open) -> None:
    page = open_page(ScriptedPredictor("regression", lambda record: {"score": 1.0, "truncated": True}))
    submit(page)
    assert page.inner_text("#cut") == "A text is longer than the model reads: what is beyond was left out."
    assert page.text_content("#status").endswith("what is beyond was left out.")
    assert "labels" not in page.inner_text("#footer")


def test_an_embedding_is_drawn(open_page: Open) -> None:
    page = open_page("embeddings")
    submit(page)
    assert texts(page, "h2") == ["64 numbers"]
    assert page.get_by_role("img").get_attribute("aria-label").startswith("from -1 to 0.969")
    drawn = "(canvas) => [canvas.width, canvas.getContext('2d').getImageData(0, 0, 1, 1).data[3]]"
    assert page.locator("canvas").evaluate(drawn) == [64, 255]


# --- what holds for all of them ---


@pytest.mark.parametrize("task", SCRIPTS)
def test_every_example_is_answered_on_a_phone(open_page: Open, task: str) -> None:
    page = open_page(task, viewport={"width": 360, "height": 640}, color_scheme="dark")
    submit(page)
    assert page.locator("#error").is_hidden() and page.text_content("#status")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("[...document.querySelectorAll('textarea, input')].every((field) => field.labels.length > 0)")
    page.click("summary >> text=JSON")
    assert '"answers"' in page.inner_text("pre")


def test_an_empty_field_has_the_focus_and_a_sentence(open_page: Open) -> None:
    predictor = ScriptedPredictor("squad_v2")
    page = open_page(predictor)
    page.fill("#question", "  ")
    page.press("#context", "Control+Enter")
    assert page.get_by_role("alert").inner_text() == "Question is empty."
    assert page.evaluate("document.activeElement.id") == "question" and predictor.calls == []


def test_errors_are_sentences_and_the_next_answer_takes_their_place(open_page: Open) -> None:
    def respond(record: dict) -> dict:
        if record["text"] == "raise":
            raise ValueError
        return SCRIPTS["fill_mask"][1](record)

    page = open_page(ScriptedPredictor("fill_mask", respond), Limits(characters=40))
    alert = page.get_by_role("alert")
    for text, sentence in (
        ("<img src=x>", "the text has no [MASK] to fill in"),
        ("raise", "the model failed on these records; the server's log says why"),
        ("x" * 41, "records[0].text: string should have at most 40 characters"),
    ):
        page.fill("#text", text)
        page.click("#submit")
        page.wait_for_function("(text) => document.querySelector('#error').textContent === text", arg=sentence)
        assert alert.is_visible() and page.locator("#result").is_hidden()
    page.fill("#text", "[MASK]")
    submit(page)
    assert page.locator("#error").is_hidden()


def test_a_server_that_is_gone_is_a_sentence(open_page: Open) -> None:
    page = open_page("fill_mask")
    page.route("**/predict", lambda route: route.abort())
    page.click("#submit")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error") == "The server does not answer. Is it still running?"


def test_the_newest_question_is_the_one_that_is_answered(open_page: Open) -> None:
    predictor = ScriptedPredictor("regression")
    predictor.go.clear()
    page = open_page(predictor)
    page.fill("#text_a", "one")
    page.click("#submit")
    assert predictor.started.wait(30)
    assert page.get_attribute("#result", "aria-busy") == "true"
    page.fill("#text_a", "three")
    page.click("#submit")
    predictor.go.set()
    page.wait_for_selector(".number")
    assert texts(page, ".number") == ["5"]


def test_examples_take_turns(open_page: Open) -> None:
    page = open_page("squad_v2")
    first = page.input_value("#question")
    seen = [page.click("#example") or page.input_value("#question") for _ in range(3)]
    assert seen[2] == first and len(set(seen)) == 3


def test_the_page_speaks_chinese_to_chinese_browsers(open_page: Open) -> None:
    page = open_page("squad_v2", locale="zh-CN")
    assert page.inner_text("h1") == "阅读理解" and page.get_attribute("html", "lang") == "zh"
    page.fill("#context", "李白😀生于碎叶，字太白。")
    page.fill("#question", "字什么？ 太白")
    submit(page)
    assert texts(page, "mark") == ["太白"] and before(page, "mark") == "李白😀生于碎叶，字"


def test_both_languages_have_the_same_texts(open_page: Open) -> None:
    script = """async () => {
        const outline = (value) => typeof value === "object"
            ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, outline(value[key])])) : typeof value;
        return outline((await import("/page/texts.js")).texts);
    }"""
    assert open_page("squad_v2").evaluate(script) == open_page("squad_v2", locale="zh-TW").evaluate(script)
