"""The ladder of pre-training recipes: rungs on top of others, what all share, figures, and what is not run again."""

import json
from pathlib import Path

import pytest

from benchmarks import pretraining_recipes
from benchmarks.commands import add_results, read_result, run_command, write_result
from benchmarks.pretraining_recipes import Ladder, RecipesConfig, figures_of, table, tokens_of
from benchmarks.rung import Rung, find_rungs
from benchmarks.timed_training import UPDATES, TimedTraining
from model_utils.errors import ConfigError, UserError
from model_utils.json_files import read_object
from src.data.feature_files import open_records
from src.training.training_config import PretrainConfig, PretrainEvalConfig
from tests.conftest import ROOT
from tests.helpers.small_text import make_records, train_model, write_text

RUNGS = ROOT / "benchmarks" / "rungs"


def write(folder: Path, **rungs: str) -> None:
    for name, text in rungs.items():
        (folder / f"{name}.yaml").write_text(text)


@pytest.mark.parametrize("file", sorted(RUNGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_rung_of_the_project_trains(file: Path) -> None:
    rung = Rung.read(file)
    config = rung.training({name: Path(f"data{name}") for name in rung.all_data}, Path("run"), 250, 7)
    assert (config.data_dir, config.train_steps, config.seed) == ("data", 250, 7)
    assert {phase.data_dir for phase in config.all_phases()} == {f"data{name}" for name in rung.all_data}


def test_no_two_rungs_of_the_project_are_the_same_recipe() -> None:
    recipes = [json.dumps(rung.to_dict() | {"question": ""}, sort_keys=True) for rung in find_rungs([RUNGS]).values()]
    assert len(set(recipes)) == len(recipes) > 1


def test_a_rung_has_what_it_says_on_top_of_its_base(tmp_path: Path) -> None:
    write(
        tmp_path,
        a="question: a?\nvocab_size: 100\npretrain: {albert_cfg: {hidden_size: 48, num_hidden_layers: 2}}",
        b="question: b?\nbase: a\npretrain: {albert_cfg: {hidden_size: 96}}",
    )
    rungs = find_rungs([str(tmp_path)])
    assert list(rungs) == ["a", "b"]
    assert rungs["b"].pretrain.albert_cfg.to_dict() == {"hidden_size": 96, "num_hidden_layers": 2}
    assert (rungs["b"].vocab_size, rungs["a"].pretrain.albert_cfg.hidden_size) == (100, 48)


def test_later_examples_differ_from_the_first_ones_where_the_rung_says_so(tmp_path: Path) -> None:
    write(
        tmp_path,
        a="question: a?\ndata: {max_seq_length: 64, ngram: 1}\nlater_data: {max_seq_length: 96}",
        b="question: b?\nbase: a\npretrain: {phases: [{share: 0.5}, {share: 0.5, data_dir: later}]}",
    )
    a, b = (find_rungs([str(tmp_path)])[name].all_data for name in "ab")
    assert list(a) == [""] and b[""] == a[""]
    assert b["later"] == b[""].replace(max_seq_length=96) and b["later"].ngram == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("base: a", "question is empty"),
        ("question: b?\nbase: c", "base is 'c', allowed is the name of a rung"),
        ("question: b?\nbase: b", "base is b again"),
        ("question: b?\nbase: a\npretrain: {batchsize: 3}", r"pretrain.batchsize is not a key; did you mean"),
        ("question: b?\nbase: a\npretrain: {seed: 3}", "pretrain.seed is the same on all rungs"),
        ("question: b?\nbase: a\ndata: {input_file: x}", "data.input_file is the same on all rungs"),
        ("question: b?\npretrain: {phases: [{data_dir: x}]}", "data_dir of a phase is x, allowed is later"),
    ],
)
def test_what_is_wrong_with_a_rung_is_a_sentence_with_its_file(tmp_path: Path, text: str, sentence: str) -> None:
    write(tmp_path, a="question: a?", b=text)
    with pytest.raises(ConfigError, match=f"b.yaml: .*{sentence}"):
        find_rungs([str(tmp_path)])


def test_rungs_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a="question: a?")
    with pytest.raises(ConfigError, match=r"two files a\.yaml"):
        find_rungs([str(tmp_path), str(tmp_path / "a.yaml")])


def test_examples_are_made_once_for_each_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        a="question: a?\nvocab_size: 100",
        b="question: b?\nbase: a\npretrain: {batch_size: 3}",
        c="question: c?\nbase: a\ndata: {ngram: 2}",
    )
    monkeypatch.setattr(pretraining_recipes, "run_command", lambda module, config, log: None)
    ladder = Ladder(RecipesConfig(text="t", held_out="h", spm_model_file="v", output=tmp_path / "out"), {})
    a, b, c = (
        ladder.examples(rung.data, "t", ladder.vocabulary(rung.vocab_size))
        for rung in find_rungs([str(tmp_path)]).values()
    )
    assert a == b != c
    assert a != ladder.examples(Rung.read(tmp_path / "a.yaml").data, "t", ladder.vocabulary(0))


