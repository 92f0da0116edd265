"""Pre-training with a teacher: what it reads, the distance to its states, runs that are killed, what is refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn

import run_pretrain
from dataset import create_pretrain_dataset
from model_utils.errors import CheckpointError, ConfigError, DataError
from src.albert_config import AlbertConfig
from src.albert_model import AlbertModel, initialise_weights
from src.checkpoints.checkpoint_files import Checkpoint, find_checkpoint
from src.data.batches import Loading
from src.model_folder import ModelFolder
from src.pretraining.distillation import AlbertForDistillation, StatesTeacher, match_layers
from src.tokenization import build_tokenizer
from tests.helpers.google_figures import get_parameters, set_parameters
from tests.helpers.kills import kill_at
from tests.helpers.pretraining_run import config_of, log, write_pretraining_data
from tests.helpers.tiny_model import KEY, TINY, batch

STUDENT = TINY.replace(num_hidden_layers=4)
LARGE = TINY.replace(hidden_size=24, num_hidden_layers=6, initializer_range=0.3)


def teacher_of(config: AlbertConfig, student_layer_count: int) -> StatesTeacher:
    """Return a teacher with weights of its own."""
    backbone = AlbertModel(config)
    initialise_weights(backbone, config.initializer_range, seed=8)
    values = {f"albert.{name}": value for name, value in get_parameters(backbone).items()}
    return StatesTeacher(ModelFolder(config, checkpoint=Checkpoint(Path("teacher"), values, {})), student_layer_count)


class States(nn.Cell):
    """All states of a backbone, without dropout."""

    def __init__(self, albert: AlbertModel) -> None:
        super().__init__(auto_prefix=False)
        self.albert = albert
        self.set_train(False)

    def construct(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor) -> tuple[Tensor, ...]:
        return self.albert.layer_states((input_ids, input_mask, segment_ids), KEY)


def targets_of(teacher: StatesTeacher, columns: dict[str, np.ndarray]) -> np.ndarray:
    (states,) = teacher.targets({name: Tensor(values) for name, values in columns.items()})
    return states.asnumpy()


def states_of(albert: AlbertModel, columns: dict[str, np.ndarray]) -> list[np.ndarray]:
    texts = (Tensor(columns[name]) for name in ("input_ids", "input_mask", "segment_ids"))
    return [state.asnumpy() for state in States(albert)(*texts)]


@pytest.mark.parametrize(
    ("student", "teacher", "pairs"),
    [
        (6, 6, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]),
        (4, 6, [(0, 0), (2, 3), (4, 6)]),
        (6, 12, [(0, 0), (1, 2), (2, 4), (3, 6), (4, 8), (5, 10), (6, 12)]),
        (12, 5, [(0, 0), (12, 5)]),
    ],
)
def test_layers_are_matched_at_equal_depth(student: int, teacher: int, pairs: list[tuple[int, int]]) -> None:
    assert match_layers(student, teacher) == pairs


def test_the_teacher_reads_the_text_without_masks() -> None:
    columns = batch()
    original = columns["input_ids"].copy()
    columns["masked_lm_positions"][:, -1] = 0  # filler
    columns["masked_lm_weights"][:, -1] = 0
    columns["masked_lm_ids"] = np.take_along_axis(original, columns["masked_lm_positions"], 1)
    columns["masked_lm_ids"][:, -1] = 0
    masked = np.where(
        columns["masked_lm_weights"] > 0, 1, np.take_along_axis(original, columns["masked_lm_positions"], 1)
    )
    np.put_along_axis(columns["input_ids"], columns["masked_lm_positions"], masked, 1)
    assert (columns["input_ids"] != original).any()
    teacher = teacher_of(TINY, TINY.num_hidden_layers)
    expected = states_of(teacher.network.albert, columns | {"input_ids": original})
    np.testing.assert_allclose(targets_of(teacher, columns), np.stack(expected), atol=1e-6)


def test_a_student_that_equals_its_teacher_has_no_distance() -> None:
    columns = batch()
    columns["masked_lm_weights"][:] = 0  # nothing is hidden
    teacher = teacher_of(TINY, TINY.num_hidden_layers)
    student = AlbertForDistillation(TINY, teacher, 10.0)
    set_parameters(student.scores.albert, get_parameters(teacher.network))
    assert float(student(*student.inputs(columns), KEY)[-1].asnumpy()) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("config", [STUDENT, STUDENT.replace(hidden_size=24)], ids=["projected", "same width"])
def test_the_distance_is_that_of_numpy(config: AlbertConfig) -> None:
    columns = batch()
    columns["sequence_weights"] = np.array([0.5, 0.3, 0.2], np.float32)
    teacher = teacher_of(LARGE, config.num_hidden_layers)
    student = AlbertForDistillation(config, teacher, 10.0, seed=3)
    loss, mlm_loss, sop_loss, *_, teacher_loss = (
        float(metric.asnumpy()) for metric in student(*student.inputs(columns), KEY)
    )
    states = states_of(student.scores.albert, columns)
    student_states = [states[layer] for layer in (0, 2, 4)]
    if config.hidden_size != LARGE.hidden_size:
        parameters = get_parameters(student.teacher_projections)
        student_states = [
            state @ parameters[f"teacher_projections.{i}.weight"].T + parameters[f"teacher_projections.{i}.bias"]
            for i, state in enumerate(student_states)
        ]
    teacher_states = targets_of(teacher, columns)
    mask = columns["input_mask"]
    expected = 0.0
    for state, target in zip(student_states, teacher_states, strict=True):
        shares = (((state - target) ** 2).sum(1) / (target**2).sum(1)).reshape(mask.shape)
        expected += (columns["sequence_weights"] * (shares * mask).sum(1) / mask.sum(1)).sum() / 3
    assert teacher_loss == pytest.approx(expected, rel=1e-4)
    assert loss == pytest.approx(mlm_loss + sop_loss + 10.0 * teacher_loss, rel=1e-5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vocab.txt, train/ and held_out/."""
    return write_pretraining_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("teacher")
    settings = {"train_steps": 40, "eval_steps": 0, "eval_data_dir": "", "albert_cfg.num_hidden_layers": 2}
    run_pretrain.main(config_of(data, run, **settings))
    return run


