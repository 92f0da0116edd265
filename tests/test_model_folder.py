"""A folder with a model: loaded, checked, saved complete or not at all, and used."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from model_utils.errors import CheckpointError, DataError, UserError
from src import model_folder
from src.albert_model import initial_pooler
from src.model_folder import ModelFolder, load_tokenizer, store_calibration
from tests.helpers.trained_folders import ARCHITECTURE, LETTERS, TASK_INFOS, make_folder

ROOT = Path(__file__).resolve().parents[1]
TASK_INFO = "task.json"


def write_counts(folder: Path, counts: np.ndarray) -> None:
    np.save(folder / "unigram.npy", counts)


@pytest.mark.parametrize("task", TASK_INFOS)
def test_every_task_goes_through_a_folder_unchanged(task: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", task)
    write_counts(folder, np.arange(ARCHITECTURE.vocab_size))
    model = ModelFolder.load(folder)
    assert (model.task_info.task if model.task_info else "fill_mask") == task
    model.save(tmp_path / "copy")
    names = {path.name for path in folder.iterdir()} - {"albert-1.ckpt"}
    assert {path.name for path in (tmp_path / "copy").iterdir()} == names | {"albert-0.ckpt"}
    for name in names:
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes(), name
    copy = ModelFolder.load(tmp_path / "copy")
    assert copy.weights.keys() == model.weights.keys()
    for name, value in model.weights.items():
        assert copy.weights[name].tobytes() == value.tobytes(), name
    copy.save(tmp_path / "again")
    for path in (tmp_path / "copy").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


AS_A_LIBRARY = """
import os, sys
import mindspore as ms, numpy as np
from src.model_folder import ModelFolder

model = ModelFolder.load(sys.argv[1])
before = np.random.get_state()[1].tolist()
model.predictor()
print(ms.get_context("mode") == ms.GRAPH_MODE, os.environ["ONEDNN_DEFAULT_FPMATH_MODE"])
print(np.random.get_state()[1].tolist() == before)
ms.set_context(mode=ms.PYNATIVE_MODE)
model.network()
print(ms.get_context("mode") == ms.PYNATIVE_MODE)
"""


def test_a_program_that_sets_up_nothing_computes_in_graphs(tmp_path: Path) -> None:
    """And what it sets later on purpose stays."""
    folder = make_folder(tmp_path / "run", "classification")
    environment = os.environ | {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}
    command = [sys.executable, "-c", AS_A_LIBRARY, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True STRICT", "True", "True"]


def test_what_a_run_knows_of_its_weights_is_kept(tmp_path: Path) -> None:
    model = ModelFolder.load(make_folder(tmp_path / "run", "fill_mask"))
    state = {"step": 7, "identity": {"rows": 3}, "window": {"loss": [1.0]}}
    replace(model, checkpoint=replace(model.checkpoint, loop_state=state)).save(tmp_path / "copy")
    saved = ModelFolder.load(tmp_path / "copy").checkpoint
    assert saved.path.name == "albert-7.ckpt"
    assert saved.loop_state == {"step": 7, "identity": {"rows": 3}, "architecture": ARCHITECTURE.saved_dict()}


def change(name: str, **values: object) -> Callable[[Path], object]:
    """Other values in a JSON file, as if they had been there from the start: without its checksum."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | values
        content.pop("checksum", None)
        (folder / name).write_text(json.dumps(content))

    return apply


