"""Answer SQuAD v2.0's questions: python run_squad_v2.py --help lists all keys."""

from model_utils.config import run_main
from src.finetuning.finetune import finetune
from src.tasks.question_answering import SquadV2Config, SquadV2Task


def main(config: SquadV2Config) -> None:
    """Fine-tune on answers in texts that may have none, evaluate, predict."""
    finetune(config, SquadV2Task)


if __name__ == "__main__":
    run_main(main, SquadV2Config)
