"""The HTTP API around a scripted predictor: answers, micro-batching, limits, malformed requests, faults, shut-down."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError

import predict
from model_utils.errors import ConfigError
from src.inference.deploy_config import PredictConfig
from src.inference.server import Limits, create_app, parse_address, parse_hosts, serve
from src.inference.server.app import _listen
from src.inference.server.batching import _characters
from src.inference.server.middleware import default_hosts
from src.inference.server.schemas import request_model
from src.tasks import TASKS
from tests.helpers.scripted_predictor import SCRIPTS, ScriptedPredictor

ROOT = Path(__file__).resolve().parents[1]
RECORDS = {
    "classification": {"text_a": "good", "text_b": "evening"},
    "regression": {"text_a": "four"},
    "multi_label": {"text_a": "good"},
    "multiple_choice": {"article": "a", "question": "b", "options": ["c", "d", "e", "f"]},
    "squad_v1": {"context": "To be or not", "question": "be?"},
    "squad_v2": {"context": "To be or not", "question": "be?"},
    "token_classification": {"text": "Anna flew to Lyon"},
    "embedding_pairs": {"text_a": "good", "text_b": "evening"},
    "fill_mask": {"text": "[MASK] is [MASK]"},
    "embeddings": {"text_a": "a boat"},
}


def client(predictor: ScriptedPredictor, **limits: Any) -> TestClient:
    return TestClient(create_app(predictor, Limits(**limits)), raise_server_exceptions=False)


def ask(api: TestClient, *records: Any) -> httpx2.Response:
    return api.post("/predict", json={"records": list(records)})


# --- answers and the description ---


@pytest.mark.parametrize("task", SCRIPTS)
def test_every_task_is_answered_and_described(task: str) -> None:
    predictor = ScriptedPredictor(task)
    api = client(predictor)
    reply = ask(api, RECORDS[task], RECORDS[task])
    answer = SCRIPTS[task][1](RECORDS[task])
    assert reply.status_code == 200 and reply.json() == {"answers": [answer, answer]}
    assert predictor.calls == [[RECORDS[task]] * 2]
    TASKS[task].answer.model_validate(answer)

    assert api.get("/model").json() == predictor.task_info.values_with_defaults()
    schemas = api.get("/openapi.json").json()["components"]["schemas"]
    assert set(RECORDS[task]) <= set(schemas["Record"]["properties"])
    assert set(answer) <= set(schemas[TASKS[task].answer.__name__]["properties"])


def test_ids_come_back_and_a_record_that_fails_leaves_the_others() -> None:
    predictor = ScriptedPredictor("fill_mask")
    reply = ask(client(predictor), {"text": "[MASK]", "id": "first"}, {"text": "no mask", "id": 2}, {"text": "[MASK]"})
    first, second, third = reply.json()["answers"]
    assert reply.status_code == 200
    assert first["id"] == "first" and "predictions" in first
    assert second == {"id": 2, "line": 2, "error": "the text has no [MASK] to fill in"}
    assert "id" not in third and "predictions" in third
    assert all("id" not in record for record in predictor.calls[0])


@pytest.mark.parametrize(
    ("record", "identity", "words"),
    [
        ({"question": "q", "id": 7}, 7, "records[1].context"),
        ({"context": "c", "question": 5, "id": "x"}, "x", "records[1].question"),
        ({"context": "c", "question": "q" * 21}, None, "20 characters"),
        ({"context": "c", "question": "q", "other": 1}, None, "other"),
        ({"context": "c", "question": "q", "id": [1]}, None, "records[1].id"),
        (7, None, "records[1]"),
        (None, None, "records[1]"),
    ],
)
def test_a_record_that_does_not_fit_leaves_the_others(record: Any, identity: Any, words: str) -> None:
    predictor = ScriptedPredictor("squad_v2")
    good = {"context": "To be or", "question": "be?", "id": "good"}
    reply = ask(client(predictor, characters=20), good, record, good)
    assert reply.status_code == 200
    first, error, last = reply.json()["answers"]
    assert first == last and first["id"] == "good" and first["answer"] == "be"
    assert (error["id"], error["line"]) == (identity, 2) and words in error["error"]
    assert len(predictor.calls) == 1 and len(predictor.calls[0]) == 2


@pytest.mark.parametrize("columns", [{"text_a": "review"}, {"text_a": "review", "text_b": "title"}, {"text_a": "a b"}])
def test_the_columns_of_the_training_data_are_keys(columns: dict[str, str]) -> None:
    predictor = ScriptedPredictor("regression", lambda record: {"score": float(len(record[columns["text_a"]]))})
    predictor.task_info = predictor.task_info.model_copy(update={"text_columns": columns})
    api = client(predictor)
    key = columns["text_a"]
    reply = ask(api, {key: "four", "id": 1}, {"text_a": "six"}, {"other": "x"})
    first, second, error = reply.json()["answers"]
    assert first == {"id": 1, "score": 4} and second == {"score": 3}
    assert key in error["error"] and "text_a" not in error["error"]
    properties = api.get("/openapi.json").json()["components"]["schemas"]["Record"]["properties"]
    assert set(columns.values()) <= set(properties) and "text_a" not in properties


def test_words_may_stand_in_place_of_a_text() -> None:
    predictor = ScriptedPredictor("token_classification", lambda record: {"entities": []})
    reply = ask(client(predictor), {"tokens": ["Bonn", "is"]}, {"text": "Bonn"}, {"tokens": []})
    assert predictor.calls == [[{"tokens": ["Bonn", "is"]}, {"text": "Bonn"}]]
    assert "tokens" in reply.json()["answers"][2]["error"]
    reply = ask(client(predictor, characters=8), {"tokens": ["Bonn", "is"]}, {"tokens": ["Bonn", "isn't"]})
    assert "8 characters" in reply.json()["answers"][1]["error"]
    predictor.task_info = predictor.task_info.model_copy(update={"text_columns": {"text": "tokens"}})
    reply = ask(client(predictor), {"tokens": "Bonn is"})
    assert reply.json() == {"answers": [{"entities": []}]}


def test_the_description_has_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    description = client(ScriptedPredictor("fill_mask")).get("/openapi.json").json()
    assert description["info"]["version"] == project["version"]


def test_errors_repeat_no_long_input() -> None:
    api = client(ScriptedPredictor("fill_mask"), body=10_000)
    long = "x" * 5000
    for reply in (
        api.get(f"/{long}"),
        api.get(f"/page/{long}"),
        api.request(long, "/predict"),
        api.post(f"/health?{long}"),
        api.post("/predict", content=long),
        ask(api, {long: 1}),
        ask(api, {"text": "[MASK]", "id": [long]}),
    ):
        assert 400 <= reply.status_code < 500 and len(reply.json()["error"]) < 300


@pytest.mark.parametrize(
    ("target", "host", "code"),
    [
        ("http://localhost/health", "localhost", 200),
        ("HTTP://localhost:80/health?a=b", "evil.example", 200),  # the target's host counts
        ("https://localhost/health", "localhost", 200),
        ("http://localhost", "localhost", 200),
        ("http://localhost?a", "localhost", 200),
        ("http://localhost/elsewhere", "localhost", 404),
        ("http://evil.example/health", "localhost", 400),
        ("http://localhost@evil.example/health", "localhost", 400),
        ("http://user@localhost/health", "localhost", 400),
        ("http:///health", "localhost", 400),
        ("ftp://localhost/health", "localhost", 404),
        ("*", "localhost", 404),
    ],
)
def test_targets_may_be_absolute(lasting_address: str, target: str, host: str, code: int) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert read_all(connect(lasting_address, request.encode())).startswith(f"HTTP/1.1 {code} ".encode())


def test_offsets_and_texts_beyond_the_basic_plane_survive() -> None:
    context = "😀👩‍🚀 a\u0301 中文 Lyon"
    [answer] = ask(client(ScriptedPredictor("squad_v2")), {"context": context, "question": "Lyon"}).json()["answers"]
    assert context[answer["start"] : answer["end"]] == "Lyon"


def test_the_page_and_its_files_are_served_and_nothing_else() -> None:
    api = client(ScriptedPredictor("fill_mask"))
    page = api.get("/")
    assert page.headers["content-type"].startswith("text/html") and "'self'" in page.headers["content-security-policy"]
    for name in ("page.js", "page.css", "icon.svg"):
        assert api.get(f"/page/{name}").status_code == 200 and f"page/{name}" in page.text
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/docs", "/elsewhere", "/model/"):
        reply = api.get(path)
        assert reply.status_code == 404 and "/openapi.json" in reply.json()["error"]


# --- requests that cannot be answered ---


def test_many_unknown_keys_are_one_error() -> None:
    """Thousands, all described, would keep the server from everybody else for seconds."""
    many = {f"key {number}": 0 for number in range(1000)}
    requests = request_model(ScriptedPredictor("squad_v2").task_info, 10, 1000)
    with pytest.raises(ValidationError) as refused:
        requests.model_validate({"records": []} | many)
    assert sum(error["type"] == "extra_forbidden" for error in refused.value.errors()) == 1
    record = {"context": "c", "question": "q"} | many
    reply = ask(client(ScriptedPredictor("squad_v2")), record)
    assert reply.status_code == 422 and "key " in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", 422, 'a JSON object {"records": [...]}'),
        (b"{", 400, "the body is not JSON"),
        (b"\xff\xfe", 400, "JSON"),
        (b"[" * 100_000, 400, "JSON"),
        (b'{"records": [' + b"9" * 10_000 + b"]}", 400, "JSON"),
        (b"[]", 422, 'a JSON object {"records": [...]}'),
        (b"null", 422, 'a JSON object {"records": [...]}'),
        (b"{}", 422, "records: field required"),
        (b'{"records": {}}', 422, "records: input should be a valid list"),
        (b'{"records": []}', 422, "records: list should have at least 1 item"),
        (b'{"records": [7]}', 422, "records[0]: input should be a valid dictionary"),
        (b'{"records": [{"question": "q"}]}', 422, "records[0].context: field required"),
        (b'{"records": [{"context": "c", "question": 5}]}', 422, "records[0].question: input should be a valid string"),
        (b'{"records": [{"context": "c", "question": null}]}', 422, "records[0].question: input should be"),
        (b'{"records": [{"context": "c", "question": "\\ud800"}]}', 422, "records[0].question: "),
        (b'{"records": [{"context": "c", "question": "q", "x\\ud800": 1}]}', 422, "records[0]: input should be"),
        (b'{"records": [{"context": "c", "question": "q", "x y": 1}]}', 422, "records[0].x y: extra inputs"),
        (b'{"records": [{"context": "c", "question": "q", "id": NaN}]}', 422, "records[0].id: an id is a printable"),
        (b'{"records": [{"context": "c", "question": "q", "id": true}]}', 422, "records[0].id: an id is a printable"),
        (b'{"records": [{"context": "c", "question": "q", "id": "\\ud800"}]}', 422, "records[0].id"),
        (b'{"records": [{"context": "c", "question": "q"}], "top": 1}', 422, "top: extra inputs are not permitted"),
    ],
)
def test_malformed_requests_get_a_sentence(body: bytes, code: int, words: str) -> None:
    predictor = ScriptedPredictor("squad_v2")
    reply = client(predictor).post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == code and set(reply.json()) == {"error"} and words in reply.json()["error"]
    assert predictor.calls == []


def test_a_body_that_is_not_declared_as_json_is_refused() -> None:
    reply = client(ScriptedPredictor("fill_mask")).post(
        "/predict", content=json.dumps({"records": [{"text": "[MASK]"}]}), headers={"Content-Type": "text/plain"}
    )
    assert reply.status_code == 422 and "Content-Type: application/json" in reply.json()["error"]


@pytest.mark.parametrize(("count", "bound"), [(0, 2), (1, 2), (27, 26)])
def test_a_wrong_number_of_options_is_refused(count: int, bound: int) -> None:
    record = RECORDS["multiple_choice"] | {"options": ["a"] * count}
    reply = ask(client(ScriptedPredictor("multiple_choice")), record)
    error = reply.json()["error"]
    assert error.startswith("records[0].options") and f" {bound} item" in error


def test_a_probe_may_ask_for_the_head_alone() -> None:
    api = client(ScriptedPredictor("fill_mask"))
    for path in ("/", "/health", "/model"):
        reply, whole = api.head(path), api.get(path)
        assert reply.status_code == 200 and reply.headers["content-type"] == whole.headers["content-type"]
    assert not any("head" in methods for methods in api.get("/openapi.json").json()["paths"].values())


def test_another_method_is_refused() -> None:
    reply = client(ScriptedPredictor("fill_mask")).get("/predict")
    assert reply.status_code == 405 and reply.json() == {"error": "GET is not allowed for /predict"}
    assert reply.headers["allow"] == "POST"


def test_a_blank_text_reaches_the_model_which_says_so_for_that_record_alone() -> None:
    predictor = ScriptedPredictor(
        "regression", lambda record: {"error": "blank"} if record["text_a"] == " " else {"score": 1.0}
    )
    reply = ask(client(predictor), {"text_a": " ", "id": 1}, {"text_a": "a"})
    assert reply.status_code == 200
    assert reply.json() == {"answers": [{"id": 1, "line": 1, "error": "blank"}, {"score": 1.0}]}


def test_limits() -> None:
    api = client(ScriptedPredictor("fill_mask"), body=1000, records=3, characters=20)
    record = {"text": "[MASK]"}
    assert ask(api, *[record] * 3).status_code == 200
    assert "at most 3 items" in ask(api, *[record] * 4).json()["error"]
    assert ask(api, {"text": "[MASK]" + "😀" * 14}).status_code == 200
    long = ask(api, {"text": "[MASK]" + "😀" * 15})
    assert long.status_code == 422 and "at most 20 characters" in long.json()["error"]
    declared = ask(api, {"text": "x" * 1000})
    in_chunks = api.post("/predict", content=(b" " * 100 for _ in range(20)))
    for reply in (declared, in_chunks):
        assert reply.status_code == 413 and reply.json() == {"error": "the body has more than 1,000 bytes"}


# --- micro-batching ---


def in_one_loop(app: FastAPI, play: Callable[[httpx2.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with asyncio.timeout(60), httpx2.AsyncClient(transport=transport, base_url="http://server") as api:
            await play(api)

    asyncio.run(run())


async def post(api: httpx2.AsyncClient, *texts: str) -> httpx2.Response:
    return await api.post("/predict", json={"records": [{"text_a": text} for text in texts]})


async def post_all(api: httpx2.AsyncClient, texts: list[str]) -> list[asyncio.Task]:
    """One request a text, in this order; returns when all of them wait in the queue."""
    before = (await api.get("/health")).json()["waiting"]
    tasks = []
    for text in texts:
        tasks.append(asyncio.create_task(post(api, text)))
        while (await api.get("/health")).json()["waiting"] < before + len(tasks):
            await asyncio.sleep(0)
    return tasks


async def keep_busy(api: httpx2.AsyncClient, predictor: ScriptedPredictor) -> asyncio.Task:
    """A request that keeps the predictor until `go` is set."""
    predictor.go.clear()
    task = asyncio.create_task(post(api, "first"))
    assert await asyncio.to_thread(predictor.started.wait, 30)
    return task


def scores(replies: list[httpx2.Response]) -> list[float]:
    return [answer["score"] for reply in replies for answer in reply.json()["answers"]]


def test_requests_that_arrive_together_share_one_call() -> None:
    predictor = ScriptedPredictor("regression")

    async def play(api: httpx2.AsyncClient) -> None:
        texts = ["a" * length for length in range(1, 6)]
        replies = await asyncio.gather(*(post(api, text) for text in texts))
        assert scores(replies) == [1, 2, 3, 4, 5]
        assert len(predictor.calls) == 1 and len(predictor.calls[0]) == 5

    in_one_loop(create_app(predictor, Limits(window=0.5)), play)


def test_requests_that_wait_are_answered_in_order_by_few_calls_from_one_thread() -> None:
    predictor = ScriptedPredictor("regression")

    async def play(api: httpx2.AsyncClient) -> None:
        first = await keep_busy(api, predictor)
        texts = ["a" * length for length in range(1, 11)]
        tasks = await post_all(api, texts)
        large = asyncio.create_task(post(api, *texts))
        predictor.go.set()
        assert scores(await asyncio.gather(*tasks)) == list(range(1, 11))
        assert scores([await first]) == [5] and scores([await large]) == list(range(1, 11))

    in_one_loop(create_app(predictor, Limits(batch=4)), play)
    assert [len(call) for call in predictor.calls] == [1, 4, 4, 2, 4, 4, 2]
    assert len(predictor.threads) == 1


def test_a_request_that_is_too_much_for_a_call_lets_others_in() -> None:
    predictor = ScriptedPredictor("regression")

    async def play(api: httpx2.AsyncClient) -> None:
        first = await keep_busy(api, predictor)
        large = asyncio.create_task(post(api, "a" * 30, "b" * 20, "c" * 10, "d"))
        while (await api.get("/health")).json()["waiting"] < 4:
            await asyncio.sleep(0)
        [small] = await post_all(api, ["ee"])
        predictor.go.set()
        assert scores(await asyncio.gather(first, large, small)) == [5, 30, 20, 10, 1, 2]

    in_one_loop(create_app(predictor, Limits(batch=3, batch_characters=25)), play)
    texts = [[record["text_a"][0] for record in call] for call in predictor.calls]
    assert texts == [["f"], ["a"], ["e"], ["b"], ["c", "d"]]


def test_all_characters_of_a_record_count() -> None:
    assert _characters({"id": "ab", "article": "abc", "options": ["a", "bc", "def"]}) == 11


def test_a_full_queue_is_503_until_there_is_room() -> None:
    predictor = ScriptedPredictor("regression")

    async def play(api: httpx2.AsyncClient) -> None:
        first = await keep_busy(api, predictor)
        waiting = await post_all(api, ["a", "b", "c"])
        refused = await post(api, "d")
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert refused.status_code == 503 and list(refused.json()) == ["error"]
        predictor.go.set()
        assert {reply.status_code for reply in await asyncio.gather(first, *waiting)} == {200}
        assert (await post(api, *"abcdefgh")).status_code == 200  # more than may wait, but nothing waits

    in_one_loop(create_app(predictor, Limits(waiting=3)), play)


def test_a_request_that_takes_too_long_is_503_and_is_not_worked_on() -> None:
    predictor = ScriptedPredictor("regression")

    async def play(api: httpx2.AsyncClient) -> None:
        first = await keep_busy(api, predictor)
        late = await asyncio.gather(first, post(api, "never"))
        for reply in late:
            assert reply.status_code == 503 and reply.headers["retry-after"] == "10"
            assert reply.json()["error"].startswith("the model did not answer within 2 seconds")
        assert (await api.get("/health")).json()["waiting"] == 0
        predictor.go.set()
        assert scores([await post(api, "four")]) == [4]

    in_one_loop(create_app(predictor, Limits(answer_time=2)), play)
    assert [[record["text_a"] for record in call] for call in predictor.calls] == [["first"], ["four"]]


def test_a_request_whose_client_is_gone_harms_no_other() -> None:
    predictor = ScriptedPredictor("regression")

    async def play(api: httpx2.AsyncClient) -> None:
        first = await keep_busy(api, predictor)
        gone, stays = await post_all(api, ["a", "bb"])
        gone.cancel()
        predictor.go.set()
        assert scores([await stays]) == [2] and scores([await first]) == [5]

    in_one_loop(create_app(predictor), play)


def test_nothing_is_computed_for_a_client_that_has_closed_its_connection() -> None:
    predictor = ScriptedPredictor("regression")
    body = json.dumps({"records": [{"text_a": "gone"}]}).encode()
    headers = ("Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}")
    request = "\r\n".join(("POST /predict HTTP/1.1", *headers, "", "")).encode() + body

    async def play() -> None:
        config = uvicorn.Config(create_app(predictor), port=0, log_level="warning")
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            async with asyncio.timeout(60), httpx2.AsyncClient(base_url="http://{}:{}".format(*address)) as api:
                first = await keep_busy(api, predictor)
                _, writer = await asyncio.open_connection(*address)
                writer.write(request)
                await until(api, waiting=1)
                writer.close()
                await until(api, waiting=0)
                predictor.go.set()
                assert scores([await first, await post(api, "four")]) == [5, 4]
            server.should_exit = True
            await serving

    async def until(api: httpx2.AsyncClient, waiting: int) -> None:
        while (await api.get("/health")).json()["waiting"] != waiting:
            await asyncio.sleep(0.01)

    asyncio.run(play())
    assert [[record["text_a"] for record in call] for call in predictor.calls] == [["first"], ["four"]]


# --- a predictor that fails ---


def fail_at(word: str, error: Exception) -> Callable[[dict], dict]:
    def respond(record: dict) -> dict:
        if record["text_a"] == word:
            raise error
        return {"score": 1.0}

    return respond


@pytest.mark.parametrize("error", [ValueError("secret"), MemoryError(), StopIteration()])
def test_an_exception_is_a_500_that_the_server_survives(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    api = client(ScriptedPredictor("regression", fail_at("bad", error)))
    reply = ask(api, {"text_a": "bad"})
    assert reply.status_code == 500
    assert reply.json() == {"error": "the model failed on these records; the server's log says why"}
    assert type(error).__name__ in caplog.text and "Traceback" in caplog.text
    assert ask(api, {"text_a": "well"}).status_code == 200


def test_an_exception_fails_no_other_request_of_its_batch() -> None:
    predictor = ScriptedPredictor("regression", fail_at("bad", ValueError()))

    async def play(api: httpx2.AsyncClient) -> None:
        first = await keep_busy(api, predictor)
        tasks = await post_all(api, ["well", "bad", "fine"])
        predictor.go.set()
        assert [reply.status_code for reply in await asyncio.gather(first, *tasks)] == [200, 200, 500, 200]

    in_one_loop(create_app(predictor), play)
    assert [len(call) for call in predictor.calls] == [1, 3, 1, 1, 1]


def test_after_a_failed_call_nothing_is_computed_that_nobody_waits_for() -> None:
    predictor = ScriptedPredictor("regression", fail_at("bad", ValueError()))

    async def play(api: httpx2.AsyncClient) -> None:
        predictor.go.clear()
        bad, gone = (asyncio.create_task(post(api, text)) for text in ("bad", "gone"))
        assert await asyncio.to_thread(predictor.started.wait, 30)
        gone.cancel()
        predictor.go.set()
        assert (await bad).status_code == 500

    in_one_loop(create_app(predictor, Limits(window=0.5)), play)
    assert [len(call) for call in predictor.calls] == [2, 1]


def test_answers_that_break_the_promise_are_a_500() -> None:
    predictor = ScriptedPredictor("regression")
    predictor.predict = lambda records: []
    assert ask(client(predictor), {"text_a": "a"}).status_code == 500
    predictor = ScriptedPredictor("regression", lambda record: {"score": float("nan")})
    reply = ask(client(predictor), {"text_a": "a"})
    assert reply.status_code == 500 and reply.json() == {"error": "the server failed on this request; its log says why"}


# --- addresses and the process ---


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("8000", ("127.0.0.1", 8000)),
        ("localhost:0", ("localhost", 0)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "localhost", ":8000", "1.2.3.4:", "h:65536", "h:-1", "h:٣", "::1:80", "http://h:80", "a b:80", "h:80\n"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="allowed is HOST:PORT") as error:
        parse_address(text)
    assert (error.value.key, error.value.value) == ("serve", text)


def test_an_address_in_use_is_noticed_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = PredictConfig(model="nowhere", serve=str(listener.getsockname()[1]))
        with pytest.raises(ConfigError, match=r"cannot serve on 127\.0\.0\.1:\d+: Address already in use"):
            predict.main(config)


def test_an_address_in_use_or_of_another_host_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot serve on 127.0.0.1:{port}: .*in use"):
            serve(ScriptedPredictor("fill_mask"), "127.0.0.1", port)
    for host in ("203.0.113.1", "no such host", "x" * 300):
        with pytest.raises(ConfigError, match=f"cannot serve on {host}:0: "):
            serve(ScriptedPredictor("fill_mask"), host, 0)


def test_hosts_with_a_port_are_refused_from_python_too() -> None:
    with pytest.raises(ConfigError) as error:
        serve(ScriptedPredictor("fill_mask"), "127.0.0.1", 0, allowed_hosts=["box:80"])
    assert (error.value.key, error.value.value) == ("allowed_hosts", "box:80")


@pytest.mark.parametrize(
    ("names", "host", "allowed"),
    [
        (default_hosts("127.0.0.1", "127.0.0.1"), "localhost:80", True),
        (default_hosts("::1", "::1"), "[::1]:8000", True),
        (default_hosts("127.0.0.1", "127.0.0.1"), "evil.example:8000", False),
        (default_hosts("127.0.0.1", "127.0.0.1"), "192.168.0.7", False),
        (default_hosts("Box.Example", "192.168.0.7"), "box.example:8000", True),
        (parse_hosts(["Models.Example", "2001:db8::1"]), "models.example", True),
        (parse_hosts(["Models.Example", "2001:db8::1"]), "[2001:db8::1]:80", True),
        (parse_hosts(["*.example"]), "models.example", True),
        (parse_hosts(["www.example"]), "example", False),
        (default_hosts("0.0.0.0", "0.0.0.0"), f"{socket.gethostname()}:8000", True),
        (default_hosts("0.0.0.0", "0.0.0.0"), "127.0.0.1:8000", True),
        (default_hosts("::", "::"), "evil.example", False),
        (default_hosts("127.0.0.1", "127.0.0.1") | {"evil.example"}, "Evil.Example", True),
        ({"*"}, "evil.example", True),
        ({"a.example"}, "[]", False),
        ({"a.example"}, "a.example:80:80", False),
        ({"a.example"}, "", False),
    ],
)
def test_only_allowed_hosts_are_answered(names: set[str], host: str, allowed: bool) -> None:
    api = TestClient(create_app(ScriptedPredictor("fill_mask"), hosts=names))
    assert api.get("/health", headers={"Host": host}).status_code == (200 if allowed else 400)


@pytest.mark.parametrize("name", ["http://box", "box:80", "db:80", "[::1]", "a.*", "a b", ""])
def test_a_host_has_no_scheme_and_no_port(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_hosts([name])
    assert (error.value.key, error.value.value) == ("allowed_hosts", name)


SERVER = """
import os, signal, time
from src.inference.server import Limits, serve
from tests.helpers.scripted_predictor import ScriptedPredictor

