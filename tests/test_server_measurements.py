"""GET /metrics and the access log of the server: figures are those of the requests, and clients cannot add labels."""

import asyncio
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from model_utils.errors import ConfigError
from model_utils.schema import load_config
from src.inference.deploy_config import PredictConfig
from src.inference.server import Limits, create_app, open_access_log
from src.inference.server.measurements import FILES_PATH, MAX_LOGGED_CHARACTERS, OTHER
from tests.helpers.scripted_predictor import ScriptedPredictor
from tests.helpers.small_disk import no_file_beyond

Sample = tuple[str, frozenset]


def client(predictor: ScriptedPredictor, access_log: str = "", **limits: Any) -> TestClient:
    app = create_app(predictor, Limits(**limits), access_log=open_access_log(access_log))
    return TestClient(app, raise_server_exceptions=False)


def metrics(api: TestClient) -> dict[Sample, float]:
    """Value by name and labels, as Prometheus' own parser reads them."""
    reply = api.get("/metrics")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain; version=")
    samples = [sample for family in text_string_to_metric_families(reply.text) for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def value(found: dict[Sample, float], name: str, **labels: str) -> float:
    return found.get((name, frozenset(labels.items())), 0)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_requests_records_and_batches_are_counted() -> None:
    api = client(ScriptedPredictor("fill_mask"), batch=4, records=5)
    good, refused = {"text": "[MASK]"}, {"text": "no mask"}
    assert api.post("/predict", json={"records": [good, refused, {"text": 7}, good, good]}).status_code == 200
    assert api.post("/predict", json={"records": [{"text": 7}]}).status_code == 422
    assert api.post("/predict", json={"records": [good] * 6}).status_code == 422  # not read as records
    assert api.get("/predict").status_code == 405
    assert api.get("/health").status_code == 200
    found = metrics(api)
    for code, count in (("200", 1), ("422", 2), ("405", 1)):
        assert value(found, "albert_requests_total", path="/predict", code=code) == count
    assert value(found, "albert_requests_total", path="/health", code="200") == 1
    assert value(found, "albert_records_total", result="answered") == 3
    assert value(found, "albert_records_total", result="refused") == 3
    assert value(found, "albert_batch_records_count") == 1 and value(found, "albert_batch_records_sum") == 4
    assert [value(found, "albert_batch_records_bucket", le=bound) for bound in ("2.0", "4.0")] == [0, 1]
    assert value(found, "albert_request_seconds_count", path="/predict") == 4
    assert value(found, "albert_waiting_records") == 0
    assert value(metrics(api), "albert_requests_total", path="/metrics", code="200") == 1


def test_failures_are_counted_with_the_status_that_clients_see(tmp_path: Path) -> None:
    def fail(record: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError

    api = client(ScriptedPredictor("fill_mask", fail), str(tmp_path / "log"), body=1000)
    assert api.post("/predict", json={"records": [{"text": "[MASK]"}] * 2}).status_code == 500
    assert api.post("/predict", content=b"x" * 1001).status_code == 413
    api.app.add_api_route("/broken", lambda: 1 / 0)
    assert api.get("/broken").status_code == 500
    found = metrics(api)
    assert value(found, "albert_requests_total", path="/predict", code="500") == 1
    assert value(found, "albert_requests_total", path="/predict", code="413") == 1
    assert value(found, "albert_requests_total", path="/broken", code="500") == 1
    assert value(found, "albert_records_total", result="refused") == 2
    assert [line["status"] for line in lines_of(tmp_path / "log")] == [500, 413, 500, 200]


def test_waiting_records_are_shown_while_they_wait() -> None:
    predictor = ScriptedPredictor("fill_mask")
    api = client(predictor)
    predictor.go.clear()
    with api:

        async def ask_twice() -> None:
            record = {"records": [{"text": "[MASK]"}]}
            first = asyncio.create_task(asyncio.to_thread(api.post, "/predict", json=record))
            await asyncio.to_thread(predictor.started.wait, 30)
            second = asyncio.create_task(asyncio.to_thread(api.post, "/predict", json=record))
            async with asyncio.timeout(30):
                while value(await asyncio.to_thread(metrics, api), "albert_waiting_records") != 1:
                    await asyncio.sleep(0.01)
            predictor.go.set()
            assert {(await first).status_code, (await second).status_code} == {200}

        asyncio.run(ask_twice())


def test_the_model_is_named_with_its_hash(tmp_path: Path) -> None:
    predictor = ScriptedPredictor("fill_mask")
    predictor.file = tmp_path / os.fsdecode(b'a "b"\nc\\d\xff.mindir')
    predictor.file.write_bytes(b"weights")
    [labels] = [dict(labels) for name, labels in metrics(client(predictor)) if name == "albert_model_info"]
    assert labels["task"] == "fill_mask" and labels["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert labels["file"].startswith(f'{tmp_path.name}/a "b"\nc\\d')


def test_clients_cannot_add_time_series() -> None:
    api = client(ScriptedPredictor("fill_mask"))
    before = None
    for number in range(20):
        api.get(f"/{number}")
        if number < 9:
            api.request(f"M{number}", f"/predict/{number}%0a{number}", headers={f"x-{number}": "x" * 5000})
            api.get(f"/page/{number}")
            api.request(f"M{number}", "/predict")
            metrics(api)
            before = set(metrics(api))
    found = metrics(api)
    assert set(found) == before
    assert value(found, "albert_requests_total", path=OTHER, code="404") == 29
    assert value(found, "albert_requests_total", path=FILES_PATH, code="404") == 9
    assert {dict(labels).get("path") for _, labels in found} == {None, OTHER, FILES_PATH, "/predict", "/metrics"}


def test_the_access_log_has_a_line_a_request(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text('{"earlier": true}\n')
    api = client(ScriptedPredictor("fill_mask"), str(file))
    reply = api.post("/predict?secret=1", json={"records": [{"text": "[MASK]"}, {"text": 7}]})
    api.head("/health")
    api.get("/a%0Ab%1b%00%C2%85%ff")
    api.request("X" * 5000, "/" + "y" * 5000)
    text = file.read_text()
    assert text.isascii() and not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text) and "secret" not in text
    earlier, answered, head, control, long = lines_of(file)
    assert earlier == {"earlier": True}
    assert answered.keys() == {"time", "method", "path", "status", "milliseconds", "bytes", "records"}
    expected = {"method": "POST", "path": "/predict", "status": 200, "bytes": len(reply.content), "records": 2}
    assert answered.items() >= expected.items() and 0 <= answered["milliseconds"] < 60_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", answered["time"])
    assert (head["method"], head["status"], head["bytes"], head["records"]) == ("HEAD", 200, 0, 0)
    assert control["path"].startswith("/a\nb\x1b\0\x85") and control["status"] == 404
    assert len(long["path"]) == MAX_LOGGED_CHARACTERS and len(long["method"]) == MAX_LOGGED_CHARACTERS


def test_a_rotated_log_is_made_again_and_a_lost_folder_fails_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "logs" / "log"
    file.parent.mkdir()
    api = client(ScriptedPredictor("fill_mask"), str(file))
    api.get("/health")
    file.rename(tmp_path / "old")
    api.get("/model")
    assert [line["path"] for line in lines_of(tmp_path / "old") + lines_of(file)] == ["/health", "/model"]
    file.unlink()
    file.parent.rmdir()
    assert api.get("/health").status_code == 200
    assert [record.levelname for record in caplog.records if "log cannot be written" in record.message] == ["WARNING"]
    file.parent.mkdir()
    api.get("/model")
    assert [line["path"] for line in lines_of(file)] == ["/model"]


def test_a_full_disk_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    api = client(ScriptedPredictor("fill_mask"), str(tmp_path / "log"))
    with no_file_beyond(50):
        assert [api.get("/health").status_code for _ in range(3)] == [200] * 3
    assert [record.levelname for record in caplog.records if "log cannot be written" in record.message] == ["WARNING"]
    assert "Traceback" not in capsys.readouterr().err


def test_the_log_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    client(ScriptedPredictor("fill_mask"), "-").get("/health")
    captured = capsys.readouterr()
    assert json.loads(captured.err)["path"] == "/health" and captured.out == ""


@pytest.mark.parametrize("name", ["folder", "pipe", "missing/log", "x" * 300, "nul\0", "folder/"])
def test_logs_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="access_log"):
        open_access_log(f"{tmp_path}/{name}")
    assert open_access_log("") is None


def test_a_log_without_a_server_is_refused() -> None:
    config = load_config(PredictConfig, ["--model", "m", "--input", "x", "--output", "-", "--access_log", "log"])
    with pytest.raises(ConfigError, match="access_log"):
        config.check_required()
