"""The configurations of all commands."""

from model_utils.schema import Config
from src.create_pretraining_data import CreateDataConfig
from src.inference.deploy_config import ExportConfig, PredictConfig
from src.tasks import TASKS
from src.tasks.multitask_config import MultitaskConfig
from src.train_vocabulary import TrainVocabularyConfig
from src.training.pretrain_config import PretrainConfig, PretrainEvalConfig

COMMANDS: list[type[Config]] = [
    CreateDataConfig,
    TrainVocabularyConfig,
    PretrainConfig,
    PretrainEvalConfig,
    *dict.fromkeys(spec.config for spec in TASKS.values() if spec.config),
    MultitaskConfig,
    ExportConfig,
    PredictConfig,
]
