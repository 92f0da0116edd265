"""Configuration: what is accepted, what is refused with which sentence, and what survives a round trip."""

import os
import subprocess
import sys
import time
import typing
from pathlib import Path

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_utils.errors import ConfigError
from model_utils.schema import Config, leaves_of, load_config, option, section, write_config
from model_utils.yaml_files import read_yaml
from src.albert_config import PRESETS, AlbertConfig, check_memory
from src.create_pretraining_data import CreateDataConfig
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.multiple_choice import RaceConfig
from src.tasks.question_answering import SquadConfig, SquadV2Config
from src.tasks.token_classification import NerConfig
from src.training.pretrain_config import PhaseConfig, PretrainConfig, PretrainEvalConfig
from tests.helpers.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]

OWN_FILE = [CreateDataConfig, PretrainConfig]


def load(tmp_path: Path, text: str, *words: str, kind: type = PretrainConfig):
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(kind, ["--config_path", str(file), *words])


def refusal(tmp_path: Path, text: str, *words: str, kind: type = PretrainConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *words, kind=kind)
    return caught.value


# --- the project's own files ---


def test_the_commands_are_found() -> None:
    assert {CreateDataConfig, PretrainConfig, PretrainEvalConfig} <= set(COMMANDS)


@pytest.mark.parametrize("kind", OWN_FILE)
def test_the_projects_yaml_holds_every_key(kind: type[Config]) -> None:
    tree = read_yaml(ROOT / kind.config_file)
    for key, _ in leaves_of(kind):
        if key.startswith("albert_cfg."):
            continue
        node = tree
        for part in key.split("."):
            assert part in node, f"{kind.config_file} lacks {key}"
            node = node[part]


@pytest.mark.parametrize("kind", COMMANDS)
def test_the_projects_yaml_says_what_the_class_says(kind: type[Config]) -> None:
    assert load_config(kind, []) == kind()


def test_the_references_flags_exist() -> None:
    flags = """distribute epoch_size device_num device_id enable_save_ckpt device_target enable_lossscale do_shuffle
        enable_data_sink data_sink_steps accumulation_steps save_checkpoint_path load_checkpoint_path
        save_checkpoint_steps save_checkpoint_num data_dir schema_dir train_steps""".split()
    assert set(flags) <= {key for key, _ in leaves_of(PretrainConfig)}
    keys = """input_file output_file output_file_num vocab_file spm_model_file do_lower_case do_whole_word_mask
        do_permutation favor_shorter_ngram random_next_sentence max_seq_length ngram max_predictions_per_seq random_seed
        dupe_factor masked_lm_prob short_seq_prob""".split()
    assert set(keys) <= {key for key, _ in leaves_of(CreateDataConfig)}


@pytest.mark.parametrize("kind", COMMANDS)
def test_help_lists_every_key_with_type_default_and_meaning(kind: type[Config], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        load_config(kind, ["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for key, field in leaves_of(kind):
        entry = text[text.index(f"\n  --{key} VALUE") :].split("\n  --")[1]
        assert field.description in entry and "; default " in entry
        assert not field.validation_alias or f"--{field.validation_alias} VALUE" in text
    if kind is PretrainConfig:
        entry = text[text.index("--optimizer_cfg.Lamb.learning_rate VALUE") :]
        assert entry.splitlines()[2].strip() == "a number at least 0 and at most 100; default 0.00176"


def test_configuration_costs_no_mindspore_import() -> None:
    program = "import sys, model_utils.config, src.albert_config; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


# --- merging ---


def test_the_command_line_wins_over_yaml_and_yaml_over_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "batch_size: 7\nlog_steps: 9\n", "--log_steps", "11")
    assert (config.batch_size, config.log_steps, config.accumulation_steps) == (7, 11, 1)


def test_nested_keys_with_dots_leave_their_neighbours_alone(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "optimizer_cfg: {AdamWeightDecay: {learning_rate: 0.25, weight_decay: 0.5}}\n",
        "--optimizer_cfg.AdamWeightDecay.learning_rate=1e-4",
        "--albert_cfg.share_parameters=ffn",
    )
    section = config.optimizer_cfg.AdamWeightDecay
    assert (section.learning_rate, section.weight_decay) == (1e-4, 0.5)
    assert config.albert_cfg.to_dict() == {"share_parameters": "ffn"}


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "yes", "YES", "1", "false", "False", "FALSE", "no", "0"])
def test_words_for_true_and_false(tmp_path: Path, text: str) -> None:
    value = text.lower() in ("true", "yes", "1")
    assert load(tmp_path, f"do_shuffle: {not value}", "--do_shuffle", text).do_shuffle is value
    assert load(tmp_path, f"do_shuffle: {text}").do_shuffle is value


def test_yaml_numbers_without_a_point_and_lists(tmp_path: Path) -> None:
    text = "optimizer_cfg: {optimizer: Lamb, Lamb: {learning_rate: 1e-4, decay_filter: [a, b]}}"
    assert load(tmp_path, text).optimizer_cfg.Lamb.learning_rate == 1e-4
    assert load(tmp_path, text).optimizer_cfg.Lamb.decay_filter == ("a", "b")
    for words in ("c,d", "[c, d]", '["c", "d"]', "['c','d']"):
        config = load(tmp_path, text, "--optimizer_cfg.Lamb.decay_filter", words)
        assert config.optimizer_cfg.Lamb.decay_filter == ("c", "d")
    assert load(tmp_path, text, "--optimizer_cfg.Lamb.decay_filter", "").optimizer_cfg.Lamb.decay_filter == ()
    config = load(tmp_path, text, "--optimizer_cfg.Lamb.decay_filter", "[\"c, c\", 'd,', e f,don't, ]")
    assert config.optimizer_cfg.Lamb.decay_filter == ("c, c", "d,", "e f", "don't")


