"""Every recipe is a complete configuration of its script, with the published figures."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model_utils.flat_dicts import flatten
from model_utils.schema import Config, load_config
from model_utils.yaml_files import read_yaml
from src.create_pretraining_data import CreateDataConfig
from src.model_folder import load_tokenizer
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.multiple_choice import RaceConfig, RaceTask
from src.tasks.question_answering import SquadConfig, SquadTask, SquadV2Config
from src.tasks.token_classification import NerConfig, NerTask
from src.training.pretrain_config import PretrainConfig
from src.training.training_config import OPTIMIZERS, TrainingConfig
from tests.conftest import ROOT

# Warm-up, learning rate, updates and global batch, length 512, as published by google-research/albert.
GLUE = {
    "sst-2": (1256, 1e-5, 20935, 32),
    "mnli": (1000, 3e-5, 10000, 128),
    "cola": (320, 1e-5, 5336, 16),
    "qnli": (1986, 1e-5, 33112, 32),
    "qqp": (1000, 5e-5, 14000, 128),
    "rte": (200, 3e-5, 800, 32),
    "sts-b": (214, 2e-5, 3598, 16),
    "mrpc": (200, 2e-5, 800, 32),
}

# Command, length, epochs, learning rate and global batch; the recipes name their sources.
CLUE: dict[str, tuple[type[FinetuneConfig], int, int, float, int]] = {
    "tnews": (ClassifierConfig, 128, 3, 2e-5, 16),
    "iflytek": (ClassifierConfig, 128, 3, 2e-5, 32),
    "afqmc": (ClassifierConfig, 128, 3, 2e-5, 16),
    "cmnli": (ClassifierConfig, 128, 2, 3e-5, 64),
    "ocnli": (ClassifierConfig, 128, 3, 2e-5, 32),
    "csl": (ClassifierConfig, 256, 5, 1e-5, 4),
    "c3": (RaceConfig, 512, 8, 2e-5, 24),
    "cluener": (NerConfig, 128, 4, 3e-5, 24),
    "cmrc2018": (SquadConfig, 512, 2, 3e-5, 32),
}

PRETRAINING = {
    "examples_64": CreateDataConfig,
    "pretrain_1h_cpu": PretrainConfig,
    "pretrain_1day_cpu": PretrainConfig,
    "pretrain_1gpu_day": PretrainConfig,
    "pretrain_paper": PretrainConfig,
}
FINETUNING = dict.fromkeys(GLUE, ClassifierConfig) | {
    "race": RaceConfig,
    "squad_v1": SquadConfig,
    "squad_v2": SquadV2Config,
}
FINETUNING |= {name: kind for name, (kind, *_) in CLUE.items()}
KINDS: dict[str, type[Config]] = {**PRETRAINING, **FINETUNING}


def load(name: str, kind: type[Config]) -> Any:
    return load_config(kind, ["--config_path", str(ROOT / "recipes" / f"{name}.yaml")])


def figures(config: FinetuneConfig) -> tuple[int, float, int, int]:
    optimizer = config.optimizer_cfg.AdamWeightDecay
    batch = config.train_batch_size * config.accumulation_steps
    return optimizer.warmup_steps, optimizer.learning_rate, config.train_steps, batch


def test_nothing_else_lies_there() -> None:
    assert {path.stem for path in (ROOT / "recipes").iterdir()} == KINDS.keys()


@pytest.mark.parametrize("task", GLUE)
def test_glue(task: str) -> None:
    config = load(task, ClassifierConfig)
    assert config.task_name == task and config.max_seq_length == 512
    assert figures(config) == GLUE[task]


# What a reader looks for in a recipe, whatever the defaults are.
STATED = {"max_seq_length", "epoch_num", "train_batch_size", "optimizer_cfg.AdamWeightDecay.learning_rate"}


@pytest.mark.parametrize("name", KINDS)
def test_a_recipe_repeats_no_other_default(name: str) -> None:
    defaults = flatten(KINDS[name]().to_dict())
    for key, value in flatten(read_yaml(ROOT / "recipes" / f"{name}.yaml")).items():
        assert key in STATED or value != defaults.get(key), key


def test_pretraining_of_the_paper() -> None:
    config = load("pretrain_paper", PretrainConfig)
    lamb = config.optimizer_cfg.Lamb
    assert config.optimizer_cfg.optimizer == "Lamb" and lamb.schedule == "polynomial" and lamb.power == 1.0
    assert (lamb.learning_rate, lamb.warmup_steps, config.train_steps) == (0.00176, 3125, 125_000)
    assert config.batch_size * config.accumulation_steps == 4096


def test_pretraining_of_an_hour_ends_by_its_time() -> None:
    config = load("pretrain_1h_cpu", PretrainConfig)
    assert config.max_train_hours == 1.0 and config.train_steps / 3600 > 1000  # updates a second
    assert load("examples_64", CreateDataConfig).masking == "dynamic"  # which other shares of masked tokens need
    phases = [(phase.masked_lm_prob, phase.sop_loss_weight, phase.batch_size) for phase in config.all_phases()]
    assert phases == [(0.3, 0.0, 32), (0.3, 1.0, 64)]


@pytest.mark.parametrize(
    ("name", "tokens"), [("pretrain_1day_cpu", [2048, 8192, 8192]), ("pretrain_1gpu_day", [2**15, 2**16, 2**17, 2**18])]
)
def test_batches_of_a_day_grow(name: str, tokens: list[int]) -> None:
    config = load(name, PretrainConfig)
    assert config.max_train_hours == 24 and sum(phase.share for phase in config.all_phases()) == pytest.approx(1)
    length = {"pretrain_1day_cpu": 64, "pretrain_1gpu_day": 128}[name]
    assert [phase.batch_size * phase.accumulation_steps * length for phase in config.all_phases()] == tokens


def test_race() -> None:
    config = load("race", RaceConfig)
    assert figures(config) == (1000, 1e-5, 12000, 32)
    assert (config.max_seq_length, config.max_qa_length) == (512, 128)


@pytest.mark.parametrize(("name", "kind"), [("squad_v1", SquadConfig), ("squad_v2", SquadV2Config)])
def test_squad(name: str, kind: type[FinetuneConfig]) -> None:
    config = load(name, kind)
    assert figures(config) == (0, 5e-5, 0, 48)
    assert (config.warmup_ratio, config.epoch_num, config.max_seq_length) == (0.1, 2, 384)


@pytest.mark.parametrize("name", CLUE)
def test_clue(name: str) -> None:
    kind, length, epochs, rate, batch = CLUE[name]
    config = load(name, kind)
    assert figures(config) == (0, rate, 0, batch)
    assert (config.warmup_ratio, config.epoch_num, config.max_seq_length) == (0.1, epochs, length)
    if isinstance(config, ClassifierConfig):
        assert config.task_name == name


C3 = [
    [
        ["男：你今天有时间吗?", "女：没有。"],
        [{"question": "女的有时间吗?", "choice": ["有", "没有"], "answer": "没有"}],
        "25-35",
    ]
]
CLUENER = {
    "text": "北京勘察设计协会副会长周荫如",
    "label": {"name": {"周荫如": [[11, 13]]}, "position": {"副会长": [[8, 10]]}},
}
CMRC = {
    "context": "工商协进会报告，12月消费者信心上升到78.1。",
    "id": "TRIAL_0",
    "qas": [
        {
            "id": "TRIAL_0_QUERY_0",
            "question": "12月的消费者信心指数是多少？",
            "answers": [{"text": "78.1", "answer_start": 19}],
        }
    ],
}
PUBLISHED = {
    "c3": (RaceTask, "data_dir", "m-train.json", C3, ("option_counts", [2])),
    "cluener": (NerTask, "data_dir", "train.json", CLUENER, ("sentence_words", [14])),
    "cmrc2018": (
        SquadTask,
        "train_json_path",
        "",
        {"version": "v1.0", "data": [{"title": "傻钱", "id": "TRIAL_0", "paragraphs": [CMRC]}]},
        None,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_as_clue_publishes_them(name: str, tmp_path: Path) -> None:
    make_task, key, file, content, expected = PUBLISHED[name]
    (tmp_path / (file or "train.json")).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    path = tmp_path if file else tmp_path / "train.json"
    words = ["--config_path", str(ROOT / f"recipes/{name}.yaml"), f"--{key}", str(path), "--do_eval", "false"]
    tokenizer = load_tokenizer(ROOT / "pretrained/albert_mini_zh")
    features = make_task(load_config(FINETUNING[name], words), tokenizer).split("train").features()
    if expected:
        assert features.arrays[expected[0]].tolist() == expected[1]


def test_cluener_has_the_figure_of_its_own_script(tmp_path: Path) -> None:
    """The most frequent tag of each character: the name is right, the position is cut in two at its second one."""
    (tmp_path / "train.json").write_text(json.dumps(CLUENER, ensure_ascii=False), "utf-8")
    words = ["--data_dir", str(tmp_path), "--do_eval", "false"]
    task = NerTask(load_config(NerConfig, words), load_tokenizer(ROOT / "pretrained/albert_mini_zh"))
    prepared: Any = SimpleNamespace(split=task.split("train"))
    metrics = task.baseline(prepared, prepared)
    assert metrics["mention_macro_f1"] == (1 + 0) / 2 and metrics["f1"] == pytest.approx(2 / 5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fine_tuning_takes_every_optimizer_as_it_is(optimizer: str) -> None:
    config = load_config(ClassifierConfig, ["--optimizer_cfg.optimizer", optimizer])
    assert config.warmup_ratio > 0 and config.optimizer_settings()["warmup_ratio"] == config.warmup_ratio


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("key", "value"),
    [("max_seq_length", 64), ("max_seq_length", 32), ("max_seq_length", 8), ("train_steps", 24), ("train_steps", 1)],
)
def test_a_shorter_row_or_run_takes_one_flag(name: str, key: str, value: int) -> None:
    if key not in KINDS[name].model_fields:
        pytest.skip(f"has no {key}")
    config = load_config(KINDS[name], ["--config_path", str(ROOT / f"recipes/{name}.yaml"), f"--{key}", str(value)])
    assert getattr(config, key) == value
    if isinstance(config, TrainingConfig):
        settings = config.optimizer_settings()
        if key == "train_steps":
            assert settings["warmup_steps"] == (0 if settings["warmup_ratio"] else value // 10)
        assert 1 <= getattr(config, "max_qa_length", 1) <= value or key == "train_steps"


def test_what_follows_from_another_key_is_kept_where_it_is_given() -> None:
    words = ["--config_path", str(ROOT / "recipes/race.yaml"), "--train_steps", "1500"]
    warmups = [
        load_config(RaceConfig, [*words, *flags]).optimizer_cfg.AdamWeightDecay.warmup_steps
        for flags in ([], ["--optimizer_cfg.AdamWeightDecay.warmup_steps", "1400"], ["--train_steps", "2000"])
    ]
    assert warmups == [150, 1400, 1000]
    assert load_config(RaceConfig, ["--max_seq_length", "64"]).max_qa_length == 61
    assert load_config(SquadConfig, ["--max_seq_length", "32"]).max_query_length == 28
    assert load_config(SquadConfig, ["--max_query_length", "20"]).max_query_length == 20
