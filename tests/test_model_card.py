"""Model cards: the hub's own reader finds what was written, and nobody's README.md is lost."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard

from src.checkpoints.checkpoint_files import find_checkpoint
from src.model_card import HUB_TASKS, read_card, write_card, write_training_card
from src.tasks import TASKS
from src.tasks.classification_examples import ClassifierConfig
from tests.helpers.conversions import convert
from tests.helpers.trained_folders import TASK_INFOS, make_folder, make_task_info

STRANGE = "a|b `c` *d* <script>\n## Data\n---\n\x1b\u2028é 猫"
RESULT_FILE = {
    "checkpoint": "albert-1.ckpt",
    "step": 1,
    "accuracy": 0.75,
    "mcc": float("nan"),
    "test_accuracy": 0.5,
    "baselines": {"accuracy": 0.25},
    "remarks": [f"dev: {STRANGE} is rare"],
}
TRANSFORMED = sorted(name for name in TASK_INFOS if name not in ("squad_v2", "fill_mask"))


def write_run_card(folder: Path, task: str = "classification", **settings: Any) -> Path:
    splits = {
        "train": SimpleNamespace(manifest={"source": [STRANGE, "b.tsv"]}, num_rows=12345),
        "dev": SimpleNamespace(manifest={"source": "dev.tfrecord"}, num_rows=7),
        "test": SimpleNamespace(manifest={}, num_rows=0),
    }
    config = ClassifierConfig(save_finetune_checkpoint_path=str(folder), data_dir="data", **settings)
    info = make_task_info(task, text_columns={"text_a": STRANGE})
    write_training_card(folder, config, info, splits, RESULT_FILE)
    return folder / "README.md"


def read_by_hub(file: Path) -> Any:
    return ModelCard(file.read_text("utf-8")).data


def test_the_hub_reads_a_run_s_card(tmp_path: Path) -> None:
    folder = tmp_path / STRANGE.replace("/", "")
    folder.mkdir()
    data = read_by_hub(write_run_card(folder))
    metadata = data.to_dict()
    assert metadata["library_name"] == "mindspore" and metadata["pipeline_tag"] == "text-classification"
    assert metadata["tags"] == ["albert", "classification"]
    assert data.license is None and data.language is None
    [result] = data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", 0.75)  # neither NaN nor the test split's
    assert result.dataset_name == f"{STRANGE}, b.tsv" and data.model_name == folder.name
    sections = read_card(folder)[1]
    assert list(sections) == ["Task", "Data", "Settings", "Results", "Limits", "Use"]
    assert "12345" in sections["Data"] and "dev.tfrecord" in sections["Data"]
    assert "| accuracy | 0.75 | 0.25 |" in sections["Results"]
    assert "<script>" not in sections["Data"] + sections["Limits"]


def test_language_comes_from_the_card_of_the_start(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    (start / "README.md").write_text("---\nlanguage: [en, de]\nlicense: mit\n---\nhand-written")
    data = read_by_hub(write_run_card(tmp_path, load_pretrain_checkpoint_path=str(start / "albert-1.ckpt")))
    assert data.language == ["en", "de"] and data.license is None  # fine-tuned weights may have another licence


def test_own_cards_are_replaced_and_all_others_stay(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    write_card(tmp_path, "first", {}, {"Use": "one"})
    write_card(tmp_path, "second", {"a": None, "b": 1}, {"Use": "two"})
    assert read_card(tmp_path) == ({"b": 1}, {"Use": "two\n\n"})
    text = card.read_bytes()
    edited = text.replace(b"two", b"my own")
    for content in (b"", b"hello", b"\xff\xfe", edited, text + b"more", text.replace(b"\n", b"\r\n"), b"x" * 10**6):
        card.write_bytes(content)
        write_card(tmp_path, "third", {}, {"Use": "three"})
        assert card.read_bytes() == content and read_card(tmp_path)[1] == {}


@pytest.mark.parametrize("kind", ["folder", "pipe", "broken link", "link"])
def test_what_is_no_card_stays(kind: str, tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    {
        "folder": card.mkdir,
        "pipe": lambda: os.mkfifo(card),
        "broken link": lambda: card.symlink_to(tmp_path / "missing"),
        "link": lambda: card.symlink_to(Path(__file__)),
    }[kind]()
    before = card.lstat()
    write_card(tmp_path, "x", {}, {})
    assert card.lstat() == before and not (tmp_path / "missing").exists()
    assert read_card(tmp_path) == ({}, {})


@pytest.mark.parametrize(
    "text", ["---\na: [\n---\n", "---\n- a\n---\n", "---\na: 1\na: 2\n---\n", "---\n---\n", "---\n"]
)
def test_metadata_that_cannot_be_read_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\n{text}")
    assert read_card(tmp_path) == ({}, {})


def test_trained_tasks_have_a_name_on_the_hub() -> None:
    assert {name for name, spec in TASKS.items() if spec.losses} == HUB_TASKS.keys()


def test_a_conversion_takes_over_what_stays_true(tmp_path: Path) -> None:
    run = make_folder(tmp_path / "run", "classification", classifier_hidden_size=0)
    assert find_checkpoint(run).path.name == RESULT_FILE["checkpoint"]
    write_run_card(run)
    converted = convert("mindspore", "hf", run, tmp_path / "hf")
    data = read_by_hub(converted / "README.md")
    assert data.to_dict()["library_name"] == "transformers" and data.model_name == "run"
    assert [result.metric_value for result in data.eval_results] == [0.75]
    ours, theirs = read_card(run)[1], read_card(converted)[1]
    assert list(theirs) == list(ours) and {title for title in ours if ours[title] != theirs[title]} == {"Use"}
    assert '"hf"' in theirs["Use"]
    (run / "README.md").write_text((run / "README.md").read_text().replace("albert-1.ckpt", "albert-2.ckpt"))
    other = convert("mindspore", "hf", run, tmp_path / "other")
    assert (
        list(read_card(other)[1]) == ["Task", "Limits", "Use"] and read_by_hub(other / "README.md").eval_results is None
    )


def test_a_licence_stays_with_the_weights(tmp_path: Path) -> None:
    run = make_folder(tmp_path / "run", "fill_mask")
    (run / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: zh\n---\n")
    data = read_by_hub(convert("mindspore", "hf", run, tmp_path / "hf") / "README.md")
    assert (data.license, data.language, data.tags) == ("apache-2.0", "zh", ["albert"])
    own = convert("hf", "mindspore", tmp_path / "hf", tmp_path / "own")
    assert not (own / "README.md").exists()


@pytest.mark.oracles
@pytest.mark.parametrize("task", TRANSFORMED)
def test_transformers_runs_the_code_of_a_card(
    task: str, tmp_path: Path, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = convert(
        "mindspore", "hf", make_folder(tmp_path / "run", task, classifier_hidden_size=0), tmp_path / "hf"
    )
    monkeypatch.chdir(tmp_path)
    code = "\n".join(line.strip() for line in read_card(converted)[1]["Use"].splitlines())
    names: dict[str, Any] = {}
    exec(code, names)
    assert type(names["model"]).__name__.startswith("Albert") and names["tokenizer"]("good").input_ids