def test_negative_numbers_and_texts_with_dashes_are_values(tmp_path: Path) -> None:
    assert load(tmp_path, "", "--train_steps", "-1").train_steps == -1
    assert load(tmp_path, "", "--data_dir=--odd").data_dir == "--odd"


def test_a_flag_given_again_replaces_the_first(tmp_path: Path) -> None:
    assert load(tmp_path, "", "--batch_size", "2", "--batch_size=3").batch_size == 3


def test_names_that_yaml_reads_as_numbers_need_quotes(tmp_path: Path) -> None:
    config = load(tmp_path, "text_a_column: '1'\nlabel_list: ['0', '1', x]", kind=ClassifierConfig)
    assert (config.text_a_column, config.label_list) == ("1", ("0", "1", "x"))
    for text in ("text_a_column: 1", "label_list: [0, 1]", "label_list: [true]"):
        assert "quotes" in refusal(tmp_path, text, kind=ClassifierConfig).hint


def test_what_yaml_1_1_reads_as_something_else_is_what_it_looks_like(tmp_path: Path) -> None:
    assert load(tmp_path, "label_list: [yes, no, on]", kind=ClassifierConfig).label_list == ("yes", "no", "on")
    assert load(tmp_path, "seed: 0123\nclip_norm: 1e-4").seed == 123
    assert refusal(tmp_path, "max_train_hours: 1:30").value == "1:30"


def test_a_flag_of_an_optimizer_that_is_not_chosen_is_refused(tmp_path: Path) -> None:
    text = "optimizer_cfg: {optimizer: Lamb, AdamWeightDecay: {learning_rate: 0.1}}"  # a file may have all of them
    assert load(tmp_path, text, "--optimizer_cfg.Lamb.learning_rate=0.5").optimizer_settings()["learning_rate"] == 0.5
    error = refusal(tmp_path, text, "--optimizer_cfg.AdamWeightDecay.learning_rate=0.5")
    assert (error.key, error.value) == ("optimizer_cfg.AdamWeightDecay.learning_rate", "0.5")
    assert "optimizer_cfg.optimizer AdamWeightDecay" in error.problem


def test_sections_in_a_list_come_from_yaml_or_from_one_line(tmp_path: Path) -> None:
    text = "phases:\n- {share: 0.75, learning_rate: 1e-4}\n- share: 0.25\n  data_dir: long\n"
    phases = load(tmp_path, text).phases
    assert [phase.to_dict() for phase in phases] == [
        {"share": 0.75, "learning_rate": 1e-4},
        {"share": 0.25, "data_dir": "long"},
    ]
    words = "[{share: 0.75, learning_rate: 1e-4}, {share: 0.25, data_dir: long}]"
    assert load(tmp_path, "phases: [{batch_size: 3}]", "--phases", words).phases == phases
    assert load(tmp_path, "phases:").phases == () == load(tmp_path, text, "--phases=[]").phases


def test_phases_are_as_the_rest_where_they_say_nothing(tmp_path: Path) -> None:
    text = "data_dir: short\nbatch_size: 8\nsop_loss_weight: 0.5\nphases: [{share: 0.9}, {share: 0.1, batch_size: 2}]"
    first, second = load(tmp_path, text).all_phases()
    assert (first.data_dir, first.batch_size, first.learning_rate, first.sop_loss_weight) == ("short", 8, 1e-3, 0.5)
    assert (second.data_dir, second.batch_size, second.masked_lm_prob) == ("short", 2, None)
    (whole,) = load(tmp_path, "batch_size: 8").all_phases()
    assert (whole.share, whole.batch_size) == (1.0, 8)