DAMAGES = {
    "no weights": (lambda folder: (folder / "albert-1.ckpt").unlink(), "holds no readable checkpoint"),
    "cut weights": (lambda folder: (folder / "albert-1.ckpt").write_bytes(b"x" * 99), "holds no readable checkpoint"),
    "no architecture": (lambda folder: (folder / "albert_config.json").unlink(), "no albert_config.json lies"),
    "other architecture": (
        change("albert_config.json", num_attention_heads=8),
        "num_attention_heads is 8, but albert-1.ckpt was trained with 4",
    ),
    "no JSON": (lambda folder: (folder / "albert_config.json").write_text("{"), "albert_config.json is damaged"),
    "no vocabulary": (lambda folder: (folder / "vocab.txt").unlink(), "vocab.txt cannot be read"),
    "other vocabulary": (
        lambda folder: (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nz\n"),
        "is not the one that the weights",
    ),
    "tokenizer": (change("tokenizer_config.json", do_lower_case="no"), "do_lower_case is 'no', allowed is"),
    "edited tokenizer": (
        lambda folder: (folder / "tokenizer_config.json").write_text(
            (folder / "tokenizer_config.json").read_text().replace("true", "false")
        ),
        "tokenizer_config.json was changed after it was written",
    ),
    "task": (change(TASK_INFO, task="guessing"), "task is 'guessing', allowed is"),
    "labels": (change(TASK_INFO, labels=[]), "a name in labels for each output of classification"),
    "counts": (lambda folder: (folder / "unigram.npy").write_bytes(b"no array"), "unigram.npy is damaged"),
    "other counts": (lambda folder: write_counts(folder, np.arange(9)), r"has shape \(9,\), the model's vocabulary 63"),
    "foreign": (lambda folder: (folder / "model.safetensors").touch(), "convert"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damaged_file_is_refused_with_a_sentence(classifier: Path, damage: str, tmp_path: Path) -> None:
    folder = shutil.copytree(classifier, tmp_path / "run")
    apply, sentence = DAMAGES[damage]
    apply(folder)
    with pytest.raises(UserError, match=sentence):
        ModelFolder.load(folder)


@pytest.mark.parametrize("reached", ["_save_tokenizer", "write_checked", "write_checkpoint"])
def test_a_folder_is_there_when_all_of_it_is(
    classifier: Path, reached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    model = ModelFolder.load(classifier)
    with monkeypatch.context() as context:
        context.setattr(model_folder, reached, kill)
        context.setattr("model_utils.files.shutil.rmtree", lambda *_, **__: None)  # a killed process removes nothing
        with pytest.raises(Killed):
            model.save(tmp_path / "new")
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith("unfinished-")
    with pytest.raises(CheckpointError, match="holds no readable checkpoint"):
        ModelFolder.load(leftover / "new")
    model.save(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_folder_with_files_is_not_saved_into(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(CheckpointError, match="is not an empty folder; name a new one"):
        ModelFolder.load(classifier).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_folder_without_weights_is_no_lack_of_a_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no readable checkpoint"):
        load_tokenizer(tmp_path)


def test_artifacts_come_without_weights(classifier: Path, tmp_path: Path) -> None:
    model = ModelFolder.load(classifier)
    ModelFolder(ARCHITECTURE, model.tokenizer, model.task_info).save_artifacts(tmp_path)
    names = {path.name for path in classifier.iterdir()} - {"albert-1.ckpt"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all((tmp_path / name).read_bytes() == (classifier / name).read_bytes() for name in names)


def test_a_calibration_is_added(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "squad_v2")
    store_calibration(folder, {"null_threshold": 0.25})
    found, before = ModelFolder.load(folder).task_info.explicit_values(), TASK_INFOS["squad_v2"]
    assert found["null_threshold"] == 0.25 and found["start_n_top"] == before["start_n_top"]


def test_weights_without_a_vocabulary(classifier: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(classifier, tmp_path / "run")
    (folder / "tokenizer_config.json").unlink()
    model = ModelFolder.load(folder)
    assert model.tokenizer is None
    with pytest.raises(DataError, match=r"no tokenizer_config\.json lies beside the weights in .*run: name the"):
        model.predictor()
    named = ModelFolder.load(folder, vocab_file=str(folder / "vocab.txt"))
    assert named.tokenizer.vocab_size == ARCHITECTURE.vocab_size
    (tmp_path / "short.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]))
    with pytest.raises(CheckpointError, match=r"says vocab_size 63, but the vocabulary short\.txt beside it has 34"):
        ModelFolder.load(folder, vocab_file=str(tmp_path / "short.txt"))
    with pytest.raises(CheckpointError, match=r"elsewhere does not exist"):  # not: that its vocabulary is missing
        load_tokenizer(tmp_path / "elsewhere")


def test_network_and_predictor(classifier: Path) -> None:
    model = ModelFolder.load(classifier)
    network = model.network()
    ids = Tensor(np.array([[2, 9, 3, 0]], np.int32))
    mask = Tensor(np.array([[1, 1, 1, 0]], np.int32))
    logits = network(ids, mask, Tensor(np.zeros((1, 4), np.int32))).asnumpy()
    assert network.output_names == ("logits",) and logits.shape == (1, 3) and logits.dtype == np.float32
    (answer,) = ModelFolder.load(classifier / "albert-1.ckpt").predictor().predict([{"text_a": "good"}])
    assert answer["label"] in ("bad", "good", "so so") and sum(answer["probabilities"].values()) == pytest.approx(1)
    assert model.network(embeddings=True).output_names == ("sequence_output", "pooled_output")
    assert model.predictor(embeddings=True).task_info.task == "embeddings"


def test_a_head_without_a_word_of_its_use_is_not_taken_for_another(classifier: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(classifier, tmp_path / "run")
    (folder / "task.json").unlink()
    model = ModelFolder.load(folder)
    with pytest.raises(CheckpointError, match=r"has a fine-tuned head, and no task\.json beside it says what"):
        model.network()
    assert model.network(embeddings=True)


def test_embeddings_of_a_pooler_that_was_made_up_are_warned_of(
    classifier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ModelFolder.load(classifier)
    model.network(embeddings=True)
    assert "pooler" not in capsys.readouterr().out
    made_up = model.with_weights(model.weights | initial_pooler(model.architecture))
    made_up.predictor(embeddings=True, pooling="mean")
    assert "pooler" not in capsys.readouterr().out
    made_up.network(embeddings=True)
    assert "the weights have an untrained pooler: use another pooling" in capsys.readouterr().out


def test_a_network_needs_its_weights(classifier: Path) -> None:
    model = ModelFolder.load(classifier)
    weights = {name: value for name, value in model.weights.items() if not name.startswith("classifier.")}
    with pytest.raises(CheckpointError, match=r"2 of \d+ needed parameters are missing: classifier"):
        model.with_weights(weights).network()


def test_a_backbone_alone_has_embeddings(tmp_path: Path) -> None:
    model = ModelFolder.load(make_folder(tmp_path / "run", "fill_mask"))
    backbone = {name: value for name, value in model.weights.items() if name.startswith("albert.")}
    with pytest.raises(CheckpointError, match=r"has no head, .*--embeddings true"):
        model.with_weights(backbone).network()
    model.with_weights(backbone).network(embeddings=True)


@pytest.mark.parametrize("name", ["task.json", "tokenizer_config.json"])
def test_a_broken_link_is_no_missing_file(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "classification")
    (folder / name).unlink()
    (folder / name).symlink_to("nowhere")
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        ModelFolder.load(folder)


def test_text_is_read_as_the_weights_were_trained(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "classification")
    with pytest.raises(DataError, match=r"do_lower_case is false, but .*tokenizer_config\.json says that the weights"):
        ModelFolder.load(folder, vocab_file=folder / "vocab.txt", do_lower_case=False)


def test_damaged_counts_are_a_sentence(tmp_path: Path) -> None:
    size = ARCHITECTURE.vocab_size
    ModelFolder(ARCHITECTURE, token_counts=np.arange(size)).save_artifacts(tmp_path)
    file = tmp_path / "unigram.npy"
    content = file.read_bytes()
    np.testing.assert_array_equal(np.load(file), np.arange(size))  # any other program can read it
    for written in (content, content + bytes(32)):  # earlier versions wrote a checksum behind the array
        file.write_bytes(written)
        np.testing.assert_array_equal(model_folder.read_counts(tmp_path, size), np.arange(size))
    for position in range(len(content) - 8 * size):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        with contextlib.suppress(DataError):
            counts = model_folder.read_counts(tmp_path, size)
            assert counts.shape == (size,) and counts.min() >= 0
    for damaged in (*(content[:end] for end in (0, 1, len(content) // 2, len(content) - 1)), content[:-1] + b"\xff"):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"unigram\.npy"):
            model_folder.read_counts(tmp_path, size)
