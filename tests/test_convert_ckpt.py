"""Conversions: every weight arrives with identical bits, labels and vocabulary with it; anything else is a sentence."""

import json
import resource
import subprocess
import sys
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
from src.conversion.hugging_face_folder import HEAD_NAMES
from src.conversion.weight_names import google_names, hugging_face_names, is_training_state
from src.model_folder import ModelFolder, read_task_info
from src.tasks import HEADS
from src.tasks.entities import Scheme
from src.tasks.task_info import TaskInfo
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
from tests.helpers.trained_folders import head_of, make_folder

ROOT = Path(__file__).resolve().parents[1]
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

CASES = {
    "pre-training": (PRE_TRAINING, 0, {"architectures": ["AlbertForPreTraining"]}, None),
    "masked tokens": (("albert.", "mlm."), 0, {"architectures": ["AlbertForMaskedLM"]}, None),
    "backbone": (("albert.",), 0, {"architectures": ["AlbertModel"]}, None),
    "classification": (
        ("albert.", "classifier."),
        3,
        {"architectures": ["AlbertForSequenceClassification"], "id2label": LABELS},
        head_of("classification", *LABELS.values()),
    ),
    "regression": (
        ("albert.", "classifier."),
        1,
        {"architectures": ["AlbertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
        head_of("regression"),
    ),
    "choices": (
        ("albert.", "classifier."),
        1,
        {"architectures": ["AlbertForMultipleChoice"]},
        head_of("multiple_choice"),
    ),
    "tokens": (
        ("albert.", "classifier."),
        3,
        {"architectures": ["AlbertForTokenClassification"], "id2label": LABELS},
        head_of("token_classification", *LABELS.values()),
    ),
    "questions": (
        ("albert.", "qa_outputs."),
        0,
        {"architectures": ["AlbertForQuestionAnswering"]},
        head_of("squad_v1"),
    ),
}


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [("O,B-PER,I-PER", Scheme.ENTITIES), ("O,B,I", Scheme.SPANS), ("NN,VB,DT", Scheme.WORDS), ("O,a,b", Scheme.WORDS)],
)
def test_the_scheme_of_tags_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: str, scheme: Scheme
) -> None:
    described = {"architectures": ["AlbertForTokenClassification"], "id2label": dict(enumerate(labels.split(",")))}
    values = random_values(SMALL, ("albert.embeddings.", "albert.encoder.", "classifier."), 3)
    theirs = write_hugging_face(tmp_path / "hf", SMALL, values, bare=False, **described)
    convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert f"tags are {scheme.value}" in capsys.readouterr().out


@pytest.mark.parametrize("config", [SMALL, GROUPED], ids=["shared", "grouped"])
@pytest.mark.parametrize("case", CASES)
def test_there_and_back_again(tmp_path: Path, case: str, config: AlbertConfig) -> None:
    parts, outputs, described, task = CASES[case]
    values = random_values(config, parts, outputs)
    if case in ("masked tokens", "tokens", "questions"):  # transformers' have no pooler
        values = {name: value for name, value in values.items() if not name.startswith("albert.pooler")}
    theirs = write_hugging_face(tmp_path / "hf", config, values, bare=case == "backbone", **described)
    ours = convert("hf", "mindspore", theirs, tmp_path / "new/ours")
    assert_same_bits({name: value for name, value in own_weights(ours).items() if name in values}, values)
    assert AlbertConfig.from_json(ours / "albert_config.json") == config
    assert read_task_info(ours) == task
    back = convert("mindspore", "hf", ours, tmp_path / "back")
    assert_same_bits(load_file(back / "model.safetensors"), load_file(theirs / "model.safetensors"))
    stated = json.loads((back / "config.json").read_text())
    assert AlbertConfig.from_json(back / "config.json") == config
    assert {key: stated.get(key) for key in described} == described


