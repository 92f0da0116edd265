"""transformers as the oracle of conversion: what it writes computes the same here, and what we write, there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from model_utils.errors import CheckpointError
from src import finetune_eval_model as heads
from src.albert_config import AlbertConfig
from src.model_folder import load_tokenizer, read_task_info
from src.tasks.fill_mask import encode_masked
from tests.helpers.conversions import assert_same_bits, convert, read_json_file
from tests.helpers.converted_outputs import computed, pre_training_outputs
from tests.helpers.trained_folders import head_of, make_folder

pytestmark = pytest.mark.oracles
ROWS, LENGTH = 2, 13
SMALL = {
    "vocab_size": 120,
    "embedding_size": 16,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 32,
}
V1 = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
# The published sizes with few layers; xlarge and xxlarge are narrower, for memory and disk.
SHAPES = {
    "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 3},
    "xlarge v1": V1 | {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 99, "num_hidden_layers": 2},
    "xxlarge": {"hidden_size": 1024, "num_attention_heads": 64, "intermediate_size": 4096, "num_hidden_layers": 3},
    "relu": SMALL | {"hidden_act": "relu", "layer_norm_eps": 1e-5},
    "groups": SMALL | {"num_hidden_groups": 2, "inner_group_num": 2},
    "a group each": SMALL | {"num_hidden_groups": 4, "hidden_act": "gelu"},
}
OUTPUTS = ("sequence", "pooled", "mlm", "sop")
PROBLEM_TYPES = {"regression": "regression", "multi_label": "multi_label_classification"}  # of transformers
HEADS = {
    "classification": ("AlbertForSequenceClassification", heads.SequenceClassificationScores, (3,), ("a", "b", "c")),
    "regression": ("AlbertForSequenceClassification", heads.SequenceClassificationScores, (1,), ()),
    "multi_label": ("AlbertForSequenceClassification", heads.SequenceClassificationScores, (3,), ("a", "b", "c")),
    "token_classification": ("AlbertForTokenClassification", heads.TokenClassificationScores, (3,), ("a", "b", "c")),
    "squad_v1": ("AlbertForQuestionAnswering", heads.QuestionAnsweringScores, (), ()),
    "multiple_choice": ("AlbertForMultipleChoice", heads.MultipleChoiceScores, (ROWS,), ()),
}


def random_oracle(torch: ModuleType, transformers: ModuleType, architecture: str, **settings: Any) -> Any:
    """A model of transformers with every weight drawn anew: biases and LayerNorms, too, must not stay at 0 and 1."""
    oracle = getattr(transformers, architecture)(transformers.AlbertConfig(**settings)).eval()
    generator = torch.Generator().manual_seed(4)
    spread = oracle.config.hidden_size**-0.5  # keeps what layers pass on at the same size, whatever theirs
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            middle = 1.0 if name.endswith(("LayerNorm.weight", "layer_norm.weight")) else 0.0
            parameter.normal_(middle, spread, generator=generator)
    return oracle


@pytest.fixture
def make_oracle(torch: ModuleType, transformers: ModuleType, tmp_path: Path) -> Callable[..., Any]:
    """A function that makes a model of transformers and saves it in tmp_path / "hf"."""

    def make(architecture: str, **settings: Any) -> Any:
        oracle = random_oracle(torch, transformers, architecture, **settings)
        oracle.save_pretrained(tmp_path / "hf")
        return oracle

    return make


def batch(vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random ids with padding in the second row, mask and segments, int32."""
    mask = (np.arange(LENGTH) < np.array([[LENGTH], [9]])).astype(np.int32)
    ids = np.random.default_rng(5).integers(1, vocab_size, (ROWS, LENGTH)).astype(np.int32) * mask
    return ids, mask, (np.arange(LENGTH) >= 5).astype(np.int32) * mask


def ask(torch: ModuleType, oracle: Any, columns: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Any:
    """The oracle's outputs for a batch."""
    input_ids, attention_mask, token_type_ids = (torch.from_numpy(column.astype(np.int64)) for column in columns)
    with torch.no_grad():
        return oracle(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)


def assert_close(found: np.ndarray, right: Any, name: str) -> None:
    expected = right.numpy()
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"{name}: {difference:.1e} of the largest entry")
    assert found.shape == expected.shape and difference < 2e-5, name