def test_a_rate_by_width_is_for_fine_tuning(tmp_path: Path) -> None:
    rate = "optimizer_cfg.AdamWeightDecay.learning_rate"
    assert load_config(ClassifierConfig, []).optimizer_settings()["learning_rate"] == 0
    assert load_config(ClassifierConfig, [f"--{rate}", "1e-4"]).optimizer_settings()["learning_rate"] == 1e-4
    for kind, words in (
        (PretrainConfig, [f"--{rate}", "0"]),
        (ClassifierConfig, ["--optimizer_cfg.Lamb.learning_rate", "0"]),
        (ClassifierConfig, ["--optimizer_cfg.AdamWeightDecay.end_learning_rate", "1e-5"]),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(kind, words)
        assert "learning_rate" in caught.value.key


ON_DEVICES = [(1, 16, 16), (2, 16, 8), (16, 16, 1), (32, 8, 1), (256, 1, 1)]


@pytest.mark.parametrize(("devices", "batch_size", "accumulation_steps"), ON_DEVICES)
def test_an_update_has_the_same_examples_on_any_number_of_devices(
    tmp_path: Path, devices: int, batch_size: int, accumulation_steps: int
) -> None:
    text = "global_batch_size: 256\nbatch_size: 16"
    words = ["--distribute", "true", "--device_num", str(devices)]
    config = load(tmp_path, text, *words)
    (phase,) = config.all_phases()
    assert (phase.batch_size, phase.accumulation_steps) == (batch_size, accumulation_steps)
    assert (config.batch_size, config.accumulation_steps) == (16, accumulation_steps)  # evaluations are the same
    write_config(config, tmp_path / "written.yaml")
    assert load_config(PretrainConfig, ["--config_path", str(tmp_path / "written.yaml")]) == config
    phases = "batch_size: 16\nphases: [{share: 0.5, global_batch_size: 256}, {share: 0.5, accumulation_steps: 2}]"
    first, second = load(tmp_path, phases, *words).all_phases()
    assert (first.batch_size, first.accumulation_steps) == (batch_size, accumulation_steps)
    assert (second.batch_size, second.accumulation_steps) == (16, 2)
    own_words = ["--global_batch_size", "256", "--train_batch_size", "16", *words]
    classifier = load_config(ClassifierConfig, own_words)
    assert (classifier.train_batch_size, classifier.accumulation_steps) == (batch_size, accumulation_steps)


def test_a_run_with_a_global_batch_goes_on_with_other_devices_and_batches(tmp_path: Path) -> None:
    two = ["--distribute", "true", "--device_num", "2"]
    phases = "phases: [{share: 0.5, global_batch_size: 256}, {share: 0.5, global_batch_size: 64}]\nbatch_size: 16"
    mixed = "phases: [{share: 0.5, global_batch_size: 256}, {share: 0.5}]\nbatch_size: 16"
    for text in ("global_batch_size: 256\nbatch_size: 16", phases):
        fingerprint = load(tmp_path, text).resume_fingerprint()
        assert load(tmp_path, text, *two).resume_fingerprint() == fingerprint
        assert load(tmp_path, text, "--batch_size", "8").resume_fingerprint() == fingerprint
        assert load(tmp_path, text.replace("256", "128")).resume_fingerprint() != fingerprint
    assert load(tmp_path, mixed).resume_fingerprint() != load(tmp_path, mixed, *two).resume_fingerprint()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("global_batch_size: 8\nbatch_size: 16", "global_batch_size"),
        ("global_batch_size: 40\nbatch_size: 16", "global_batch_size"),
        ("global_batch_size: 64\nbatch_size: 64\ndevice_num: 3\ndistribute: true", "global_batch_size"),
        ("global_batch_size: 2\nbatch_size: 1\ndevice_num: 4\ndistribute: true", "global_batch_size"),
        ("global_batch_size: 64\nbatch_size: 16\naccumulation_steps: 2", "accumulation_steps"),
        ("batch_size: 16\nphases: [{global_batch_size: 40}]", "global_batch_size"),
    ],
)
def test_a_global_batch_that_cannot_be_divided_is_refused(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.key == key


# --- refusals ---


def test_an_error_says_where_what_was_found_and_what_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    found = "batch_size is 'x', allowed is a whole number at least 1 and at most 65536"
    assert str(refusal(tmp_path, "batch_size: x")) == f"{file}: {found}"
    assert str(refusal(tmp_path, "", "--batch_size=x")) == f"command line: {found}"
    assert str(refusal(tmp_path, "batchsize: 3")) == f"{file}: batchsize is not a key; did you mean batch_size?"
    with_flags = str(refusal(tmp_path, "", "--distribute=yes", "--device_id=1"))
    found = "device_id is 1, allowed is 0 while distribute is true; set distribute to false, or leave device_id out"
    assert with_flags == f"{file} with the command line: {found}"


@pytest.mark.parametrize(
    ("text", "key", "suggestions"),
    [
        ("batchsize: 3", "batchsize", ["batch_size"]),
        ("optimizer_cfg: {Lamb: {epps: 3}}", "optimizer_cfg.Lamb.epps", ["optimizer_cfg.Lamb.eps"]),
        ("3: 4", "3", []),
        ("albert_cfg: {3: 4}", "albert_cfg[3]", []),
        ("phases: [{}, {shares: 1}]", "phases[1].shares", ["phases[1].share"]),
        ("albert_cfg: {compute_type: float16}", "albert_cfg.compute_type", []),
        (
            "weight_decay: 0.1",
            "weight_decay",
            [f"optimizer_cfg.{name}.weight_decay" for name in ("AdamWeightDecay", "Lamb")],
        ),
        ("optimizer_cfg: {eps: 0.1}", "optimizer_cfg.eps", ["optimizer_cfg.Lamb.eps", "optimizer_cfg.Adam.eps"]),
        ("--learning_rate 1", "--learning_rate", ["--optimizer_cfg.Lamb.learning_rate"]),
        ("--optimizer Lamb", "--optimizer", ["--optimizer_cfg.optimizer"]),
        ("--hidden_size 32", "--hidden_size", ["--albert_cfg.hidden_size"]),
        ("--per_device_batch_size 3", "--per_device_batch_size", ["--batch_size"]),
        ("--train_step=3", "--train_step", ["--train_steps"]),
        ("--optimizer_cfg x", "--optimizer_cfg", ["--optimizer_cfg.KEY"]),
    ],
)
def test_an_unknown_key_is_named_with_those_that_may_be_meant(
    tmp_path: Path, text: str, key: str, suggestions: list[str]
) -> None:
    is_flag = text.startswith("--")
    error = refusal(tmp_path, "", *text.split()) if is_flag else refusal(tmp_path, text)
    assert error.key == key and error.expected == ""
    assert all(suggestion in error.hint for suggestion in suggestions)


@pytest.mark.parametrize(
    ("text", "words", "key", "value"),
    [
        ("optimizer_cfg: 3", [], "optimizer_cfg", 3),
        ("phases: 3", [], "phases", 3),
        ("phases: [{}, 3]", [], "phases[1]", 3),
        ("batch_size: three", [], "batch_size", "three"),
        ("batch_size: 3.0", [], "batch_size", 3.0),
        ("batch_size: true", [], "batch_size", True),
        ("batch_size: [3]", [], "batch_size", [3]),
        ("batch_size:", [], "batch_size", None),
        ("do_shuffle: 2", [], "do_shuffle", 2),
        ("do_shuffle: 1.0", [], "do_shuffle", 1.0),
        ("clip_norm: .inf", [], "clip_norm", float("inf")),
        ("data_dir: 7", [], "data_dir", 7),
        ("optimizer_cfg: {Lamb: {decay_filter: [1]}}", [], "optimizer_cfg.Lamb.decay_filter", [1]),
        ("device_target: TPU", [], "device_target", "TPU"),
        ("albert_network: albert_huge", [], "albert_network", "albert_huge"),
        ("", ["--batch_size", "0"], "batch_size", "0"),
        ("", ["--optimizer_cfg.AdamWeightDecay.beta1=1"], "optimizer_cfg.AdamWeightDecay.beta1", "1"),
        ("", ["--seed", str(2**32)], "seed", str(2**32)),
        ("", ["--accumulation_steps", "1000000"], "accumulation_steps", "1000000"),
        ("", ["--phases=[{batch_size: 0}]"], "phases[0].batch_size", 0),
        ("", ["--optimizer_cfg.Lamb.decay_filter", "bias,bias"], "optimizer_cfg.Lamb.decay_filter", "bias,bias"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, text: str, words: list[str], key: str, value: object) -> None:
    error = refusal(tmp_path, text, *words)
    assert (error.key, error.value) == (key, value) and type(error.value) is type(value)
    assert error.expected


@pytest.mark.parametrize(
    "words", [["--do_shuffle"], ["--do_shuffle", "--seed", "1"], ["true"], ["-seed", "1"], ["--phases=[{share: 1"]]
)
def test_words_that_are_no_flags_are_refused(tmp_path: Path, words: list[str]) -> None:
    assert str(refusal(tmp_path, "", *words)).startswith("command line: ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batch_size: 3\nseed: 1\nbatch_size: 4", 'run.yaml is not yaml: line 3: found duplicate key "batch_size"'),
        ("optimizer_cfg:\n  Lamb: {power: 1, power: 2}", 'line 2: found duplicate key "power"'),
        ("- a\n- b", "run.yaml holds list, a mapping of keys is needed"),
        ("a: [", "run.yaml is not yaml"),
    ],
)
def test_broken_yaml_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in str(refusal(tmp_path, text))


def test_a_missing_or_undecodable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        load_config(PretrainConfig, ["--config_path", str(tmp_path / "nowhere.yaml")])
    (tmp_path / "latin.yaml").write_bytes(b"data_dir: caf\xe9")
    with pytest.raises(ConfigError, match=r"latin\.yaml is not UTF-8 text: byte 13"):
        load_config(PretrainConfig, ["--config_path", str(tmp_path / "latin.yaml")])


@pytest.mark.parametrize(
    ("words", "key", "needed"),
    [
        (["--data_sink_steps=5"], "data_sink_steps", "enable_data_sink is false"),
        (["--device_num=2"], "device_num", "distribute is false"),
        (["--enable_save_ckpt=no", "--save_checkpoint_steps=5"], "save_checkpoint_steps", "enable_save_ckpt is false"),
        (["--enable_lossscale=no", "--loss_scale_value=8"], "loss_scale_value", "enable_lossscale is false"),
        (["--loss_scale_mode=static", "--scale_window=5"], "scale_window", "loss_scale_mode is static"),
        (["--enable_lossscale=no", "--scale_window=5"], "scale_window", "enable_lossscale is false"),
        (
            ["--optimizer_cfg.Adam.schedule=cosine", "--optimizer_cfg.Adam.power=2"],
            "optimizer_cfg.Adam.power",
            "schedule is cosine",
        ),
        (["--optimizer_cfg.Lamb.decay_share=0.1"], "optimizer_cfg.Lamb.decay_share", "schedule is polynomial"),
    ],
)
def test_a_key_without_the_key_that_it_needs_is_refused(
    tmp_path: Path, words: list[str], key: str, needed: str
) -> None:
    error = refusal(tmp_path, "", *words)
    assert error.key == key and needed in error.expected


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--eval_data_dir=x"], "eval_data_dir is 'x', but it has no effect: eval_steps is 0"),
        (["--eval_batches=3"], "eval_batches is 3, but it has no effect: eval_steps is 0"),
        (["--eval_steps=3"], "eval_steps is 3, but eval_data_dir names no examples"),
        (
            ["--loss_scale_value=2", "--min_loss_scale=4"],
            "loss_scale_value is 2.0, allowed is at least min_loss_scale (4)",
        ),
        (
            ["--optimizer_cfg.Adam.end_learning_rate=1"],
            "optimizer_cfg.Adam.end_learning_rate is 1.0, allowed is at most learning_rate (0.001)",
        ),
        (
            ["--optimizer_cfg.Lamb.schedule=constant", "--optimizer_cfg.Lamb.end_learning_rate=0.001"],
            "end_learning_rate is 0.001, allowed is 0 with schedule constant",
        ),
        (["--phases=[{share: 0.5}, {share: 0.6}]"], "phases have the shares 0.5 + 0.6 = 1.1 of the run, allowed is"),
        (["--phases=[{}]", "--train_steps=0"], "train_steps is 0, but phases"),
        (["--warmup_ratio=0.1"], "warmup_ratio is 0.1, but optimizer_cfg.AdamWeightDecay.warmup_steps is 200; set one"),
        (["--albert_cfg.hidden_size=101"], "hidden_size is 101, allowed is a multiple of num_attention_heads (4)"),
        (["--albert_cfg.num_hidden_groups=13"], "num_hidden_groups is 13, allowed is 1 to 4"),
        (["--albert_cfg.share_parameters=none", "--albert_cfg.num_hidden_groups=2"], "num_hidden_groups is 2"),
        (
            ["--albert_cfg.max_relative_position=9", "--albert_network=albert_base"],
            "while use_relative_positions is false",
        ),
    ],
)
def test_keys_at_odds_with_each_other_are_refused(tmp_path: Path, words: list[str], sentence: str) -> None:
    assert sentence in str(refusal(tmp_path, "", *words))