@pytest.mark.parametrize("task", [task for task in HEADS if task != "squad_v2"])
def test_how_a_model_is_used_goes_there_and_back(tmp_path: Path, task: str) -> None:
    """task.json says lengths, strides, columns: without them the same weights answer otherwise."""
    settings = {"max_seq_length": 24, "doc_stride": 3, "classifier_hidden_size": 0, "text_columns": {"text": "review"}}
    ours = make_folder(tmp_path / "ours", task, **settings, language="zh")
    before = folder_state(ours)
    there = convert("mindspore", "hf", ours, tmp_path / "hf")
    assert folder_state(ours) == before
    back = convert("hf", "mindspore", there, tmp_path / "back")
    assert read_json_file(back / "task.json") == read_json_file(ours / "task.json")
    tokenizer = "tokenizer_config.json"
    assert read_json_file(back / tokenizer) == read_json_file(ours / tokenizer)


def test_what_a_foreign_file_says_about_use_changes_neither_task_nor_labels(tmp_path: Path) -> None:
    values = random_values(SMALL, ("albert.", "classifier."), 3)
    said = {"task": "squad_v1", "labels": ["x"], "max_seq_length": 24}
    described = {"architectures": ["AlbertForSequenceClassification"], "id2label": LABELS, "albert_mindspore": said}
    ours = convert(
        "hf", "mindspore", write_hugging_face(tmp_path / "hf", SMALL, values, **described), tmp_path / "ours"
    )
    assert read_task_info(ours).explicit_values() == {
        "task": "classification",
        "labels": list(LABELS.values()),
        "max_seq_length": 24,
    }


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


def test_what_a_class_of_transformers_does_not_say_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """It has one class for SQuAD 1.1 and 2.0."""
    for case, is_told in (("questions", True), ("choices", False)):
        parts, outputs, described, _ = CASES[case]
        theirs = write_hugging_face(tmp_path / case, SMALL, random_values(SMALL, parts, outputs), **described)
        convert("hf", "mindspore", theirs, tmp_path / f"{case} here")
        assert ("answers every question" in capsys.readouterr().out) == is_told


def test_layers_that_share_nothing_become_groups(tmp_path: Path) -> None:
    alone = SMALL.replace(share_parameters="none", inner_group_num=2)
    values = random_values(alone, PRE_TRAINING)
    theirs = convert("mindspore", "hf", write_ours(tmp_path, alone, values), tmp_path / "hf")
    config = AlbertConfig.from_json(theirs / "config.json")
    assert config == alone.replace(share_parameters="all", num_hidden_groups=4)
    back = convert("hf", "mindspore", theirs, tmp_path / "back")
    assert_same_bits(own_weights(back), values)


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
    pointer = "version https://git-lfs.github.com/spec/v1\noid x\n"
    (theirs / "tf_model.h5").write_text(pointer)  # which nobody needs
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    (theirs / "model-1.safetensors").write_text(pointer)
    with pytest.raises(CheckpointError, match=r"model-1\.safetensors is git-lfs's pointer"):
        convert("hf", "mindspore", theirs, tmp_path / "other")
    assert_same_bits(
        own_weights(ours), {key: value.astype(np.float16).astype(np.float32) for key, value in values.items()}
    )


def test_weights_can_be_stored_in_half_precision(tmp_path: Path) -> None:
    values = random_values(SMALL, PRE_TRAINING)
    ours = write_ours(tmp_path, SMALL, values)
    rounded = {name: value.astype(np.float16) for name, value in values.items()}
    half = convert("mindspore", "mindspore", ours, tmp_path / "half", dtype="float16")
    assert_same_bits(own_weights(half), rounded)
    theirs = convert("mindspore", "hf", half, tmp_path / "theirs", dtype="float16")
    assert {value.dtype.name for value in load_file(theirs / "model.safetensors").values()} == {"float16"}
    assert read_json_file(theirs / "config.json")["dtype"] == "float16"
    back = convert("hf", "mindspore", theirs, tmp_path / "back")
    assert_same_bits(own_weights(back), {name: value.astype(np.float32) for name, value in rounded.items()})
    values["mlm.bias"][0] = 1e5
    large = write_ours(tmp_path / "large", SMALL, values)
    with pytest.raises(CheckpointError, match=r"mlm\.bias"):
        convert("mindspore", "hf", large, tmp_path / "large/theirs", dtype="float16")


