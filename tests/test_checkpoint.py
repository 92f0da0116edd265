"""Checkpoints: exact, whole or refused, never at the price of an older one; warm starts by exact name."""

import json
import os
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.train.checkpoint_pb2 import Checkpoint as CheckpointProto

from model_utils.config import _sentence
from model_utils.errors import CheckpointError, UserError
from src.albert_config import AlbertConfig
from src.checkpoints import checkpoint_files as ckpt
from src.model_folder import load_tokenizer
from src.training import checkpoint as run_checkpoint
from tests.helpers.small_disk import no_file_beyond
from tests.helpers.trained_folders import make_folder


class State(nn.Cell):
    """A backbone, a head and an optimizer's state in the types that a training step has."""

    def __init__(self, seed: int = 0, labels: int = 2, hidden: int = 3, backbone: str = "albert") -> None:
        super().__init__(auto_prefix=False)
        draw = np.random.default_rng(seed)
        self.matrix = Parameter(Tensor(draw.normal(size=(4, hidden)), ms.float32), name=f"{backbone}.encoder.weight")
        self.bias = Parameter(Tensor(draw.normal(size=hidden), ms.float32), name=f"{backbone}.encoder.bias")
        self.head = Parameter(Tensor(draw.normal(size=(labels, hidden)), ms.float32), name="classifier.weight")
        self.moment = Parameter(Tensor(draw.normal(size=(4, hidden)), ms.float32), name="adam_m.albert.encoder.weight")
        self.step = Parameter(Tensor(draw.integers(100), ms.int32), name="global_step")
        self.scale = Parameter(Tensor(65536.0, ms.float32), name="loss_scale")
        self.sums = Parameter(Tensor(np.zeros((4, hidden)), ms.float32), name="accumulated.albert.encoder.weight")
        self.counter = Parameter(Tensor(0.0, ms.float32), name=f"{backbone}.embeddings.row_square_sum")


def values(cell: nn.Cell) -> dict[str, np.ndarray]:
    return {name: parameter.asnumpy().copy() for name, parameter in cell.parameters_dict().items()}


def assert_equal(left: nn.Cell, right: nn.Cell) -> None:
    for name, value in values(left).items():
        assert (value.shape, value.dtype) == (values(right)[name].shape, values(right)[name].dtype), name
        np.testing.assert_array_equal(value, values(right)[name], err_msg=name)


