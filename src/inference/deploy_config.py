"""The configurations of export.py and predict.py; model_utils/schema.py says how a configuration is made."""

from pathlib import Path

from model_utils.config import ROWS, LayersConfig, OneDeviceConfig
from model_utils.errors import ConfigError
from model_utils.schema import option
from src.albert_config import LENGTH
from src.tasks import TASKS
from src.training.training_config import PretrainConfig

MINDIR, AIR, ONNX = "MINDIR", "AIR", "ONNX"
ANSWERS_IN = ("float32", "bfloat16")  # matrix products
NULL_THRESHOLD = option(
    None, "squad_v2: no_answer_probability above which there is no answer; not set: the model's", minimum=0, maximum=1
)


class ExportConfig(OneDeviceConfig):
    """Write a trained model as a file that can be deployed: python export.py.

    What the file computes follows from the weights and what lies beside them. The yaml file of the task may be given as
    --config_path; its keys for training mean nothing here.
    """

    config_file = "pretrain_config.yaml"
    file_sharers = (*dict.fromkeys(spec.config for spec in TASKS.values() if spec.config), PretrainConfig)

    export_ckpt_file: str = option("", "a checkpoint, or the folder of a run or a conversion", required=True)
    export_file_name: str = option(
        "", "NAME of what is written, DIR/NAME: NAME.mindir, NAME.json and the vocabulary", required=True
    )
    file_format: str = option(MINDIR, "AIR only on Ascend; ONNX with fixed shapes", choices=(MINDIR, AIR, ONNX))
    export_embeddings: bool = option(False, "export the encoder alone, whatever the weights were trained for")
    export_batch_size: int = option(1, "AIR, ONNX: rows of a batch", minimum=1, maximum=ROWS)
    export_seq_length: int = option(
        0, "AIR, ONNX: tokens of a row; 0: the task's max_seq_length", minimum=0, maximum=LENGTH
    )
    null_threshold: float | None = NULL_THRESHOLD
    vocab_file_path: str = option("", "WordPiece vocabulary, if none lies beside the checkpoint")
    spm_model_file: str = option("", "SentencePiece model, if none lies beside the checkpoint")
    do_lower_case: bool = option(True, "lower-case the text, where no vocabulary lies beside the weights to say so")
    encrypt_key_file: str = option(
        "", "file of 16, 24 or 32 bytes: encrypt the MINDIR by AES-GCM", needs=("file_format", MINDIR)
    )
    dry_run: bool = option(False, "load the weights, compute one batch, estimate time, memory and disk; write nothing")

    def validate(self) -> None:
        name = Path(self.export_file_name)
        if self.export_file_name and (name.name in ("", "..") or name.suffix in (".mindir", ".air", ".onnx", ".json")):
            raise ConfigError(
                f"export_file_name is {self.export_file_name}, needed is DIR/NAME or NAME: the endings are added to it"
            )
        if self.export_file_name.endswith(("/", "/.")):
            raise ConfigError(f"export_file_name is {self.export_file_name}, a folder: needed is a name in it")
        if self.file_format == MINDIR and (self.export_batch_size != 1 or self.export_seq_length):
            raise ConfigError("export_batch_size and export_seq_length mean nothing for MINDIR, which takes any shape")


class PredictConfig(LayersConfig):
    """Answer raw text with a trained model: python predict.py."""

    model: str = option("", "NAME.mindir, a checkpoint, or the folder of a run or a conversion", required=True)
    input: str = option("", "records: .jsonl, .ndjson, .json, .tsv, .csv, .xls, .xlsx, plain lines; -: standard input")
    output: str = option("", "JSON lines (.jsonl, .ndjson, .json, .txt), one for each record; -: standard output")
    input_format: str = option(
        "auto", "auto: by the file's ending, for - JSON lines", choices=("auto", "json_lines", "table", "text")
    )
    text_a_column: str = option(
        "", "key or column of a record's (first) text; empty: the training data's, else text_a, or text"
    )
    text_b_column: str = option("", "likewise of its second text; every record must have it then")
    serve: str = option("", "HOST:PORT to answer requests on, with a page to try the model, in place of files")
    allowed_hosts: tuple[str, ...] = option(
        (), "names of the server that requests may use besides the address served; *: any name"
    )
    batch_tokens: int = option(
        0,
        "tokens of a batch, padding included, at least one row; 0: as many as take about 1 GB beside the weights",
        minimum=0,
        maximum=2**24,
    )
    compute_type: str = option(
        "float32", "type of the matrix products; bfloat16: faster, on CPUs that multiply it", choices=ANSWERS_IN
    )
    top_k: int | None = option(None, "fill_mask: tokens for each mask; not set: 5", minimum=1, maximum=1000)
    null_threshold: float | None = NULL_THRESHOLD
    embeddings: bool = option(False, "answer with the encoder's pooled output, whatever the weights were trained for")
    vocab_file_path: str = option("", "WordPiece vocabulary, if none lies beside the checkpoint")
    spm_model_file: str = option("", "SentencePiece model, if none lies beside the checkpoint")
    do_lower_case: bool = option(True, "lower-case the text, where no vocabulary lies beside the weights to say so")
    encrypt_key_file: str = option("", "file of the key that the MINDIR was encrypted with")
    dry_run: bool = option(
        False, "load the model, read all records, answer some, estimate time, memory and disk; keep nothing"
    )

    def check_required(self) -> None:
        super().check_required()
        for key in ("input", "output", "input_format", "text_a_column", "text_b_column", "dry_run"):
            if self.serve and getattr(self, key) != type(self).model_fields[key].default:
                raise ConfigError(f"serve answers requests: {key} means nothing beside it")
        if self.allowed_hosts and not self.serve:
            raise ConfigError("allowed_hosts are the names of a server: they mean nothing without serve")
        if not self.serve and not (self.input and self.output):
            raise ConfigError("--input and --output are needed (- for standard input and output), or --serve HOST:PORT")
        if self.model.lower().endswith((".onnx", ".air")):
            raise ConfigError(
                f"model is {self.model}: ONNX and AIR files are for runtimes of their own; allowed is NAME.mindir "
                "(export.py --file_format MINDIR), a checkpoint, or the folder of a run or a conversion"
            )
        if not (self.do_lower_case or self.vocab_file_path or self.spm_model_file):
            raise ConfigError(
                "do_lower_case is false, which means nothing without vocab_file_path or spm_model_file: what lies "
                "beside the weights says how text is read"
            )
        own = [key for key in ("embeddings", "vocab_file_path", "spm_model_file") if getattr(self, key)]
        if self.model.endswith(".mindir") and own:
            raise ConfigError(
                f"{own[0]} is given, but what a MINDIR computes, with which vocabulary, its export decided"
            )
        if not self.model.endswith(".mindir") and self.encrypt_key_file:
            raise ConfigError("encrypt_key_file is given, but only a MINDIR can be encrypted")
