"""Configurations of export.py and predict.py, built on model_utils/schema.py."""

from pathlib import Path

from model_utils.config import ROWS, LayersConfig, OneDeviceConfig
from model_utils.errors import ConfigError
from model_utils.schema import option
from src.albert_config import LENGTH
from src.inference.answer_tables import ENDINGS
from src.inference.exported_model import ONNX_SUFFIX, SUFFIXES
from src.tasks import TASKS
from src.tasks.embeddings import POOLINGS
from src.tasks.multitask_config import MultitaskConfig
from src.training.pretrain_config import PretrainConfig
from src.utils import parse_part

MINDIR, AIR, ONNX = "MINDIR", "AIR", "ONNX"
ONNX_ONLY = ("file_format", ONNX)
DYNAMIC = "dynamic"
FILES = ("serve", "")  # `needs` of options that do not apply to a server
COMPUTE_TYPES = ("float32", "bfloat16")  # matrix products
NULL_THRESHOLD = option(
    None, "highest no_answer_probability with an answer; squad_v2 only; unset: the model's", minimum=0, maximum=1
)


class ExportConfig(OneDeviceConfig):
    """Write a trained model as a file that can be deployed: python export.py.

    The weights and the files beside them determine what the exported file computes. The task's yaml file may be passed
    as --config_path; its training keys are ignored.
    """

    config_file = "pretrain_config.yaml"
    file_sharers = (
        *dict.fromkeys(spec.config for spec in TASKS.values() if spec.config),
        MultitaskConfig,
        PretrainConfig,
    )

    export_ckpt_file: str = option("", "checkpoint or folder; the folder of a run or a conversion", required=True)
    export_file_name: str = option(
        "",
        "DIR/NAME of the files; writes NAME.mindir (.onnx, .air), NAME.json and the vocabulary to DIR",
        required=True,
    )
    file_format: str = option(MINDIR, "ONNX needs onnx and onnxruntime, AIR needs Ascend", choices=(MINDIR, AIR, ONNX))
    export_embeddings: bool = option(False, "export only the encoder; without the task's head")
    export_batch_size: int = option(1, "AIR: batch size", minimum=1, maximum=ROWS, needs=("file_format", AIR))
    export_seq_length: int = option(
        0, "AIR: length; 0: the task's max_seq_length", minimum=0, maximum=LENGTH, needs=("file_format", AIR)
    )
    int8: str = option(
        "none", "weights as int8; dynamic: also activations, at run time", choices=("none", DYNAMIC), needs=ONNX_ONLY
    )
    max_loss: float = option(
        0.005, "share of the development metric that int8 may lose", minimum=0, maximum=1, needs=("int8", DYNAMIC)
    )
    eval_config_path: str = option(
        "", "yaml with the development data; for int8; empty: config.yaml of the run", needs=("int8", DYNAMIC)
    )
    null_threshold: float | None = NULL_THRESHOLD
    vocab_file_path: str = option("", "WordPiece vocabulary; if the checkpoint's folder has none")
    spm_model_file: str = option("", "SentencePiece model; if the checkpoint's folder has none")
    do_lower_case: bool = option(True, "lower-case the text; only if the checkpoint's folder has no vocabulary")

    def check_together(self) -> None:
        name = Path(self.export_file_name)
        if self.export_file_name and (name.name in ("", "..") or name.suffix in (".mindir", ".air", ".onnx", ".json")):
            raise self.error_of("export_file_name", expected="DIR/NAME or NAME without an ending")
        if self.export_file_name.endswith(("/", "/.")):
            raise self.error_of("export_file_name", "that is a folder", hint="give DIR/NAME")


