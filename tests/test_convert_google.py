"""Conversions of google's checkpoints: weights and figures are google's own, damage is refused."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.special import log_softmax

from model_utils import convert_ckpt
from model_utils.convert_ckpt import ConvertConfig
from model_utils.errors import CheckpointError, ConfigError, DataError, UserError
from model_utils.schema import load_config
from src import finetune_eval_model as heads
from src.albert_config import AlbertConfig
from src.conversion import google_checkpoint
from src.conversion.weight_names import MAPPING, from_google, google_names
from src.model_folder import load_tokenizer, read_task_info
from tests.helpers import google_figures
from tests.helpers.conversions import (
    GROUPED,
    PRE_TRAINING,
    as_google,
    assert_same_bits,
    convert,
    own_weights,
    random_values,
    sizes,
)
from tests.helpers.converted_outputs import computed, pre_training_outputs
from tests.helpers.small_text import train_model, write_text

GOOGLE_TASKS = dict.fromkeys(("pretrain", "classifier", "squad_v1", "squad_v2_train", "squad_v2_infer"), "")
GOOGLE_TASKS |= {"sts-b": "regression", "race": "multiple_choice"}  # what --task must say
GOOGLE_HEADS = {
    "classifier": lambda config: heads.SequenceClassificationScores(config, 3),
    "sts-b": lambda config: heads.SequenceClassificationScores(config, 1),
    "race": lambda config: heads.MultipleChoiceScores(config, 4),
    "squad_v1": heads.QuestionAnsweringScores,
    "squad_v2_infer": lambda config: heads.SpanSearchScores(config, 5, 5),
}


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    return train_model(folder, write_text(folder, 100))


def test_googles_figures_have_these_names_and_no_others(golden: Path) -> None:
    names, seen = google_names(), set()
    for task in GOOGLE_TASKS:
        with np.load(golden / "google" / task / "io.npz") as figures:
            seen |= {key.removeprefix("param0/") for key in figures.files if key.startswith("param0/")}
    assert seen == set(names.values())


def figures(folder: Path) -> dict[str, np.ndarray]:
    """The variables of a golden checkpoint, which io.npz holds too."""
    with np.load(folder / "io.npz") as file:
        return {key.removeprefix("param0/"): file[key] for key in file.files if key.startswith("param0/")}


@pytest.fixture
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables come from io.npz beside the checkpoint."""
    monkeypatch.setattr(google_checkpoint, "read_variables", lambda prefix: (figures(prefix.parent), 0))


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("task", GOOGLE_TASKS)
def test_googles_weights_arrive(golden: Path, tmp_path: Path, task: str) -> None:
    ours = convert("tf", "mindspore", golden / "google" / task, tmp_path / "ours", task=GOOGLE_TASKS[task])
    variables = figures(golden / "google" / task)
    names = google_names()
    found = {names[name]: value for name, value in own_weights(ours).items()}
    assert_same_bits(found, {name: from_google(name, value) for name, value in variables.items()})
    assert AlbertConfig.from_json(ours / "albert_config.json").hidden_act == "gelu_new"


