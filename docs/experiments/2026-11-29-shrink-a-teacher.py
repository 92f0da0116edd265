"""Write a small ALBERT that starts from a trained BERT, and that BERT with the same smaller vocabulary.

    PYTHONPATH=. python docs/experiments/2026-11-29-shrink-a-teacher.py TEACHER 'text/*' SMALL_TEACHER START

The vocabulary keeps the pieces that the text uses most. Each layer of the student copies the attention of one of the
teacher's layers and the busiest neurons of its feed-forward block; the block's output is then fitted by least squares
to the output of the teacher's layer. 2026-11-29-a-model-that-ships.md has the figures.
"""

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.special import erf, softmax

from model_utils.device import ensure_device
from src.albert_config import PRESETS, AlbertConfig
from src.albert_for_pre_training import PreTrainingScores
from src.albert_model import initialise_weights
from src.checkpoints.checkpoint_files import Checkpoint
from src.model_folder import ModelFolder
from src.tokenization import FullTokenizer

VOCABULARY = 14_000
WIDTH = 112  # of the embeddings
NEURONS = 512  # of a feed-forward block
SOURCES = (1, 2, 4, 5)  # layer of the teacher that each layer of the student copies; its target is that layer's output
LENGTH = 128
ROWS = 256  # of calibration text
SPREAD = 0.05  # of the new embeddings: larger ones make the masked tokens' logits too large
RIDGE = 1e-3
HEADS = 12
BLOCKS = "albert.encoder.feed_forwards"

logger = logging.getLogger(__name__)
Weights = dict[str, np.ndarray]


