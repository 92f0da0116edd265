"""Write docs/configuration.md from the option classes: python docs/write_configuration.py."""

import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from model_utils.config import LayersConfig, OneDeviceConfig  # noqa: E402
from model_utils.option_values import show  # noqa: E402
from model_utils.schema import Config, is_section  # noqa: E402
from src.albert_config import AlbertOverrides  # noqa: E402
from src.create_pretraining_data import CreateDataConfig  # noqa: E402
from src.tasks.classification_examples import ClassifierConfig  # noqa: E402
from src.tasks.embedding_pairs import EmbeddingsConfig  # noqa: E402
from src.tasks.example_files import ExampleFilesConfig  # noqa: E402
from src.tasks.finetune_config import FinetuneConfig  # noqa: E402
from src.tasks.multiple_choice import RaceConfig  # noqa: E402
from src.tasks.multitask_config import MultitaskConfig  # noqa: E402
from src.tasks.question_answering import SquadConfig, SquadV2Config  # noqa: E402
from src.tasks.token_classification import NerConfig  # noqa: E402
from src.text.corpus_files import CorpusConfig  # noqa: E402
from src.train_vocabulary import TrainVocabularyConfig  # noqa: E402
from src.training.pretrain_config import PhaseConfig, PretrainConfig, PretrainEvalConfig  # noqa: E402
from src.training.training_config import (  # noqa: E402
    AdamConfig,
    ArchitectureConfig,
    DecayedAdamConfig,
    OptimizerConfig,
    TrainingConfig,
)

PAGE = ROOT / "docs/configuration.md"
HEAD = """<!-- Written by docs/write_configuration.py; do not edit. -->

# Configuration

Every key may stand in a command's yaml and on its command line, which wins: `--key value`, in sections with dots
(`--optimizer_cfg.Lamb.learning_rate 0.001`). `--help` prints a command's keys with its own defaults, which may
differ from this page, allowed values, and what 0 and auto stand for. Of optimizers the defaults are AdamWeightDecay's.
No default here: empty, or decided by the command. A slash divides those of pre-training and of fine-tuning.
"""
TABLES: dict[str, tuple[type[Config], ...]] = {
    "All commands that compute": (OneDeviceConfig, LayersConfig, ArchitectureConfig),
    "All training": (TrainingConfig,),
    "`optimizer_cfg.optimizer` and `optimizer_cfg.NAME.KEY`": (
        OptimizerConfig,
        AdamConfig,
        DecayedAdamConfig,
    ),
    "`run_pretrain.py`": (PretrainConfig,),
    "`pretrain_eval.py`": (PretrainEvalConfig,),
    "All fine-tuning": (FinetuneConfig,),
    "`run_classifier.py`, `run_ner.py`, `run_embeddings.py`": (ExampleFilesConfig,),
    "`run_classifier.py`": (ClassifierConfig,),
    "`run_race.py`": (RaceConfig,),
    "`run_squad_v1.py`, `run_squad_v2.py`": (SquadConfig, SquadV2Config),
    "`run_ner.py`": (NerConfig,),
    "`run_embeddings.py`": (EmbeddingsConfig,),
    "`run_multitask.py`": (MultitaskConfig,),
    "`src.train_vocabulary`, `src.create_pretraining_data`": (CorpusConfig,),
    "`src.train_vocabulary`": (TrainVocabularyConfig,),
    "`src.create_pretraining_data`": (CreateDataConfig,),
}
OPTIMIZER = "AdamWeightDecay"  # the one whose defaults are shown


NOT_SET = "Not set: the value of the preset or of the weights."
Meanings = dict[str, tuple[str, str]]  # key -> default and meaning


def meanings(kinds: tuple[type[Config], ...]) -> Meanings:
    """Return the keys that these classes add to their parents; a meaning is the first clause of the help text."""
    found: Meanings = {}
    for kind in kinds:
        inherited = {key for parent in kind.__mro__[1:] for key in getattr(parent, "model_fields", {})}
        for key, field in kind.model_fields.items():
            if key not in inherited and not is_section(field):
                meaning = (field.description or "").split("; ")[0]
                values = [show_default(value) for value in defaults_of(kind, key)]
                found[key] = (" / ".join(dict.fromkeys(values)).replace("|", r"\|"), meaning.replace("|", r"\|"))
    return found


def defaults_of(kind: type[Config], key: str) -> list[Any]:
    """Return the default of a key; where pre-training and fine-tuning share the class, that of each."""
    if issubclass(AdamConfig, kind) or issubclass(DecayedAdamConfig, kind):
        return [getattr(getattr(run.optimizer_cfg, OPTIMIZER), key) for run in (PretrainConfig(), ClassifierConfig())]
    kinds = (PretrainConfig, ClassifierConfig) if kind in (TrainingConfig, ArchitectureConfig) else (kind,)
    return [kind.model_fields[key].default for kind in kinds]


def show_default(value: Any) -> str:
    """Return a default for the table; "" if it is empty."""
    return "" if value in ("", (), None) else show(value)


def table(head: str, rows: Iterable[str]) -> str:
    """Return a table in Markdown."""
    return "\n".join([head, "|".join(["---"] * (head.count("|") + 1)), *rows])


def page() -> str:
    """Return the text of the page; keys that several commands have with one meaning stand in its first table."""
    sections = {title: meanings(kinds) for title, kinds in TABLES.items()}
    defaults: dict[tuple[str, str], list[str]] = defaultdict(list)
    for section in sections.values():
        for key, (default, meaning) in section.items():
            defaults[key, meaning].append(default)
    head = "key|default|meaning"
    shared = [
        f"`{key}`|{' or '.join(value or 'empty' for value in dict.fromkeys(values)) if any(values) else ''}|{meaning}"
        for (key, meaning), values in sorted(defaults.items())
        if len(values) > 1
    ]
    parts = [HEAD, f"## Keys of several commands\n\n{table(head, shared)}\n"]
    for title, section in sections.items():
        rows = [
            f"`{key}`|{default}|{meaning}"
            for key, (default, meaning) in section.items()
            if len(defaults[key, meaning]) == 1
        ]
        parts.append(f"## {title}\n\n{table(head, rows)}\n")
    rows = [f"`{key}`|{meaning}" for key, (_, meaning) in meanings((AlbertOverrides,)).items()]
    parts.append(f"## `albert_cfg`: the architecture\n\n{NOT_SET}\n\n{table('key|meaning', rows)}\n")
    keys = ", ".join(f"`{key}`" for key in PhaseConfig.model_fields)
    sentence = textwrap.fill(f"A key that a phase lacks is that of the run: {keys}.", 120)
    parts.append(f"## `phases`: parts of a pre-training\n\n{sentence}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
