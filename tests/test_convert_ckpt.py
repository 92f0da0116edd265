"""Conversions: every weight arrives with identical bits, labels and vocabulary with it; anything else is a sentence."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import log_softmax
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer

from model_utils import convert_ckpt
from model_utils.convert_ckpt import ConvertConfig
from model_utils.errors import CheckpointError, ConfigError, DataError, UserError
from src import finetune_eval_model as heads
from src.albert_config import AlbertConfig
from src.albert_for_pre_training import PreTrainingScores
from src.checkpoint_files import Checkpoint, find_checkpoint, load_backbone
from src.conversion import google_checkpoint
from src.conversion.checks import weight_shapes
from src.conversion.convert import GROUP_OF
from src.conversion.hf_names import hugging_face_names
from src.conversion.hugging_face_folder import HEAD_NAMES
from src.conversion.own_folder import write_own
from src.conversion.tf_names import from_google, google_names, is_training_state
from src.conversion.tokenizer_json import build_tokenizer_json, extract_vocabulary
from src.model_folder import ModelFolder, load_tokenizer, read_task_info
from src.tasks import FINE_TUNED
from src.tasks.task_info import TaskInfo
from src.tokenization import FullTokenizer
from tests.helpers import google_figures
from tests.helpers.converted_outputs import computed, pre_training_outputs
from tests.helpers.folder_state import folder_state
from tests.helpers.small_text import train_model, write_text
from tests.helpers.trained_folders import head_of, make_folder

ROOT = Path(__file__).resolve().parents[1]
GOOGLE_TASKS = {
    "pretrain": "",
    "classifier": "",
    "sts-b": "regression",
    "race": "multiple_choice",
    "squad_v1": "",
    "squad_v2_train": "",
    "squad_v2_infer": "",
}
GOOGLE_HEADS = {
    "classifier": lambda config: heads.SequenceClassificationScores(config, 3),
    "sts-b": lambda config: heads.SequenceClassificationScores(config, 1),
    "race": lambda config: heads.MultipleChoiceScores(config, 4),
    "squad_v1": heads.QuestionAnsweringScores,
    "squad_v2_infer": lambda config: heads.SpanSearchScores(config, 5, 5),
}
SMALL = AlbertConfig(
    vocab_size=900,
    embedding_size=8,
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=20,
    classifier_dropout_prob=0.2,
    hidden_dropout_prob=0.1,
    layer_norm_eps=1e-6,
)
GROUPED = SMALL.replace(num_hidden_groups=2, inner_group_num=2)
PRE_TRAINING = ("albert.", "mlm.", "sop.")
LABELS = {"0": "negativ", "1": "猫, with a comma", "2": "neutral"}


def random_values(config: AlbertConfig, parts: tuple[str, ...], outputs: int = 0) -> dict[str, np.ndarray]:
    """Random weights under this project's names, those that begin with one of `parts`."""
    generator = np.random.default_rng(3)
    shapes = weight_shapes(config, outputs)
    return {
        name: generator.standard_normal(shape, np.float32)
        for name, shape in shapes.items()
        if name.startswith(parts) and not name.startswith("classifier_hidden")
    }


def sizes(config: AlbertConfig) -> dict[str, Any]:
    """The keys that google's and Hugging Face's files have."""
    own = {"share_parameters", "use_relative_positions", "max_relative_position", "compute_type", "recompute"}
    return {key: value for key, value in config.to_dict().items() if key not in own}


def write_hugging_face(
    folder: Path, config: AlbertConfig, values: dict[str, np.ndarray], bare: bool = False, **described: Any
) -> Path:
    """A folder as transformers writes it, made without this project's writer."""
    folder.mkdir(parents=True)
    names = hugging_face_names(config.num_hidden_groups, config.inner_group_num)
    tensors = {names.get(name, name).removeprefix("albert." if bare else ""): value for name, value in values.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "albert", **sizes(config), **described}))
    return folder


def convert(source: str, target: str, given: Path, output: Path, **settings: Any) -> Path:
    """The command's own main."""
    convert_ckpt.main(ConvertConfig(source=source, target=target, input=str(given), output=str(output), **settings))
    return output


def read_json_file(file: Path) -> Any:
    return json.loads(file.read_text())


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        assert found[name].tobytes() == value.tobytes(), name


def own_weights(folder: Path) -> dict[str, np.ndarray]:
    return find_checkpoint(folder).values


