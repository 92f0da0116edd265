"""The tasks of benchmarks/transfer.py: their files, the settings of their fine-tuning, and which figure counts."""

import hashlib
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bag_of_words import classification_accuracy, sliding_window_accuracy
from model_utils.errors import DataError
from model_utils.files import new_folder, write_json, write_text
from src.albert_config import AlbertConfig
from src.data.feature_cache import TRAIN
from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.multiple_choice import RaceConfig, RaceTask
from src.tasks.question_answering import SquadConfig, SquadTask
from src.tasks.race_data import LEVELS
from src.tasks.spec import Task
from src.tasks.token_classification import NerConfig, NerTask
from src.tokenization import FullTokenizer
from src.training.flops import forward_flops
from src.utils import read_json_text, read_lines

DEV_SHARE = 5  # one of so many questions of QNLI's file is for development
WIDTH_STEP = 16  # to which batches pad, by and large


@dataclass(frozen=True)
class TransferTask:
    """A task with its data and the settings that all starts share.

    module: the command. make: the task of a configuration and a tokenizer. metric: by which the rate is chosen on the
    development set, and which is reported: of the test set where it has labels (tested), else of the development set.
    """

    module: str
    make: Callable[[Any, FullTokenizer], Task]
    config: FinetuneConfig
    metric: str
    tested: bool = False

    @property
    def figure(self) -> str:
        """The reported figure's name in eval_results.json."""
        return f"test_{self.metric}" if self.tested else self.metric

    @property
    def evaluated(self) -> str:
        """The split that it is of."""
        return "test" if self.tested else "dev"

    def scaled(self, max_train_samples: int, epochs: int) -> "TransferTask":
        """The same with at most so many training examples and with other epochs; 0: as the task has it."""
        limits = [limit for limit in (max_train_samples, self.config.max_train_samples) if limit]
        return replace(
            self,
            config=self.config.replace(
                max_train_samples=min(limits, default=0), epoch_num=epochs or self.config.epoch_num
            ),
        )

    def without_network(self, tokenizer: FullTokenizer) -> dict[str, float]:
        """The reported figure of what benchmarks/bag_of_words.py has for the task, by name.

        Entities and spans have only the task's own baseline.
        """
        task = self.make(self.config, tokenizer)
        if isinstance(task, RaceTask):
            return {"sliding window": sliding_window_accuracy(task.split(self.evaluated).examples)}
        if not isinstance(task, ClassifierTask):
            return {}
        examples = [task.split(name).examples for name in (TRAIN, "dev", self.evaluated)]
        figures = {"bag of words": classification_accuracy(*examples)}
        return figures | ({"overlap": classification_accuracy(*examples, overlap=True)} if task.pairs else {})

    def flops(self, tokenizer: FullTokenizer, architecture: AlbertConfig) -> float:
        """Operations of one fine-tuning: every epoch trains once and evaluates the development set once."""
        task = self.make(self.config, tokenizer)
        texts = task.spec.texts_per_row
        total = 0.0
        for name, passes in ((TRAIN, 3 * self.config.epoch_num), ("dev", self.config.epoch_num), ("test", self.tested)):
            if passes:
                lengths = task.split(name).features().values["input_ids"].counts // texts
                widths, rows = np.unique(-(-lengths // WIDTH_STEP) * WIDTH_STEP, return_counts=True)
                forward = zip(texts * rows, widths, strict=True)
                total += passes * sum(forward_flops(architecture, number, width) for number, width in forward)
        return total


def _glue(name: str, folder: str, max_seq_length: int, epochs: int, data: Path, made: Path) -> TransferTask:
    config = ClassifierConfig(
        task_name=name,
        data_dir=data / "glue" / folder,
        assessment_method="accuracy",  # MRPC's own f1 is 0.80 for the majority class
        max_seq_length=max_seq_length,
        epoch_num=epochs,
    )
    return TransferTask("run_classifier", ClassifierTask, config, "accuracy")


def _qnli(data: Path, made: Path) -> TransferTask:
    task = _glue("qnli", "QNLI", 128, 3, data, made)
    folder = made / "QNLI"
    if not folder.exists():
        split_by_question(data / "glue" / "QNLI" / "dev.tsv", folder)
    return replace(task, config=task.config.replace(data_dir=folder))


def _ner(folder: str, max_seq_length: int, data: Path, made: Path) -> TransferTask:
    config = NerConfig(data_dir=data / "ner" / folder, max_seq_length=max_seq_length, epoch_num=3, do_predict=True)
    return TransferTask("run_ner", NerTask, config, "f1", tested=True)


def _squad(most: int, data: Path, made: Path) -> TransferTask:
    folder = data / "squad_v1"
    training = folder / "train.json"
    if not most:
        training = made / "squad_all.json"
        if not training.exists():
            join_squad([folder / "train.json", folder / "squadshifts_new_wiki_v1.0.json"], training)
    config = SquadConfig(
        train_json_path=training,
        eval_json_path=folder / "dev.json",
        max_seq_length=256,
        epoch_num=2,
        train_batch_size=16,
        max_train_samples=most,
    )
    return TransferTask("run_squad_v1", SquadTask, config, "f1")


def _race(data: Path, made: Path) -> TransferTask:
    if not (made / "RACE").exists():
        unpack_race(data / "race" / "RACE.tar.gz", made / "RACE")
    config = RaceConfig(
        data_dir=made / "RACE",
        level=LEVELS[0],
        max_seq_length=256,
        epoch_num=1,
        max_train_samples=2000,  # of 25,421; each has four texts
        max_eval_samples=400,
        do_predict=True,
    )
    return TransferTask("run_race", RaceTask, config, "accuracy", tested=True)


def _chnsenticorp(data: Path, made: Path) -> TransferTask:
    config = ClassifierConfig(
        data_dir=data / "zh" / "ChnSentiCorp",
        column_names=("text", "label"),
        text_a_column="text",
        max_seq_length=128,
        epoch_num=2,
    )
    return TransferTask("run_classifier", ClassifierTask, config, "accuracy")


# By name; each is made from the folder of the data and a folder for what is made of it.
TRANSFER_TASKS: dict[str, Callable[[Path, Path], TransferTask]] = {
    "sst-2": partial(_glue, "sst-2", "SST-2", 64, 2),
    "mrpc": partial(_glue, "mrpc", "MRPC", 128, 3),
    "rte": partial(_glue, "rte", "RTE", 128, 3),
    "qnli": _qnli,
    "conll2003": partial(_ner, "conll2003", 128),
    "squad-3000": partial(_squad, 3000),
    "squad-all": partial(_squad, 0),
    "race-middle": _race,
    "chnsenticorp": _chnsenticorp,
    "resume-ner": partial(_ner, "resume_zh", 128),
}
ENGLISH = tuple(TRANSFER_TASKS)[:8]


def split_by_question(file: Path, folder: Path) -> None:
    """Deal out the rows of a GLUE file to train.tsv and dev.tsv by a hash of their question, so that none is in both.

    Of QNLI the published training file is not always at hand: its development file alone has 5,463 rows.
    """
    header, *rows = (line.rstrip("\r\n") for line in read_lines(file))
    place = header.split("\t").index("question")
    parts: dict[str, list[str]] = {TRAIN: [header], "dev": [header]}
    for row in rows:
        number = int.from_bytes(hashlib.sha256(row.split("\t")[place].encode()).digest()[:8], "big")
        parts[TRAIN if number % DEV_SHARE else "dev"].append(row)
    with new_folder(folder) as temporary:
        for name, lines in parts.items():
            write_text(temporary / f"{name}.tsv", "\n".join(lines) + "\n")


def join_squad(files: Sequence[Path], target: Path) -> None:
    """Write one file with the articles of several in SQuAD's format."""
    articles = [article for file in files for article in read_json_text(file)["data"]]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, {"version": "1.1", "data": articles})


def unpack_race(archive: Path, folder: Path) -> None:
    """Unpack the easier half of RACE. By hand, because Debian's Python 3.11.2 knows no filters of tarfile yet."""
    with tarfile.open(archive) as tar, new_folder(folder) as temporary:
        wanted = [each for each in tar.getmembers() if each.isfile() and f"/{LEVELS[0]}/" in each.name]
        if not wanted:
            raise DataError(f"{archive} holds no RACE/*/{LEVELS[0]}/*.txt")
        for member in wanted:
            file = temporary / member.name.partition("/")[2]
            if ".." in file.parts or not file.is_relative_to(temporary):
                raise DataError(f"{archive} holds {member.name}, which lies outside of it")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(tar.extractfile(member).read())