def respond(record):
    if record["text_a"] == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    if record["text_a"] == "sleep":
        time.sleep(3)
    if record["text_a"] == "short sleep":
        time.sleep(0.015)
    return {"score": 1.0}

limits = Limits(body=100_000, connections=80, answer_time=3, graceful_timeout=1)
serve(ScriptedPredictor("regression", respond), "127.0.0.1", 0, limits)
"""
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
WHOLE = b'{"records": [{"text_a": "a"}]}'


@contextlib.contextmanager
def serving() -> Iterator[tuple[subprocess.Popen, str]]:
    """Yield a server process and its address."""
    command = [sys.executable, "-c", SERVER]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving regression on http://127.0.0.1:") and line.endswith("/ (Ctrl-C ends)\n")
        yield process, line.split()[3].rstrip("/")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen, str]]:
    """A server of its own for a test that ends it."""
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def lasting_address() -> Iterator[str]:
    """The address of a server for tests that leave it running."""
    with serving() as (_, address):
        yield address


def test_a_reply_does_not_wait_for_the_word_that_its_head_has_come() -> None:
    """Connections have Nagle's algorithm off, although asyncio leaves it on for a listener of this kind."""
    with (
        _listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def ends_well(process: subprocess.Popen) -> bool:
    output, log = process.communicate(timeout=60)
    print(log)
    return process.returncode == 0 and output == "stopped\n" and "Traceback" not in log


def connect(address: str, *parts: bytes) -> socket.socket:
    """A connection over which this has been sent."""
    connection = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20)
    for part in parts:
        connection.sendall(part)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Return the bytes until the server ends the connection."""
    received = bytearray()
    with connection, contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 20):
            received += part
    return bytes(received)


def test_more_connections_than_allowed_are_503_and_ctrl_c_ends_the_process(server: Any) -> None:
    process, address = server
    idle = [connect(address) for _ in range(79)]
    assert read_all(connect(address, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 503")
    for connection in idle:
        connection.close()
    assert httpx2.get(f"{address}/health").json() == {"status": "ok", "waiting": 0}
    os.kill(process.pid, signal.SIGINT)
    assert ends_well(process)


def test_a_process_survives_bad_clients_and_finishes_what_runs_at_sigterm(server: Any) -> None:
    process, address = server
    for request in (
        b"\x16\x03\x01 no http\r\n\r\n",  # TLS
        HEAD + b"-5\r\n\r\n",
        HEAD + b"50\r\n\r\n" + WHOLE,  # less than was said
        HEAD + str(len(WHOLE)).encode() + b"\r\n\r\n" + WHOLE,  # goes before the answer comes
        HEAD + b"99999999999\r\n\r\n" + b" " * 100_000,
        HEAD.replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\n\r\nno number\r\n"),
    ):
        connect(address, request).close()
    assert read_all(connect(address, b"\x16\x03\x01 no http\r\n\r\n")).startswith(b"HTTP/1.1 400")
    with httpx2.Client(base_url=address) as api:
        assert api.post("/predict", content=b" " * 200_000).status_code == 413
        assert api.get("/health").json()["status"] == "ok"
        last = api.post("/predict", json={"records": [{"text_a": "stop"}]})
        assert last.status_code == 200 and last.json() == {"answers": [{"score": 1.0}]}
    assert ends_well(process)


def test_what_runs_too_long_at_sigterm_is_503(server: Any) -> None:
    process, address = server
    sleeping = b'{"records": [{"text_a": "sleep"}]}'
    running = connect(address, HEAD + str(len(sleeping)).encode() + b"\r\n\r\n" + sleeping)
    half = connect(address, HEAD + b"50\r\n\r\n" + WHOLE)
    idle = [connect(address), connect(address, HEAD)]
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    for connection in (running, half):
        reply = read_all(connection)
        assert reply.startswith(b"HTTP/1.1 503") and reply.endswith(b'{"error":"the server is stopping"}')
    assert [read_all(connection) for connection in idle] == [b"", b""]
    assert ends_well(process)


def test_accepted_requests_are_answered_at_sigterm(server: Any) -> None:
    process, address = server
    sleeping = b'{"records": [{"text_a": "short sleep"}]}'
    request = HEAD + str(len(sleeping)).encode() + b"\r\n\r\n" + sleeping
    running = [connect(address, request) for _ in range(30)]
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)
    for connection in running:
        assert read_all(connection).startswith(b"HTTP/1.1 200")
    assert ends_well(process)


def test_what_clients_sent_before_sigterm_is_answered(server: Any) -> None:
    """On connections that wait to be accepted, and on those that are kept alive."""
    process, address = server
    request = HEAD + str(len(WHOLE)).encode() + b"\r\n\r\n" + WHOLE
    kept_alive = [connect(address, request) for _ in range(30)]
    for connection in kept_alive:
        while not connection.recv(1 << 16).endswith(b"}"):
            pass
    os.kill(process.pid, signal.SIGSTOP)  # so that all this waits when SIGTERM comes
    fresh = [connect(address, request) for _ in range(30)]
    for connection in kept_alive:
        connection.sendall(request)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    for connection in (*kept_alive, *fresh):
        reply = b""
        while part := connection.recv(1 << 16):  # raises ConnectionResetError where the connection is reset
            reply += part
        assert reply.startswith(b"HTTP/1.1 200")
        connection.close()
    assert ends_well(process)
