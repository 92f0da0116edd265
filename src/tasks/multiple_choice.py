"""RACE: which of four choices answers a question on an article."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn
from scipy.special import softmax

from model_utils.errors import ConfigError
from model_utils.files import write_json
from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForMultipleChoice
from src.assessment_method import assess
from src.create_finetune_data import sample
from src.data.feature_files import RecordSet
from src.data.race_data import ANSWERS, LEVELS, NUM_CHOICES, Question, race_facts, race_features, read_race
from src.finetune_eval_model import MultipleChoiceScores
from src.tasks.finetune_config import RaceConfig
from src.tasks.finetuning import TRAIN, Judgement, Source
from src.tasks.prediction_table import write_prediction_table
from src.tokenization import FullTokenizer


class RaceTask:
    """See src.tasks.finetuning.Task. The best checkpoint is chosen on dev; test is measured once, by do_predict."""

    kind = "race"
    lanes = NUM_CHOICES
    pairs = True
    selection = "accuracy"
    dev_splits = ("dev",)
    test_splits = ("test",)
    scores_texts = False

    def __init__(self, config: RaceConfig, tokenizer: FullTokenizer) -> None:
        if not config.data_dir:
            raise ConfigError("--data_dir is needed: the folder RACE with train, dev and test")
        if config.max_qa_length + 3 > config.max_seq_length:
            raise ConfigError(
                f"max_qa_length is {config.max_qa_length}, allowed is at most max_seq_length - 3 "
                f"({config.max_seq_length - 3})"
            )
        self.config, self.tokenizer = config, tokenizer
        self.questions: dict[str, list[Question]] = {}  # of the rows of a split, unless its features were ready
        lengths = {"max_seq_length": config.max_seq_length, "max_qa_length": config.max_qa_length}
        self.card: dict[str, Any] = {"task": "multiple_choice", "labels": [], **lengths}

    def source(self, split: str) -> Source:
        config = self.config
        questions = read_race(Path(config.data_dir), split, config.level)
        questions = sample(questions, config.most_samples(split), config.seed)
        if split != TRAIN:
            self.questions[split] = questions
        described = (questions, self.tokenizer, config.max_seq_length, config.max_qa_length)
        return Source(race_facts(*described), partial(race_features, *described))

    def training_network(self, architecture: AlbertConfig, seed: int) -> nn.Cell:
        return AlbertForMultipleChoice(self.scores_network(architecture), seed)

    def scores_network(self, architecture: AlbertConfig) -> nn.Cell:
        return MultipleChoiceScores(architecture, NUM_CHOICES)

    def judge(
        self, split: str, records: RecordSet, outputs: dict[str, np.ndarray], card: Mapping[str, Any]
    ) -> Judgement:
        choices = outputs["logits"].argmax(1)
        right, levels = records.array("labels"), records.array("levels")
        metrics = assess("accuracy", choices, right)
        for number, level in enumerate(LEVELS):
            of_level = levels == number
            if of_level.any() and not of_level.all():
                metrics |= {f"accuracy_{level}": assess("accuracy", choices[of_level], right[of_level])["accuracy"]}
        names = np.array(list(ANSWERS))
        columns = {
            "id": records.array("question_ids").tolist(),
            "label": names[right].tolist(),
            "prediction": names[choices].tolist(),
            "probability": softmax(outputs["logits"], 1).max(1),
        }
        return Judgement(metrics, partial(self._write, split, columns))

    def _write(self, split: str, columns: dict[str, Sequence[Any]], folder: Path) -> None:
        """predictions_SPLIT.json, letters by question id, and predictions_SPLIT.tsv with the texts beside them."""
        answers = dict(zip(columns["id"], columns["prediction"], strict=True))
        write_json(folder / f"predictions_{split}.json", answers)
        if questions := self.questions.get(split):
            options = {letter: [each.options[place] for each in questions] for place, letter in enumerate(ANSWERS)}
            columns = columns | {"question": [each.question for each in questions]} | options
        write_prediction_table(folder, split, columns)

    def baselines(self, train: RecordSet, dev: RecordSet) -> dict[str, float]:
        """The choice that is most often right in training, always."""
        right = dev.array("labels")
        return assess("accuracy", np.full_like(right, np.bincount(train.array("labels")).argmax()), right)
