"""Conversions: every weight arrives with identical bits, labels and vocabulary with it; anything else is refused."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_utils import native_code
from model_utils.convert_ckpt import ConvertConfig
from model_utils.errors import CheckpointError, ConfigError, UserError
from src.albert_config import AlbertConfig
from src.albert_for_pre_training import PreTrainingScores
from src.albert_model import POOLER, initial_pooler
from src.checkpoints.checkpoint_files import find_checkpoint, load_backbone
from src.conversion.checks import weight_shapes
from src.conversion.convert import GROUP_OF
from src.conversion.hugging_face_folder import HEAD_NAMES
from src.conversion.weight_names import google_names, hugging_face_names, is_training_state
from src.model_folder import ModelFolder, read_task_info
from src.tasks import FINE_TUNED
from src.tasks.entities import Scheme
from src.tasks.task_info import TaskInfo
from tests.conftest import ROOT
from tests.helpers import google_figures
from tests.helpers.conversions import (
    GROUPED,
    LABELS,
    PRE_TRAINING,
    SMALL,
    assert_same_bits,
    convert,
    own_weights,
    random_values,
    read_json_file,
    write_hugging_face,
    write_ours,
)
from tests.helpers.folder_state import folder_state
from tests.helpers.small_disk import no_file_beyond
from tests.helpers.trained_folders import head_of, make_folder

# --- names ---


def test_shapes_are_known_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_code, "_usable_library", lambda source: pytest.fail(f"{source} is compiled"))
    assert weight_shapes(SMALL)[f"{POOLER}weight"] == initial_pooler(SMALL)[f"{POOLER}weight"].shape


def test_every_weight_has_a_name_in_googles_checkpoints() -> None:
    expected = {name for name in weight_shapes(GROUPED) if not name.startswith("classifier_hidden")}
    names = google_names(2, 2)
    assert names.keys() == expected and len(set(names.values())) == len(names)
    assert names["albert.encoder.feed_forwards.2.output.weight"] == (
        "bert/encoder/transformer/group_1/inner_group_0/ffn_1/intermediate/output/dense/kernel"
    )
    assert names["albert.encoder.attentions.1.layer_norm.gamma"] == (
        "bert/encoder/transformer/group_0/inner_group_1/LayerNorm/gamma"
    )


def test_every_weight_but_the_beams_has_a_name_in_hugging_faces() -> None:
    theirs = (*PRE_TRAINING, "classifier.", "qa_outputs.")
    expected = {name for name in weight_shapes(GROUPED) if name.startswith(theirs)}
    assert hugging_face_names(2, 2).keys() | set(HEAD_NAMES) == expected


def test_optimizer_variables_are_known_by_name() -> None:
    kernel = "bert/pooler/dense/kernel"
    state = [f"{kernel}/adam_m", f"{kernel}/adam_v", f"{kernel}/Adam_1", "global_step", "beta1_power"]
    assert all(map(is_training_state, state))
    assert not any(map(is_training_state, google_names(2, 2).values()))


# --- Hugging Face ---

CLASSIFIER = ("albert.", "classifier.")
WITHOUT_POOLER = ("albert.embeddings.", "albert.encoder.")  # as transformers' models of these classes are
# Beginnings of the weights' names, outputs, the class in transformers, labels there, task here.
CASES: dict[str, tuple[tuple[str, ...], int, str, dict[str, str], TaskInfo | None]] = {
    "pre-training": (PRE_TRAINING, 0, "ForPreTraining", {}, None),
    "masked tokens": ((*WITHOUT_POOLER, "mlm."), 0, "ForMaskedLM", {}, None),
    "backbone": (("albert.",), 0, "Model", {}, None),
    "classification": (CLASSIFIER, 3, "ForSequenceClassification", LABELS, head_of("classification", *LABELS.values())),
    "regression": (CLASSIFIER, 1, "ForSequenceClassification", {"0": "LABEL_0"}, head_of("regression")),
    "choices": (CLASSIFIER, 1, "ForMultipleChoice", {}, head_of("multiple_choice")),
    "tokens": (
        (*WITHOUT_POOLER, "classifier."),
        3,
        "ForTokenClassification",
        LABELS,
        head_of("token_classification", *LABELS.values()),
    ),
    "questions": ((*WITHOUT_POOLER, "qa_outputs."), 0, "ForQuestionAnswering", {}, head_of("squad_v1")),
}


def described(case: str) -> dict[str, Any]:
    """What transformers' config.json says of a case."""
    _, _, name, labels, _ = CASES[case]
    return {"architectures": [f"Albert{name}"]} | ({"id2label": labels} if labels else {})


