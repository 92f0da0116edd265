"""Readers of Parquet files, Arrow files and folders of `datasets.save_to_disk`: rows of texts.

The first bytes of a file tell its format: Parquet, Arrow's file format (also Feather 2) or its stream format, which
`datasets` writes. pyarrow is needed for them alone (requirements-arrow.txt).
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from model_utils.errors import DataError, first_few
from model_utils.files import open_file
from model_utils.json_files import FileName, Schema, parse_json, read_json
from model_utils.optional import require
from src.text.cell_values import NumberedRows, index_of, joined_texts, reading_errors, text_of, without_midnight
from src.utils import check_unpacked

ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
BATCH_ROWS = 1024
_STATE_FILE, _SPLITS_FILE = "state.json", "dataset_dict.json"  # of a data set, of several splits
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_FIRST_SHARD = re.compile(rf"(.*)-00000-of-([0-9]{{5}})({'|'.join(map(re.escape, ARROW_SUFFIXES))})")
_NO_LABEL = -1  # class of rows without a gold label


class _DataFile(Schema):
    filename: FileName


class _State(Schema):
    data_files: tuple[_DataFile, ...] = Field(alias="_data_files", min_length=1)


class _Splits(Schema):
    splits: tuple[FileName, ...]


def is_saved_dataset(path: Path) -> bool:
    """Return True for a folder of save_to_disk."""
    return _holds(path, _STATE_FILE) or _holds(path, _SPLITS_FILE)


def _holds(folder: Path, name: str) -> bool:
    return os.path.isfile(folder / name)  # noqa: PTH113 - Path.is_file() raises OSError for a name that is too long


def saved_splits(folder: Path) -> list[Path]:
    """Return the folders of the splits that a folder of save_to_disk names; [] for any other folder."""
    if not _holds(folder, _SPLITS_FILE):
        return []
    splits = [folder / name for name in read_json(folder / _SPLITS_FILE, _Splits).splits]
    if missing := [split.name for split in splits if not _holds(split, _STATE_FILE)]:
        raise DataError(f"{folder} lacks {first_few(missing)}, which its {_SPLITS_FILE} names; copy it again")
    return splits


def split_stem(name: str) -> str:
    """Return a file's name up to its first dot; train-00000-of-00002.parquet, the first of two shards, is train."""
    shard = _FIRST_SHARD.fullmatch(name)
    return shard[1] if shard else name.split(".")[0]


def open_arrow(
    path: Path, list_column: tuple[str, str] | None = None, with_shards: bool = True
) -> tuple[list[str], NumberedRows, dict[int, str]]:
    """Return column names, rows numbered from 1, and by index the types of columns whose fields are None.

    Args:
        path: file, first one of several shards, or folder of save_to_disk.
        list_column: column whose values may be lists, and the separator that joins their items.
        with_shards: read the other shards behind the first one, too.

    Raises:
        UserError: pyarrow is missing; a file is missing, damaged or cut short; also raised while iterating rows.
    """
    files = _files_of(path) if with_shards else [path]
    with _opened(files[0]) as (schema, _):
        column, separator = list_column or ("", "")
        list_index = index_of(schema.names, column)
        types = {index: field.type for index, field in enumerate(schema)}
        other_types = {index: str(value) for index, value in types.items() if not _is_plain(value, index == list_index)}
        names = _class_names(schema)
    class_names = [names.get(column, ()) for column in schema.names]
    return schema.names, _rows(path, files, schema, class_names, other_types, separator), other_types


def text_bytes(path: Path, column: str) -> int:
    """Return about how many bytes the texts of a column have: of a Parquet file unpacked, of others the whole file."""
    with _opened(path) as (schema, _), open_file(path) as file:
        if column not in schema.names or file.read(4) != b"PAR1":
            return path.stat().st_size
        from pyarrow import parquet

        metadata = parquet.read_metadata(file)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        leaves = (group.column(index) for group in groups for index in range(group.num_columns))
        return sum(leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema == column)