class PredictConfig(LayersConfig):
    """Run a trained model on raw text: python predict.py."""

    model: str = option(
        "",
        "exported file, checkpoint or folder; NAME.mindir, NAME.onnx; folder of a run or a conversion",
        required=True,
    )
    input: str = option(
        "",
        "records; .jsonl, .ndjson, .json, .tsv, .csv, .xls, .xlsx, .parquet, .arrow, text; -: standard input",
        needs=FILES,
    )
    output: str = option(
        "",
        "answers; JSON lines (.jsonl, .ndjson, .json, .txt) or a table (.csv, .tsv, .xlsx); -: standard output",
        needs=FILES,
    )
    input_format: str = option(
        "auto",
        "form of the input; auto: by file ending; standard input: JSON lines",
        choices=("auto", "json_lines", "table", "text"),
        needs=FILES,
    )
    encoding: str = option(
        "utf-8", "encoding of text files; tables only, such as gb18030, utf-16 or latin-1", needs=FILES
    )
    sheet: str = option("", "sheet of workbooks; name, or number from 1; empty: first visible one", needs=FILES)
    delimiter: str = option("", "text between fields; .csv, .tsv, .txt; empty: by ending and first line", needs=FILES)
    text_a_column: str = option(
        "", "column of the first text; or key; empty: that of the training data, else text_a or text", needs=FILES
    )
    text_b_column: str = option("", "column of the second text; or key; every record then needs it", needs=FILES)
    part: str = option(
        "",
        "part to work on; i/n: answer part i, from 0, of n; the parts' files, joined in order, are the whole",
        needs=FILES,
    )
    serve: str = option("", "HOST:PORT of an HTTP server; with a demo page, instead of files")
    allowed_hosts: tuple[str, ...] = option((), "host names of requests; besides the served address; *: any")
    access_log: str = option("", "file of the server's log; a JSON line a request is appended; -: standard error")
    batch_tokens: int = option(
        0,
        "tokens per batch; including padding, at least one row; 0: as many as fit in about 1 GB beside the weights",
        minimum=0,
        maximum=2**24,
    )
    compute_type: str = option(
        "float32", "type of matrix products; bfloat16 is faster on CPUs that support it", choices=COMPUTE_TYPES
    )
    top_k: int | None = option(
        None, "results; fill_mask: per mask; search: per record; unset: 5", minimum=1, maximum=1000
    )
    null_threshold: float | None = NULL_THRESHOLD
    embeddings: bool = option(False, "return vectors of texts; not the task's answers")
    pooling: str = option(
        "",
        "how states become a vector; the trained pooler, the first token's state (cls), mean or maximum of all; "
        "empty: as in the training of vectors, else pooler",
        choices=("", *POOLINGS),
    )
    normalise: bool = option(False, "scale vectors to length 1")
    search: str = option(
        "",
        "file of records to search; with embeddings; read by its ending, with the input's encoding, sheet and "
        "delimiter; answers are the top_k nearest in meaning",
        needs=FILES,
    )
    vocab_file_path: str = option("", "WordPiece vocabulary; if the checkpoint's folder has none")
    spm_model_file: str = option("", "SentencePiece model; if the checkpoint's folder has none")
    do_lower_case: bool = option(True, "lower-case the text; only if the checkpoint's folder has no vocabulary")

    def check_together(self) -> None:
        parse_part(self.part)

    def check_required(self) -> None:
        super().check_required()
        if self.part and (self.input == "-" or Path(self.output).suffix.lower() in ENDINGS):
            raise self.error_of("part", "it needs an input that is a file, not -, and JSON lines as output")
        is_exported = self.model.endswith(SUFFIXES)
        if self.search and not (self.embeddings or is_exported):
            raise self.error_of("search", "it needs vectors", hint="set embeddings to true, too")
        if self.search == "-" and self.input == "-":
            raise self.error_of("search", "input is standard input, too", hint="name a file for one of them")
        for key in ("allowed_hosts", "access_log"):
            if getattr(self, key) and not self.serve:
                raise self.error_of(key, "it applies to a server only", hint="give serve, too, or leave it out")
        if not self.serve and not (self.input and self.output):
            raise ConfigError("give --input and --output (- for standard input and output), or --serve HOST:PORT")
        if self.model.lower().endswith(".air"):
            hint = "give NAME.mindir, NAME.onnx, a checkpoint, or the folder of a run or a conversion"
            raise self.error_of("model", "AIR files run in Ascend's own runtime only", hint=hint)
        for key, allowed in (("device_target", ("auto", "CPU")), ("fused_layers", ("auto", "never"))):
            if self.model.endswith(ONNX_SUFFIX) and getattr(self, key) not in allowed:
                hint = f"onnxruntime computes {self.model} on the CPU, without the C++ layers"
                raise self.error_of(key, expected=" or ".join(allowed), hint=hint)
        if not (self.do_lower_case or self.vocab_file_path or self.spm_model_file):
            problem = "without vocab_file_path or spm_model_file the tokenizer beside the weights decides"
            raise self.error_of("do_lower_case", problem)
        for key in ("embeddings", "vocab_file_path", "spm_model_file"):
            if is_exported and getattr(self, key):
                raise self.error_of(key, f"the export fixed head and vocabulary of {self.model}")