@pytest.mark.parametrize("lacking", [("weight", "bias"), ("bias",), ()])
def test_embeddings_as_wide_as_the_layers_need_no_mapping(
    lacking: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """google's transformer_model makes none; the identity, which computes the same, stands for it here."""
    width = GROUPED.hidden_size
    config = GROUPED.replace(embedding_size=width)
    values = random_values(config, PRE_TRAINING)
    identity = {"weight": np.eye(width, dtype=np.float32), "bias": np.zeros(width, np.float32)}
    variables = as_google(values, config)
    for part in lacking:
        del variables[google_names()[f"{MAPPING}.{part}"]]
    (tmp_path / "model.ckpt-1.index").touch()
    (tmp_path / "albert_config.json").write_text(json.dumps(sizes(config)))
    monkeypatch.setattr(google_checkpoint, "read_variables", lambda prefix: (variables, 0))
    if lacking == ("bias",):
        with pytest.raises(CheckpointError, match="missing bert/encoder/embedding_hidden_mapping_in/bias"):
            convert("tf", "mindspore", tmp_path, tmp_path / "ours")
        return
    ours = convert("tf", "mindspore", tmp_path, tmp_path / "ours")
    assert_same_bits(own_weights(ours), values | {f"{MAPPING}.{part}": identity[part] for part in lacking})


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("task", GOOGLE_HEADS)
def test_googles_figures_after_conversion(golden: Path, tmp_path: Path, task: str) -> None:
    ours = convert("tf", "mindspore", golden / "google" / task, tmp_path / "ours", task=GOOGLE_TASKS[task])
    network = GOOGLE_HEADS[task](AlbertConfig.from_json(ours / "albert_config.json"))
    right = google_figures.load(golden / "google" / task)
    columns = [right["in"][name] for name in network.input_columns]
    if task == "race":  # choice after choice there, interleaved by token here
        columns = [column.reshape((2, 4, 24)).transpose((0, 2, 1)).reshape((2, 96)) for column in columns]
    found = dict(zip(network.output_names, computed(ours, network, *columns), strict=True))
    for name, value in found.items():
        expected = right["out"][name]
        np.testing.assert_allclose(value.reshape(expected.shape), expected, atol=1e-5, err_msg=name)


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("lower", [True, False])
def test_google_s_files_do_not_say_whether_text_is_lower_cased(golden: Path, tmp_path: Path, lower: bool) -> None:
    shutil.copytree(golden / "google/pretrain", tmp_path / "google/pretrain")
    config = AlbertConfig.from_json(shutil.copy(golden / "google/albert_config.json", tmp_path / "google"))
    words = "[PAD] [UNK] [CLS] [SEP] [MASK]".split() + [f"word{number}" for number in range(config.vocab_size - 5)]
    (tmp_path / "google/vocab.txt").write_text("\n".join(words) + "\n")
    command = ["--source", "tf", "--target", "mindspore", "--input", str(tmp_path / "google/pretrain")]
    command += ["--output", str(tmp_path / "ours")] + ["--do_lower_case", "false"] * (not lower)
    convert_ckpt.main(load_config(ConvertConfig, command))
    assert load_tokenizer(tmp_path / "ours").do_lower_case is lower
    (tmp_path / "google/vocab.txt").write_text("\n".join(words[:-1]) + "\n")
    with pytest.raises(DataError, match=rf"vocab.txt has {len(words) - 1} entries and .* says {len(words)}"):
        convert("tf", "mindspore", tmp_path / "google/pretrain", tmp_path / "other")
    with pytest.raises(ConfigError, match="do_lower_case is false, allowed is true while source is hf"):
        load_config(ConvertConfig, ["--source", "hf", "--target", "mindspore", "--do_lower_case", "false"])


@pytest.mark.usefixtures("without_tensorflow")
def test_googles_pre_training_figures_after_conversion(tmp_path: Path) -> None:
    shutil.copytree(google_figures.PRETRAINING.parent, tmp_path / "google")
    (tmp_path / "google/pretrain/model.ckpt-0.index").touch()
    ours = convert("tf", "mindspore", tmp_path / "google/pretrain", tmp_path / "ours")
    right = google_figures.load(google_figures.PRETRAINING)
    columns = (right["in"][name] for name in ("input_ids", "input_mask", "segment_ids"))
    sequence, pooled, mlm, sop = pre_training_outputs(ours, *columns)
    masked = np.take_along_axis(mlm, right["in"]["masked_lm_positions"][..., None], 1)
    found = {
        "sequence_output": sequence,
        "pooled_output": pooled,
        "mlm_log_probs": log_softmax(masked, -1).reshape((15, -1)),
        "sop_log_probs": log_softmax(sop, -1),
    }
    for name, value in found.items():
        expected = right["out"][name]
        value = google_figures.leading_block(value, expected)
        np.testing.assert_allclose(value, expected, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.usefixtures("without_tensorflow")
def test_task_that_google_does_not_tell(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    ours = convert("tf", "mindspore", golden / "google/race/model.ckpt-0", tmp_path / "ours")
    assert read_task_info(ours) is None and "regression or multiple_choice; --task" in capsys.readouterr().out
    with pytest.raises(ConfigError) as error:
        convert("tf", "hf", golden / "google/race", tmp_path / "hf")
    assert (error.value.key, error.value.value) == ("task", "")


def test_without_tensorflow_its_installation_is_advised(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(UserError, match=r"tensorflow .*pip install -r requirements-convert\.txt"):
        convert("tf", "mindspore", golden / "google/pretrain", tmp_path / "ours")


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    for name, named in (("model.ckpt-best", "model.ckpt-best is no folder"), ("", "it holds none")):
        with pytest.raises(CheckpointError, match=named):
            convert("tf", "mindspore", tmp_path / name, tmp_path / "ours")
    (tmp_path / "a.index").touch()
    with pytest.raises(CheckpointError, match=r"albert_config\.json .*a, in assets/"):
        convert("tf", "mindspore", tmp_path / "a.index", tmp_path / "ours")
    (tmp_path / "b.index").touch()
    with pytest.raises(CheckpointError, match="it holds a, b"):
        convert("tf", "mindspore", tmp_path, tmp_path / "ours")
    (tmp_path / "albert.data-v2").mkdir()
    with pytest.raises(CheckpointError, match=r"albert\.data-v2 must hold one checkpoint"):
        convert("tf", "mindspore", tmp_path / "albert.data-v2", tmp_path / "ours")


def write_google(tensorflow: ModuleType, prefix: Path, variables: dict[str, np.ndarray]) -> None:
    """A TensorFlow checkpoint."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    tensorflow.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tensorflow.constant(value) for value in variables.values()],
    )


@pytest.mark.oracles
@pytest.mark.parametrize("task", GOOGLE_TASKS)
def test_googles_checkpoints_are_read(tensorflow: ModuleType, golden: Path, task: str) -> None:
    prefix = google_checkpoint.find_prefix(golden / "google" / task)
    found, skipped = google_checkpoint.read_variables(prefix)
    assert_same_bits(found, figures(prefix.parent))
    assert skipped == 0


@pytest.mark.oracles
def test_published_layouts(
    tensorflow: ModuleType, tmp_path: Path, sentencepiece_model: Path, capsys: pytest.CaptureFixture
) -> None:
    values = random_values(GROUPED, PRE_TRAINING)
    variables = as_google(values, GROUPED)
    archive, hub = tmp_path / "albert_base", tmp_path / "hub"
    slots = {f"{name}/{slot}": value for name, value in variables.items() for slot in ("adam_m", "adam_v")}
    write_google(tensorflow, archive / "model.ckpt-best", variables | slots | {"global_step": np.int64(125000)})
    write_google(
        tensorflow, hub / "variables/variables", {f"module/{name}": value for name, value in variables.items()}
    )
    for folder, name in ((archive, "albert_config_small_google.json"), (hub / "assets", "albert_config.json")):
        folder.mkdir(exist_ok=True)
        shutil.copy(sentencepiece_model, folder / "30k-clean.model")
        (folder / "30k-clean.vocab").touch()
        (folder / name).write_text(json.dumps(sizes(GROUPED) | {"hidden_act": "gelu"}))
    (hub / "saved_model.pb").touch()
    for number, path in enumerate((archive, archive / "model.ckpt-best", hub, hub / "variables")):
        ours = convert("tf", "mindspore", path, tmp_path / f"ours{number}")
        assert_same_bits(own_weights(ours), values)
        assert AlbertConfig.from_json(ours / "albert_config.json") == GROUPED
        assert load_tokenizer(ours).vocab_size == 900
        assert f"{2 * len(variables) + 1 if number < 2 else 0} skipped" in capsys.readouterr().out


@pytest.mark.oracles
@pytest.mark.parametrize("damaged", ["data", "index"])
@pytest.mark.parametrize("damage", ["halved", "flipped", "emptied", "missing"])
@pytest.mark.usefixtures("tensorflow")
def test_damaged_google_checkpoints(golden: Path, tmp_path: Path, damaged: str, damage: str) -> None:
    shutil.copy(golden / "google/albert_config.json", tmp_path)
    files = {"data": "model.ckpt-0.data-00000-of-00001", "index": "model.ckpt-0.index"}
    for name in files.values():
        shutil.copy(golden / "google/pretrain" / name, tmp_path)
    file = tmp_path / files[damaged]
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"halved": content[:middle], "flipped": content, "emptied": b""}[damage])
    is_index_missing = (damaged, damage) == ("index", "missing")
    with pytest.raises(CheckpointError, match="holds none" if is_index_missing else "damaged or incomplete"):
        convert("tf", "mindspore", tmp_path, tmp_path / "ours")


@pytest.mark.oracles
def test_left_over_google_variable(tensorflow: ModuleType, golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden / "google/albert_config.json", tmp_path)
    variables = figures(golden / "google/pretrain")
    strange = {"bert/encoder/layer_shared/attention/self/query/kernel": np.ones((2, 2), np.float32)}
    write_google(tensorflow, tmp_path / "model.ckpt-1", variables | strange)
    with pytest.raises(CheckpointError, match="unexpected bert/encoder/layer_shared"):
        convert("tf", "mindspore", tmp_path, tmp_path / "ours")
