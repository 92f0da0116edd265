"""Fine-tune vectors of texts: python run_embeddings.py --help lists all keys."""

from model_utils.config import run_main
from src.finetuning.finetune import finetune
from src.tasks.embedding_pairs import EmbeddingsConfig, EmbeddingTask


def main(config: EmbeddingsConfig) -> None:
    """Fine-tune on pairs with scores, pairs that belong together or single texts; evaluate, predict."""
    finetune(config, EmbeddingTask)


if __name__ == "__main__":
    run_main(main, EmbeddingsConfig)