@pytest.mark.parametrize(
    ("asked", "stated", "computed"),
    [("", "", "float32"), ("", "float16", "float16"), ("bfloat16", "float32", "bfloat16")],
)
def test_a_ladder_computes_in_the_type_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, stated: str, computed: str
) -> None:
    write(tmp_path, a="question: a?\n" + f"pretrain: {{compute_type: {stated}}}" * bool(stated))
    monkeypatch.setattr(pretraining_recipes, "run_command", lambda module, config, log: None)
    settings = RecipesConfig(text="t", held_out="h", spm_model_file="v", output=tmp_path / "out", compute_type=asked)
    training = Ladder(settings, {}).training("a", Rung.read(tmp_path / "a.yaml"), 250, 7)
    assert (training.compute_type, training.train_steps) == (computed, 250)
    run = Path(training.save_checkpoint_path).name
    assert run == f"a-7-{asked}".rstrip("-")  # no run is taken for one of another type


def test_a_text_that_is_trained_on_is_not_held_out(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a text")
    config = RecipesConfig(text=tmp_path, held_out=tmp_path / "text.txt", spm_model_file="v", output=tmp_path)
    with pytest.raises(ConfigError, match=r"text and held_out both name .*text\.txt"):
        pretraining_recipes.check_texts(config)


def test_the_figures_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining_recipes, "tokens_of", lambda folder: {"short": 6000, "long": 8000}[folder.name])
    config = PretrainConfig(
        data_dir="short",
        save_checkpoint_path=tmp_path,
        train_steps=40,
        phases=({"share": 0.4}, {"share": 0.4, "batch_size": 2}, {"share": 0.2, "data_dir": "long"}),
    )
    epochs = [(10, 1, 0.2), (20, 1, 0.3), (30, 2, 0.5), (40, 3, 0.125)]
    lines = [json.dumps({"step": step, "phase": phase, "epoch": epoch}) for step, phase, epoch in epochs]
    (tmp_path / "train_log.jsonl").write_text("\n".join(lines) + "\n")
    results = {"hidden_mlm_loss": 5.0, "hidden_mlm_accuracy": 0.25, "hidden_nats_per_character": 1.25}
    lines = {"hidden_mlm_loss": {"own unigram": 6.5}, "hidden_nats_per_character": {"own unigram": 1.625}}
    results |= {"sop_accuracy": 0.5, "baselines": lines}
    (tmp_path / "eval_results.json").write_text(json.dumps(results))
    figures = figures_of(config)
    assert (figures["updates"], figures["tokens"]) == (40, 0.5 * 6000 + 0.125 * 8000)
    assert (figures["below_unigram"], figures["hidden_mlm_accuracy"]) == (1.5, 0.25)
    other = figures | {"below_unigram": 2.5}
    assert "| 1.500 | 1.250 | 1.625 | 0.250 |" in table({"a": [figures]})
    assert "| 2.000 ± 0.707 |" in table({"a": [figures, other]})


def test_a_rung_that_was_not_measured_is_not_run(tmp_path: Path) -> None:
    config = RecipesConfig(text="t", held_out="h", spm_model_file="v", output=tmp_path, updates=tmp_path / "u.json")
    add_results(tmp_path / "u.json", {"a": {"updates": 5, "minutes": 15.0}})
    assert pretraining_recipes.budgets_of(config, ["a"])["a"]["updates"] == 5
    with pytest.raises(ConfigError, match=r"u\.json does not say how many updates b has time for: --measure true"):
        pretraining_recipes.budgets_of(config, ["a", "b"])


def test_of_several_rounds_the_fastest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([("a", 10), ("b", 20), ("a", 12), ("b", 15), ("a", 11), ("b", 18)])

    def measure(ladder: pretraining_recipes.Ladder, name: str, rung: Rung) -> int:
        expected, updates = next(measured)
        assert name == expected
        return updates

    monkeypatch.setattr(pretraining_recipes.Ladder, "measure", measure)
    file = tmp_path / "u.json"
    config = RecipesConfig(
        text="t", held_out="h", spm_model_file="v", output=tmp_path, updates=file, measure=True, rounds=3, minutes=5.0
    )
    rung = Rung(question="Why?")
    pretraining_recipes.measure_rungs(config, {"a": rung, "b": rung})
    budgets = read_object(file)
    assert {name: (of["updates"], of["minutes"]) for name, of in budgets.items()} == {"a": (12, 5.0), "b": (20, 5.0)}


