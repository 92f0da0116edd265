"""How well the order of two segments can be told without reading them: python -m benchmarks.order_leak.

For each packing of segments, gradient boosting learns the label of sentence-order prediction from the lengths of both
segments, and from these and whether the segments begin and end where sentences do. It learns from every other document
and is tested on the rest. What it reaches above one half is what a model can learn without understanding the text.
"""

from random import Random

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from model_utils.config import SEED, TOKENS, run_main
from model_utils.errors import DataError, shorten
from model_utils.schema import option
from src.create_pretraining_data import PACKINGS, CreateDataConfig, UnitMaker, group_documents, instance_settings
from src.pretraining_data.instances import Documents, Pair, join_documents
from src.text.corpus import CorpusConfig, expand_glob, read_documents
from src.tokenization import build_tokenizer

LENGTHS, ENDS = 4, 4  # columns of the features


class OrderLeakConfig(CorpusConfig):
    """Tell the order of segments by lengths and ends alone: python -m benchmarks.order_leak."""

    vocab_file: str = option("", "WordPiece vocabulary, one token a line")
    spm_model_file: str = option("", "SentencePiece model")
    max_seq_length: int = option(128, "tokens of an example", minimum=8, maximum=TOKENS)
    passes: int = option(5, "times that the text is made into pairs", minimum=1, maximum=100)
    random_seed: int = option(12345, "seed of the pairs", minimum=0, maximum=SEED)


def features(documents: Documents, pairs: list[Pair]) -> np.ndarray:
    """(pairs, 8) of segments as they are shown: lengths, their sum and difference, ends at borders of sentences."""
    at = np.zeros(len(documents.ids) + 1, bool)
    for borders in documents.borders:
        at[borders] = True
    shown = np.array([(*second, *first) if label else (*first, *second) for first, second, label in pairs])
    lengths = shown[:, 1::2] - shown[:, ::2]
    return np.column_stack([lengths, lengths.sum(1), lengths[:, 0] - lengths[:, 1], at[shown]])


def table(config: OrderLeakConfig, packing: str) -> list[tuple[np.ndarray, ...]]:
    """Features and labels of the pairs of every other document, and of those between; DataError if there are none."""
    lengths = {"max_seq_length": config.max_seq_length, "max_predictions_per_seq": 1}
    settings = instance_settings(CreateDataConfig(segment_packing=packing, **lengths))
    tokenizer = build_tokenizer(config.vocab_file, config.spm_model_file, True)
    maker, random = UnitMaker(tokenizer, settings, config.random_seed, 1), Random(config.random_seed)
    parts = []
    units = list(group_documents(read_documents(expand_glob(config.input_file), config.text_key)))
    for part in (0, 1):
        found = []
        for unit in units:
            documents = join_documents(maker.encode(unit[part::2]))
            pairs = [pair for _ in range(config.passes) for pair in PACKINGS[packing](documents, settings, random)]
            if pairs:
                found.append((features(documents, pairs), np.array([pair.label for pair in pairs])))
        if not found:
            raise DataError(f"{shorten(config.input_file)} gives no pairs of segments for {packing}; give more text")
        parts.append(tuple(np.concatenate(column) for column in zip(*found, strict=True)))
    return parts


def main(config: OrderLeakConfig) -> None:
    """Print the accuracies for each packing."""
    for packing in PACKINGS:
        (learnt, learnt_labels), (tested, labels) = table(config, packing)
        for known, first_columns in (("lengths", LENGTHS), ("lengths and ends", LENGTHS + ENDS)):
            classifier = HistGradientBoostingClassifier(max_leaf_nodes=8, random_state=0)
            classifier.fit(learnt[:, :first_columns], learnt_labels)
            accuracy = classifier.score(tested[:, :first_columns], labels)
            print(f"{packing:8} {known:18} {accuracy:.3f} of {len(labels):,} pairs")


if __name__ == "__main__":
    run_main(main, OrderLeakConfig)