def layer_norm(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """Return LayerNorm(x) over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / centred.std(-1, keepdims=True) * weights[f"{name}.gamma"] + weights[f"{name}.beta"]


def dense(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """Return x W^T + b."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def attention(x: np.ndarray, weights: Weights, layer: int, heads: int) -> np.ndarray:
    """Return the output of an attention block, with LayerNorm, for rows without padding (R, L, H)."""
    name = f"albert.encoder.attentions.{layer}"
    rows, length, size = x.shape
    query, key, value = (
        dense(x, weights, f"{name}.{part}").reshape(rows, length, heads, -1).transpose(0, 2, 1, 3)
        for part in ("query", "key", "value")
    )
    shares = softmax(query @ key.transpose(0, 1, 3, 2) / np.sqrt(size / heads), -1)
    mixed = (shares @ value).transpose(0, 2, 1, 3).reshape(rows, length, size)
    return layer_norm(x + dense(mixed, weights, f"{name}.output"), weights, f"{name}.layer_norm")


def neurons(x: np.ndarray, weights: Weights, layer: int) -> np.ndarray:
    """Return the activations of a feed-forward block, exact GELU."""
    inner = dense(x, weights, f"albert.encoder.feed_forwards.{layer}.intermediate")
    return inner * 0.5 * (1 + erf(inner / np.sqrt(2)))


def block(x: np.ndarray, weights: Weights, layer: int) -> np.ndarray:
    """Return the output of a feed-forward block, with LayerNorm."""
    name = f"albert.encoder.feed_forwards.{layer}"
    return layer_norm(x + dense(neurons(x, weights, layer), weights, f"{name}.output"), weights, f"{name}.layer_norm")


def embedded(ids: np.ndarray, weights: Weights) -> np.ndarray:
    """Return the embeddings (R, L, E) of ids (R, L) in one segment, with LayerNorm."""
    prefix = "albert.embeddings."
    x = weights[prefix + "word_embeddings"][ids] + weights[prefix + "position_embeddings"][: ids.shape[1]]
    return layer_norm(x + weights[prefix + "token_type_embeddings"][0], weights, prefix + "layer_norm")


def teacher_states(ids: np.ndarray, weights: Weights, config: AlbertConfig) -> list[np.ndarray]:
    """Return the embeddings and the output of each layer."""
    states = [embedded(ids, weights)]
    for layer in range(config.num_hidden_layers):
        states.append(block(attention(states[-1], weights, layer, HEADS), weights, layer))
    return states


def fit(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (outputs, inputs) and bias of the dense layer x (N, inputs) -> y (N, outputs)."""
    root = np.sqrt(np.ones(len(x)) if weights is None else weights)[:, None]
    x_mean, y_mean = (root**2 * x).sum(0) / (root**2).sum(), (root**2 * y).sum(0) / (root**2).sum()
    a, b = root * (x - x_mean), root * (y - y_mean)
    gram = a.T @ a
    gram += RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    weight = np.linalg.solve(gram, a.T @ b).T
    return weight, y_mean - weight @ x_mean


def flat(x: np.ndarray) -> np.ndarray:
    """Return rows of all but the last axis."""
    return x.reshape(-1, x.shape[-1])


def distance(student: np.ndarray, teacher: np.ndarray) -> float:
    """Return the squared distance over the square of the teacher's states, the mean over tokens."""
    return float((((student - teacher) ** 2).sum(-1) / (teacher**2).sum(-1)).mean())


def read_lines(files: str) -> Iterator[str]:
    """Yield the lines of the files of a pattern in one folder."""
    folder = Path(files).parent
    for file in sorted(folder.glob(Path(files).name)):
        yield from file.read_text(encoding="utf-8", errors="replace").splitlines()


def smaller_vocabulary(tokenizer: FullTokenizer, lines: list[str]) -> np.ndarray:
    """Return the ids to keep, ascending: special tokens, single characters of ASCII, and the most frequent pieces."""
    counts: Counter[int] = Counter()
    for start in range(0, len(lines), 10_000):
        for ids in tokenizer.encode_batch(lines[start : start + 10_000]):
            counts.update(ids)
    needed = [
        number
        for number, token in tokenizer.inv_vocab.items()
        if token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        or (token.isascii() and len(token.removeprefix("##")) == 1)
    ]
    order = needed + [number for number, _ in counts.most_common() if number not in set(needed)]
    total = sum(counts.values())
    logger.info(
        f"{sum(counts[number] for number in order[:VOCABULARY]) / total:.4f} of {total:,} tokens keep their piece"
    )
    return np.sort(order[:VOCABULARY])


def main(teacher_folder: str, files: str, small_teacher: str, start: str) -> None:
    """Write both folders."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    ensure_device()
    teacher = ModelFolder.load(teacher_folder)
    assert teacher.tokenizer is not None
    lines = [line for pattern in files.split(",") for line in read_lines(pattern)]
    kept = smaller_vocabulary(teacher.tokenizer, lines)
    content = "".join(f"{teacher.tokenizer.inv_vocab[number]}\n" for number in kept).encode()
    tokenizer = FullTokenizer("vocab.txt", content=content)
    weights: Weights = {name: np.asarray(value, np.float64) for name, value in teacher.weights.items()}
    words_name = "albert.embeddings.word_embeddings"
    weights[words_name] = weights[words_name][kept]
    config = teacher.architecture.replace(vocab_size=VOCABULARY)
    as_stored = {name: value.astype(np.float32) for name, value in weights.items()}
    ModelFolder(config, tokenizer, checkpoint=Checkpoint(Path(teacher_folder), as_stored, {})).save(small_teacher)

    rng = np.random.default_rng(0)
    stream: list[int] = []
    frequency = np.full(VOCABULARY, 1.0)
    for ids in tokenizer.encode_batch([lines[i] for i in rng.permutation(len(lines))[:60_000]]):
        stream += ids
        np.add.at(frequency, ids, 1)
    body = np.array(stream[: ROWS * (LENGTH - 2)]).reshape(ROWS, LENGTH - 2)
    specials = [np.full((ROWS, 1), tokenizer.vocab[token]) for token in ("[CLS]", "[SEP]")]
    text = np.concatenate([specials[0], body, specials[1]], 1)
    targets = teacher_states(text, weights, config)
    student_config = PRESETS["albert_small"].replace(
        vocab_size=VOCABULARY,
        embedding_size=WIDTH,
        num_hidden_layers=len(SOURCES),
        num_hidden_groups=len(SOURCES),
        intermediate_size=NEURONS,
        hidden_act="gelu",
    )
    network = PreTrainingScores(student_config)
    initialise_weights(network, student_config.initializer_range, seed=1)
    values: Weights = {parameter.name: parameter.asnumpy().astype(np.float64) for parameter in network.get_parameters()}
    start_embeddings(values, weights, frequency, text, targets[0])
    state = dense(embedded(text, values), values, "albert.encoder.embedding_hidden_mapping")
    logger.info(f"embeddings: {distance(state, targets[0]):.3f}")
    for layer, source in enumerate(SOURCES):
        copy_layer(values, weights, layer, source, targets[source])
        state = attention(state, values, layer, HEADS)
        fit_block(values, weights, layer, source, state, targets[source])
        state = block(state, values, layer)
        logger.info(f"layer {layer} from {source}: {distance(state, targets[source + 1]):.3f} of output {source + 1}")
    for part in ("weight", "bias"):
        values[f"albert.pooler.{part}"] = weights[f"albert.pooler.{part}"]
    as_stored = {name: value.astype(np.float32) for name, value in values.items()}
    ModelFolder(student_config, tokenizer, checkpoint=Checkpoint(Path(teacher_folder), as_stored, {})).save(start)


def start_embeddings(
    values: Weights, weights: Weights, frequency: np.ndarray, text: np.ndarray, target: np.ndarray
) -> None:
    """Set embeddings to principal components of the teacher's, the mapping behind them to the best linear one."""
    prefix = "albert.embeddings."
    words, positions, types = (weights[f"{prefix}{name}_embeddings"] for name in ("word", "position", "token_type"))
    gamma = weights[prefix + "layer_norm.gamma"]
    mean_position = positions[:LENGTH].mean(0)
    sums = words + mean_position + types[0]
    deviations = sums.std(1, keepdims=True)
    outputs = (sums - sums.mean(1, keepdims=True)) / deviations * gamma + weights[prefix + "layer_norm.beta"]
    shares = np.sqrt(frequency)[:, None]
    mean = (shares * outputs).sum(0) / shares.sum()
    _, singular, components = np.linalg.svd(np.sqrt(shares) * (outputs - mean), full_matrices=False)
    logger.info(f"{WIDTH} components keep {(singular[:WIDTH] ** 2).sum() / (singular**2).sum():.3f} of the variance")
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)))
    basis = components[:WIDTH].T @ rotation
    coordinates = (outputs - mean) @ basis
    scale = SPREAD / np.sqrt((coordinates**2).mean())
    from_sum = gamma / deviations.mean()  # how a part of the sum reaches the output, about
    values[prefix + "word_embeddings"] = scale * coordinates
    values[prefix + "position_embeddings"] = scale * ((positions - mean_position) * from_sum) @ basis
    values[prefix + "token_type_embeddings"] = scale * ((types - types[0]) * from_sum) @ basis
    name = "albert.encoder.embedding_hidden_mapping"
    x = embedded(text, values).reshape(-1, WIDTH)
    values[f"{name}.weight"], values[f"{name}.bias"] = fit(x, target.reshape(-1, target.shape[-1]))