def test_figures_of_rungs_are_added_to_those_of_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = dict.fromkeys(pretraining_recipes.COLUMNS, 2.0) | {"machine": {"cores": 2}}
    figures |= {"updates": 5, "config": {"data_dir": "d", "compute_type": "bfloat16"}}
    monkeypatch.setattr(pretraining_recipes.Ladder, "run", lambda *_: figures)
    for name in ("text", "held"):
        (tmp_path / name).write_text("A sentence.")
    write(tmp_path, a="question: Why?")
    add_results(tmp_path / "u.json", {"a": {"updates": 5, "minutes": 15.0}})
    other = dict.fromkeys(pretraining_recipes.COLUMNS, 1.0)
    other |= {"seed": 12345, "compute_type": "float32"}
    alike = other | {"updates": 5, "unigram": 2.0}
    other_text = other | {"updates": 5, "seed": 9}
    earlier = [alike, alike | {"updates": 4}, other_text]
    again = alike | {"compute_type": "bfloat16", "below_unigram": 1.5}
    add_results(tmp_path / "r.json", {"b": {"runs": [other]}, "a": {"runs": [*earlier, again]}})
    config = RecipesConfig(
        rungs=(str(tmp_path / "a.yaml"),),
        text=tmp_path / "text",
        held_out=tmp_path / "held",
        spm_model_file="v",
        output=tmp_path / "out",
        updates=tmp_path / "u.json",
        results=tmp_path / "r.json",
        repeat=2,
    )
    pretraining_recipes.main(config)
    written = read_object(tmp_path / "r.json")["a"]
    assert (written["question"], written["minutes"]) == ("Why?", 15.0)
    assert "config" not in written["runs"][1]
    runs = [(run["seed"], run["compute_type"], run["below_unigram"]) for run in written["runs"]]
    # Runs of another type stay and have a row of their own; of the same seed and type the last one counts. What had
    # another number of updates, or another held-out text, does not compare.
    assert runs == [(12345, "float32", 1.0), (12345, "bfloat16", 2.0), (12346, "bfloat16", 2.0)]
    printed = capsys.readouterr().out
    assert "| a | 5 |" in printed and "| a, bfloat16 | 5 |" in printed and "| b | 1 |" in printed


def test_the_seconds_of_updates_are_measured_in_every_phase(tmp_path: Path) -> None:
    text = write_text(tmp_path, topics=20)
    model = train_model(tmp_path, text)
    data = make_records(tmp_path / "data/examples.mindrecord", text, model, masking="dynamic").parent
    config = PretrainConfig(
        data_dir=data,
        save_checkpoint_path=tmp_path / "run",
        train_steps=UPDATES,
        batch_size=2,
        phases=({"share": 0.5}, {"share": 0.5, "batch_size": 4}),
        albert_cfg={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
        optimizer_cfg={"AdamWeightDecay": {"warmup_steps": 1}},
    )
    assert 1e-4 < TimedTraining(config).seconds() < 5
    assert not (tmp_path / "run").exists()


def test_static_and_dynamic_examples_have_the_same_tokens(tmp_path: Path) -> None:
    text = write_text(tmp_path, topics=20)
    model = train_model(tmp_path, text)
    static, dynamic = (
        make_records(tmp_path / masking / "examples.mindrecord", text, model, masking=masking, dupe_factor=1).parent
        for masking in ("static", "dynamic")
    )
    assert tokens_of(dynamic) == tokens_of(static) == open_records(static, "pretrain").lengths.sum()


def test_what_a_command_ended_with_is_known_again_by_its_configuration(tmp_path: Path) -> None:
    config, file = PretrainConfig(data_dir="d", batch_size=3), tmp_path / "result.json"
    assert read_result(file, config) is None
    assert write_result(file, config, loss=1.5)["loss"] == 1.5
    assert read_result(file, config.replace(log_steps=7))["loss"] == 1.5
    with pytest.raises(ConfigError, match="batch_size is 3 there and 4 here"):
        read_result(file, config.replace(batch_size=4))


def test_results_of_other_names_stay(tmp_path: Path) -> None:
    for results in ({"a": 1, "b": 1}, {"b": 2}):
        add_results(tmp_path / "results.json", results)
    assert json.loads((tmp_path / "results.json").read_text()) == {"a": 1, "b": 2}


def test_a_command_that_fails_ends_in_a_sentence_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=r"pretrain_eval ended with code 2; .* error: --load_checkpoint_path is needed"):
        run_command("pretrain_eval", PretrainEvalConfig(), tmp_path / "command.log")