# --- names ---


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


def test_googles_figures_have_these_names_and_no_others(golden: Path) -> None:
    names, seen = google_names(), set()
    for task in GOOGLE_TASKS:
        with np.load(golden / "google" / task / "io.npz") as figures:
            seen |= {key.removeprefix("param0/") for key in figures.files if key.startswith("param0/")}
    assert seen == set(names.values())


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


ASKED = {
    "classification": {"text_a": "a film, so long that it is cut. good"},
    "squad_v1": {
        "context": "the lake of geneva lies in the west of the country, where it is deep",
        "question": "where",
    },
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
    values = random_values(SMALL, ("albert.", "classifier."), 3)
    said = {"task": "squad_v1", "labels": ["x"], "max_seq_length": 24}
    described = {"architectures": ["AlbertForSequenceClassification"], "id2label": LABELS, "albert_mindspore": said}
    ours = convert(
        "hf", "mindspore", write_hugging_face(tmp_path / "hf", SMALL, values, **described), tmp_path / "ours"
    )
    assert read_task_info(ours).stated() == {
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


def test_layers_that_share_nothing_become_groups(tmp_path: Path) -> None:
    alone = SMALL.replace(share_parameters="none", inner_group_num=2)
    values = random_values(alone, PRE_TRAINING)
    theirs = convert("mindspore", "hf", write_ours(tmp_path, alone, values), tmp_path / "hf")
    config = AlbertConfig.from_json(theirs / "config.json")
    assert config == alone.replace(share_parameters="all", num_hidden_groups=4)
    back = convert("hf", "mindspore", theirs, tmp_path / "back")
    assert_same_bits(own_weights(back), values)


def write_ours(folder: Path, config: AlbertConfig, values: dict[str, np.ndarray], task: TaskInfo | None = None) -> Path:
    folder = folder / "ours"
    write_own(ModelFolder(config, task_info=task, checkpoint=Checkpoint(folder, values, {})), folder)
    return folder


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
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert_same_bits(
        own_weights(ours), {key: value.astype(np.float16).astype(np.float32) for key, value in values.items()}
    )


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
    with pytest.raises(ConfigError, match="--labels has 1 labels, the head has 2 outputs"):
        convert("hf", "mindspore", theirs, tmp_path / "c", labels=("bad",))
    with pytest.raises(ConfigError, match=r"--task is squad_v1, but .* is for classification"):
        convert("hf", "mindspore", theirs, tmp_path / "c", task="squad_v1")


# --- vocabulary ---


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    return train_model(folder, write_text(folder, 100))


@pytest.fixture(scope="module")
def wordpiece_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "天", "##s", *(f"word{i}" for i in range(891))]
    file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return file


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", ["sentencepiece_model", "wordpiece_vocabulary"])
def test_vocabulary_goes_along(tmp_path: Path, request: pytest.FixtureRequest, kind: str, lower: bool) -> None:
    file = request.getfixturevalue(kind)
    name, files = ("spiece.model", (None, file)) if kind == "sentencepiece_model" else ("vocab.txt", (file, None))
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    shutil.copy(file, theirs / name)
    (theirs / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    ours = convert("hf", "mindspore", theirs, tmp_path / "ours")
    text = "The words of 天, (2018,) Straße."
    expected = FullTokenizer(files[0], lower, files[1]).encode(text)
    assert load_tokenizer(ours).encode(text) == expected
    back = convert("mindspore", "hf", ours, tmp_path / "back")
    assert (back / name).read_bytes() == file.read_bytes()
    settings = json.loads((back / "tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is lower and settings["model_max_length"] == 20
    assert settings["tokenizer_class"] == ("PreTrainedTokenizerFast" if name == "spiece.model" else "BertTokenizer")
    if name == "spiece.model":
        written = Tokenizer.from_file(str(back / "tokenizer.json"))
        assert written.encode(text, add_special_tokens=False).ids == expected


def test_other_kinds_of_sentencepiece_models_have_no_tokenizer_there(sentencepiece_model: Path) -> None:
    proto = ModelProto.FromString(sentencepiece_model.read_bytes())
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    with pytest.raises(DataError, match="is no Unigram model, which transformers' ALBERT needs"):
        build_tokenizer_json(proto.SerializeToString(), True)


def test_vocabulary_of_another_size_is_refused(tmp_path: Path, sentencepiece_model: Path) -> None:
    larger = SMALL.replace(vocab_size=901)
    theirs = write_hugging_face(tmp_path / "hf", larger, random_values(larger, PRE_TRAINING))
    shutil.copy(sentencepiece_model, theirs / "spiece.model")
    with pytest.raises(DataError, match=r"900 entries and .* says 901"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


def test_tokenizer_that_keeps_accents_is_refused(tmp_path: Path, sentencepiece_model: Path) -> None:
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    shutil.copy(sentencepiece_model, theirs / "spiece.model")
    (theirs / "tokenizer_config.json").write_text('{"keep_accents": true}')
    with pytest.raises(DataError, match="keep_accents is True, the tokenization here has False"):
        convert("hf", "mindspore", theirs, tmp_path / "ours")


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "Unigram"}}', '{"model": {"type": "BPE"}}'])
def test_broken_tokenizer_json_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        extract_vocabulary(tmp_path / "tokenizer.json")


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


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json cannot be read"),
    "config no json": (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is damaged or not JSON"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds neither model.safetensors nor"),
    "cut": (cut_weights, r"model\.safetensors is damaged or truncated"),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "damaged or truncated"),
    "missing": (drop_weight, r"missing albert\.encoder\.albert_layer_groups\.0\.albert_layers\.0\.ffn\.bias"),
    "left over": (add_weight, r"unexpected cls\.extra"),
    "other size": (lambda folder: state(folder, intermediate_size=41), r"\(40, 24\), by the architecture \(41, 24\)"),
    "fewer groups": (
        lambda folder: state(folder, num_hidden_groups=1),
        "unexpected albert.encoder.albert_layer_groups.1",
    ),
    "more groups": (lambda folder: state(folder, num_hidden_groups=3), "missing albert.encoder.albert_layer_groups.2"),
    "two labels": (lambda folder: state(folder, id2label={"0": "a", "1": "b"}), "names 2 labels, the head has 3"),
    "bad labels": (
        lambda folder: state(folder, id2label={"a": "b"}),
        r"id2label\.a.* allowed is the number of an output",
    ),
    "no length": (
        lambda folder: state(folder, albert_mindspore={"max_seq_length": "long"}),
        r"albert_mindspore\.max_seq_length is 'long', allowed is a valid integer",
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
    "several labels": (lambda folder: state(folder, problem_type="multi_label_classification"), "exclude each other"),
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
    tmp_path: Path, config: AlbertConfig, parts: tuple[str, ...], task: TaskInfo | None, sentence: str
) -> None:
    ours = write_ours(tmp_path, config, random_values(config, parts, 1), task)
    with pytest.raises(UserError, match=sentence):
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
    with pytest.raises(CheckpointError, match=r"no albert_config\.json, which says how to use them, lies .*ours"):
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
    for path in (tmp_path / "full", tmp_path / "full/file"):
        with pytest.raises(ConfigError, match="exists and is not an empty folder"):
            convert("hf", "mindspore", theirs, path)
    (tmp_path / "empty").mkdir()
    convert("hf", "mindspore", theirs, tmp_path / "empty")


def test_command(tmp_path: Path) -> None:
    theirs = write_hugging_face(tmp_path / "hf", SMALL, random_values(SMALL, PRE_TRAINING))
    command = [sys.executable, "-m", "model_utils.convert_ckpt", "--source", "hf", "--target", "mindspore"]
    words = ["--input", str(theirs), "--output", str(tmp_path / "ours")]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "matched (albert, mlm, sop); 0 missing: none; 0 unexpected: none" in done.stdout
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {"albert-0.ckpt", "albert_config.json"}
    again = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and again.stderr.startswith("error: the output ") and again.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"source": "hf", "target": "hf"}, "nothing to convert"), ({"source": "torch"}, "allowed is one of")],
)
def test_configuration(settings: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ConvertConfig(**settings)


# --- google ---


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
        np.testing.assert_allclose(value.reshape(expected.shape), expected, atol=1e-5, rtol=1e-6, err_msg=name)


@pytest.mark.usefixtures("without_tensorflow")
def test_googles_pre_training_figures_after_conversion(golden: Path, tmp_path: Path) -> None:
    ours = convert("tf", "mindspore", golden / "google/pretrain", tmp_path / "ours")
    right = google_figures.load(golden / "google/pretrain")
    columns = (right["in"][name] for name in ("input_ids", "input_mask", "segment_ids"))
    sequence, pooled, mlm, sop = pre_training_outputs(ours, *columns)
    masked = np.take_along_axis(mlm, right["in"]["masked_lm_positions"][..., None], 1)
    for name, value in (
        ("sequence_output", sequence),
        ("pooled_output", pooled),
        ("mlm_log_probs", log_softmax(masked, -1).reshape((15, -1))),
        ("sop_log_probs", log_softmax(sop, -1)),
    ):
        np.testing.assert_allclose(value, right["out"][name], atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.usefixtures("without_tensorflow")
def test_task_that_google_does_not_tell(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    ours = convert("tf", "mindspore", golden / "google/race/model.ckpt-0", tmp_path / "ours")
    assert read_task_info(ours) is None and "regression or multiple_choice; --task" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="give --task"):
        convert("tf", "hf", golden / "google/race", tmp_path / "hf")


def test_tensorflow_missing_is_a_sentence(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-convert\.txt"):
        convert("tf", "mindspore", golden / "google/pretrain", tmp_path / "ours")


def test_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    for path, sentence in ((tmp_path / "model.ckpt-best", "is no folder, and"), (tmp_path, "it holds none")):
        with pytest.raises(CheckpointError, match=sentence):
            convert("tf", "mindspore", path, tmp_path / "ours")
    for name in ("a.index", "b.index"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match="2 checkpoints: a, b"):
        convert("tf", "mindspore", tmp_path, tmp_path / "ours")
    with pytest.raises(CheckpointError, match=r"no albert_config\.json lies beside .*a, in assets/"):
        convert("tf", "mindspore", tmp_path / "a.index", tmp_path / "ours")


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    return pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install -r requirements-convert.txt")


def write_google(tensorflow: Any, prefix: Path, variables: dict[str, np.ndarray]) -> None:
    """A TensorFlow checkpoint."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    tensorflow.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tensorflow.constant(value) for value in variables.values()],
    )


def as_google(values: dict[str, np.ndarray], config: AlbertConfig) -> dict[str, np.ndarray]:
    """Weights under google's names in google's orientation."""
    names = google_names(config.num_hidden_groups, config.inner_group_num)
    return {names[name]: value.T if names[name].endswith("kernel") else value for name, value in values.items()}


@pytest.mark.parametrize("task", GOOGLE_TASKS)
def test_googles_checkpoints_are_read(tensorflow: Any, golden: Path, task: str) -> None:
    prefix = google_checkpoint.find_prefix(golden / "google" / task)
    found, skipped = google_checkpoint.read_variables(prefix)
    assert_same_bits(found, figures(prefix.parent))
    assert skipped == 0


def test_published_layouts(tensorflow: Any, tmp_path: Path, sentencepiece_model: Path, capsys: Any) -> None:
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


def test_damaged_google_checkpoints(tensorflow: Any, golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden / "google/albert_config.json", tmp_path)
    data, index = "model.ckpt-0.data-00000-of-00001", "model.ckpt-0.index"
    for number, (file, keep, flip) in enumerate(
        [
            (data, 0.5, False),
            (data, 1, True),
            (data, 0, False),
            (index, 0.5, False),
            (index, 1, True),
            (index, 0, False),
        ]
    ):
        folder = tmp_path / f"broken{number}"
        folder.mkdir()
        for name in (data, index):
            content = bytearray((golden / "google/pretrain" / name).read_bytes())
            if name == file:
                content = content[: int(len(content) * keep)]
                if flip:
                    content[len(content) // 2] ^= 1
            (folder / name).write_bytes(content)
        with pytest.raises(CheckpointError, match="is damaged or incomplete"):
            convert("tf", "mindspore", folder, tmp_path / "ours")
    (folder / data).unlink()
    shutil.copy(golden / "google/pretrain" / index, folder / index)
    with pytest.raises(CheckpointError, match="is damaged or incomplete"):
        convert("tf", "mindspore", folder, tmp_path / "ours")


def test_left_over_google_variable(tensorflow: Any, golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden / "google/albert_config.json", tmp_path)
    variables = figures(golden / "google/pretrain")
    strange = {"bert/encoder/layer_shared/attention/self/query/kernel": np.ones((2, 2), np.float32)}
    write_google(tensorflow, tmp_path / "model.ckpt-1", variables | strange)
    with pytest.raises(CheckpointError, match="unexpected bert/encoder/layer_shared"):
        convert("tf", "mindspore", tmp_path, tmp_path / "ours")
