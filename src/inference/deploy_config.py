"""Configurations of export.py and predict.py, built on model_utils/schema.py."""

from pathlib import Path

from model_utils.config import ROWS, LayersConfig, OneDeviceConfig
from model_utils.errors import ConfigError
from model_utils.schema import option
from src.albert_config import LENGTH
from src.inference.answer_tables import ENDINGS
from src.tasks import TASKS
from src.tasks.fill_mask import POOLER, POOLINGS
from src.training.pretrain_config import PretrainConfig
from src.utils import parse_part

MINDIR, AIR, ONNX = "MINDIR", "AIR", "ONNX"
ANSWERS_IN = ("float32", "bfloat16")  # matrix products
NULL_THRESHOLD = option(
    None, "squad_v2: highest no_answer_probability that still gives an answer; unset: the model's", minimum=0, maximum=1
)


class ExportConfig(OneDeviceConfig):
    """Write a trained model as a file that can be deployed: python export.py.

    The weights and the files beside them determine what the exported file computes. The task's yaml file may be passed
    as --config_path; its training keys are ignored.
    """

    config_file = "pretrain_config.yaml"
    file_sharers = (*dict.fromkeys(spec.config for spec in TASKS.values() if spec.config), PretrainConfig)

    export_ckpt_file: str = option("", "checkpoint, or folder of a run or a conversion", required=True)
    export_file_name: str = option(
        "", "DIR/NAME: writes NAME.mindir, NAME.json and the vocabulary to DIR", required=True
    )
    file_format: str = option(MINDIR, "AIR needs Ascend; AIR and ONNX have fixed shapes", choices=(MINDIR, AIR, ONNX))
    export_embeddings: bool = option(False, "export only the encoder, without the task's head")
    export_batch_size: int = option(1, "AIR, ONNX: batch size", minimum=1, maximum=ROWS)
    export_seq_length: int = option(
        0, "AIR, ONNX: sequence length; 0: the task's max_seq_length", minimum=0, maximum=LENGTH
    )
    null_threshold: float | None = NULL_THRESHOLD
    vocab_file_path: str = option("", "WordPiece vocabulary, if the checkpoint's folder has none")
    spm_model_file: str = option("", "SentencePiece model, if the checkpoint's folder has none")
    do_lower_case: bool = option(True, "lower-case the text; only if the checkpoint's folder has no vocabulary")

    def check_together(self) -> None:
        name = Path(self.export_file_name)
        if self.export_file_name and (name.name in ("", "..") or name.suffix in (".mindir", ".air", ".onnx", ".json")):
            raise ConfigError(f"export_file_name is {self.export_file_name}; give DIR/NAME or NAME without an ending")
        if self.export_file_name.endswith(("/", "/.")):
            raise ConfigError(f"export_file_name is {self.export_file_name}, a folder; give DIR/NAME")
        if self.file_format == MINDIR and (self.export_batch_size != 1 or self.export_seq_length):
            raise ConfigError("export_batch_size and export_seq_length do not apply to MINDIR, which takes any shape")