def write_case(folder: Path, case: str, config: AlbertConfig = SMALL, **stated: Any) -> Path:
    """A folder of Hugging Face's with random weights, whose config.json states further values."""
    values = random_values(config, *CASES[case][:2])
    return write_hugging_face(folder, config, values, bare=case == "backbone", **described(case) | stated)


@pytest.mark.parametrize("config", [SMALL, GROUPED], ids=["shared", "grouped"])
@pytest.mark.parametrize("case", CASES)
def test_there_and_back_again(tmp_path: Path, case: str, config: AlbertConfig) -> None:
    theirs = write_case(tmp_path / "hf", case, config)
    ours = convert("hf", "mindspore", theirs, tmp_path / "new/ours")
    values = random_values(config, *CASES[case][:2])
    assert_same_bits({name: value for name, value in own_weights(ours).items() if name in values}, values)
    assert AlbertConfig.from_json(ours / "albert_config.json") == config
    assert read_task_info(ours) == CASES[case][-1]
    back = convert("mindspore", "hf", ours, tmp_path / "back")
    assert_same_bits(load_file(back / "model.safetensors"), load_file(theirs / "model.safetensors"))
    assert AlbertConfig.from_json(back / "config.json") == config
    assert described(case).items() <= read_json_file(back / "config.json").items()


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [("O,B-PER,I-PER", Scheme.ENTITIES), ("O,B,I", Scheme.SPANS), ("NN,VB,DT", Scheme.WORDS), ("O,a,b", Scheme.WORDS)],
)
def test_the_scheme_of_tags_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: str, scheme: Scheme
) -> None:
    theirs = write_case(tmp_path / "hf", "tokens", id2label=dict(enumerate(labels.split(","))))
    convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert f"tags are {scheme.value}" in capsys.readouterr().out


ASKED = {
    "classification": {"text_a": "a film, so long that it is cut. good"},
    "squad_v1": {"context": "the lake of geneva lies in the west, where it is deep", "question": "where"},
}


@pytest.mark.parametrize("task", [task for task in FINE_TUNED if task != "squad_v2"])
def test_how_a_model_is_used_goes_there_and_back(tmp_path: Path, task: str) -> None:
    """task.json says lengths, strides, columns: without them the same weights answer otherwise."""
    settings = {"max_seq_length": 24, "doc_stride": 3, "classifier_hidden_size": 0, "text_columns": {"text": "review"}}
    ours = make_folder(tmp_path / "ours", task, **settings, language="zh")
    before = folder_state(ours)
    there = convert("mindspore", "hf", ours, tmp_path / "hf")
    assert folder_state(ours) == before
    back = convert("hf", "mindspore", there, tmp_path / "back")
    assert read_json_file(back / "task.json") == read_json_file(ours / "task.json")
    if task in ASKED:
        first, second = (ModelFolder.load(folder).predictor().predict([ASKED[task]]) for folder in (ours, back))
        assert first == second


def test_what_a_foreign_file_says_about_use_changes_neither_task_nor_labels(tmp_path: Path) -> None:
    said = {"task": "squad_v1", "labels": ["x"], "max_seq_length": 24}
    theirs = write_case(tmp_path / "hf", "classification", albert_mindspore=said)
    info = read_task_info(convert("hf", "mindspore", theirs, tmp_path / "ours")).stated()
    assert info == {"task": "classification", "labels": list(LABELS.values()), "max_seq_length": 24}


