"""RACE: which of four choices answers a question on an article."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from model_utils.errors import ConfigError
from model_utils.files import write_json
from model_utils.task_config import RaceConfig
from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForMultipleChoice
from src.assessment_method import assess
from src.create_finetune_data import sample
from src.finetune_eval_model import MultipleChoiceScores
from src.finetuning import Judgement, Source
from src.race_data import ANSWERS, LEVELS, NUM_CHOICES, race_facts, race_features, read_race
from src.records import RecordSet
from src.tokenization import FullTokenizer


class RaceTask:
    """See src.finetuning.Task. The best checkpoint is chosen on dev; test is measured once, by do_predict."""

    kind = "race"
    lanes = NUM_CHOICES
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
        lengths = {"max_seq_length": config.max_seq_length, "max_qa_length": config.max_qa_length}
        self.card: dict[str, Any] = {"task": "multiple_choice", "labels": [], **lengths}

    def source(self, split: str) -> Source:
        config = self.config
        questions = read_race(Path(config.data_dir), split, config.level)
        questions = sample(questions, config.most_samples(split), config.seed)
        described = (questions, self.tokenizer, config.max_seq_length, config.max_qa_length)
        return Source(race_facts(*described), partial(race_features, *described))

    def training_network(self, architecture: AlbertConfig, seed: int) -> nn.Cell:
        return AlbertForMultipleChoice(architecture, NUM_CHOICES, seed=seed)

    def scores_network(self, architecture: AlbertConfig) -> nn.Cell:
        return MultipleChoiceScores(architecture, NUM_CHOICES)

    def judge(self, split: str, records: RecordSet, outputs: dict[str, np.ndarray]) -> Judgement:
        choices = outputs["logits"].argmax(1)
        right, levels = records.array("labels"), records.array("levels")
        metrics = assess("accuracy", choices, right)
        for number, level in enumerate(LEVELS):
            of_level = levels == number
            if of_level.any() and not of_level.all():
                metrics |= {f"accuracy_{level}": assess("accuracy", choices[of_level], right[of_level])["accuracy"]}
        answers = {
            str(key): ANSWERS[choice] for key, choice in zip(records.array("question_ids"), choices, strict=True)
        }
        return Judgement(metrics, lambda folder: write_json(folder / f"predictions_{split}.json", answers))

    def baselines(self, train: RecordSet, dev: RecordSet) -> dict[str, float]:
        """The choice that is most often right in training, always."""
        right = dev.array("labels")
        return assess("accuracy", np.full_like(right, np.bincount(train.array("labels")).argmax()), right)
