"""Pre-training end to end on a small model: undisturbed, killed, stopped, damaged; evaluated; refused in time."""

import gc
import itertools
import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretrain_eval
import run_pretrain
from dataset import create_pretrain_dataset
from model_utils.device import setup_device
from model_utils.errors import CheckpointError, ConfigError, DataError
from model_utils.schema import load_config
from src.albert_config import AlbertConfig
from src.albert_for_pre_training import PreTrainingEvaluation
from src.checkpoints.checkpoint_files import find_checkpoint, list_checkpoints, load_backbone
from src.model_folder import read_counts
from src.pretraining.pretraining_evaluation import evaluate, unigram_lines
from src.pretraining_data.checked_data import PretrainingData
from src.training.pretrain_config import PretrainConfig, PretrainEvalConfig
from src.training.run_folder import RunFolder
from tests.helpers.pretraining_run import (
    MODEL,
    SPECIALS,
    STEPS,
    config_of,
    flags_of,
    log,
    start,
    words_of,
    write_pretraining_data,
)
from tests.helpers.tfrecord_files import tf_example, write_tfrecord

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vocab.txt, train/ and held_out/."""
    return write_pretraining_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    code, said = start(data, run)
    assert code == 0, said
    return run


def test_a_run_leaves_all_that_belongs_to_it(data: Path, finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        ".lock",
        "albert-150.ckpt",
        "albert-200.ckpt",
        "albert_config.json",
        "config.yaml",
        "curves.png",
        "tensorboard",
        "tokenizer_config.json",
        "train_log.jsonl",
        "train_results.json",
        "unigram.npy",
        "vocab.txt",
    }
    architecture = AlbertConfig.from_json(finished / "albert_config.json")
    assert architecture.replace(**MODEL, vocab_size=208) == architecture
    assert load_config(PretrainConfig, ["--config_path", str(finished / "config.yaml")]) == config_of(data, finished)


def test_the_log_shows_both_tasks_at_every_step(finished: Path) -> None:
    records = log(finished)
    assert [record["step"] for record in records] == [1, 2, 5, *range(10, STEPS + 1, 10)]
    wanted = {"step", "epoch", "loss", "mlm_loss", "sop_loss", "mlm_accuracy", "sop_accuracy", "learning_rate"}
    assert all(wanted | {"loss_scale", "skipped_steps", "grad_norm"} <= set(record) for record in records)
    assert [record["step"] for record in records if "eval_mlm_loss" in record] == [100, 200]
    for record in records:
        assert record["loss"] == pytest.approx(record["mlm_loss"] + record["sop_loss"], abs=1e-5)
    assert records[-1]["mlm_loss"] < records[0]["mlm_loss"]  # the output bias starts it near the unigram loss
    assert records[0]["mlm_loss"] < math.log(208) - 1


def test_the_log_shows_how_much_of_the_device_training_uses(finished: Path) -> None:
    records = [json.loads(line) for line in (finished / "train_log.jsonl").read_text().splitlines()]
    assert records[0]["mfu"] is None  # compilation says nothing
    assert all(0 < record["mfu"] < 1.2 for record in records[1:])


def test_interruptions_change_no_number(data: Path, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, said = start(data, run, signal.SIGKILL, after_step=110)
    assert code == -signal.SIGKILL, said
    (_, newest), (before, older) = list_checkpoints(run)[:2]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    code, said = start(data, run)
    assert code == 0, said
    assert f"{newest} is damaged" in said and f"resuming after step {before} from {older}" in said
    assert log(run) == log(finished)
    ours, theirs = (find_checkpoint(folder / "albert-200.ckpt").values for folder in (run, finished))
    np.testing.assert_equal(ours, theirs)


def test_every_row_has_the_weight_of_the_order_loss(data: Path, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, sop_loss_weight=0.1)
    with RunFolder(tmp_path, config) as folder:
        trainer = run_pretrain.build_trainer(config, setup_device("CPU"), folder)
    batch = next(trainer.phases.current.data.batches(0))
    np.testing.assert_array_equal(batch["sop_loss_weights"], np.full(8, 0.1, np.float32))


def test_a_finished_run_is_left_alone(data: Path, finished: Path, capsys: pytest.CaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.iterdir() if path.name != ".lock"}
    run_pretrain.main(config_of(data, finished))
    assert "it is finished: nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in finished.iterdir() if path.name != ".lock"} == before


def test_another_configuration_is_refused(data: Path, finished: Path) -> None:
    with pytest.raises(ConfigError, match="train_steps is 200 there and 300 here"):
        run_pretrain.main(config_of(data, finished, train_steps=300))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"optimizer_cfg.AdamWeightDecay.warmup_steps": 200}, "warmup_steps is 200"),
        ({"albert_cfg.max_position_embeddings": 16}, "max_position_embeddings"),
        ({"albert_cfg.type_vocab_size": 1}, "type_vocab_size is 1"),
        ({"albert_cfg.vocab_size": 300}, "vocab_size is 300, but the vocabulary of the data has 208 tokens"),
        ({"batch_size": 5000}, "fewer rows than one batch of 5000"),
        ({"global_batch_size": 4096}, "fewer rows than one batch of 4096: lower global_batch_size"),
        ({"data_dir": "/nowhere"}, "/nowhere "),
        ({"eval_data_dir": "/nowhere"}, "/nowhere "),
        ({"load_checkpoint_path": "/nowhere"}, "/nowhere cannot be read"),
    ],
)
def test_bad_input_is_refused_before_work(data: Path, tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ConfigError, DataError, CheckpointError), match=sentence):
        run_pretrain.main(config_of(data, tmp_path / "run", **changes))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock"}


def test_a_run_that_could_not_be_saved_is_refused_by_a_dry_run(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file/run", tmp_path / ("n" * 256)):
        with pytest.raises(ConfigError, match="but nothing can be written there"):
            run_pretrain.main(config_of(data, path, dry_run=True))


def test_another_vocabulary_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS + [f"other{i}" for i in range(201)]) + "\n")
    with pytest.raises(DataError, match="was not made with"):
        run_pretrain.main(config_of(data, tmp_path / "run", vocab_file=tmp_path / "vocab.txt"))


def test_tfrecords_need_a_vocabulary_and_are_checked_against_it(data: Path, shared: Path, tmp_path: Path) -> None:
    flags = {"data_dir": shared / "golden", "eval_steps": 0, "eval_data_dir": "", "vocab_file": ""}
    flags["albert_cfg.max_position_embeddings"] = 512
    with pytest.raises(ConfigError, match=r"files in .*golden do not name their vocabulary") as error:
        run_pretrain.main(config_of(data, tmp_path / "run", **flags))
    assert error.value.key == "albert_cfg.vocab_size"
    with pytest.raises(DataError, match="but the model's vocabulary 208 tokens"):
        run_pretrain.main(config_of(data, tmp_path / "run", **flags, **{"albert_cfg.vocab_size": 208}))


def test_a_run_on_tfrecords_goes_on_from_any_checkpoint(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Within an epoch, as after a kill."""
    columns = next(held_out(data, 40).batches(0))
    rows = [tf_example({name: np.atleast_1d(values[i]) for name, values in columns.items()}) for i in range(40)]
    (tmp_path / "rows").mkdir()
    write_tfrecord(tmp_path / "rows/a.tfrecord", rows)
    flags = {"data_dir": tmp_path / "rows", "eval_steps": 0, "eval_data_dir": "", "train_steps": 3, "log_steps": 1}
    flags |= {"optimizer_cfg.AdamWeightDecay.warmup_steps": 1, "save_checkpoint_steps": 1, "save_checkpoint_num": 3}
    whole, again = tmp_path / "whole", tmp_path / "again"
    run_pretrain.main(config_of(data, whole, **flags))
    later = shutil.ignore_patterns("albert-[23].ckpt", "train_results.json")
    run_pretrain.main(config_of(data, shutil.copytree(whole, again, ignore=later), **flags))
    assert "resuming after step 1" in capsys.readouterr().out
    assert [record["step"] for record in log(whole)] == [1, 2, 3] and log(again) == log(whole)
    ours, theirs = (find_checkpoint(folder / "albert-3.ckpt").values for folder in (again, whole))
    np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("key", ["eval_data_dir", "phases"])
