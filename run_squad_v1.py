"""Answer SQuAD v1.1's questions: python run_squad_v1.py --help lists all keys."""

from model_utils.config import run_main
from src.finetuning.finetune import finetune
from src.tasks.question_answering import SquadConfig, SquadTask


def main(config: SquadConfig) -> None:
    """Fine-tune on answers in texts, evaluate, predict."""
    finetune(config, SquadTask)


if __name__ == "__main__":
    run_main(main, SquadConfig)