def test_evaluation_needs_checkpoints(tmp_path: Path) -> None:
    kind = SquadConfig
    words = ["--enable_save_ckpt=no", "--do_predict=yes"]
    for more, key in (([], "do_eval"), (["--do_eval=no"], "do_predict")):
        sentence = str(refusal(tmp_path, "", *words, *more, kind=kind))
        assert key in sentence and "enable_save_ckpt is false" in sentence
    assert not load(tmp_path, "", "--enable_save_ckpt=no", "--do_eval=no", kind=kind).enable_save_ckpt


def test_more_predictions_than_tokens_are_refused(tmp_path: Path) -> None:
    sentence = str(refusal(tmp_path, "{max_seq_length: 16, max_predictions_per_seq: 20}", kind=CreateDataConfig))
    assert "max_predictions_per_seq is 20, allowed is below max_seq_length" in sentence


def test_evaluation_reads_the_training_file_but_not_its_mistakes(tmp_path: Path) -> None:
    config = load(tmp_path, "batch_size: 5\ntrain_steps: 3\noutput_path: x", kind=PretrainEvalConfig)
    assert (config.batch_size, config.output_path) == (5, "x")
    assert refusal(tmp_path, "train_stesp: 3", kind=PretrainEvalConfig).key == "train_stesp"
    assert refusal(tmp_path, "train_steps: x", kind=PretrainEvalConfig).key == "train_steps"
    assert refusal(tmp_path, "", "--train_steps=3", kind=PretrainEvalConfig).key == "--train_steps"