def _files_of(path: Path) -> list[Path]:
    if _holds(path, _STATE_FILE):
        return [path / file.filename for file in read_json(path / _STATE_FILE, _State).data_files]
    if _holds(path, _SPLITS_FILE):
        raise DataError(f"{path} holds several splits: give it as data_dir, or name the folder of one split")
    shard = _FIRST_SHARD.fullmatch(path.name)
    others = range(1, int(shard[2])) if shard else ()
    return [path, *(path.with_name(path.name.replace("-00000-of-", f"-{index:05}-of-")) for index in others)]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Provide the schema and the record batches of a file."""
    ipc = require("pyarrow.ipc", "requirements-arrow.txt", path)
    parquet = require("pyarrow.parquet", "requirements-arrow.txt", path)
    with reading_errors(path, "a Parquet or Arrow file"), open_file(path) as file:
        beginning = file.read(8)
        check_unpacked(beginning, path)
        if beginning.startswith(b"PAR1"):
            table = parquet.ParquetFile(file, page_checksum_verification=True)
            yield table.schema_arrow, table.iter_batches(BATCH_ROWS, use_threads=False)
        elif beginning.startswith(b"ARROW1"):
            reader = ipc.open_file(file)
            yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
        else:
            # A stream that is cut between two batches lacks its end alone: pyarrow would read it with rows lost.
            content = os.fstat(file.fileno()).st_size - len(_END_OF_STREAM)
            file.seek(max(0, content))
            if file.read() != _END_OF_STREAM:
                raise ValueError("its end is missing")
            file.seek(0)
            stream = ipc.open_stream(file)
            yield stream.schema, stream


def _class_names(schema: Any) -> dict[str, Sequence[str]]:
    """Return the names of the classes of class label features of `datasets`, by column."""
    features = parse_json((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    names = {}
    for column, feature in features.items():
        item = feature[0] if isinstance(feature, list) else feature.get("feature", feature)  # of a list, or itself
        if item.get("_type") == "ClassLabel":
            names[column] = item.get("names") or ()
    return names


def _is_plain(value_type: Any, may_be_list: bool) -> bool:
    """Return True for the type of texts, numbers, truth values or dates, or a permitted list of them."""
    from pyarrow import types

    is_list = types.is_list(value_type) or types.is_large_list(value_type)
    if types.is_dictionary(value_type) or (may_be_list and is_list):
        value_type = value_type.value_type
    is_text = types.is_string(value_type) or types.is_large_string(value_type) or types.is_string_view(value_type)
    is_number = types.is_integer(value_type) or types.is_floating(value_type) or types.is_decimal(value_type)
    is_date = types.is_date(value_type) or (types.is_timestamp(value_type) and value_type.tz is None)
    return is_text or is_number or is_date or types.is_boolean(value_type) or types.is_null(value_type)


def _rows(
    path: Path,
    files: list[Path],
    schema: Any,
    class_names: list[Sequence[str]],
    other_types: dict[int, str],
    separator: str,
) -> NumberedRows:
    line = 0
    for file in files:
        with _opened(file) as (file_schema, batches):
            if not file_schema.equals(schema):
                raise DataError(f"{file} has other columns or types than {files[0].name}; write all shards alike")
            for batch in batches:
                batch.validate(full=True)
                columns = [
                    [{}] * len(batch) if index in other_types else _values(column)
                    for index, column in enumerate(batch.columns)
                ]
                for row in zip(*columns, strict=True):
                    line += 1
                    place = f"{path}: line {line}"
                    fields = zip(row, class_names, strict=True)
                    yield line, [_text(value, names, separator, place) for value, names in fields]


def _values(array: Any) -> list[Any]:
    """Return the values of a column: of single precision the shortest decimal, of timestamps whole microseconds."""
    import pyarrow

    if pyarrow.types.is_timestamp(array.type):
        array = array.cast(pyarrow.timestamp("us"), safe=False)
    values = array.to_pylist()
    if not pyarrow.types.is_floating(array.type) or array.type.bit_width == 64:
        return values
    number_type = np.dtype(f"f{array.type.byte_width}").type
    return [None if value is None else float(str(number_type(value))) for value in values]


def _text(value: Any, class_names: Sequence[str], separator: str, place: str) -> str | None:
    if isinstance(value, list):
        return joined_texts([_text(item, class_names, separator, place) for item in value], separator, place)
    if not class_names or not isinstance(value, int):
        return text_of(without_midnight(value))
    if value == _NO_LABEL:
        return ""
    if not 0 <= value < len(class_names):
        raise DataError(f"{place} has class {value}, allowed are 0 to {len(class_names) - 1}")
    return class_names[value]
