"""Answer raw text with a trained model: python predict.py --help lists all keys; docs/export.md shows the formats."""

from model_utils.config import run_main
from model_utils.device import setup_device
from model_utils.errors import ConfigError
from src.inference.deploy_config import PredictConfig
from src.inference.exporting import read_key
from src.inference.file_answers import answer_records, rehearse
from src.inference.predictor import Predictor
from src.inference.record_files import check_input, check_output, read_records
from src.tasks import TASKS


def main(config: PredictConfig) -> int:
    """Load the model, then answer a file or serve; 1 if no record could be answered."""
    if config.serve:
        from src.inference.server import parse_address, parse_hosts, serve

        address, hosts = parse_address(config.serve), parse_hosts(config.allowed_hosts)
    else:
        check_input(config.input, config.input_format)
        check_output(config.output, config.input)
    setup_device(config.device_target, config.device_id)
    predictor = Predictor.load(
        config.model,
        key=read_key(config.encrypt_key_file),
        embeddings=config.embeddings,
        vocab_file=config.vocab_file_path,
        spm_model_file=config.spm_model_file,
        batch_tokens=config.batch_tokens,
        top_k=config.top_k,
        text_columns=(config.text_a_column, config.text_b_column),
    )
    task = predictor.task_info.task
    if config.top_k != PredictConfig().top_k and task != "fill_mask":
        raise ConfigError(f"top_k is {config.top_k}, but the model's task is {task}, not fill_mask")
    if config.serve:
        serve(predictor, *address, allowed_hosts=hosts)
        return 0
    text_key = config.text_a_column or next(iter(TASKS[task].answerer.texts), "text_a")
    records = read_records(config.input, config.input_format, text_key)
    if config.dry_run:
        rehearse(predictor, records)
        return 0
    return answer_records(predictor, records, config.output)


if __name__ == "__main__":
    run_main(main, PredictConfig, messages="stderr")