def test_published_file_with_pooler_beside_masked_tokens_keeps_it(tmp_path: Path) -> None:
    values = random_values(SMALL, ("albert.", "mlm."))
    theirs = write_hugging_face(tmp_path / "hf", SMALL, values, architectures=["AlbertForMaskedLM"])
    back = convert("mindspore", "hf", convert("hf", "mindspore", theirs, tmp_path / "ours"), tmp_path / "back")
    assert_same_bits(load_file(back / "model.safetensors"), load_file(theirs / "model.safetensors"))


def test_converted_checkpoint_loads_completely(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    values = random_values(GROUPED, PRE_TRAINING)
    ours = convert("hf", "mindspore", write_hugging_face(tmp_path / "hf", GROUPED, values), tmp_path / "ours")
    assert "0 missing: none; 0 unexpected: none" in capsys.readouterr().out
    network = PreTrainingScores(GROUPED)
    load_backbone(network, find_checkpoint(ours), needed=("",))
    assert_same_bits(google_figures.get_parameters(network), values)


def test_checkpoint_without_pooler_loads_as_a_backbone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    values = random_values(SMALL, ("albert.embeddings.", "albert.encoder.", "mlm."))
    ours = convert("hf", "mindspore", write_hugging_face(tmp_path / "hf", SMALL, values), tmp_path / "ours")
    assert "no pooler" in capsys.readouterr().out
    load_backbone(PreTrainingScores(SMALL), find_checkpoint(ours), needed=("albert.", "mlm."))
    assert np.std(own_weights(ours)["albert.pooler.weight"]) > 0.01


@pytest.mark.parametrize(("case", "is_told"), [("questions", True), ("choices", False)])
def test_that_transformers_has_one_class_for_squad_1_and_2_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture, case: str, is_told: bool
) -> None:
    convert("hf", "mindspore", write_case(tmp_path / "hf", case), tmp_path / "ours")
    assert ("answers every question" in capsys.readouterr().out) == is_told


def test_layers_that_share_nothing_become_groups(tmp_path: Path) -> None:
    alone = SMALL.replace(share_parameters="none", inner_group_num=2)
    values = random_values(alone, PRE_TRAINING)
    theirs = convert("mindspore", "hf", write_ours(tmp_path, alone, values), tmp_path / "hf")
    config = AlbertConfig.from_json(theirs / "config.json")
    assert config == alone.replace(share_parameters="all", num_hidden_groups=4)
    back = convert("hf", "mindspore", theirs, tmp_path / "back")
    assert_same_bits(own_weights(back), values)


POINTER = "version https://git-lfs.github.com/spec/v1\noid x\n"