def copy_layer(values: Weights, weights: Weights, layer: int, source: int, teacher_input: np.ndarray) -> None:
    """Copy attention, LayerNorms, and the neurons with the largest outputs."""
    for name in values:
        for part in ("attentions", "feed_forwards"):
            if name.startswith(f"albert.encoder.{part}.{layer}."):
                values[name] = weights[name.replace(f"{part}.{layer}.", f"{part}.{source}.")].copy()
    inner = neurons(attention(teacher_input[:32], weights, source, HEADS), weights, source)
    name = f"albert.encoder.feed_forwards.{layer}"
    output = values[f"{name}.output.weight"]
    busiest = np.sort(np.argsort(-(inner.reshape(-1, inner.shape[-1]).var(0) * (output**2).sum(0)))[:NEURONS])
    for key in ("intermediate.weight", "intermediate.bias"):
        values[f"{name}.{key}"] = values[f"{name}.{key}"][busiest]
    values[f"{name}.output.weight"] = output[:, busiest]


def fit_block(
    values: Weights, weights: Weights, layer: int, source: int, state: np.ndarray, teacher_input: np.ndarray
) -> None:
    """Fit the feed-forward block's output, for the student's state, to the teacher's sum before LayerNorm."""
    teacher_state = attention(teacher_input, weights, source, HEADS)
    sums = teacher_state + dense(neurons(teacher_state, weights, source), weights, f"{BLOCKS}.{source}.output")
    inner = neurons(state, values, layer)
    name = f"{BLOCKS}.{layer}.output"
    values[f"{name}.weight"], values[f"{name}.bias"] = fit(flat(inner), flat(sums - state))


if __name__ == "__main__":
    main(*sys.argv[1:])
