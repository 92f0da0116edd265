"""Batches of pre-training, from this project's feature files or google's TFRecords."""

from pathlib import Path

from model_utils.errors import DataError
from src.data.batches import FeatureDataset, Loading
from src.data.feature_files import open_records
from src.data.tfrecords import check_tfrecord, find_schema, find_tfrecords
from src.pretraining_data.checked_data import PretrainingData
from src.pretraining_data.dynamic_masks import DynamicMaskDataset
from src.pretraining_data.examples import PRETRAIN_WEIGHTS, TASK, TOKENS
from src.pretraining_data.masking import MaskingOverrides
from src.pretraining_data.tfrecord_batches import TFRecordDataset

_NO_OVERRIDES = MaskingOverrides()


def create_pretrain_dataset(
    data_dir: str | Path,
    loading: Loading,
    schema_dir: str | Path = "",
    sop_loss_weight: float = 1.0,
    masking: MaskingOverrides = _NO_OVERRIDES,
) -> PretrainingData:
    """Return the batches of pre-training examples.

    Columns of a batch:
        input_ids, input_mask, segment_ids, token_boundary: (B, L) int32
        masked_lm_positions, masked_lm_ids: (B, P) int32
        masked_lm_weights: (B, P) float32
        next_sentence_labels: (B,) int32
        sequence_weights, sop_loss_weights: (B,) float32

    Args:
        data_dir: folder with one set of MindRecords or with google's *.tfrecord, or DIR/NAME.mindrecord or
            DIR/NAME.tfrecord.
        schema_dir: schema.json of TFRecords, or its folder.
        sop_loss_weight: weight of the sentence-order loss; the masked tokens' loss has weight 1.
        masking: overrides of the data's manifest for masks that are drawn anew in every epoch.

    Raises:
        DataError: the files are missing, damaged, unfinished or made for another task; or `masking` overrides static
            masks.
    """
    dataset = _open_dataset(Path(data_dir), loading, schema_dir, masking)
    return PretrainingData(dataset, str(data_dir), sop_loss_weight)


def _open_dataset(
    location: Path, loading: Loading, schema_dir: str | Path, masking: MaskingOverrides
) -> FeatureDataset | TFRecordDataset:
    tfrecords = find_tfrecords(location)
    if tfrecords:
        _check_no_overrides(masking, location)
        files = {file: check_tfrecord(file) for file in tfrecords}
        return TFRecordDataset(files, loading, find_schema(schema_dir))
    if schema_dir:
        raise DataError(f"schema_dir is {str(schema_dir)!r}, but {location} holds no *.tfrecord files")
    records = open_records(location, TASK, rank=loading.rank, rank_size=loading.rank_size)
    if TOKENS in records.columns:
        return DynamicMaskDataset(records, loading, masking)
    _check_no_overrides(masking, location)
    return FeatureDataset(records, loading, PRETRAIN_WEIGHTS)


def _check_no_overrides(masking: MaskingOverrides, location: Path) -> None:
    """Raise DataError if `masking` overrides masks that are stored in the data."""
    for key, value in vars(masking).items():
        if value:
            raise DataError(f"{key} is {value}, but the masks of {location} are stored: leave it out, also in phases")