def assert_there_and_back(transformers: ModuleType, folder: Path, architecture: str) -> Any:
    """Convert back: the same bits in the file, which from_pretrained takes whole. Returns the model."""
    back = convert("mindspore", "hf", folder / "ours", folder / "back")
    assert_same_bits(load_file(back / "model.safetensors"), load_file(folder / "hf/model.safetensors"))
    model, report = getattr(transformers, architecture).from_pretrained(back, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def compare_pre_training(torch: ModuleType, oracle: Any, ours: Path) -> None:
    columns = batch(oracle.config.vocab_size)
    backbone, logits = ask(torch, oracle.albert, columns), ask(torch, oracle, columns)
    right = (backbone.last_hidden_state, backbone.pooler_output, logits.prediction_logits, logits.sop_logits)
    for name, found, expected in zip(OUTPUTS, pre_training_outputs(ours, *columns), right, strict=True):
        assert_close(found, expected, name)


@pytest.mark.parametrize("shape", SHAPES)
def test_pre_trained_sizes(
    torch: ModuleType, transformers: ModuleType, make_oracle: Callable, tmp_path: Path, shape: str
) -> None:
    settings = {"vocab_size": 120, "max_position_embeddings": 32} | SHAPES[shape]
    oracle = make_oracle("AlbertForPreTraining", **settings)
    compare_pre_training(torch, oracle, convert("hf", "mindspore", tmp_path / "hf", tmp_path / "ours"))
    del oracle
    assert_there_and_back(transformers, tmp_path, "AlbertForPreTraining")


@pytest.mark.parametrize("name", ["tiny", "small_google"])
def test_chinese_configurations(
    torch: ModuleType, transformers: ModuleType, make_oracle: Callable, shared: Path, tmp_path: Path, name: str
) -> None:
    """google's configuration files, whose gelu is transformers' gelu_new, with the vocabulary that belongs to them."""
    stated = read_json_file(shared / f"data/vocab/albert_config_{name}.json")
    settings = {key: value for key, value in stated.items() if key in transformers.AlbertConfig().to_dict()}
    settings |= {"hidden_act": "gelu_new", "num_hidden_layers": min(4, stated["num_hidden_layers"])}
    oracle = make_oracle("AlbertForPreTraining", **settings)
    original = transformers.BertTokenizer(str(shared / "data/vocab/vocab_zh.txt"))
    original.save_pretrained(tmp_path / "hf")
    ours = convert("hf", "mindspore", tmp_path / "hf", tmp_path / "ours")
    compare_pre_training(torch, oracle, ours)
    assert_there_and_back(transformers, tmp_path, "AlbertForPreTraining")
    text = "今天天气很好，Python 3。"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    ids = load_tokenizer(ours).encode(text)
    pair = tokenizer(text, text)
    assert pair["input_ids"] == original(text, text)["input_ids"] == [101, *ids, 102, *ids, 102]
    assert sum(pair["token_type_ids"]) == len(ids) + 1


@pytest.mark.parametrize("task", HEADS)
def test_heads(torch: ModuleType, transformers: ModuleType, make_oracle: Callable, tmp_path: Path, task: str) -> None:
    architecture, kind, outputs, labels = HEADS[task]
    placeholders = ["LABEL_0"] if task == "regression" else ["LABEL_0", "LABEL_1"]
    id2label = dict(enumerate(labels or placeholders))
    stated = {"problem_type": PROBLEM_TYPES["multi_label"]} if task == "multi_label" else {}  # one output is regression
    oracle = make_oracle(architecture, **SMALL, id2label=id2label, **stated)
    ours = convert("hf", "mindspore", tmp_path / "hf", tmp_path / "ours")
    assert read_task_info(ours) == head_of(task, *labels)
    columns, their_columns = batch(SMALL["vocab_size"]), batch(SMALL["vocab_size"])
    if task == "multiple_choice":  # the rows are choices of one question; interleaved by token here
        columns = tuple(column.T.reshape((1, -1)) for column in columns)
        their_columns = tuple(column[None] for column in their_columns)
    network = kind(AlbertConfig.from_json(ours / "albert_config.json"), *outputs)
    found = computed(ours, network, *columns)
    back = assert_there_and_back(transformers, tmp_path, architecture)
    assert back.config.problem_type == PROBLEM_TYPES.get(task)
    for model in (oracle, back):
        assert model.config.id2label == id2label
        right = ask(torch, model, their_columns)
        for name, value in zip(network.output_names, found, strict=True):
            assert_close(value, right[name], name)


def test_how_a_model_is_used_survives_transformers(transformers: ModuleType, tmp_path: Path) -> None:
    ours = make_folder(tmp_path / "ours", "squad_v1", max_seq_length=24, doc_stride=3)
    there = convert("mindspore", "hf", ours, tmp_path / "hf")
    transformers.AutoTokenizer.from_pretrained(there).save_pretrained(tmp_path / "saved")
    transformers.AlbertForQuestionAnswering.from_pretrained(there).save_pretrained(tmp_path / "saved")
    back = convert("hf", "mindspore", tmp_path / "saved", tmp_path / "back")
    assert read_json_file(back / "task.json") == read_json_file(ours / "task.json")


@pytest.mark.parametrize(("architecture", "outputs"), [("AlbertForMaskedLM", (2,)), ("AlbertModel", (0, 1))])
def test_parts_of_pre_training(
    torch: ModuleType,
    transformers: ModuleType,
    make_oracle: Callable,
    tmp_path: Path,
    architecture: str,
    outputs: tuple[int, ...],
) -> None:
    oracle = make_oracle(architecture, **SMALL)
    ours = convert("hf", "mindspore", tmp_path / "hf", tmp_path / "ours")
    columns = batch(SMALL["vocab_size"])
    found, right = pre_training_outputs(ours, *columns, needed=("albert.",)), ask(torch, oracle, columns)
    for place, output in enumerate(outputs):
        assert_close(found[output], right[place], OUTPUTS[output])
    assert_there_and_back(transformers, tmp_path, architecture)


def test_tokenizer_that_transformers_saved(
    transformers: ModuleType, make_oracle: Callable, shared: Path, tmp_path: Path
) -> None:
    """transformers 5 saves a tokenizer.json alone: the SentencePiece model is made from it again."""
    make_oracle("AlbertForPreTraining", **SMALL | {"vocab_size": 30000})
    shutil.copy(shared / "data/vocab/30k-clean.model", tmp_path / "hf/spiece.model")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "hf")
    (tmp_path / "hf/spiece.model").unlink()
    tokenizer = load_tokenizer(convert("hf", "mindspore", tmp_path / "hf", tmp_path / "ours"))
    lines = (shared / "golden/tokenization/sentencepiece_en.jsonl").read_text(encoding="utf-8").splitlines()
    for line in map(json.loads, lines):
        assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line["text"])) == line["ids"], line["text"]


