"""Export a trained model as a file for deployment: python export.py --help lists all keys."""

from pathlib import Path

from model_utils.config import check_output_folder, run_main
from model_utils.device import choose_target, setup_device
from model_utils.errors import DeviceError
from src.finetuning.int8_check import Int8Check
from src.inference.deploy_config import AIR, DYNAMIC, ONNX, ExportConfig
from src.inference.exporting import export_model
from src.model_folder import ModelFolder


def main(config: ExportConfig) -> None:
    """Load the weights, then write and check the files."""
    # ONNX files are compared with the checkpoint on the CPU, where onnxruntime computes, too.
    is_onnx = config.file_format == ONNX
    target = "CPU" if is_onnx else choose_target(config.device_target)
    if config.file_format == AIR and target != "Ascend":
        raise DeviceError(f"file_format=AIR needs Ascend, this is {target}; use MINDIR or ONNX")
    setup_device(target, 0 if is_onnx else config.device_id, threads=config.threads)
    name = Path(config.export_file_name)
    check_output_folder(name.parent, "export_file_name's folder")
    folder = ModelFolder.load(
        config.export_ckpt_file,
        config.vocab_file_path,
        config.spm_model_file,
        do_lower_case=config.do_lower_case,
    )
    model = folder.predictor(config.export_embeddings, portable=True, null_threshold=config.null_threshold)
    int8 = Int8Check(model, config.eval_config_path, config.max_loss) if config.int8 == DYNAMIC else None
    export_model(model, name, config.file_format, config.export_batch_size, config.export_seq_length, int8)


if __name__ == "__main__":
    run_main(main, ExportConfig)
