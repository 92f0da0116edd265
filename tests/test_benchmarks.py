"""Benchmarks: contenders that wait are stopped, sides that compute something else are refused, reports are right."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import commands, finetune, forward, machine
from benchmarks.contest import Contest, Side, report_contest
from benchmarks.predict import PredictionConfig
from benchmarks.server import Server
from benchmarks.torch_device import load_torch, without_cuda_libraries
from benchmarks.train_step import TrainStepConfig
from benchmarks.turns import Contender, OtherPrograms
from model_utils import cpu_threads
from model_utils.errors import ConfigError, UserError
from model_utils.schema import load_config
from src.training.pretrain_config import PretrainConfig

ROOT = Path(__file__).resolve().parents[1]


def state(process: int) -> str:
    """The kernel's letter for what a process does; T is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_contender_answers_and_is_stopped_in_between() -> None:
    with Contender(list, [3, 1, 2]) as contender:
        process = contender._process.pid
        for _ in range(2):
            assert contender.call("sort") is None
            # The signal is on its way: wait for what it does, as a stopped child is reported to its parent.
            assert os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]) and state(process) == "T"
            assert contender.call("copy") == [1, 2, 3]
    assert not Path(f"/proc/{process}").exists()


def test_what_mindspore_puts_into_the_environment_does_not_reach_a_contender(tmp_path: Path) -> None:
    """It sets OMP_NUM_THREADS to 1 in its process, for C alone, and a child would compute in one thread."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import mindspore, os\nfrom benchmarks.turns import Contender\n"
        "if __name__ == '__main__':\n"
        "    with Contender(os.getenv, 'OMP_NUM_THREADS') as other: print(other.call('__repr__'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for set_by_user, seen in (({}, "None"), ({"OMP_NUM_THREADS": "2"}, "'2'")):
        done = subprocess.run(
            [sys.executable, script],
            env=environment | set_by_user | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == seen


def test_sides_that_answer_otherwise_compare_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(commands, "need_libraries", lambda *_: None)
    config = PredictionConfig(text="x", spm_model_file="y")
    commands.measure_in_turns(config, lambda *_: {"agreement": 0.96}, str)
    with pytest.raises(UserError, match=r"agree in 50\.0% of the answers"):
        commands.measure_in_turns(config, lambda *_: {"agreement": 0.5}, str)
    assert capsys.readouterr().out.count("agreement") == 2


def test_what_is_missing_is_named_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "transformers" else name)
    with pytest.raises(UserError, match=r"transformers is not installed: pip install -r requirements-dev\.txt$"):
        commands.measure_in_turns(None, lambda *_: pytest.fail("measured"), str)


@pytest.mark.parametrize("sizes", [(), ("8", "x"), ("0",)])
def test_batch_sizes_are_numbers(sizes: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"batch_sizes holds .*, allowed are whole numbers from 1"):
        PredictionConfig(text="x", spm_model_file="y", batch_sizes=sizes)


def test_errors_of_a_contender_reach_the_caller() -> None:
    with pytest.raises(ConfigError, match="--nonsense is not a key"):
        Contender(load_config, PretrainConfig, ["--nonsense", "1"])
    with pytest.raises(RuntimeError, match="ended with code 1"):
        Contender(int, "three")


def test_an_error_inside_passes_the_count_of_other_programs() -> None:
    with pytest.raises(ConfigError, match="at once"), OtherPrograms():
        raise ConfigError("at once")


def contest(*outputs: list[float]) -> Contest:
    sides = [
        Side(name, "CPU", "software", values, 1.0, [2.0, 1.0, 3.0], 3 * 10**9)
        for name, values in zip("abc", outputs, strict=False)
    ]
    return Contest(sides, 4e9, 100, [4e9], 0.01)


def test_all_sides_have_as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    torch = SimpleNamespace(set_num_threads=chosen.append, onnx=SimpleNamespace(export=lambda *_, **__: None))
    session = SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=lambda _, options, providers: options)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "onnxruntime", session)
    monkeypatch.setattr(cpu_threads, "_chosen_threads", 3)
    assert forward.export_to_onnxruntime(load_torch(), None, {}).intra_op_num_threads == 3 and chosen == [3]


def test_sides_that_compute_something_else_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = TrainStepConfig(output=tmp_path / "figures.json")
    for values in ([11.0, 0.001], [11.0, float("nan")]):
        assert report_contest(config, contest([11.0, 0.0], values), 1e-5) == 1
    assert "outputs differ by 9.1e-05 of their largest, allowed is 1e-05" in capsys.readouterr().err
    assert not (tmp_path / "figures.json").exists()


def test_the_report_of_a_contest(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.commands.machine_facts", dict)
    monkeypatch.setattr(cpu_threads, "_chosen_threads", 3)
    both = contest([11.0], [11.00001])
    both.sides[1].seconds = [4.0, 3.0, 5.0]
    assert report_contest(TrainStepConfig(output=tmp_path / "figures.json"), both, 1e-5) == 0
    report = capsys.readouterr().out
    assert "7 rounds of 1, 3 threads; large square products" in report
    project, peer = report.splitlines()[1:3]
    # Median, minimum, peak memory, tokens/s, GFLOP/s, share.
    assert project.split()[-8:] == ["2", "s", "1", "s", "3.00", "50", "2.0", "0.500"]
    assert peer.split()[-5:] == ["3.00", "25", "2.000", "(minimum", "3.000)"]
    assert json.loads((tmp_path / "figures.json").read_text())["sides"][1]["seconds"] == [4.0, 3.0, 5.0]


def test_the_facts_of_a_machine_name_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    products = SimpleNamespace(call=lambda _: 1.234e11)
    monkeypatch.setattr(machine, "Contender", lambda _: nullcontext(products))
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: ("A", "B"))
    facts = machine.machine_facts()
    assert facts["gpus"] == ["A", "B"] and facts["matrix_product_gflops"] == 123.4


@pytest.mark.parametrize("task", ["sst-2", "ner", "squad_v1"])
def test_fine_tuning_warms_up_on_neither_side(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "write_random_models", lambda *_: (tmp_path / "model", tmp_path / "peer"))
    config = finetune.FinetuneBenchmarkConfig(train="t", dev="d", spm_model_file="v", task=task)
    _, command = finetune.Sides(config, tmp_path).project_command(1)
    settings = command.optimizer_settings()
    assert settings["warmup_ratio"] == settings["warmup_steps"] == 0


def test_others_are_compared_where_they_compute_the_same() -> None:
    with pytest.raises(ConfigError, match="--peers ''"):
        TrainStepConfig(device_target="Ascend")
    with pytest.raises(ConfigError, match="onnxruntime is measured on CPU"):
        forward.ForwardConfig(device_target="GPU")
    with pytest.raises(ConfigError, match="--peers ''"):
        TrainStepConfig(compute_type="bfloat16")
    with pytest.raises(ConfigError, match="peers names jax, allowed are eager, compile, checkpointing"):
        TrainStepConfig(peers=("jax",))
    assert TrainStepConfig(device_target="GPU").architecture().compute_type == "float16"


def test_others_do_not_find_mindspores_cuda_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, driver = tmp_path / "plugin", tmp_path / "driver"
    for file in (ours / "libnccl.so.2", driver / "libcuda.so.1"):
        file.parent.mkdir()
        file.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{ours}:{driver}")
    with without_cuda_libraries():
        assert os.environ["LD_LIBRARY_PATH"] == str(driver)
    assert os.environ["LD_LIBRARY_PATH"] == f"{ours}:{driver}"


@pytest.mark.oracles
@pytest.mark.parametrize(
    "benchmark",
    [
        "train_step --peers eager,checkpointing --recompute true --dropout 0.1",
        "forward --peers onnxruntime",
        "forward --peers eager --source mindir",
    ],
)
def test_all_sides_take_turns(benchmark: str) -> None:
    module, *words = benchmark.split()
    sizes = ["--albert_network", "albert_tiny", "--batch_size", "2", "--length", "16", "--rounds", "1"]
    command = [sys.executable, "-m", f"benchmarks.{module}", *words, *sizes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "outputs differ by" in done.stdout and all(peer in done.stdout for peer in words[1].split(","))


@pytest.mark.oracles
@pytest.mark.parametrize("task", ["classification", "squad_v1"])
def test_both_sides_answer_alike(task: str, shared: Path) -> None:
    """Commands as a user gives them; with random weights the tokens and both networks must agree for that."""
    text = {"classification": "glue/SST-2/dev.tsv", "squad_v1": "squad_v1/dev.json"}[task]
    command = [sys.executable, "-m", "benchmarks.predict", "--albert_network", "albert_tiny", "--task", task]
    command += ["--text", str(shared / "data" / text), "--records", "12", "--rounds", "1", "--batch_sizes", "4"]
    command += ["--spm_model_file", str(shared / "data/vocab/30k-clean.model")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"the matrix products of [\d,]+ tokens, [\d,]+ GFLOP: [\d.]+ s at the \d+ GFLOP/s", done.stdout)
    assert float(done.stdout.split("; ")[-1].split("%")[0]) == 100


def test_a_server_that_fails_is_told_with_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own server takes no POST, and says so in HTML."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    server = Server("a server of files", ["http.server", "0", "--bind", "127.0.0.1"], tmp_path / "log")
    with closing(server), pytest.raises(UserError, match=r"(?s)a server of files answers 501: .*<html.*POST /predict"):
        server.send(["a text"])


@pytest.mark.oracles
def test_servers_answer_alike(shared: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.server", "--albert_network", "albert_tiny", "--clients", "3"]
    command += ["--text", str(shared / "data/glue/SST-2/dev.tsv"), "--requests", "10", "--rounds", "1"]
    command += ["--spm_model_file", str(shared / "data/vocab/30k-clean.model")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "100.0% of the labels are the same" in done.stdout