def test_weights_in_shards_and_half_precision(tmp_path: Path) -> None:
    values = random_values(SMALL, PRE_TRAINING)
    theirs = write_hugging_face(tmp_path / "hf", SMALL, values)
    tensors = load_file(theirs / "model.safetensors")
    (theirs / "model.safetensors").unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        shard = {name: tensors[name].astype(np.float16) for name, place in places.items() if place == file}
        save_file(shard, theirs / file)
    (theirs / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (theirs / "tf_model.h5").write_text(POINTER)  # which nobody needs
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    halves = {key: value.astype(np.float16).astype(np.float32) for key, value in values.items()}
    assert_same_bits(own_weights(ours), halves)
    (theirs / "model-1.safetensors").write_text(POINTER)
    with pytest.raises(CheckpointError, match=r"model-1\.safetensors is git-lfs's pointer"):
        convert("hf", "mindspore", theirs, tmp_path / "other")


def test_copies_and_constants_of_older_files_are_passed_over(tmp_path: Path) -> None:
    values = random_values(SMALL, PRE_TRAINING)
    theirs = write_hugging_face(tmp_path / "hf", SMALL, values)
    tensors = load_file(theirs / "model.safetensors")
    tensors["predictions.decoder.weight"] = values["albert.embeddings.word_embeddings"]
    tensors["albert.embeddings.position_ids"] = np.arange(20)[None]
    bias = values["mlm.bias"]
    for number, copy in enumerate((bias, np.zeros_like(bias))):
        save_file(tensors | {"predictions.decoder.bias": copy}, theirs / "model.safetensors")
        assert_same_bits(own_weights(convert("hf", "mindspore", theirs, tmp_path / f"ours{number}")), values)
    save_file(tensors | {"predictions.decoder.bias": bias + 1}, theirs / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"predictions\.decoder\.bias differs from predictions\.bias"):
        convert("hf", "mindspore", theirs, tmp_path / "other")


@pytest.mark.parametrize("stated", [{"model_type": "albert"}, {}])
def test_gelu_is_the_exact_one_as_its_writer_computes(tmp_path: Path, stated: dict) -> None:
    theirs = write_case(tmp_path / "hf", "backbone", SMALL.replace(hidden_act="gelu"))
    config = read_json_file(theirs / "config.json")
    del config["model_type"]
    (theirs / "config.json").write_text(json.dumps(config | stated))
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert AlbertConfig.from_json(ours / "albert_config.json").hidden_act == "gelu"


@pytest.fixture
def two_labels(tmp_path: Path) -> Path:
    """A classifier of two labels without names."""
    values = random_values(SMALL, ("albert.", "classifier."), 2)
    return write_hugging_face(tmp_path / "hf", SMALL, values, architectures=["AlbertForSequenceClassification"])


NAMES = {"id2label": {"0": "bad", "1": "good"}}


@pytest.mark.parametrize(
    ("stated", "given", "labels"),
    [
        ({}, (), ("LABEL_0", "LABEL_1")),
        ({}, ("bad", "good"), ("bad", "good")),
        (NAMES, ("bad", "good"), ("bad", "good")),
    ],
)
def test_labels_may_be_named(
    two_labels: Path, tmp_path: Path, stated: dict, given: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    state(two_labels, **stated)
    ours = convert("hf", "mindspore", two_labels, tmp_path / "ours", labels=given)
    assert read_task_info(ours) == head_of("classification", *labels)


@pytest.mark.parametrize(
    ("stated", "settings", "named"),
    [
        (NAMES, {"labels": ("good", "bad")}, r"--labels is good, bad, .* bad, good"),
        ({}, {"labels": ("bad",)}, "--labels has 1"),
        ({}, {"task": "squad_v1"}, r"--task is squad_v1, .* classification"),
    ],
)
def test_labels_and_tasks_that_do_not_fit_the_head_are_refused(
    two_labels: Path, tmp_path: Path, stated: dict, settings: dict, named: str
) -> None:
    state(two_labels, **stated)
    with pytest.raises(ConfigError, match=named):
        convert("hf", "mindspore", two_labels, tmp_path / "ours", **settings)


# --- what cannot be converted ---


def change_weights(folder: Path, changes: dict[str, Any]) -> None:
    """Add or replace weights; None leaves one out."""
    changed = load_file(folder / "model.safetensors") | changes
    save_file({name: value for name, value in changed.items() if value is not None}, folder / "model.safetensors")


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def state(folder: Path, **changed: Any) -> None:
    stated = read_json_file(folder / "config.json")
    (folder / "config.json").write_text(json.dumps(stated | changed))


def rename(folder: Path, prefix: str, but: str = " ") -> None:
    """Put a prefix before all names of weights that do not begin with `but`."""
    tensors = load_file(folder / "model.safetensors")
    renamed = {name if name.startswith(but) else prefix + name: value for name, value in tensors.items()}
    save_file(renamed, folder / "model.safetensors")


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module._orig_mod.", "a.albert.model."])
@pytest.mark.parametrize("bare", [False, True])
def test_a_prefix_of_all_names_is_left_out(
    tmp_path: Path, prefix: str, bare: bool, caplog: pytest.LogCaptureFixture
) -> None:
    values = random_values(SMALL, ("albert.",))
    theirs = write_hugging_face(tmp_path / "hf", SMALL, values, bare)
    rename(theirs, prefix)
    with caplog.at_level("INFO"):
        ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert_same_bits(own_weights(ours), values)
    assert f"'{prefix}'" in caplog.text


LAYER_BIAS = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json cannot be read"),
    "config no json": (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is damaged"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"neither model\.safetensors"),
    "cut": (cut_weights, r"model\.safetensors is damaged"),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), r"model\.safetensors is damaged"),
    "pointer": (lambda folder: (folder / "model.safetensors").write_text(POINTER), "git lfs pull"),
    "no truth": (
        lambda folder: (folder / "tokenizer_config.json").write_text('{"do_lower_case": "false"}'),
        r"tokenizer_config\.json: do_lower_case is 'false'",
    ),
    "wrapped": (lambda folder: rename(folder, "module.", "classifier"), r"'module\.albert\."),
    "missing": (lambda folder: change_weights(folder, {LAYER_BIAS: None}), f"missing {re.escape(LAYER_BIAS)}"),
    "left over": (lambda folder: change_weights(folder, {"cls.extra": np.zeros(2, "f4")}), r"unexpected cls\.extra"),
    "not finite": (
        lambda folder: change_weights(folder, {"albert.pooler.weight": np.full((24, 24), np.nan, np.float32)}),
        r"not finite: albert\.pooler\.weight",
    ),
    "no array": (
        lambda folder: change_weights(folder, {"classifier.bias": np.ones((), "f4")}),
        r"classifier\.bias is \(\)",
    ),
}
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "other size": ({"intermediate_size": 41}, r"\(40, 24\), .*\(41, 24\)"),
    "fewer groups": ({"num_hidden_groups": 1}, r"unexpected albert\.encoder\.albert_layer_groups\.1"),
    "more groups": ({"num_hidden_groups": 3}, r"missing albert\.encoder\.albert_layer_groups\.2"),
    "too large": ({"vocab_size": 10**7, "embedding_size": 2**16}, "memory"),
    "two labels": ({"id2label": {"0": "a", "1": "b"}}, r"2 labels, .* 3"),
    "bad labels": ({"id2label": {"a": "b"}}, r"id2label\.a"),
    "gaps": ({"id2label": {"0": "a", "1": "b", "7": "c"}}, "id2label .*0, 1, 7"),
    "no length": ({"albert_mindspore": {"max_seq_length": "long"}}, r"albert_mindspore\.max_seq_length is 'long'"),
    "no size": ({"albert_mindspore": {"classifier_hidden_size": -1}}, r"mindspore\.classifier_hidden_size is -1"),
    "other head": ({"architectures": ["AlbertForQuestionAnswering"]}, "squad_v1"),
    "several labels": ({"problem_type": "multi_label_classification"}, "exclude each other"),
    "several scores": ({"problem_type": "regression"}, "problem_type is regression with 3 outputs"),
    "some problem": ({"problem_type": "riddle"}, "problem_type is 'riddle'"),
}


