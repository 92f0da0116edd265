"""Classify texts or pairs of texts: python run_classifier.py --help lists all keys."""

from model_utils.config import run_main
from src.finetuning.finetune import finetune
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.classifier_tasks import make_classifier


def main(config: ClassifierConfig) -> None:
    """Fine-tune on classes or scores of texts, evaluate, predict."""
    finetune(config, make_classifier)


if __name__ == "__main__":
    run_main(main, ClassifierConfig)