def test_evaluation_takes_neither_data_nor_weights_from_a_training_s_file(tmp_path: Path) -> None:
    """There they are what is trained on, and the weights that it starts with."""
    places = "data_dir: d\nschema_dir: s\nload_checkpoint_path: w\neval_batches: 3\n"
    own = load(tmp_path, places, kind=PretrainEvalConfig)
    assert (own.data_dir, own.schema_dir, own.load_checkpoint_path, own.eval_batches) == ("d", "s", "w", 3)
    theirs = load(tmp_path, places + "train_steps: 3", "--load_checkpoint_path=run", kind=PretrainEvalConfig)
    assert (theirs.data_dir, theirs.schema_dir, theirs.load_checkpoint_path, theirs.eval_batches) == ("", "", "run", 3)
    with pytest.raises(ConfigError) as error:
        theirs.check_required()
    assert (error.value.key, error.value.value) == ("data_dir", "")


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: c",
        "? {a: b}\n: c",
        "seed: !!int abc",
        "seed: !!int",
        "seed: !!bool x",
        "seed: !!timestamp x",
        "seed: !!float [1]",
        "data_dir: 2024-02-31",
        "seed: " + "9" * 5000,
        "data_dir: " + "[" * 20_000,
        "data_dir: " + "{a: " * 20_000,
        "- " * 20_000,
        "data_dir: &a [*a]",
        "albert_cfg: &a {seed: *a}",
        'data_dir: "a\\0b"',
        'data_dir: "\\uD800"',
        "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nseed: [*b, *b, *b, *b]",
    ],
)
def test_yaml_that_no_configuration_needs_is_a_sentence(tmp_path: Path, text: str) -> None:
    started = time.monotonic()
    assert len(str(refusal(tmp_path, text))) < 500 and time.monotonic() - started < 5


def test_a_file_that_is_too_large_for_a_configuration_is_refused_at_once(tmp_path: Path) -> None:
    started = time.process_time()
    with pytest.raises(ConfigError, match=r"run\.yaml has 1,048,576 bytes, a configuration has at most 131,072"):
        load(tmp_path, "seed: 1\n" * (1 << 17))
    assert time.process_time() - started < 1


def test_numbers_have_upper_bounds() -> None:
    unbounded = [
        f"{kind.__name__}.{key}"
        for kind in (*COMMANDS, AlbertConfig, PhaseConfig)
        for key, field in leaves_of(kind)
        if {int, float} & {field.annotation, *typing.get_args(field.annotation)}
        and not any(hasattr(bound, name) for bound in field.metadata for name in ("le", "lt"))
    ]
    assert unbounded == []


