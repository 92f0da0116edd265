"""Serve a classifier as users of transformers do: python -m benchmarks.transformers_server --model FOLDER.

FastAPI and a pipeline, one request a call: POST /predict {"text": "..."} -> {"label": ..., "score": ...}.
"""

import os
import socket
import threading

from benchmarks.torch_device import load_torch
from model_utils.config import run_main
from model_utils.schema import Config, option


class TransformersServerConfig(Config):
    """Serve a classifier with transformers: python -m benchmarks.transformers_server."""

    model: str = option("", "folder that from_pretrained reads", required=True)
    at_once: int = option(40, "requests that are computed at the same time at most", minimum=1, maximum=40)
    max_seq_length: int = option(128, "tokens of a row", minimum=8)


def main(config: TransformersServerConfig) -> None:
    """Serve on a free port, which is printed, until SIGTERM."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    load_torch()
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from transformers import pipeline

    classifier = pipeline("text-classification", model=config.model, device="cpu")
    app = FastAPI()
    slots = threading.Semaphore(config.at_once)  # FastAPI itself has 40 threads

    def classify(text: str) -> dict:
        return classifier(text, truncation=True, max_length=config.max_seq_length)[0]

    classify("")  # sets the tokenizer's truncation, which fails while another thread encodes ("Already borrowed")

    class Request(BaseModel):
        text: str

    @app.post("/predict")
    def predict(request: Request) -> dict:
        with slots:
            return classify(request.text)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"serving on http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    run_main(main, TransformersServerConfig)