LOOP_STATE = {"step": 7, "epoch": 1, "window": {"loss": [0.1 + 0.2, 3]}, "text": "Schlußpunkt 猫"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return ckpt.save_checkpoint(State(1), tmp_path, 7, LOOP_STATE)


def test_state_returns_exactly(saved: Path) -> None:
    contents = ckpt.read_checkpoint(saved)
    other = State(2)
    run_checkpoint.restore(other, contents)
    assert_equal(other, State(1))
    assert contents.loop_state == LOOP_STATE
    assert len(contents.values) == 6  # what is zero between updates is not saved
    assert saved.name == "albert-7.ckpt" and [p.name for p in saved.parent.iterdir()] == ["albert-7.ckpt"]


def test_a_file_that_shrinks_while_it_is_read_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cut").write_bytes(bytes(3 << 24) + b"crc_num" + bytes(10))
    monkeypatch.setattr("binascii.crc32", lambda *_: os.truncate(tmp_path / "cut", 1) or 1)
    with pytest.raises(CheckpointError, match="damaged"):
        ckpt.verify(tmp_path / "cut")


def test_who_may_read_a_checkpoint_is_what_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        saved = ckpt.save_checkpoint(State(1), tmp_path, 7, LOOP_STATE)
    finally:
        os.umask(before)
    assert saved.stat().st_mode & 0o777 == 0o640


def test_a_run_of_several_seeds_names_the_folder_of_one(tmp_path: Path) -> None:
    for seed in (8, 7):
        (tmp_path / f"seed-{seed}").mkdir()
    with pytest.raises(CheckpointError, match=r"no readable checkpoint; .*/seed-7$"):
        ckpt.find_checkpoint(tmp_path)


def test_a_checkpoint_that_a_run_removes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify_and_lose(path: Path) -> bool:
        whole = verify(path)
        (tmp_path / "albert-7.ckpt").unlink(missing_ok=True)
        return whole

    for step in (5, 7):
        ckpt.save_checkpoint(State(step), tmp_path, step, LOOP_STATE)
    verify = ckpt.verify
    monkeypatch.setattr(ckpt, "verify", verify_and_lose)
    assert ckpt.find_checkpoint(tmp_path).path.name == "albert-5.ckpt"


def test_mindspore_itself_reads_the_file(saved: Path) -> None:
    loaded = ms.load_checkpoint(str(saved), crc_check=True)
    np.testing.assert_array_equal(loaded["albert.encoder.weight"].asnumpy(), State(1).matrix.asnumpy())


def test_large_tensors_come_back_from_their_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindspore.train.serialization.SLICE_SIZE", 1)  # KiB instead of 512 MiB
    cell = nn.Cell()
    cell.big = Parameter(Tensor(np.arange(3000, dtype=np.float32).reshape(30, 100)), name="albert.big")
    path = ckpt.save_checkpoint(cell, tmp_path, 1, {})
    np.testing.assert_array_equal(ckpt.read_checkpoint(path).values["albert.big"], cell.big.asnumpy())


def test_every_flipped_byte_is_noticed(saved: Path) -> None:
    good = saved.read_bytes()
    for position in [*range(0, len(good), 37), *range(len(good) - 20, len(good))]:
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        saved.write_bytes(damaged)
        assert ckpt.newest_checkpoint(saved.parent) is None, f"byte {position} of {len(good)}"


@pytest.mark.parametrize("left", [0, 1, 20, 0.5, -1, -17, -40])
def test_truncation_is_noticed(saved: Path, left: float, caplog: pytest.LogCaptureFixture) -> None:
    good = saved.read_bytes()
    saved.write_bytes(good[: int(len(good) * left) if 0 < left < 1 else int(left)])
    assert ckpt.newest_checkpoint(saved.parent) is None
    assert len(caplog.messages) == 1 and "albert-7.ckpt" in caplog.messages[0]


def test_a_checkpoint_is_compared_with_its_checksum_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared, verify = [], ckpt.verify
    monkeypatch.setattr(ckpt, "verify", lambda path: compared.append(path) or verify(path))
    assert ckpt.newest_checkpoint(saved.parent).path == saved and compared == [saved]


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    for content in (b"not a checkpoint at all, but long enough to be one", os.urandom(5000)):
        (tmp_path / "x.ckpt").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"x\.ckpt") as raised:
            ckpt.read_checkpoint(tmp_path / "x.ckpt")
        assert str(raised.value).count("damaged") == 1
    with pytest.raises(CheckpointError, match="No such file"):
        ckpt.read_checkpoint(tmp_path / "absent.ckpt")


@pytest.mark.parametrize(
    ("source", "files", "named", "given"),
    [
        ("hf", ["config.json", "model.safetensors", "tokenizer_config.json"], "", ""),
        ("hf", ["config.json", "pytorch_model.bin.index.json"], "", ""),
        ("hf", ["config.json", "model.safetensors"], "/model.safetensors", ""),
        ("tf", ["albert_config.json", "model.ckpt-best.index", "model.ckpt-best.meta"], "", ""),
        ("tf", ["model.ckpt-best.index"], "/model.ckpt-best", "/model.ckpt-best"),
        ("tf", ["variables/variables.index", "saved_model.pb"], "", ""),
    ],
)
def test_weights_of_other_programs_are_to_be_converted(
    source: str, files: list[str], named: str, given: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / "their model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "their model" / name).write_text("{}")
    command = f"model_utils.convert_ckpt --source {source} --target mindspore --input '{tmp_path}/their model{given}' "
    for load in (ckpt.find_checkpoint, load_tokenizer):
        with pytest.raises(CheckpointError, match="python -m") as raised:
            load(Path(f"{tmp_path}/their model{named}"))
        assert command in str(raised.value)


def test_any_path_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_folder(tmp_path / "run", "classification"))
    assert ckpt.find_checkpoint(Path()).path.name == "albert-1.ckpt"
    assert load_tokenizer(Path()).vocab_size
    monkeypatch.chdir(tmp_path)
    for load in (ckpt.find_checkpoint, load_tokenizer):
        for name in (".", "/", "..", "n" * 255, "n" * 300, "a\0b"):
            with pytest.raises((UserError, OSError)) as raised:
                load(Path(name))
            assert _sentence(raised.value, None)