def changed_teacher(teacher: Path) -> ModelFolder:
    model = ModelFolder.load(teacher)
    name, value = next(iter(model.weights.items()))
    return model.with_weights(model.weights | {name: value + 1.0})


def test_a_run_with_a_teacher_goes_on_after_a_kill(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    settings: dict[str, Any] = {
        "teacher": teacher,
        "train_steps": 40,
        "save_checkpoint_steps": 10,
        "eval_steps": 0,
        "eval_data_dir": "",
        "albert_cfg.hidden_size": 16,
    }
    run_pretrain.main(config_of(data, tmp_path / "undisturbed", **settings))
    kill_at(monkeypatch, 25)
    with pytest.raises(KeyboardInterrupt):
        run_pretrain.main(config_of(data, tmp_path / "killed", **settings))
    changed_teacher(teacher).save(tmp_path / "changed")
    teacher.rename(tmp_path / "teacher")
    (tmp_path / "changed").rename(teacher)
    with pytest.raises(CheckpointError, match="by another teacher: teacher_sha256"):
        run_pretrain.main(config_of(data, tmp_path / "killed", **settings))
    shutil.rmtree(teacher)
    (tmp_path / "teacher").rename(teacher)
    run_pretrain.main(config_of(data, tmp_path / "killed", **settings))
    assert "resuming after step 20" in capsys.readouterr().out
    records = log(tmp_path / "undisturbed")
    assert log(tmp_path / "killed") == records
    assert records[-1]["teacher_loss"] < 0.9 * records[0]["teacher_loss"]
    student = ModelFolder.load(tmp_path / "killed")
    student.network()
    teachers = find_checkpoint(teacher).values
    assert set(student.weights) == set(teachers)  # neither the teacher's weights nor projections on them


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"teacher_loss_weight": 5.0}, "teacher_loss_weight"), ({"albert_cfg.recompute": "true"}, "recompute")],
)
def test_keys_that_contradict_each_other_are_refused(
    data: Path, teacher: Path, tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    if key == "recompute":
        changes = changes | {"teacher": teacher}
    with pytest.raises(ConfigError, match=key):
        run_pretrain.main(config_of(data, tmp_path / "run", **changes))


def test_a_teacher_of_another_vocabulary_is_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text((teacher / "vocab.txt").read_text().replace("word7", "another"))
    model = replace(ModelFolder.load(teacher), tokenizer=build_tokenizer(str(vocabulary), "", True))
    model.save(tmp_path / "teacher")
    with pytest.raises(DataError, match="vocabulary"):
        run_pretrain.main(config_of(data, tmp_path / "run", teacher=tmp_path / "teacher"))
    examples = create_pretrain_dataset(data / "train", Loading(batch_size=2))
    tokenizer = examples.tokenizer()
    student = model.architecture
    examples.manifest = {
        key: value for key, value in examples.manifest.items() if key != "vocab_sha256"
    }  # as of TFRecords
    StatesTeacher.load(str(teacher), student).check_data(examples, tokenizer)
    with pytest.raises(DataError, match="vocab_sha256"):
        StatesTeacher.load(str(tmp_path / "teacher"), student).check_data(examples, tokenizer)