@pytest.mark.parametrize("damage", [*DAMAGES, *MISFITS])
def test_a_damaged_folder_is_an_error_and_leaves_nothing(tmp_path: Path, damage: str) -> None:
    theirs = write_case(tmp_path / "hf", "classification", GROUPED)
    if damage in DAMAGES:
        apply, named = DAMAGES[damage]
        apply(theirs)
    else:
        changes, named = MISFITS[damage]
        state(theirs, **changes)
    with pytest.raises(UserError, match=named):
        convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


@pytest.mark.parametrize(
    ("config", "parts", "task", "named"),
    [
        (SMALL.replace(share_parameters="ffn"), PRE_TRAINING, None, "share ffn alone"),
        (SMALL.replace(use_relative_positions=True), PRE_TRAINING, None, "relative positions"),
        (SMALL, ("albert.", "start_", "end_", "answer_"), head_of("squad_v2"), "no ALBERT with such a beam search"),
        (SMALL, ("albert.", "classifier."), None, "give --task"),
        (SMALL, (*PRE_TRAINING, "classifier."), head_of("regression"), "and for pre-training"),
        (SMALL, ("albert.", "classifier.", "qa_outputs."), None, "several fine-tuned heads"),
    ],
    ids=["ffn", "relative", "beam", "unknown task", "two kinds of heads", "two heads"],
)
def test_models_without_a_counterpart(
    tmp_path: Path, config: AlbertConfig, parts: tuple[str, ...], task: TaskInfo | None, named: str
) -> None:
    ours = write_ours(tmp_path, config, random_values(config, parts, 1), task)
    with pytest.raises(UserError, match=named):
        convert("mindspore", "hf", ours, tmp_path / "hf")