def test_weights_that_exceed_the_memory_are_refused(tmp_path: Path) -> None:
    words = """--albert_cfg.hidden_size 65536 --albert_cfg.intermediate_size 262144 --albert_cfg.num_hidden_layers 1000
        --albert_cfg.num_attention_heads 64 --albert_cfg.share_parameters none"""
    assert "but this machine's memory has" in str(refusal(tmp_path, "", *words.split()))


@pytest.mark.parametrize("shared", ["attention", "ffn"])
def test_what_each_layer_has_of_its_own_counts_as_memory(shared: str) -> None:
    sizes = {"hidden_size": 16384, "num_attention_heads": 64, "intermediate_size": 32768, "num_hidden_layers": 1000}
    check_memory(AlbertConfig(**sizes))
    with pytest.raises(ConfigError, match=r"weights would take .* GB or more, but this machine's memory has"):
        check_memory(AlbertConfig(**sizes, share_parameters=shared))


def test_a_batch_larger_than_the_memory_is_refused() -> None:
    check_memory(PRESETS["albert_base"], 32 * 512)
    with pytest.raises(ConfigError, match=r"a batch of 33,554,432 tokens would take 1,237 GB or more"):
        check_memory(PRESETS["albert_base"], 2**25)


def test_a_schema_without_features_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, "", "--schema_file_path", "schema.json", kind=ClassifierConfig)
    assert "neither train_data_file_path nor eval_data_file_path" in str(error)


# --- round trips ---


TEXTS = st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00")), min_size=4, max_size=4)


@settings(max_examples=25)  # of four texts: each example writes and reads the whole file
@given(texts=TEXTS, rate=st.floats(1e-300, 1e6))
def test_a_written_configuration_reads_back_identical(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], rate: float
) -> None:
    file = tmp_path_factory.mktemp("run") / "config.yaml"
    words = [f"--data_dir={texts[0]}", f"--clip_norm={rate!r}", "--albert_cfg.hidden_act=relu", "--distribute=yes"]
    config = load_config(PretrainConfig, words).replace(phases=[{"data_dir": text, "share": 0.25} for text in texts])
    write_config(config, file)
    assert load_config(PretrainConfig, ["--config_path", str(file)]) == config
    assert [path.name for path in file.parent.iterdir()] == ["config.yaml"]


def test_writing_fails_without_harming_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(PretrainConfig(seed=1), tmp_path / "config.yaml")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_config(PretrainConfig(seed=2), tmp_path / "config.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert read_yaml(tmp_path / "config.yaml")["seed"] == 1


def test_python_callers_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"^batch_size is 0, allowed is a whole number at least 1"):
        PretrainConfig(batch_size=0)
    with pytest.raises(pydantic.ValidationError):
        PretrainConfig().batch_size = 3  # type: ignore[misc]


def test_a_new_configuration_is_a_class_of_options(tmp_path: Path) -> None:
    class TaskConfig(Config):
        """A task."""

        task: str = option("", "which", required=True)
        boundaries: tuple[str, ...] = option((), "some words")
        limit: int | None = option(None, "a bound", minimum=1)

    assert load(tmp_path, "task: x\nlimit:", kind=TaskConfig).limit is None
    assert load(tmp_path, "task: x", "--limit=3", kind=TaskConfig).limit == 3
    with pytest.raises(ConfigError, match="task is missing; needed: which") as error:
        TaskConfig().check_required()
    assert (error.value.key, error.value.value) == ("task", "")


def test_a_class_may_give_a_key_of_its_parent_another_default(tmp_path: Path) -> None:
    class PairConfig(Config):
        """Two numbers."""

        left: int = option(1, "the left one", minimum=0)
        right: int = option(1, "the right one", needs=("left", 1))

    class OuterConfig(Config):
        """A pair within."""

        pair: PairConfig = section(PairConfig(left=2), "both")

    class LargerConfig(OuterConfig):
        """With another pair."""

        pair: PairConfig = PairConfig(right=5)

    class ThreeConfig(PairConfig):
        """From three on."""

        left: int = 3

    assert load(tmp_path, "", kind=OuterConfig).pair == PairConfig(left=2)
    assert load(tmp_path, "pair: {left: 1}", "--pair.right=4", kind=OuterConfig).pair == PairConfig(right=4)
    assert load(tmp_path, "pair: {left: 1}", kind=LargerConfig).pair == PairConfig(right=5)
    assert (PairConfig().left, ThreeConfig().left, ThreeConfig.model_fields["left"].description) == (
        1,
        3,
        "the left one",
    )
    with pytest.raises(ConfigError, match="left is -1, allowed is a whole number at least 0"):
        ThreeConfig(left=-1)


def test_without_a_file_keys_that_contradict_each_other_are_the_command_line_s() -> None:
    class PairConfig(Config):
        """Two numbers and no file."""

        left: int = option(1, "the left one")
        right: int = option(1, "the right one", needs=("left", 1))

    with pytest.raises(ConfigError, match=r"^command line: right is 5, allowed is 1 while left is 2"):
        load_config(PairConfig, ["--left", "2", "--right", "5"])


def test_a_changed_copy_is_checked() -> None:
    config = PretrainConfig(seed=5)
    assert config.replace(batch_size=3) == PretrainConfig(seed=5, batch_size=3) and config.batch_size == 32
    for change in ({"batch_size": 0}, {"batchsize": 3}):
        with pytest.raises(ConfigError) as caught:
            config.replace(**change)
        assert caught.value.key in change


# --- optimizer settings ---


