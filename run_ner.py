"""Find entities in texts: python run_ner.py --help lists all keys."""

from model_utils.config import run_main
from src.finetuning.finetune import finetune
from src.tasks.token_classification import NerConfig, NerTask


def main(config: NerConfig) -> None:
    """Fine-tune on tags of words, evaluate, predict."""
    finetune(config, NerTask)


if __name__ == "__main__":
    run_main(main, NerConfig)