def test_files_of_another_vocabulary_than_that_of_tfrecords(key: str, data: Path, shared: Path, tmp_path: Path) -> None:
    flags = {"data_dir": shared / "golden", "vocab_file": "", "spm_model_file": shared / "data/vocab/30k-clean.model"}
    flags |= {"albert_cfg.max_position_embeddings": 512}
    if key == "phases":
        flags[key] = f"[{{share: 0.5}}, {{share: 0.5, data_dir: {data / 'train'}}}]"
    with pytest.raises(DataError, match=r"was made with vocab_sha256 .* make both with the same .*vocab\.txt"):
        run_pretrain.main(config_of(data, tmp_path / "run", **flags))


def test_a_dry_run_keeps_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    gc.collect()  # earlier networks that go later take compiled graphs with them, and an update has to compile again
    run_pretrain.main(config_of(data, tmp_path / "run", dry_run="true", eval_data_dir=data / "train"))
    said = capsys.readouterr()
    assert f"{STEPS} updates take about 0:0" in said.out and "are not held out" in said.out + said.err
    assert list(tmp_path.iterdir()) == []


def test_a_warm_start_takes_weights_and_sizes_from_the_checkpoint(
    data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = flags_of(data, tmp_path / "run", load_checkpoint_path=finished)
    for key in MODEL:  # the preset's sizes would not fit: those beside the checkpoint win
        place = words.index(f"--albert_cfg.{key}")
        del words[place : place + 2]
    config = load_config(PretrainConfig, words)
    with RunFolder(config.save_checkpoint_path, config) as folder:
        trainer = run_pretrain.build_trainer(config, setup_device("CPU"), folder)
        trainer.resume()
    saved = find_checkpoint(finished).values
    for name, parameter in trainer.step.network.parameters_dict().items():
        if name in saved:
            np.testing.assert_array_equal(parameter.asnumpy(), saved[name], err_msg=name)
    assert trainer.state.step == 0 and int(trainer.step.optimizer.global_step.asnumpy()) == 0
    said = capsys.readouterr().out
    assert "0 missing" in said and "overrides the preset albert_base: embedding_size, hidden_size" in said


def run_evaluation(data: Path, finished: Path, **changes: Any) -> None:
    flags = {
        "config_path": os.devnull,
        "load_checkpoint_path": finished,
        "data_dir": data / "held_out",
        "batch_size": 8,
        "device_target": "CPU",
        **changes,
    }
    pretrain_eval.main(load_config(PretrainEvalConfig, words_of(flags)))


@pytest.fixture(scope="module")
def evaluated(data: Path, finished: Path) -> dict[str, Any]:
    run_evaluation(data, finished)
    return json.loads((finished / "eval_results.json").read_text())


def test_examples_that_were_trained_on_are_not_taken_for_held_out(
    data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run_evaluation(data, finished, data_dir=data / "train", output_path=tmp_path, eval_batches=1)
    assert "was trained on these examples" in capsys.readouterr().out


def held_out_columns(data: Path) -> dict[str, np.ndarray]:
    batches = list(held_out(data, 1).batches(0))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def held_out(data: Path, batch_size: int) -> PretrainingData:
    loading = run_pretrain.Loading(batch_size, shuffle=False, evaluation=True)
    return create_pretrain_dataset(data / "held_out", loading)


def test_only_the_network_that_was_trained_is_evaluated(
    data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A value that fits the weights' shapes is refused; dropout counts for nothing here, and the log blames no file."""
    changes = {"output_path": tmp_path / "new", "eval_batches": 1}
    with pytest.raises(CheckpointError, match=r"with num_attention_heads 4: leave out albert_cfg"):
        run_evaluation(data, finished, **changes, **{"albert_cfg.num_attention_heads": 2})
    capsys.readouterr()
    run_evaluation(data, finished, **changes, **{"albert_cfg.hidden_dropout_prob": 0.3})
    said = capsys.readouterr().out
    assert "overrides the preset albert_mini: embedding_size, hidden_size" in said
    assert "0.3" not in said and "was trained on these examples" not in said


def test_evaluation_is_that_of_training(finished: Path, evaluated: dict[str, Any]) -> None:
    last = log(finished)[-1]
    names = {name.removeprefix("eval_") for name in last if name.startswith("eval_")}
    assert {"hidden_mlm_loss", "hidden_mlm_accuracy", "hidden_nats_per_character", "sop_accuracy"} < names
    for name in names:
        assert evaluated[name] == pytest.approx(last[f"eval_{name}"], rel=1e-6), name
    assert evaluated["checkpoint"] == "albert-200.ckpt" and evaluated["step"] == 200


def test_evaluation_drops_no_example_whatever_the_batch(data: Path, finished: Path, evaluated: dict[str, Any]) -> None:
    columns = held_out_columns(data)
    assert evaluated["examples"] == len(columns["input_ids"])
    assert evaluated["masked_tokens"] == columns["masked_lm_weights"].sum()
    asked: list[None] = []
    batches = held_out(data, evaluated["examples"] - 3).batches(0)
    again = evaluate(network_of(finished), batches, 208, before_batch=lambda: asked.append(None))
    assert len(asked) == 2
    assert not any(name.startswith("hidden") for name in again.metrics)  # without a tokenizer
    for name, value in again.metrics.items():
        assert evaluated[name] == pytest.approx(value, rel=1e-6), name


def network_of(run: Path) -> PreTrainingEvaluation:
    network = PreTrainingEvaluation(AlbertConfig.from_json(run / "albert_config.json"))
    load_backbone(network, find_checkpoint(run), needed=("",))
    return network


def test_what_is_hidden_is_evaluated_by_itself(data: Path, finished: Path, evaluated: dict[str, Any]) -> None:
    """The vocabulary's [MASK] is 4; four fifths of the predicted tokens show it."""
    columns = held_out_columns(data)
    hidden = np.take_along_axis(columns["input_ids"], columns["masked_lm_positions"], 1) == 4
    columns["masked_lm_weights"] *= hidden
    tokens = columns["masked_lm_weights"].sum()
    assert 0.7 < tokens / evaluated["masked_tokens"] < 0.9 and evaluated["hidden_tokens"] == tokens
    alone = evaluate(network_of(finished), [columns], 208).metrics
    for name in ("mlm_loss", "mlm_accuracy"):
        assert evaluated[f"hidden_{name}"] == pytest.approx(alone[name], rel=1e-6)
        assert abs(evaluated[name] - alone[name]) > 1e-3
    words = (data / "vocab.txt").read_text().split()
    answers = columns["masked_lm_ids"][columns["masked_lm_weights"] > 0]
    characters = sum(1 if words[i] == "." else len(words[i]) + 1 for i in answers)
    per_token = characters / tokens
    assert evaluated["hidden_nats_per_character"] == pytest.approx(evaluated["hidden_mlm_loss"] / per_token)
    training = np.load(data / "train" / "train.unigram.npy")
    losses = [-math.log((training[i] + 1) / (training.sum() + 208)) for i in answers]
    lines = evaluated["baselines"]
    assert lines["hidden_mlm_loss"]["unigram"] == pytest.approx(np.mean(losses))
    assert lines["hidden_mlm_accuracy"]["unigram"] == pytest.approx((answers == training.argmax()).mean())
    assert lines["hidden_nats_per_character"]["unigram"] == pytest.approx(np.mean(losses) / per_token)


def test_the_log_has_the_lines_of_what_is_evaluated(data: Path, tmp_path: Path, evaluated: dict[str, Any]) -> None:
    config = config_of(data, tmp_path)
    with RunFolder(tmp_path, config) as folder:
        lines = run_pretrain.build_trainer(config, setup_device("CPU"), folder).recorder.baselines
    for metric, expected in evaluated["baselines"].items():
        assert lines[metric] == pytest.approx({name: expected[name] for name in expected if name != "own unigram"})


def test_baselines_are_what_counting_gives(data: Path, evaluated: dict[str, Any]) -> None:
    columns = held_out_columns(data)
    answers = columns["masked_lm_ids"][columns["masked_lm_weights"] > 0]
    training = np.load(data / "train" / "train.unigram.npy")
    losses = [-math.log((training[i] + 1) / (training.sum() + 208)) for i in answers]
    lines = evaluated["baselines"]
    assert lines["mlm_loss"]["chance"] == pytest.approx(math.log(208))
    assert lines["mlm_accuracy"]["chance"] == 1 / 208
    assert lines["sop_loss"] == {"chance": pytest.approx(math.log(2))} and lines["sop_accuracy"] == {"chance": 0.5}
    assert lines["mlm_loss"]["unigram"] == pytest.approx(sum(losses) / len(losses))
    assert lines["mlm_accuracy"]["unigram"] == pytest.approx((answers == training.argmax()).mean())
    shares = [(answers == i).mean() for i in answers]
    assert lines["mlm_loss"]["own unigram"] == pytest.approx(-np.log(shares).mean())
    assert lines["mlm_loss"]["own unigram"] < lines["mlm_loss"]["unigram"]
    assert lines["mlm_accuracy"]["own unigram"] == pytest.approx(max(shares))


def test_damaged_token_counts_are_a_sentence_before_the_evaluation(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_counts(tmp_path, 4) is None
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "unigram.npy").write_bytes(b"")
    monkeypatch.setattr(pretrain_eval, "evaluate", lambda *_: pytest.fail("evaluated"))
    with pytest.raises(DataError, match=r"unigram\.npy"):
        run_evaluation(data, run)


def test_the_unigram_baseline_counts_unseen_tokens_once() -> None:
    losses, accuracies = unigram_lines(np.array([0.0, 3.0, 1.0]), np.array([5, 0, 2]))
    assert losses["unigram"] == pytest.approx(-(3 * math.log(1 / 10) + math.log(3 / 10)) / 4)
    assert accuracies == {"unigram": 0.0, "own unigram": 0.75}


def test_the_rate_comes_to_its_end_with_the_time(data: Path, tmp_path: Path) -> None:
    """36 s by a clock that shows a second more whenever it is looked at, which is once an update."""
    changes = {
        "max_train_hours": 0.01,
        "eval_steps": 0,
        "eval_data_dir": "",
        "log_steps": 1,
        "save_checkpoint_steps": 0,
    }
    config = config_of(data, tmp_path, **changes)
    seconds = itertools.count(0.0)
    with RunFolder(tmp_path, config) as folder:
        trainer = run_pretrain.build_trainer(config, setup_device("CPU"), folder)
        trainer.progress.clock = lambda: next(seconds)
        trainer.fit()
    rates = {record["step"]: record["learning_rate"] for record in log(tmp_path)}
    assert max(rates) == 36 and rates[19] == pytest.approx(1e-3 * 19 / 20)
    assert rates[30] == pytest.approx(1e-3 * (1 - 29 / 36)) and rates[36] == pytest.approx(1e-3 / 36)
