"""Answer RACE's questions: python run_race.py --help lists all keys."""

from model_utils.config import run_main
from src.finetuning.finetune import finetune
from src.tasks.multiple_choice import RaceConfig, RaceTask


def main(config: RaceConfig) -> None:
    """Fine-tune on multiple choice, evaluate, predict."""
    finetune(config, RaceTask)


if __name__ == "__main__":
    run_main(main, RaceConfig)
