"""Find names in texts: python run_ner.py --help lists all keys."""

from model_utils.config import run_main
from model_utils.task_config import NerConfig
from src.finetuning import finetune
from src.ner_task import NerTask


def main(config: NerConfig) -> None:
    """Train, evaluate and predict, as asked for."""
    finetune(config, NerTask)


if __name__ == "__main__":
    run_main(main, NerConfig)
