"""Script that joins the parts of pre-training data: python -m src.merge_parts --help.

`python -m src.create_pretraining_data --part i/n` makes the parts, on any machine and in any order. No row is copied or
changed: the set has the parts' files, with one manifest and the arrays of all.
"""

import functools
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.config import run_main
from model_utils.errors import DataError
from model_utils.files import write_atomically
from model_utils.flat_dicts import first_difference, flatten
from model_utils.json_files import write_checked
from model_utils.schema import Config, option
from src.create_pretraining_data import part_path
from src.data.feature_files import SUFFIX, RecordSet, manifest_path, open_records, read_manifest, sha256_of
from src.data.record_writer import check_record_path
from src.pretraining_data.diagnostics import UNIGRAM, VocabularyFit
from src.pretraining_data.examples import TASK

logger = logging.getLogger(__name__)
OF_EACH_PART = ("part", "rows", "files", "record_files", "vocabulary_fit")  # manifest entries that differ
ARRAYS = ("lengths", "checksums", UNIGRAM)


class MergeConfig(Config):
    """Join the parts of pre-training data: python -m src.merge_parts."""

    output_file: str = option("", "the output_file of the parts: DIR/NAME.mindrecord", required=True)


def find_parts(path: Path) -> list[RecordSet]:
    """Return the verified parts of DIR/NAME.mindrecord in order.

    Raises:
        DataError: there is none, one is missing, or they were made from other text or with other settings.
    """
    pattern = re.compile(rf"{re.escape(path.stem)}-\d+-of-(\d+)\.facts\.json")
    matches = [match for file in sorted(path.parent.iterdir()) if (match := pattern.fullmatch(file.name))]
    if not matches:
        raise DataError(f"{path.parent} holds no parts of {path.name}; make them with --part 0/n to n-1/n")
    counts = {match[1] for match in matches}
    if len(counts) > 1:
        raise DataError(f"{path.parent} holds parts of {' and of '.join(sorted(counts))}; remove those of all but one")
    count = int(counts.pop())
    parts = [open_records(part_path(path, index, count), TASK) for index in range(count)]
    first, *others = [{key: value for key, value in part.manifest.items() if key not in OF_EACH_PART} for part in parts]
    for part, manifest in zip(parts[1:], others, strict=True):
        if difference := first_difference(flatten(first), flatten(manifest)):
            key, left, right = difference
            raise DataError(f"the parts differ in {key}: {left!r} in {parts[0].name} and {right!r} in {part.name}")
    return parts


def merged_manifest(path: Path, parts: list[RecordSet]) -> dict[str, Any]:
    """Return the manifest of all parts; the files of its arrays are on the disk."""
    common = {key: value for key, value in parts[0].manifest.items() if key not in OF_EACH_PART}
    arrays = {f"{part.name}.{suffix}.npy" for part in parts for suffix in ARRAYS}
    files = {
        name: checksum for part in parts for name, checksum in part.manifest["files"].items() if name not in arrays
    }
    own_arrays = [path.with_name(f"{path.stem}.{suffix}.npy") for suffix in ARRAYS]
    fits = [VocabularyFit.from_manifest(part.manifest["vocabulary_fit"]) for part in parts]
    return {
        **common,
        "rows": sum(part.num_rows for part in parts),
        "record_files": [file.name for part in parts for file in part.files],
        "files": {**files, **{file.name: sha256_of(file) for file in own_arrays}},
        "vocabulary_fit": sum(fits, start=VocabularyFit()).to_manifest(),
    }


def main(config: MergeConfig) -> None:
    """Write the manifest of all parts, then remove those of the parts."""
    path = check_record_path(config.output_file)
    if not manifest_path(path).exists():  # else an earlier run may have been interrupted before the removal
        parts = find_parts(path)
        values = {
            "lengths": np.concatenate([part.lengths for part in parts]),
            "checksums": np.concatenate([part.array("checksums") for part in parts]),
            UNIGRAM: np.sum([part.array(UNIGRAM) for part in parts], axis=0),
        }
        for suffix, array in values.items():
            write_atomically(path.with_name(f"{path.stem}.{suffix}.npy"), functools.partial(np.save, arr=array))
        write_checked(manifest_path(path), merged_manifest(path, parts))
    parts_of_rows = {file.partition(SUFFIX)[0] for file in read_manifest(manifest_path(path))["record_files"]}
    for part in parts_of_rows - {path.stem}:  # their manifests and arrays are parts of this file's now
        for suffix in ("facts.json", *(f"{array}.npy" for array in ARRAYS)):
            path.with_name(f"{part}.{suffix}").unlink(missing_ok=True)
    records = open_records(path, TASK)
    logger.info(f"{path}: {records.num_rows:,} examples in {len(records.files)} file(s)")


if __name__ == "__main__":
    run_main(main, MergeConfig)