def test_tokenizer_that_is_written(
    transformers: ModuleType, make_oracle: Callable, shared: Path, golden: Path, tmp_path: Path
) -> None:
    """transformers cuts text as google's code does, with the tokenizer.json beside the weights."""
    make_oracle("AlbertForPreTraining", **SMALL | {"vocab_size": 30000})
    shutil.copy(shared / "data/vocab/30k-clean.model", tmp_path / "hf/spiece.model")
    ours = convert("hf", "mindspore", tmp_path / "hf", tmp_path / "ours")
    tokenizer = load_tokenizer(ours)
    theirs = transformers.AutoTokenizer.from_pretrained(convert("mindspore", "hf", ours, tmp_path / "back"))
    lines = (golden / "tokenization/sentencepiece_en.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [text for text in (json.loads(line)["text"] for line in lines) if "[CLS]" not in text]
    texts += ["It ended . \u200b", "\u200bb \ufeff c", "foo9, a12,3 b", "", "  x\t", "''q''", "a\u3000b\x85c\x1cd"]
    for text in texts:
        assert theirs(text)["input_ids"] == [2, *tokenizer.encode(text), 3], text
    for text in ("the [MASK].", " a [MASK], b [MASK] [MASK]s", "x[MASK] ", "([MASK])"):
        assert theirs(text)["input_ids"] == encode_masked(text, tokenizer, 64), text
    pair = theirs("a b", "c")
    assert pair["input_ids"] == [2, *tokenizer.encode("a b"), 3, *tokenizer.encode("c"), 3]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    assert (theirs.pad_token_id, theirs.mask_token_id) == (0, 4)

    theirs.save_pretrained(tmp_path / "back")
    (tmp_path / "back/spiece.model").unlink()
    again = load_tokenizer(convert("hf", "mindspore", tmp_path / "back", tmp_path / "again"))
    assert all(again.encode(text) == tokenizer.encode(text) for text in texts)


def test_pytorch_file(torch: ModuleType, make_oracle: Callable, tmp_path: Path) -> None:
    """Gives the same bits as a safetensors file, in float32 and in bfloat16."""
    oracle = make_oracle("AlbertForPreTraining", **SMALL)
    weights, pytorch_file = tmp_path / "hf/model.safetensors", tmp_path / "hf/pytorch_model.bin"
    for precision in (torch.float32, torch.bfloat16):
        oracle.to(precision).save_pretrained(tmp_path / "hf")
        expected = convert("hf", "mindspore", tmp_path / "hf", tmp_path / f"safe {precision}") / "albert-0.ckpt"
        weights.unlink()
        torch.save(oracle.state_dict(), pytorch_file)
        found = convert("hf", "mindspore", tmp_path / "hf", tmp_path / f"pytorch {precision}") / "albert-0.ckpt"
        assert found.read_bytes() == expected.read_bytes()
        pytorch_file.unlink()
    for content in (b"", b"no archive", expected.read_bytes()[:1000]):
        pytorch_file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is damaged"):
            convert("hf", "mindspore", tmp_path / "hf", tmp_path / "damaged")