def test_hidden_layer_before_the_classifier_has_no_counterpart(tmp_path: Path) -> None:
    values = random_values(SMALL, ("albert.",))
    shapes = weight_shapes(SMALL, outputs=2, between=5)
    values |= {name: np.ones(shape, np.float32) for name, shape in shapes.items() if name.startswith("classifier")}
    ours = write_ours(tmp_path, SMALL, values, head_of("classification", "a", "b"))
    with pytest.raises(CheckpointError, match="hidden layer before its classifier"):
        convert("mindspore", "hf", ours, tmp_path / "hf")


def test_own_checkpoint_needs_its_architecture(tmp_path: Path) -> None:
    ours = write_ours(tmp_path, SMALL, random_values(SMALL, PRE_TRAINING))
    (ours / "albert_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"albert_config\.json"):
        convert("mindspore", "hf", ours / "albert-0.ckpt", tmp_path / "hf")


def test_uneven_groups_that_formats_count_differently_are_refused(tmp_path: Path) -> None:
    """Published models have one group; with groups of equal size and usual depths all formats agree."""
    deep = SMALL.replace(num_hidden_layers=18, num_hidden_groups=14)
    theirs = write_hugging_face(tmp_path / "hf", deep, random_values(deep, ("albert.",)))
    with pytest.raises(CheckpointError, match="18 layers in 14 groups: layer 9 is in group 6 for hf and in 7"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")
    for layers in (4, 6, 12, 24):
        for groups in (groups for groups in range(1, layers + 1) if layers % groups == 0):
            for layer in range(layers):
                assert len({group(layer, layers, groups) for group in GROUP_OF.values()}) == 1


def test_output_that_exists_is_refused(tmp_path: Path) -> None:
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, ("albert.",)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for path in (tmp_path / "full", tmp_path / "full/file", Path("~/new")):
        with pytest.raises(ConfigError, match=f"output {path}|output is {path}"):
            convert("hf", "mindspore", theirs, path)
    (tmp_path / "empty").mkdir()
    convert("hf", "mindspore", theirs, tmp_path / "empty")


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    ours = write_ours(tmp_path, SMALL, random_values(SMALL, PRE_TRAINING))
    with no_file_beyond(5000), pytest.raises(CheckpointError, match="File too large"):
        convert("mindspore", "hf", ours, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_command(tmp_path: Path) -> None:
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    command = [sys.executable, "-m", "model_utils.convert_ckpt", "--source", "hf", "--target", "mindspore"]
    command += ["--input", str(theirs), "--output", str(tmp_path / "ours")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "(albert, mlm, sop); 0 missing: none; 0 unexpected: none" in done.stdout
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {"albert-0.ckpt", "albert_config.json"}
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert again.stderr.startswith("error: the output ")
    assert again.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"source": "hf", "target": "hf"}, "nothing to convert"), ({"source": "torch"}, "allowed is one of")],
)
def test_configuration(settings: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ConvertConfig(**settings)
