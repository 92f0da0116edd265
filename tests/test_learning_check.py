"""A pre-training run that learns nothing from context says so, on the way and at its end; one that learns does not."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import run_pretrain
from src import create_pretraining_data
from src.create_pretraining_data import CreateDataConfig
from src.pretraining.pretraining import learning_check
from src.pretraining_data.diagnostics import RANDOM_SHARE, LearningCheck, loss_without_context
from src.pretraining_data.masking import KEEP_SHARE, MASK_SHARE
from src.training.pretrain_config import PretrainConfig
from tests.conftest import ROOT
from tests.helpers.pretraining_run import SPECIALS, config_of

WORDS = [f"word{number}" for number in range(20)]
FIRST = "nothing is learnt from context"
COUNTS = np.ones(1000)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one word each, repeated: whoever looks at the other tokens knows the hidden ones."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "vocab.txt").write_text("\n".join(SPECIALS + WORDS) + "\n")
    for name, repeats in (("train", 12), ("held_out", 2)):
        documents = ["\n".join([" ".join([word] * 9)] * 6) for word in WORDS * repeats]
        (folder / f"{name}.txt").write_text("\n\n".join(documents))
        settings = {"vocab_file": folder / "vocab.txt", "max_seq_length": 32, "dupe_factor": 1, "num_workers": 1}
        settings |= {"input_file": folder / f"{name}.txt", "output_file": folder / name / f"{name}.mindrecord"}
        create_pretraining_data.main(CreateDataConfig(**settings, max_predictions_per_seq=5))
    return folder


@pytest.mark.parametrize(("rate", "learns"), [(1e-7, False), (5e-3, True)])
def test_a_run_says_whether_it_learns(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: float, learns: bool
) -> None:
    optimizer = {"learning_rate": rate, "beta2": 0.98}
    changes = {f"optimizer_cfg.AdamWeightDecay.{key}": value for key, value in optimizer.items()}
    changes |= {"albert_cfg.hidden_dropout_prob": 0, "albert_cfg.attention_probs_dropout_prob": 0}
    changes |= {"albert_cfg.use_relative_positions": True, "albert_cfg.initializer_range": "auto"}
    run_pretrain.main(config_of(data, tmp_path, train_steps=100, eval_steps=50, **changes))
    said, results = capsys.readouterr().out, json.loads((tmp_path / "train_results.json").read_text())
    unigram = 3.0  # of twenty words
    assert (results["eval_hidden_mlm_loss"] < unigram - 0.5) == learns
    if learns:
        assert FIRST not in said and results["remarks"] == []
        return
    assert said.count(FIRST) == 2
    assert f"{FIRST}: after 50 updates, 50% of the run, eval_hidden_mlm_loss is " in said
    (warning,) = results["remarks"]
    assert warning.startswith(f"{FIRST}: after 100 updates, 100% of the run") and warning in said
    assert warning.endswith('See "Choose settings" in docs/pretraining.md')
    assert "## Choose settings" in (ROOT / "docs/pretraining.md").read_text("utf-8")


def check(counts: np.ndarray | None = COUNTS, permuted: bool = False, **changes: Any) -> LearningCheck | None:
    lines = {"mlm_loss": {"chance": 10.0, "unigram": 7.0}, "hidden_mlm_loss": {"unigram": 7.1}}
    data = SimpleNamespace(token_counts=counts, manifest={"settings": {"do_permutation": permuted}})
    return learning_check(PretrainConfig(**changes), lines, data)


def test_what_is_held_out_and_hidden_decides_where_it_is_known() -> None:
    assert (check().metric, check().unigram) == ("mlm_loss", 7.0)
    evaluated = check(eval_steps=10, eval_data_dir="held_out")
    assert (evaluated.metric, evaluated.unigram, evaluated.context_free) == ("eval_hidden_mlm_loss", 7.1, 7.1)
    assert evaluated.warning({"step": 30, "mlm_loss": 9.0, "eval_hidden_mlm_loss": 7.09}, 0.5)
    for loss in (None, 7.0):
        assert not evaluated.warning({"step": 30, "mlm_loss": 9.0, "eval_hidden_mlm_loss": loss}, 0.5)
    assert check(counts=None) is None


def test_copying_of_tokens_left_in_place_is_nothing_learnt() -> None:
    plain = check()
    assert plain.context_free == pytest.approx(0.9 * 7 + 0.2 * math.log(2), abs=1e-3)
    warning = plain.warning({"step": 30, "mlm_loss": 6.5}, 0.5)
    assert "7.000" in warning and "6.439" in warning
    assert not plain.warning({"step": 30, "mlm_loss": 6.4}, 0.5)
    assert check(permuted=True).context_free == 7.0  # of permuted tokens none is copied
    assert loss_without_context(1.0, np.ones(3)) == 1.0  # of a vocabulary so small that nobody would copy


def test_frequent_tokens_are_copied_more_surely_than_rare_ones() -> None:
    """The floor is the entropy of an answer where the token in its place is seen, of the masking's own shares."""
    counts = np.round(1e6 / np.arange(1, 501))  # as in a text, after Zipf
    answer = (counts + 1) / (counts + 1).sum()
    seen = np.diag(KEEP_SHARE * answer) + RANDOM_SHARE / len(answer) * answer  # (token shown, answer)
    entropy = -(seen * np.log(seen / seen.sum(1, keepdims=True))).sum()
    unigram = -(answer * np.log(answer)).sum()
    floor = loss_without_context(unigram, counts)
    assert floor == pytest.approx(MASK_SHARE * unigram + entropy, abs=5e-3)
    assert floor < 0.9 * unigram + 0.2 * math.log(2) - 0.03
