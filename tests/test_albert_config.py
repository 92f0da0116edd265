"""Architectures: published sizes, the json files beside weights, and what a run may change of them."""

import json
import math
from pathlib import Path

import pytest

from model_utils.errors import CheckpointError, ConfigError
from model_utils.schema import load_config, write_config
from src.albert_config import PRESETS, AlbertConfig, find_config_file, resolve_albert_config
from src.training.pretrain_config import PretrainConfig


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("albert_mini", (256, 4, 4, 1024)),
        ("albert_tiny", (312, 4, 12, 1248)),
        ("albert_small", (384, 6, 12, 1536)),
        ("albert_base", (768, 12, 12, 3072)),
        ("albert_large", (1024, 24, 16, 4096)),
        ("albert_xlarge", (2048, 24, 32, 8192)),
        ("albert_xxlarge", (4096, 12, 64, 16384)),
    ],
)
def test_presets_have_the_published_sizes_and_dropouts(name: str, sizes: tuple[int, ...]) -> None:
    v2, v1 = PRESETS[name], PRESETS[f"{name}_v1"]
    assert sizes == (v2.hidden_size, v2.num_hidden_layers, v2.num_attention_heads, v2.intermediate_size)
    assert (v2.embedding_size, v2.max_position_embeddings, v2.type_vocab_size) == (128, 512, 2)
    assert (v2.hidden_dropout_prob, v2.attention_probs_dropout_prob, v2.classifier_dropout_prob) == (0.0, 0.0, 0.1)
    assert (v1.hidden_dropout_prob, v1.attention_probs_dropout_prob, v1.classifier_dropout_prob) == (0.1, 0.1, 0.1)
    assert v1.replace(hidden_dropout_prob=0, attention_probs_dropout_prob=0) == v2


def test_presets_agree_with_googles_files(shared: Path) -> None:
    for name, file in (("tiny", "tiny"), ("small", "small_google"), ("base", "base")):
        read = AlbertConfig.from_json(shared / "data/vocab" / f"albert_config_{file}.json")
        assert read == PRESETS[f"albert_{name}"].replace(vocab_size=21128)


def google_json(tmp_path: Path, name: str = "albert_config.json", **changes: object) -> Path:
    sizes = {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    file = tmp_path / name
    file.write_text(json.dumps(sizes | {"intermediate_size": 48, "hidden_act": "gelu"} | changes))
    return file


def test_gelu_means_what_its_writer_computes(tmp_path: Path) -> None:
    assert AlbertConfig.from_json(google_json(tmp_path)).hidden_act == "gelu_new"
    assert AlbertConfig.from_json(google_json(tmp_path, model_type="albert")).hidden_act == "gelu"
    for act in ("gelu", "gelu_new", "relu"):
        AlbertConfig(hidden_act=act).to_json(tmp_path / "own.json")
        assert AlbertConfig.from_json(tmp_path / "own.json").hidden_act == act


def test_keys_of_the_largest_published_models(tmp_path: Path) -> None:
    assert AlbertConfig.from_json(google_json(tmp_path, layers_to_keep=[], net_structure_type=0)).hidden_size == 24


def test_an_architecture_reads_back_identical_but_for_what_belongs_to_the_run(tmp_path: Path) -> None:
    config = AlbertConfig(
        share_parameters="ffn",
        use_relative_positions=True,
        max_relative_position=9,
        compute_type="float16",
        recompute=True,
    )
    config.to_json(tmp_path / "albert_config.json")
    read = AlbertConfig.from_json(tmp_path / "albert_config.json")
    assert read == config.replace(compute_type="float32", recompute=False)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hiden_size": 3}, "hiden_size is not a key; did you mean hidden_size?"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key', only 'absolute'"),
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder is True, only False is supported"),
        ({"ln_type": "preln"}, "ln_type is 'preln', only 'postln'"),
        ({"layers_to_keep": [0, 1]}, "layers_to_keep is [0, 1], only []"),
        ({"hidden_size": "24x"}, "hidden_size is '24x', allowed is a whole number"),
        ({"hidden_size": 25}, "hidden_size is 25, allowed is a multiple of num_attention_heads (3)"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish', allowed is one of gelu_new, gelu, relu"),
    ],
)
def test_foreign_architectures_are_refused(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        AlbertConfig.from_json(google_json(tmp_path, **changes))
    assert sentence in str(caught.value) and "albert_config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"), [("{", "is damaged or not JSON"), ("[]", r"holds \[\]"), ("{}", "vocab_size, hidden_size")]
)
def test_files_that_hold_no_architecture_are_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=sentence):
        AlbertConfig.from_json(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        AlbertConfig.from_json(tmp_path / "absent.json")


def test_the_json_beside_weights_wins_over_the_preset_and_overrides_over_both(tmp_path: Path) -> None:
    overrides = load_config(PretrainConfig, ["--albert_cfg.hidden_dropout_prob=0.3"]).albert_cfg
    plain = resolve_albert_config("albert_tiny", overrides, 99, "float16")
    assert (plain.hidden_size, plain.hidden_dropout_prob, plain.compute_type) == (312, 0.3, "float16")
    google_json(tmp_path)
    (tmp_path / "model.ckpt").touch()
    for weights in (tmp_path, tmp_path / "model.ckpt"):
        found = resolve_albert_config("albert_tiny", overrides, 99, "float32", weights)
        assert (found.hidden_size, found.hidden_dropout_prob, found.vocab_size) == (24, 0.3, 99)
    assert find_config_file(tmp_path / "absent" / "x.ckpt") is None


def test_a_range_of_new_weights_that_fits_the_width_is_written_as_a_number(tmp_path: Path) -> None:
    for words, expected in (([], 0.02), (["--albert_cfg.initializer_range=auto"], math.sqrt(2 / (5 * 312)))):
        config = load_config(PretrainConfig, [*words, "--albert_network=albert_tiny"])
        config.albert_config(99, "float32", "").to_json(tmp_path / "albert_config.json")
        assert AlbertConfig.from_json(tmp_path / "albert_config.json").initializer_range == expected
    wider = load_config(PretrainConfig, ["--albert_cfg.hidden_size=120", "--albert_cfg.initializer_range=auto"])
    assert wider.albert_config(99, "float32", "").initializer_range == math.sqrt(2 / 600)
    write_config(wider, tmp_path / "config.yaml")
    assert load_config(PretrainConfig, [f"--config_path={tmp_path}/config.yaml"]) == wider
    with pytest.raises(
        ConfigError, match="initializer_range is 'wide', allowed is a number above 0 and at most 10, or auto"
    ):
        load_config(PretrainConfig, ["--albert_cfg.initializer_range=wide"])


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    config = load_config(PretrainConfig, [f"--load_checkpoint_path={tmp_path}"])
    google_json(tmp_path)
    with pytest.raises(
        ConfigError, match=r"vocab_size in .*albert_config\.json is 99, but the vocabulary of the data has"
    ):
        config.albert_config(100, "float32", config.load_checkpoint_path)
    config = load_config(PretrainConfig, ["--albert_cfg.vocab_size=50"])
    with pytest.raises(
        ConfigError, match=r"albert_cfg\.vocab_size is 50, but the vocabulary of the data has 100 tokens"
    ):
        config.albert_config(100, "float32", config.load_checkpoint_path)
