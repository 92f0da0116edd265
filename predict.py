"""Run a trained model on raw text: python predict.py --help lists all keys; docs/export.md shows the formats."""

from functools import partial
from pathlib import Path
from typing import Any

from model_utils.backend import Backend
from model_utils.config import run_main
from model_utils.device import setup_device
from src.inference.deploy_config import PredictConfig
from src.inference.exported_model import ONNX_SUFFIX, SUFFIXES, load_exported
from src.inference.file_answers import RecordPredictor, answer_records, part_bounds
from src.inference.predictor import Predictor
from src.inference.record_files import check_inputs, check_output, read_records
from src.inference.text_search import TOP_K, TextSearch
from src.inference.unfinished_answers import fingerprint_of
from src.model_folder import ModelFolder
from src.tasks import TASKS
from src.text.text_tables import TableOptions, suffix_of
from src.utils import parse_part

PATHS = ("model", "vocab_file_path", "spm_model_file", "input", "search", "output")


def main(config: PredictConfig) -> int:
    """Load the model, then answer a file or serve. Return the exit code, 1 if no record could be answered."""
    options = TableOptions(config.encoding, config.sheet, config.delimiter)
    if config.serve:
        from src.inference.server import check_address, open_access_log, parse_address, parse_hosts, serve

        address = parse_address(config.serve)
        parse_hosts(config.allowed_hosts)
        check_address(*address)
        access_log = open_access_log(config.access_log)
    else:
        files = [(config.input, config.input_format), *([(config.search, "auto")] if config.search else [])]
        check_inputs(files, options)
        for file, _ in files:
            check_output(config.output, file)
    of_onnxruntime = ("CPU", 0)
    device = setup_device(
        *(of_onnxruntime if config.model.endswith(ONNX_SUFFIX) else (config.device_target, config.device_id)),
        compute_type=config.compute_type,
        fused_layers=config.fused_layers,
        threads=config.threads,
    )
    predictor = load_predictor(config, device.backend)
    if config.serve:
        serve(predictor, *address, allowed_hosts=config.allowed_hosts, access_log=access_log)
        return 0
    text_key = config.text_a_column or next(iter(TASKS[predictor.task_info.task].processor.text_keys), "text_a")
    read = partial(read_records, config.input, config.input_format, text_key, options)
    bounds = part_bounds(read(), *parse_part(config.part)) if config.part else (0, None)
    # A path may be spelt otherwise when the answers go on; its ending chooses the format.
    endings = {key: suffix_of(Path(getattr(config, key))) for key in PATHS}
    settings = (config.to_dict() | endings, predictor.task_info, predictor.architecture, predictor.tokenizer.sha256)
    contents = (config.input, config.search, str(predictor.file))
    fingerprint = "" if config.output == "-" else fingerprint_of(contents, *settings)
    answering: RecordPredictor = predictor
    if config.search:
        collection = read_records(config.search, "auto", text_key, options)
        answering = TextSearch(predictor, collection, config.top_k or TOP_K)
    return answer_records(answering, read(), config.output, bounds, fingerprint)


def load_predictor(config: PredictConfig, backend: Backend) -> Predictor:
    """Return the Predictor of an exported file, or of a checkpoint, and the files beside it."""
    settings: dict[str, Any] = {
        "batch_tokens": config.batch_tokens,
        "top_k": None if config.search else config.top_k,
        "text_columns": (config.text_a_column, config.text_b_column),
        "null_threshold": config.null_threshold,
        "pooling": config.pooling,
        "normalise": config.normalise,
    }
    model = Path(config.model)
    if model.suffix in SUFFIXES:
        return load_exported(model, config.compute_type, backend, **settings)
    vocabulary = config.vocab_file_path, config.spm_model_file
    folder = ModelFolder.load(model, *vocabulary, config.compute_type, config.do_lower_case, backend)
    return folder.predictor(config.embeddings, **settings)


if __name__ == "__main__":
    run_main(main, PredictConfig, messages="stderr")
