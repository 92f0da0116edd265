"""Files of examples by split; without a development file, a share of the training examples replaces it."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic

from model_utils.errors import DataError
from model_utils.schema import ANY, SAME_PLACE, option
from src.create_finetune_data import find_splits
from src.data.feature_cache import TRAIN
from src.data.features import Item, hash_texts, split_off
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.task_info import DevSplit, TaskInfo
from src.text.text_tables import SUFFIXES

logger = logging.getLogger(__name__)
NO_DEV_SPLIT = "no share of the training file is evaluated"  # why dev_ratio has no effect


class ExampleFilesConfig(FinetuneConfig):
    """Keys of the tasks that read examples from the user's files."""

    data_dir: str = option("", "folder with train.*, dev.* and test.*; see docs/data-formats.md", on_resume=SAME_PLACE)
    train_file: str = option("", "training file; empty: train.* in data_dir", on_resume=SAME_PLACE)
    dev_file: str = option("", "development file; empty: dev.* in data_dir, or by dev_ratio", on_resume=SAME_PLACE)
    test_file: str = option("", "test file; empty: test.* in data_dir", needs=("do_predict", True), on_resume=ANY)
    dev_ratio: float = option(0.1, "share split off for development", above=0, below=1)


class ExampleFiles(Generic[Item]):
    """Examples of the user's files by split.

    Args:
        read_file: returns the examples of a split's file.
        endings: see find_splits.

    Attributes:
        files: file of each split.
        dev_split: how development examples are split off; None if they are not.
    """

    def __init__(
        self,
        config: ExampleFilesConfig,
        read_file: Callable[[str], list[Item]],
        endings: Sequence[str] | None = SUFFIXES,
    ) -> None:
        self.config = config
        named_files = {TRAIN: config.train_file, "dev": config.dev_file, "test": config.test_file}
        self.files = find_splits(config.data_dir, named_files, endings)
        self.dev_split: DevSplit | None = None
        self._read_file = read_file
        self._train_and_dev: list[Item] = []
        self._labels: list[str] | None = None

    def hold_out(
        self, trained_info: TaskInfo | None, texts_of: Callable[[Any], Sequence[Any]], stratified: bool = False
    ) -> None:
        """Split off development examples: as in the training of the weights, if they are only evaluated.

        Args:
            trained_info: task.json of the weights to evaluate; None when training.
            texts_of: returns the texts of an example, as JSON values.
            stratified: give every class about the same share.

        Raises:
            DataError: the development examples of the weights were split off other texts.
        """
        ratio, seed = self.config.dev_ratio, self.config.seed
        trained = trained_info.dev_split if trained_info else None
        stratified = trained.stratified if trained else stratified
        examples: list[Any] = self._read_file(TRAIN)
        texts = ([*texts_of(example), *([example.label] if stratified else ())] for example in examples)
        configured = DevSplit(ratio=ratio, seed=seed, texts_sha256=hash_texts(texts), stratified=stratified)
        self.dev_split = trained or configured
        self._train_and_dev = examples
        self._labels = [str(example.label) for example in examples] if stratified else None
        if trained is None:
            if trained_info:
                logger.warning(
                    f"task.json of the weights names no development split: the share of dev_ratio {ratio:g} and seed "
                    f"{seed} is evaluated, which the weights may have been trained on"
                )
        elif trained.texts_sha256 not in (None, configured.texts_sha256):
            raise DataError(
                f"{self.files[TRAIN]} has other texts or classes than the file that the weights were trained on, so "
                "its development share may have been trained on: give the file and columns of the training, or a "
                "dev_file"
            )
        elif (trained.ratio, trained.seed) != (ratio, seed):
            found = f"dev_ratio {trained.ratio:g}, seed {trained.seed}"
            logger.info(f"development examples are those of the training: {found}")

    def read(self, split: str) -> list[Item]:
        """Return the examples of a split; raise DataError if there is no file for it, or its content is wrong."""
        if self.dev_split is None or split == "test":
            return self._read_file(split)
        train, dev = split_off(self._train_and_dev, self.dev_split.ratio, self.dev_split.seed, self._labels)
        return dev if split == "dev" else train
