"""Write docs/configuration.md from the option classes: python docs/write_configuration.py."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from model_utils.config import LayersConfig, OneDeviceConfig  # noqa: E402
from model_utils.option_values import show  # noqa: E402
from model_utils.schema import Config, is_section  # noqa: E402
from src.albert_config import AlbertOverrides  # noqa: E402
from src.conversion.convert import ConvertConfig  # noqa: E402
from src.create_pretraining_data import CreateDataConfig  # noqa: E402
from src.inference.deploy_config import ExportConfig, PredictConfig  # noqa: E402
from src.tasks.classification_examples import ClassifierConfig  # noqa: E402
from src.tasks.finetune_config import FinetuneConfig  # noqa: E402
from src.tasks.multiple_choice import RaceConfig  # noqa: E402
from src.tasks.question_answering import SquadConfig, SquadV2Config  # noqa: E402
from src.tasks.token_classification import NerConfig  # noqa: E402
from src.text.corpus import CorpusConfig  # noqa: E402
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
HEAD = """# Configuration

Every key may stand in a command's yaml file and on its command line (`--key value`), which wins. Keys of a section are
written with a dot: `--optimizer_cfg.Lamb.learning_rate 0.001`. A command may have other defaults than its class here:
its yaml file and `--help` show them, and `--help` the allowed values.
`python docs/write_configuration.py` writes this page.
"""
TABLES: dict[str, tuple[type[Config], ...]] = {
    "All commands that compute": (OneDeviceConfig, LayersConfig, ArchitectureConfig),
    "`albert_cfg`: the architecture": (AlbertOverrides,),
    "All training": (TrainingConfig,),
    "`optimizer_cfg`: the optimizer": (OptimizerConfig,),
    "`optimizer_cfg.NAME`: settings of one": (AdamConfig, DecayedAdamConfig),
    "`run_pretrain.py`": (PretrainConfig,),
    "`phases`: parts of a pre-training": (PhaseConfig,),
    "`pretrain_eval.py`": (PretrainEvalConfig,),
    "All fine-tuning": (FinetuneConfig,),
    "`run_classifier.py`": (ClassifierConfig,),
    "`run_race.py`": (RaceConfig,),
    "`run_squad_v1.py`, `run_squad_v2.py`": (SquadConfig,),
    "`run_squad_v2.py`": (SquadV2Config,),
    "`run_ner.py`": (NerConfig,),
    "`src.train_vocabulary`, `src.create_pretraining_data`": (CorpusConfig,),
    "`src.train_vocabulary`": (TrainVocabularyConfig,),
    "`src.create_pretraining_data`": (CreateDataConfig,),
    "`model_utils.convert_ckpt`": (ConvertConfig,),
    "`export.py`": (ExportConfig,),
    "`predict.py`": (PredictConfig,),
}


def table(kinds: tuple[type[Config], ...]) -> str:
    """Return the keys that these classes add to their parents, as a table."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for kind in kinds:
        inherited = {key for parent in kind.__mro__[1:] for key in getattr(parent, "model_fields", {})}
        for key, field in kind.model_fields.items():
            if key in inherited or is_section(field):
                continue
            meaning = (field.description or "").replace("|", r"\|")
            lines.append(f"| `{key}` | {show(field.default)} | {meaning} |")
    return "\n".join(lines)


def page() -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *(f"## {title}\n\n{table(kinds)}\n" for title, kinds in TABLES.items())])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
