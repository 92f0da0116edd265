"""The batches of pre-training, from this project's feature files or google's TFRecords."""

from pathlib import Path

from model_utils.errors import DataError
from src.data.batches import PRETRAIN_WEIGHTS, FeatureDataset, Loading, TFRecordDataset
from src.data.feature_files import open_records
from src.data.pretraining_data import PretrainingData
from src.data.pretraining_instances import TASK
from src.data.tfrecords import check_tfrecord


def create_pretrain_dataset(
    data_dir: str | Path, loading: Loading, schema_dir: str | Path = "", sop_loss_weight: float = 1.0
) -> PretrainingData:
    """Batches of pre-training examples.

    input_ids, input_mask, segment_ids, token_boundary: (B, L) int32. masked_lm_positions, masked_lm_ids: (B, P) int32.
    masked_lm_weights: (B, P) float32. next_sentence_labels: (B,) int32. sequence_weights,
    sop_loss_weights: (B,) float32.

    Args:
        data_dir: folder with one set of MindRecords or with google's *.tfrecord, or DIR/NAME.mindrecord or
            DIR/NAME.tfrecord.
        schema_dir: schema.json of TFRecords, or its folder.
        sop_loss_weight: what the sentence-order loss counts beside the masked tokens' (1).

    Raises:
        DataError: there are no such files, or they are damaged, not finished, or made for another task.
    """
    tfrecords = _find_tfrecords(Path(data_dir))
    if tfrecords:
        files = {file: check_tfrecord(file) for file in tfrecords}
        return PretrainingData(
            TFRecordDataset(files, loading, _find_schema(schema_dir)), str(data_dir), sop_loss_weight
        )
    if schema_dir:
        raise DataError(f"schema_dir is {str(schema_dir)!r}, but {data_dir} holds no *.tfrecord files")
    records = open_records(data_dir, TASK)
    return PretrainingData(FeatureDataset(records, loading, PRETRAIN_WEIGHTS), str(data_dir), sop_loss_weight)


def _find_tfrecords(location: Path) -> list[Path]:
    """google's files in a folder, or the one that is named; a folder must not hold both kinds."""
    if location.suffix == ".tfrecord" and location.is_file():
        return [location]
    found = sorted(location.glob("*.tfrecord"))
    if found and any(location.glob("*.facts.json")):
        raise DataError(f"{location} holds both {found[0].name} and MindRecords; name the file that is meant")
    return found


def _find_schema(schema_dir: str | Path) -> Path | None:
    if not schema_dir:
        return None
    path = Path(schema_dir)
    path = path / "schema.json" if path.is_dir() else path
    if not path.is_file():
        raise DataError(f"schema_dir: {path} is not there")
    return path
