"""Dynamic masking: masks and the order of segments are drawn when batches are read, anew in every epoch.

The draws of a row depend only on the seed, the epoch and the row's index, not on batch size, ranks or resuming.
"""

import itertools
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from model_utils.config import SEED
from model_utils.json_files import FileName, Schema, validated
from src.data.batches import ROW_NUMBERS, SEQUENCE_WEIGHTS, Batch, FeatureDataset, Loading
from src.data.feature_files import RecordSet
from src.pretraining_data.examples import LABELS, PRETRAIN_WEIGHTS, SEGMENT_SIZES, TOKENS, build_examples, exchange
from src.pretraining_data.masking import InstanceSettings, MaskingOverrides, MaskVocabulary, RowRandom
from src.tokenization import open_tokenizer

ROWS_AT_ONCE = 256  # smaller batches are masked together because numpy is slow on few rows


class DynamicManifest(Schema):
    """Manifest entries of data without masks, in addition to those of every set of feature files."""

    seed: Annotated[int, Field(ge=0, le=SEED)]
    settings: InstanceSettings
    vocab_file: FileName
    do_lower_case: bool


class DynamicMaskDataset(FeatureDataset):
    """FeatureDataset that masks rows of tokens (examples.token_columns) and yields the columns of static data.

    Training draws with the loading's seed; evaluation with the seed of the data and epoch 0, so that it never changes.

    Raises:
        DataError: the manifest lacks the settings of masking.
    """

    def __init__(self, records: RecordSet, loading: Loading, overrides: MaskingOverrides) -> None:
        super().__init__(records, loading)
        manifest = validated(records.manifest, DynamicManifest, f"{records.folder / records.name}.facts.json")
        self.settings = overrides.apply(manifest.settings)
        self.data_seed = manifest.seed
        self.vocabulary = MaskVocabulary.of(
            open_tokenizer(records.folder / manifest.vocab_file, manifest.do_lower_case)
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches like FeatureDataset.batches, with the columns of examples.columns."""
        seed = (self.data_seed, 0) if self.loading.evaluation else (self.loading.seed, epoch)
        unmasked = super().batches(epoch, start)
        batches_at_once = -(-ROWS_AT_ONCE // self.loading.batch_size)
        while group := list(itertools.islice(unmasked, batches_at_once)):
            rows = {name: np.concatenate([batch[name] for batch in group]) for name in group[0]}
            masked = self._mask(rows, seed)
            for index in range(len(group)):
                first = index * self.loading.batch_size
                yield {name: values[first : first + self.loading.batch_size] for name, values in masked.items()}

    def _mask(self, rows: Batch, seed: tuple[int, int]) -> Batch:
        """Return the masked examples of token rows, with the weights and indices of the rows."""
        random = RowRandom(seed, rows[ROW_NUMBERS])
        sizes = rows[SEGMENT_SIZES]
        start = np.arange(len(sizes)) * rows[TOKENS].shape[1]
        ends = np.cumsum(sizes, 1) + start[:, None]
        segments = np.stack([start, ends[:, 0], ends[:, 0], ends[:, 1]], 1)
        if self.settings.random_next_sentence:
            labels = rows[LABELS]
        else:
            labels = random.uniform(1)[:, 0] < 0.5
            segments = exchange(segments, labels)
        examples = build_examples(rows[TOKENS].ravel(), segments, labels, self.vocabulary, self.settings, random)
        for name in PRETRAIN_WEIGHTS:
            examples[name] *= rows[SEQUENCE_WEIGHTS][:, None]
        return examples | {name: rows[name] for name in (SEQUENCE_WEIGHTS, ROW_NUMBERS)}