class PredictConfig(LayersConfig):
    """Run a trained model on raw text: python predict.py."""

    model: str = option("", "NAME.mindir, a checkpoint, or folder of a run or a conversion", required=True)
    input: str = option(
        "", "records: .jsonl, .ndjson, .json, .tsv, .csv, .xls, .xlsx, .parquet, .arrow, text; -: standard input"
    )
    output: str = option(
        "", "answers: JSON lines (.jsonl, .ndjson, .json, .txt) or a table (.csv, .tsv, .xlsx); -: standard output"
    )
    input_format: str = option(
        "auto", "auto: by file ending; standard input: JSON lines", choices=("auto", "json_lines", "table", "text")
    )
    encoding: str = option("utf-8", "encoding of tables, such as gb18030, utf-16 or latin-1")
    sheet: str = option("", "sheet of workbooks: name, or number from 1; empty: first visible one")
    delimiter: str = option("", "between fields of .csv, .tsv, .txt; empty: by ending and first line")
    text_a_column: str = option(
        "", "key or column of the first text; empty: that of the training data, else text_a or text"
    )
    text_b_column: str = option("", "key or column of the second text, which every record then needs")
    part: str = option(
        "", "i/n: answer part i, from 0, of n; the files of all parts, joined in order, are that of the whole input"
    )
    serve: str = option("", "HOST:PORT of an HTTP server with a demo page, instead of files")
    allowed_hosts: tuple[str, ...] = option((), "host names that requests may use besides the served address; *: any")
    access_log: str = option("", "file that a server appends a JSON line a request to; -: standard error")
    batch_tokens: int = option(
        0,
        "tokens per batch including padding, at least one row; 0: as many as fit in about 1 GB beside the weights",
        minimum=0,
        maximum=2**24,
    )
    compute_type: str = option(
        "float32", "type of the matrix products; bfloat16 is faster on CPUs that support it", choices=ANSWERS_IN
    )
    top_k: int | None = option(
        None, "fill_mask: tokens per mask; search: records per answer; unset: 5", minimum=1, maximum=1000
    )
    null_threshold: float | None = NULL_THRESHOLD
    embeddings: bool = option(False, "return a vector for each text, not the task's answers")
    pooling: str = option(
        POOLER,
        "embeddings: output of the trained pooler, or the first token's state (cls), mean or maximum of all states",
        choices=POOLINGS,
    )
    normalise: bool = option(False, "embeddings: scale vectors to length 1")
    search: str = option(
        "", "embeddings: file of records, in the formats of input; answers are the top_k records nearest in meaning"
    )
    vocab_file_path: str = option("", "WordPiece vocabulary, if the checkpoint's folder has none")
    spm_model_file: str = option("", "SentencePiece model, if the checkpoint's folder has none")
    do_lower_case: bool = option(True, "lower-case the text; only if the checkpoint's folder has no vocabulary")

    def check_together(self) -> None:
        parse_part(self.part)

    def check_required(self) -> None:
        super().check_required()
        of_tables = ("input_format", "encoding", "sheet", "delimiter", "text_a_column", "text_b_column")
        for key in ("input", "output", *of_tables, "part"):
            if self.serve and getattr(self, key) != type(self).model_fields[key].default:
                raise ConfigError(f"{key} does not apply to a server: leave out {key}, or serve")
        if self.part and (self.input == "-" or Path(self.output).suffix.lower() in ENDINGS):
            raise ConfigError("part needs an input that is a file, not -, and JSON lines as output")
        if self.search and self.serve:
            raise ConfigError("search does not apply to a server: leave out search, or serve")
        if self.search and not (self.embeddings or self.model.endswith(".mindir")):
            raise ConfigError("search needs vectors: give --embeddings true, too")
        if self.search == "-" and self.input == "-":
            raise ConfigError("search and input are both standard input: name a file for one of them")
        for key in ("allowed_hosts", "access_log"):
            if getattr(self, key) and not self.serve:
                raise ConfigError(f"{key} applies to a server only: give serve, too, or leave it out")
        if not self.serve and not (self.input and self.output):
            raise ConfigError("give --input and --output (- for standard input and output), or --serve HOST:PORT")
        if self.model.lower().endswith((".onnx", ".air")):
            raise ConfigError(
                f"model is {self.model}, but ONNX and AIR files run in their own runtimes only; give NAME.mindir "
                "(export.py --file_format MINDIR), a checkpoint, or the folder of a run or a conversion"
            )
        if not (self.do_lower_case or self.vocab_file_path or self.spm_model_file):
            raise ConfigError(
                "do_lower_case=false applies only with vocab_file_path or spm_model_file; without them the tokenizer "
                "beside the weights decides"
            )
        fixed_by_export = [key for key in ("embeddings", "vocab_file_path", "spm_model_file") if getattr(self, key)]
        if self.model.endswith(".mindir") and fixed_by_export:
            raise ConfigError(f"{fixed_by_export[0]} does not apply to a MINDIR: its export fixed head and vocabulary")