def test_settings_of_the_chosen_optimizer() -> None:
    settings = load_config(PretrainConfig, ["--optimizer_cfg.optimizer=Adam"]).optimizer_settings()
    assert settings["name"] == "Adam" and settings["weight_decay"] == 0.0 and settings["decay_filter"] == ()
    settings = load_config(PretrainConfig, ["--optimizer_cfg.optimizer=Lamb"]).optimizer_settings()
    assert settings["learning_rate"] == 0.00176 and settings["decay_filter"] == ("gamma", "beta", "bias")


def test_epochs_on_the_command_line_replace_a_number_of_updates_in_the_file() -> None:
    words = ["--config_path", "recipes/race.yaml", "--data_dir", "d", "--save_finetune_checkpoint_path", "r"]
    assert load_config(RaceConfig, words).train_steps == 12000
    assert load_config(RaceConfig, [*words, "--epoch_num", "1"]).train_steps == 0
    with pytest.raises(ConfigError, match="no effect while train_steps is 7") as error:
        load_config(RaceConfig, [*words, "--epoch_num", "1", "--train_steps", "7"])
    assert (error.value.key, error.value.value) == ("epoch_num", 1)


def test_updates_of_the_command_line_replace_epochs_of_the_file() -> None:
    words = ["--config_path", str(ROOT / "recipes/c3.yaml"), "--train_steps"]
    for steps, expected in (("7", (7, 5)), ("0", (0, 8)), ("-1", (-1, 8))):
        config = load_config(RaceConfig, [*words, steps])
        assert (config.train_steps, config.epoch_num) == expected


@pytest.mark.parametrize(
    ("kind", "key", "alias"),
    [
        (PretrainConfig, "batch_size", "train_batch_size"),
        (PretrainConfig, "epoch_size", "epoch_num"),
        (RaceConfig, "train_batch_size", "batch_size"),
        (RaceConfig, "epoch_num", "epoch_size"),
    ],
)
def test_a_key_has_its_other_name_everywhere(kind: type[Config], key: str, alias: str, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(f"train_steps: 0\n{alias}: 7\n")
    words = ["--config_path", str(path)]
    config = load_config(kind, words)
    assert getattr(config, key) == 7 and alias not in config.to_dict()
    assert getattr(load_config(kind, [*words, f"--{key}", "9"]), key) == 9
    assert getattr(load_config(kind, [*words, f"--{alias}", "9"]), key) == 9
    with pytest.raises(ConfigError) as caught:
        load_config(kind, [*words, f"--{alias}", "0"])
    assert (caught.value.key, caught.value.value) == (alias, "0")
    with pytest.raises(ConfigError):
        load_config(kind, [*words, f"--{alias}", "8", f"--{key}", "9"])
    assert getattr(kind(**{"train_steps": 0, alias: 5}), key) == 5
    path.write_text(f"{key}: 6\n{alias}: 7\n")
    with pytest.raises(ConfigError) as caught:
        load_config(kind, words)
    assert caught.value.key == key


@pytest.mark.parametrize(("kind", "key"), [(PretrainConfig, "epoch_size"), (RaceConfig, "epoch_num")])
def test_the_name_of_epochs_elsewhere_suggests_the_name_here(kind: type[Config], key: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean --{key}"):
        load_config(kind, ["--num_train_epochs", "3"])


def test_a_phase_has_the_other_name_too() -> None:
    phases = load_config(PretrainConfig, ["--phases", "[{train_batch_size: 3}]"]).phases
    assert [phase.batch_size for phase in phases] == [3]


@pytest.mark.parametrize("key", ["data_dir", "device_target", "phases", "predict_json_path", "no_such_key"])
def test_a_sentence_does_not_grow_with_what_it_quotes(key: str) -> None:
    for kind in (PretrainConfig, SquadConfig):
        for flags in ([f"--{key}", "x" * 100_000], [f"--{key}" + "x" * 100_000, "1"], ["x" * 100_000]):
            with pytest.raises(ConfigError) as error:
                load_config(kind, flags).check_required()
            assert len(str(error.value)) < 5000


def test_the_default_number_of_epochs_counts_as_well_where_it_is_given(tmp_path: Path) -> None:
    words = ["--data_dir", "d", "--save_checkpoint_path", "r"]
    assert load_config(PretrainConfig, [*words, "--epoch_size", "1"]).train_steps == 0
    path = tmp_path / "own.yaml"
    path.write_text("epoch_size: 1\n")
    with pytest.raises(ConfigError, match="no effect while train_steps is 10000") as error:
        load_config(PretrainConfig, ["--config_path", str(path), *words])
    assert (error.value.key, error.value.value) == ("epoch_size", 1)
    write_config(load_config(PretrainConfig, words), path)  # which names both
    assert load_config(PretrainConfig, ["--config_path", str(path)]).train_steps == 10000


def test_a_flag_that_every_phase_replaces_is_refused() -> None:
    words = ["--config_path", "recipes/pretrain_1gpu_day.yaml", "--data_dir", "d", "--save_checkpoint_path", "r"]
    assert all(phase.global_batch_size for phase in load_config(PretrainConfig, words).phases)
    with pytest.raises(ConfigError, match="each of the phases has its own") as error:
        load_config(PretrainConfig, [*words, "--global_batch_size", "512"])
    assert (error.value.key, error.value.value) == ("global_batch_size", "512")
    phases = ["--phases", "[{share: 0.5, learning_rate: 1e-3}, {share: 0.5, batch_size: 8, learning_rate: 2e-3}]"]
    assert load_config(PretrainConfig, [*words, *phases, "--batch_size", "16"]).batch_size == 16
    with pytest.raises(ConfigError, match="each of the phases has its own") as error:
        load_config(PretrainConfig, [*words, *phases, "--optimizer_cfg.AdamWeightDecay.learning_rate", "1e-4"])
    assert (error.value.key, error.value.value) == ("optimizer_cfg.AdamWeightDecay.learning_rate", "1e-4")


def test_where_each_phase_has_its_data_none_is_needed_beside_it() -> None:
    words = ["--config_path", os.devnull, "--save_checkpoint_path", "r", "--train_steps", "9"]
    each = [*words, "--phases", "[{share: 0.5, data_dir: a}, {share: 0.5, data_dir: b}]"]
    load_config(PretrainConfig, each).check_required()
    with pytest.raises(ConfigError, match="each of the phases has its own") as error:
        load_config(PretrainConfig, [*each, "--data_dir", "c"])
    assert (error.value.key, error.value.value) == ("data_dir", "c")
    with pytest.raises(ConfigError, match="give the folder with the examples") as error:
        load_config(PretrainConfig, [*words, "--phases", "[{share: 0.5}, {share: 0.5, data_dir: b}]"]).check_required()
    assert (error.value.key, error.value.value) == ("data_dir", "")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ClassifierConfig, ["--dev_file", "dev.tsv"]),
        (ClassifierConfig, ["--max_eval_samples", "5"]),
        (NerConfig, ["--eval_data_file_path", "a.mindrecord"]),
        (SquadConfig, ["--eval_json_path", "dev.json"]),
        (RaceConfig, ["--early_stopping", "2"]),
        (RaceConfig, ["--eval_steps", "2"]),
    ],
)
def test_what_concerns_evaluation_alone_needs_it(kind: type[FinetuneConfig], words: list[str]) -> None:
    """Also of a file that is not there: nobody would look for it."""
    with pytest.raises(ConfigError, match=f"{words[0][2:]} is .* do_eval is false"):
        load_config(kind, [*words, "--do_eval", "false"])
    load_config(kind, [*words, "--do_eval", "false", "--do_train", "false", "--do_predict", "true"])


