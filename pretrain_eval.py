"""Evaluate a pre-trained ALBERT: python pretrain_eval.py --load_checkpoint_path RUN --data_dir HELD_OUT.

Prints loss and accuracy of both tasks with chance and unigram baselines, and writes eval_results.json.
"""

import logging
from itertools import islice
from pathlib import Path

from dataset import create_pretrain_dataset
from model_utils.config import check_output_folder, run_main
from model_utils.device import setup_device
from model_utils.files import write_json
from src.albert_for_pre_training import PreTrainingEvaluation
from src.checkpoints.checkpoint_files import check_network, find_checkpoint, folder_of, load_backbone
from src.data.batches import Loading
from src.model_folder import read_counts
from src.pretraining.pretraining import build_architecture, is_trained_on, tokenizer_beside, trained_on
from src.pretraining.pretraining_evaluation import baselines, check_finite, evaluate, table
from src.training.pretrain_config import PretrainEvalConfig

logger = logging.getLogger(__name__)
RESULTS_FILE = "eval_results.json"


def main(config: PretrainEvalConfig) -> None:
    """Evaluate one checkpoint."""
    device = setup_device(**config.device_settings())
    weights = Path(config.load_checkpoint_path)
    folder = folder_of(weights)
    output = Path(config.output_path) if config.output_path else folder
    check_output_folder(output, "output_path" if config.output_path else "without output_path the results' folder")
    loading = Loading(config.batch_size, shuffle=False, evaluation=True)
    data = create_pretrain_dataset(config.data_dir, loading, config.schema_dir)
    architecture = build_architecture(config, data, None, device, config.load_checkpoint_path)
    contents = find_checkpoint(weights)
    check_network(contents, architecture)
    data.check_vocabulary(trained_on(contents), contents.path)
    if is_trained_on(contents, data):
        logger.warning(f"{config.data_dir}: {contents.path} was trained on these examples, so they are not held out")
    network = PreTrainingEvaluation(architecture)
    load_backbone(network, contents, needed=("",))
    training_counts = read_counts(folder, architecture.vocab_size)
    tokenizer = tokenizer_beside(weights, data) or data.tokenizer()
    batches = islice(data.batches(0), config.eval_batches or None)
    held_out = evaluate(network, batches, architecture.vocab_size, tokenizer)
    check_finite(held_out.metrics, contents.path)
    lines = baselines(held_out.counts, training_counts, architecture.vocab_size, tokenizer)
    tokens = {name: round(counts.sum()) for name, counts in vars(held_out.counts).items()}
    hidden = f"{tokens['hidden']:,} of them" if tokenizer else "an unknown number"
    print(
        f"{held_out.examples:,} examples of {config.data_dir}, {tokens['predicted']:,} predicted tokens, "
        f"{hidden} shown as [MASK]"
    )
    print(table(held_out.metrics, lines))
    results = {
        "checkpoint": contents.path.name,
        "step": contents.loop_state.get("step"),
        "data_dir": config.data_dir,
        "examples": held_out.examples,
        "masked_tokens": tokens["predicted"],
        "hidden_tokens": tokens["hidden"] if tokenizer else None,
        **held_out.metrics,
        "baselines": lines,
    }
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / RESULTS_FILE, results)
    logger.info(f"written to {output / RESULTS_FILE}")


if __name__ == "__main__":
    run_main(main, PretrainEvalConfig)