def test_copies_and_constants_of_older_files_are_passed_over(tmp_path: Path) -> None:
    values = random_values(SMALL, PRE_TRAINING)
    theirs = write_hugging_face(tmp_path / "hf", SMALL, values)
    tensors = load_file(theirs / "model.safetensors")
    copies = {
        "predictions.decoder.weight": values["albert.embeddings.word_embeddings"],
        "predictions.decoder.bias": values["mlm.bias"],
        "albert.embeddings.position_ids": np.arange(20)[None],
    }
    save_file(tensors | copies, theirs / "model.safetensors")
    assert_same_bits(own_weights(convert("hf", "mindspore", theirs, tmp_path / "ours")), values)
    unused = {"predictions.decoder.bias": np.zeros_like(values["mlm.bias"])}
    save_file(tensors | copies | unused, theirs / "model.safetensors")
    assert_same_bits(own_weights(convert("hf", "mindspore", theirs, tmp_path / "unused")), values)
    save_file(tensors | copies | {"predictions.decoder.bias": values["mlm.bias"] + 1}, theirs / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"predictions.decoder.bias differs from predictions.bias"):
        convert("hf", "mindspore", theirs, tmp_path / "other")


@pytest.mark.parametrize(("described", "activation"), [({"model_type": "albert"}, "gelu"), ({}, "gelu")])
def test_gelu_is_what_its_writer_computes(tmp_path: Path, described: dict, activation: str) -> None:
    exact = SMALL.replace(hidden_act="gelu")
    theirs = write_hugging_face(tmp_path / "hf", exact, random_values(exact, ("albert.",)))
    stated = json.loads((theirs / "config.json").read_text())
    del stated["model_type"]
    (theirs / "config.json").write_text(json.dumps(stated | described))
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert AlbertConfig.from_json(ours / "albert_config.json").hidden_act == activation


def test_labels_from_the_command_line(tmp_path: Path) -> None:
    values = random_values(SMALL, ("albert.", "classifier."), 2)
    theirs = write_hugging_face(tmp_path / "hf", SMALL, values, architectures=["AlbertForSequenceClassification"])
    assert read_task_info(convert("hf", "mindspore", theirs, tmp_path / "a")).labels == ("LABEL_0", "LABEL_1")
    named = convert("hf", "mindspore", theirs, tmp_path / "b", labels=("bad", "good"))
    assert read_task_info(named) == head_of("classification", "bad", "good")
    state(theirs, id2label={"0": "bad", "1": "good"})
    assert (
        read_task_info(convert("hf", "mindspore", theirs, tmp_path / "d", labels=("bad", "good"))).labels[1] == "good"
    )
    with pytest.raises(ConfigError, match=r"labels is \['good', 'bad'\], but .* names them bad, good"):
        convert("hf", "mindspore", theirs, tmp_path / "c", labels=("good", "bad"))
    state(theirs, id2label=None)
    with pytest.raises(ConfigError, match="the head has 2 outputs, the labels are bad"):
        convert("hf", "mindspore", theirs, tmp_path / "c", labels=("bad",))
    with pytest.raises(ConfigError, match=r"task is 'squad_v1', but .* is for classification"):
        convert("hf", "mindspore", theirs, tmp_path / "c", task="squad_v1")


# --- what cannot be converted ---


def drop_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"]
    save_file(tensors, folder / "model.safetensors")


def add_weight(folder: Path) -> None:
    save_file(
        load_file(folder / "model.safetensors") | {"cls.extra": np.zeros(2, np.float32)}, folder / "model.safetensors"
    )


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def state(folder: Path, **changed: Any) -> None:
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | changed))