def test_newest_good_one_wins_by_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (9, 10, 100):
        ckpt.save_checkpoint(State(step), tmp_path, step, {"step": step})
    (tmp_path / "albert-1000.ckpt").write_bytes(b"")
    contents = ckpt.newest_checkpoint(tmp_path)
    assert contents is not None and contents.loop_state["step"] == 100
    assert len(caplog.messages) == 1 and "albert-1000.ckpt is damaged" in caplog.messages[0]


def test_restore_wants_the_same_names_and_shapes(saved: Path) -> None:
    contents = ckpt.read_checkpoint(saved)
    with pytest.raises(CheckpointError, match=r"missing .*bert\.encoder\.bias.*unexpected albert\.encoder\.bias"):
        run_checkpoint.restore(State(backbone="bert"), contents)
    with pytest.raises(CheckpointError, match=r"classifier\.weight is \(2, 3\) in the checkpoint and \(5, 3\)"):
        run_checkpoint.restore(State(labels=5), contents)


def test_a_full_disk_costs_no_older_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ckpt.save_checkpoint(State(1), tmp_path, 1, {"step": 1})
    with no_file_beyond(200_000), pytest.raises(CheckpointError, match=r"albert-2\.ckpt could not be written"):
        ckpt.save_checkpoint(State(2, hidden=50_000), tmp_path, 2, {})
    assert [path.name for path in tmp_path.iterdir()] == ["albert-1.ckpt"]
    caplog.clear()  # MindSpore's own words
    assert ckpt.newest_checkpoint(tmp_path).loop_state == {"step": 1}
    assert not caplog.messages


def test_a_checkpoint_written_without_its_checksum_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = ms.save_checkpoint
    monkeypatch.setattr(ms, "save_checkpoint", lambda *given, crc_check, **options: save(*given, **options))
    with pytest.raises(CheckpointError, match=r"albert-2\.ckpt could not be written: .*checksum is missing"):
        ckpt.save_checkpoint(State(1), tmp_path, 2, {})
    assert list(tmp_path.iterdir()) == []


def test_only_this_runs_checkpoints_are_pruned(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        ckpt.save_checkpoint(State(step), tmp_path, step, {})
    run_checkpoint.mark_best(tmp_path, 2, {"accuracy": 0.9})
    assert run_checkpoint.prune_checkpoints(tmp_path, [2, 3, 4, 5], keep=1) == [2, 5]
    assert [step for step, _ in ckpt.list_checkpoints(tmp_path)] == [5, 2, 1]


def test_warm_start_takes_the_best_then_the_newest(tmp_path: Path) -> None:
    for step in (1, 2):
        ckpt.save_checkpoint(State(step), tmp_path, step, {})
    assert ckpt.find_checkpoint(tmp_path).path.name == "albert-2.ckpt"
    run_checkpoint.mark_best(tmp_path, 1, {"accuracy": 0.9})
    assert ckpt.find_checkpoint(tmp_path).path.name == "albert-1.ckpt"
    assert json.loads((tmp_path / "best_checkpoint.json").read_text())["accuracy"] == 0.9
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        ckpt.find_checkpoint(tmp_path / "empty")


def test_the_newest_stands_in_for_a_damaged_best_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2, 3):
        ckpt.save_checkpoint(State(step), tmp_path, step, {})
    run_checkpoint.mark_best(tmp_path, 3, {"accuracy": 0.9})
    content = (tmp_path / "albert-3.ckpt").read_bytes()
    for damaged in (content[:-40], content[:30] + b"x" + content[31:], b""):
        (tmp_path / "albert-3.ckpt").write_bytes(damaged)
        caplog.clear()
        assert ckpt.find_checkpoint(tmp_path).path.name == "albert-2.ckpt"
        assert len(caplog.messages) == 2 and "albert-3.ckpt is" in caplog.messages[0]
        assert "albert-2.ckpt" in caplog.messages[1] and "albert-3.ckpt" in caplog.messages[1]