@pytest.mark.parametrize(
    ("config_class", "key"),
    [(SquadConfig, "predict_json_path"), (NerConfig, "test_file"), (ClassifierConfig, "test_file")],
)
def test_a_file_to_predict_needs_do_predict(config_class: type[FinetuneConfig], key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is .?some.* do_predict is false"):
        load_config(config_class, [f"--{key}", "some.json"])
    assert getattr(load_config(config_class, [f"--{key}", "some.json", "--do_predict", "true"]), key) == "some.json"


@pytest.mark.parametrize(
    ("kind", "words"), [(RaceConfig, []), (ClassifierConfig, ["--task_name", "mrpc"])], ids=["race", "glue"]
)
def test_the_folder_of_examples_is_needed_where_features_are_not_ready(kind: type[Config], words: list[str]) -> None:
    words = [*words, "--save_finetune_checkpoint_path", "run"]
    training = [*words, "--train_data_file_path", "a.mindrecord"]
    ready = [*training, "--eval_data_file_path", "b.mindrecord"]
    load_config(kind, ready).check_required()
    for lacking in (words, training, [*ready, "--do_predict", "true"]):
        with pytest.raises(ConfigError) as error:
            load_config(kind, lacking).check_required()
        assert (error.value.key, error.value.value) == ("data_dir", "")


def test_a_level_of_ready_features_is_refused() -> None:
    words = ["--train_data_file_path", "a.mindrecord", "--do_eval", "false", "--level", "high"]
    with pytest.raises(ConfigError, match="the features are ready") as error:
        load_config(RaceConfig, words)
    assert (error.value.key, error.value.value) == ("level", "high")


@pytest.mark.parametrize(
    ("kind", "words", "sentence"),
    [
        (
            SquadConfig,
            "--max_seq_length 64 --max_query_length 64",
            "max_query_length is 64, allowed is at most max_seq_length - 4 .60",
        ),
        (
            SquadV2Config,
            "--end_n_top 900",
            "the larger of start_n_top and end_n_top is 900, allowed is at most max_seq",
        ),
        (
            RaceConfig,
            "--max_seq_length 130 --max_qa_length 128",
            "max_qa_length is 128, allowed is at most max_seq_length - 3 .127",
        ),
        (ClassifierConfig, "--task_name ax", "task_name is 'ax', .* do_train and do_eval"),
    ],
)
def test_keys_that_contradict_each_other_are_told_before_any_work(
    kind: type[Config], words: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(kind, words.split())


@pytest.mark.parametrize("name", ["train.tf_record", "train.tfrecord", "train"])
def test_ready_features_of_any_other_name_are_tfrecords(name: str) -> None:
    words = ["--schema_file_path", "schema.json", "--train_data_file_path"]
    assert load_config(ClassifierConfig, [*words, name]).schema_file_path == "schema.json"
    with pytest.raises(ConfigError, match=r"names a TFRecord .*\*\.mindrecord"):
        load_config(ClassifierConfig, [*words, f"{name}.mindrecord"])


@pytest.mark.parametrize("key", ["train_data_file_path", "eval_data_file_path"])
def test_tasks_that_read_no_tfrecords_refuse_them(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(RaceConfig, [f"--{key}", "some.tfrecord"])
    assert (error.value.key, error.value.value) == (key, "some.tfrecord")