def change_pooler(folder: Path, value: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["albert.pooler.weight"][0, 0] = value
    save_file(tensors, folder / "model.safetensors")


def change_bias(folder: Path, value: np.ndarray) -> None:
    save_file(
        load_file(folder / "model.safetensors") | {"classifier.bias": np.array(value)}, folder / "model.safetensors"
    )


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


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json cannot be read"),
    "config no json": (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is damaged or not JSON"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds neither model.safetensors nor"),
    "cut": (cut_weights, r"model\.safetensors is damaged or truncated"),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "damaged or truncated"),
    "missing": (drop_weight, r"missing albert\.encoder\.albert_layer_groups\.0\.albert_layers\.0\.ffn\.bias"),
    "wrapped": (
        lambda folder: rename(folder, "module.", "classifier"),
        r"'module\.albert\..*' is inside another module",
    ),
    "left over": (add_weight, r"unexpected cls\.extra"),
    "other size": (lambda folder: state(folder, intermediate_size=41), r"\(40, 24\), by the architecture \(41, 24\)"),
    "fewer groups": (
        lambda folder: state(folder, num_hidden_groups=1),
        "unexpected albert.encoder.albert_layer_groups.1",
    ),
    "more groups": (lambda folder: state(folder, num_hidden_groups=3), "missing albert.encoder.albert_layer_groups.2"),
    "two labels": (
        lambda folder: state(folder, id2label={"0": "a", "1": "b"}),
        "the head has 3 outputs, the labels are a, b",
    ),
    "bad labels": (lambda folder: state(folder, id2label={"a": "b"}), r"id2label\.a.* allowed is a number from 0"),
    "no length": (
        lambda folder: state(folder, albert_mindspore={"max_seq_length": "long"}),
        r"config\.json: max_seq_length is 'long', allowed is a valid integer",
    ),
    "no size": (
        lambda folder: state(folder, albert_mindspore={"classifier_hidden_size": -1}),
        r"config\.json: classifier_hidden_size is -1, allowed is greater than or equal to 0",
    ),
    "no truth": (
        lambda folder: (folder / "tokenizer_config.json").write_text('{"do_lower_case": "false"}'),
        r"tokenizer_config\.json: do_lower_case is 'false', allowed is a valid boolean",
    ),
    "other head": (lambda folder: state(folder, architectures=["AlbertForQuestionAnswering"]), "not for squad_v1"),
    "several scores": (
        lambda folder: state(folder, problem_type="regression"),
        "problem_type is regression with 3 outputs; allowed here is one",
    ),
    "some problem": (lambda folder: state(folder, problem_type="riddle"), "problem_type is 'riddle', allowed is"),
    "gaps": (
        lambda folder: state(folder, id2label={"0": "a", "1": "b", "7": "c"}),
        "id2label has the numbers 0, 1, 7, needed are 0, 1",
    ),
    "too large": (lambda folder: state(folder, vocab_size=10**7, embedding_size=2**16), "this machine's memory has"),
    "not finite": (lambda folder: change_pooler(folder, np.nan), r"not finite in float32: albert\.pooler\.weight"),
    "no array": (lambda folder: change_bias(folder, np.float32(1)), r"classifier\.bias is \(\), by the architecture"),
    "pointer": (
        lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid x\n"),
        r"model\.safetensors is git-lfs's pointer to the file: run `git lfs pull`",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folder_is_a_sentence_and_leaves_nothing(tmp_path: Path, damage: str) -> None:
    values = random_values(GROUPED, ("albert.", "classifier."), 3)
    described = {"architectures": ["AlbertForSequenceClassification"], "id2label": LABELS}
    theirs = write_hugging_face(tmp_path / "hf", GROUPED, values, **described)
    apply, sentence = DAMAGES[damage]
    apply(theirs)
    with pytest.raises(UserError, match=sentence):
        convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


@pytest.mark.parametrize(
    ("config", "parts", "task", "sentence"),
    [
        (SMALL.replace(share_parameters="ffn"), PRE_TRAINING, None, "share_parameters ffn"),
        (SMALL.replace(use_relative_positions=True), PRE_TRAINING, None, "relative positions"),
        (SMALL, ("albert.", "start_", "end_", "answer_"), head_of("squad_v2"), "a head for squad_v2"),
        (SMALL, ("albert.", "classifier."), None, "task is missing"),
        (SMALL, (*PRE_TRAINING, "classifier."), head_of("regression"), "and for pre-training"),
        (SMALL, ("albert.", "classifier.", "qa_outputs."), None, "several fine-tuned heads"),
    ],
    ids=["ffn", "relative", "beam", "unknown task", "two kinds of heads", "two heads"],
)
def test_models_without_a_counterpart(
    tmp_path: Path, config: AlbertConfig, parts: tuple[str, ...], task: TaskInfo | None, sentence: str
) -> None:
    ours = write_ours(tmp_path, config, random_values(config, parts, 1), task)
    with pytest.raises(UserError, match=sentence):
        convert("mindspore", "hf", ours, tmp_path / "hf")


def test_hidden_layer_before_the_classifier_has_no_counterpart(tmp_path: Path) -> None:
    values = random_values(SMALL, ("albert.",))
    shapes = weight_shapes(SMALL, outputs=2, classifier_hidden_size=5)
    values |= {name: np.ones(shape, np.float32) for name, shape in shapes.items() if name.startswith("classifier")}
    ours = write_ours(tmp_path, SMALL, values, head_of("classification", "a", "b"))
    with pytest.raises(CheckpointError, match="hidden layer before its classifier"):
        convert("mindspore", "hf", ours, tmp_path / "hf")


@pytest.mark.parametrize(
    ("task", "option"),
    [("token_classification", "crf"), ("token_classification", "mark_capitals"), ("squad_v1", "mark_shared")],
)
def test_options_without_a_counterpart(tmp_path: Path, task: str, option: str) -> None:
    ours = make_folder(tmp_path / "run", task, **{option: True})
    with pytest.raises(CheckpointError, match=rf"the model .*{option}.* transformers"):
        convert("mindspore", "hf", ours, tmp_path / "hf")
    half = ModelFolder.load(convert("mindspore", "mindspore", ours, tmp_path / "half", dtype="float16"))
    assert half.task_info == ModelFolder.load(ours).task_info
    assert option != "crf" or half.weights["crf.first.bias"].any()


def test_own_checkpoint_needs_its_architecture(tmp_path: Path) -> None:
    ours = write_ours(tmp_path, SMALL, random_values(SMALL, PRE_TRAINING))
    (ours / "albert_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no albert_config\.json lies .*ours"):
        convert("mindspore", "hf", ours / "albert-0.ckpt", tmp_path / "hf")


def test_groups_of_unequal_sizes_are_refused(tmp_path: Path) -> None:
    """Formats count them differently."""
    deep = SMALL.replace(num_hidden_layers=18, num_hidden_groups=14)
    theirs = write_hugging_face(tmp_path / "hf", deep, random_values(deep, ("albert.",)))
    with pytest.raises(CheckpointError, match="18 layers in 14 groups"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


def test_output_that_exists_is_refused(tmp_path: Path) -> None:
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, ("albert.",)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for path in (tmp_path / "full", tmp_path / "full/file"):
        with pytest.raises(ConfigError, match="exists and is not an empty folder"):
            convert("hf", "mindspore", theirs, path)
    (tmp_path / "empty").mkdir()
    convert("hf", "mindspore", theirs, tmp_path / "empty")
    with pytest.raises(ConfigError, match="output is '~/new', "):
        convert("hf", "mindspore", theirs, Path("~/new"))


def test_a_disk_that_is_full_is_a_sentence(tmp_path: Path) -> None:
    ours = write_ours(tmp_path, SMALL, random_values(SMALL, PRE_TRAINING))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*theirs"):
            convert("mindspore", "hf", ours, tmp_path / "theirs")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "theirs").exists()


def test_command(tmp_path: Path) -> None:
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    command = [sys.executable, "-m", "model_utils.convert_ckpt", "--source", "hf", "--target", "mindspore"]
    words = ["--input", str(theirs), "--output", str(tmp_path / "ours")]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "matched (albert, mlm, sop); 0 missing: none; 0 unexpected: none" in done.stdout
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {"albert-0.ckpt", "albert_config.json"}
    again = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and again.stderr.startswith("error: output is ") and again.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"source": "hf", "target": "hf"}, "give another one, or a dtype"), ({"source": "torch"}, "allowed is one of")],
)
def test_configuration(settings: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ConvertConfig(**settings)