def test_the_architecture_beside_weights_is_the_one_they_were_trained_with(tmp_path: Path) -> None:
    trained = AlbertConfig(compute_type="float16")
    ckpt.save_checkpoint(State(1), tmp_path, 1, {ckpt.ARCHITECTURE: trained.saved_dict()})
    for beside in (trained, trained.replace(compute_type="float32", recompute=True)):
        beside.to_json(tmp_path / "albert_config.json")
        assert ckpt.find_checkpoint(tmp_path).path.name == "albert-1.ckpt"
    trained.replace(num_attention_heads=6).to_json(tmp_path / "albert_config.json")
    for path in (tmp_path, tmp_path / "albert-1.ckpt"):
        with pytest.raises(CheckpointError, match=r"num_attention_heads is 6, but albert-1\.ckpt was trained with 12"):
            ckpt.find_checkpoint(path)
    ckpt.save_checkpoint(State(1), tmp_path, 1, {})  # as earlier versions wrote them
    assert ckpt.find_checkpoint(tmp_path).path.name == "albert-1.ckpt"


def test_warm_start_prints_what_matched(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = nn.Cell()
    network.matrix = Parameter(Tensor(np.zeros((4, 3), np.float32)), name="albert.encoder.weight")
    network.bias = Parameter(Tensor(np.zeros(3, np.float32)), name="albert.encoder.bias")
    network.other = Parameter(Tensor(np.zeros(2, np.float32)), name="squad.bias")
    ckpt.load_backbone(network, ckpt.find_checkpoint(saved))
    np.testing.assert_array_equal(network.matrix.asnumpy(), State(1).matrix.asnumpy())
    assert "2 matched; 1 missing: squad.bias; 1 unexpected: classifier.weight; 0 of other shape" in caplog.messages[0]


def test_what_a_warm_start_leaves_out_keeps_its_values(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = State(2, labels=3)
    ckpt.load_backbone(network, ckpt.find_checkpoint(saved))
    np.testing.assert_array_equal(network.matrix.asnumpy(), State(1).matrix.asnumpy())
    np.testing.assert_array_equal(network.head.asnumpy(), State(2, labels=3).head.asnumpy())
    np.testing.assert_array_equal(network.moment.asnumpy(), State(2, labels=3).moment.asnumpy())
    assert int(network.step.asnumpy()) == int(State(2, labels=3).step.asnumpy())
    assert "1 of other shape: classifier.weight is (2, 3) in the checkpoint and (3, 3)" in caplog.messages[0]


def test_weights_that_are_not_finite_are_named(saved: Path) -> None:
    contents = ckpt.find_checkpoint(saved)
    contents.values["albert.encoder.bias"] = np.array([0, np.nan, 0], np.float32)
    with pytest.raises(CheckpointError, match=r"not finite: albert\.encoder\.bias$"):
        ckpt.load_backbone(State(2), contents)


def test_a_backbone_that_does_not_load_ends_the_run(saved: Path, tmp_path: Path) -> None:
    contents = ckpt.find_checkpoint(saved)
    with pytest.raises(CheckpointError, match=r"another architecture: albert\.encoder\.weight is \(4, 3\).*\(4, 5\)"):
        ckpt.load_backbone(State(hidden=5), contents)
    network = State()
    network.extra = Parameter(Tensor(np.zeros(2, np.float32)), name="albert.pooler.bias")
    before = values(network)
    with pytest.raises(CheckpointError, match=r"1 of 3 needed parameters are missing: albert\.pooler\.bias"):
        ckpt.load_backbone(network, contents)
    foreign = ckpt.find_checkpoint(ckpt.save_checkpoint(State(backbone="bert"), tmp_path, 1, {}))
    with pytest.raises(CheckpointError, match=r"bert\.encoder\.bias"):
        ckpt.load_backbone(network, foreign)
    assert all((before[name] == value).all() for name, value in values(network).items())


def test_a_head_can_be_needed_as_well(saved: Path) -> None:
    network = nn.Cell()
    network.bias = Parameter(Tensor(np.zeros(3, np.float32)), name="albert.encoder.bias")
    network.head = Parameter(Tensor(np.zeros(5, np.float32)), name="mlm.bias")
    with pytest.raises(CheckpointError, match=r"1 of 2 needed parameters are missing: mlm\.bias"):
        ckpt.load_backbone(network, ckpt.find_checkpoint(saved), needed=("",))


def test_new_values_reach_a_compiled_graph(saved: Path) -> None:
    class Sum(State):
        def construct(self) -> Tensor:
            return self.matrix.sum() + self.bias.sum()

    ms.set_context(mode=ms.GRAPH_MODE)
    network = Sum(2)
    network()
    for set_values in (
        lambda: ckpt.load_backbone(network, ckpt.find_checkpoint(saved)),
        lambda: run_checkpoint.copy_parameters(State(3), network),
    ):
        set_values()
        expected = network.matrix.asnumpy().sum() + network.bias.asnumpy().sum()
        np.testing.assert_allclose(network().asnumpy(), expected, rtol=1e-5)


def test_copying_parameters_leaves_no_tie() -> None:
    source, target = State(1), State(2)
    run_checkpoint.copy_parameters(source, target)
    assert_equal(source, target)
    source.bias.set_data(Tensor(np.zeros(3, np.float32)))
    assert target.bias.asnumpy().any()


def test_float16_weights_of_others_are_read(tmp_path: Path) -> None:
    cell = nn.Cell()
    cell.w = Parameter(Tensor(np.float16([0.1, 2.5])), name="albert.w")
    ms.save_checkpoint(cell, str(tmp_path / "half.ckpt"))  # no checksum: not written here
    network = nn.Cell()
    network.w = Parameter(Tensor(np.zeros(2, np.float32)), name="albert.w")
    ckpt.load_backbone(network, ckpt.find_checkpoint(tmp_path / "half.ckpt"))
    np.testing.assert_array_equal(network.w.asnumpy(), np.float16([0.1, 2.5]).astype(np.float32))
    assert network.w.dtype == ms.float32


def test_a_changed_mark_of_the_best_checkpoint_is_noticed(tmp_path: Path) -> None:
    run_checkpoint.mark_best(tmp_path, 3, {"accuracy": 0.5})
    assert ckpt.best_checkpoint(tmp_path) == tmp_path / "albert-3.ckpt"
    file = tmp_path / "best_checkpoint.json"
    file.write_text(file.read_text().replace("albert-3", "albert-2"))
    with pytest.raises(CheckpointError, match=r"best_checkpoint\.json"):
        ckpt.best_checkpoint(tmp_path)


def test_more_entries_than_any_model_has_are_refused(tmp_path: Path) -> None:
    """A megabyte of the smallest entries would take seconds."""
    tensor = CheckpointProto.Value(tag="a", tensor={"dims": [1], "tensor_type": "Float32", "tensor_content": b"0000"})
    entry = b"\n" + bytes([tensor.ByteSize()]) + tensor.SerializeToString()
    path = tmp_path / "albert-1.ckpt"
    path.write_bytes(20_001 * entry)
    with pytest.raises(CheckpointError, match="20,000 entries"):
        ckpt.read_checkpoint(path)
