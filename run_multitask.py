"""Train one model on several tasks at once: python run_multitask.py --help lists all keys."""

from model_utils.config import run_main
from src.finetuning.multitask import finetune_together
from src.tasks.multitask_config import MultitaskConfig


def main(config: MultitaskConfig) -> None:
    """Fine-tune on all tasks, evaluate and predict each."""
    finetune_together(config)


if __name__ == "__main__":
    run_main(main, MultitaskConfig)
