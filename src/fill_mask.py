"""Fill in [MASK]: python -m src.fill_mask --load_checkpoint_path RUN --text "the capital of france is [MASK] ."

The checkpoint's folder holds all that is needed, vocabulary and architecture included.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_utils.config import FillMaskConfig, run_main
from model_utils.device import setup_device
from model_utils.errors import DataError
from src.albert_for_pre_training import PreTrainingScores
from src.checkpoint import BACKBONE, find_checkpoint, load_backbone
from src.saved_tokenizer import load_tokenizer
from src.tokenization import WORD_START, FullTokenizer

MASK = "[MASK]"


def encode_masked(text: str, tokenizer: FullTokenizer) -> list[int]:
    """[CLS] text [SEP] as ids, with the mask token at each [MASK] of the text."""
    ids = [tokenizer.cls_id]
    for number, part in enumerate(text.split(MASK)):
        tokens = tokenizer.tokenize(tokenizer.preprocess(part))
        if number > 0:
            ids.append(tokenizer.mask_id)
            if tokenizer.is_sentencepiece and part and not part[0].isspace() and tokens:
                # What follows the mask directly is no new word, but the model takes every text's start for one.
                inside = tokens[0].removeprefix(WORD_START)
                tokens[:1] = [inside] if inside in tokenizer.vocab else [] if not inside else tokens[:1]
        ids += tokenizer.convert_tokens_to_ids(tokens)
    return [*ids, tokenizer.sep_id]


def fill_mask(
    network: PreTrainingScores, tokenizer: FullTokenizer, texts: Sequence[str], top_k: int, max_length: int
) -> list[list[list[dict[str, Any]]]]:
    """The likeliest tokens at each [MASK] of each text, in one batch.

    Args:
        network: trained; set to evaluation by this function.
        texts: raw texts with one [MASK] or more.
        top_k: tokens for each mask.
        max_length: tokens that the network takes, [CLS] and [SEP] included.

    Returns:
        For each text, for each of its masks: [{"token", "probability"}, ...], the likeliest first.

    Raises:
        DataError: a text has no [MASK] or is too long.
    """
    rows = [encode_masked(text, tokenizer) for text in texts]
    masks = [[i for i, token in enumerate(row) if token == tokenizer.mask_id] for row in rows]
    for text, row, places in zip(texts, rows, masks, strict=True):
        if not places:
            raise DataError(f"the text {text[:80]!r} has no {MASK} to fill in")
        if len(row) > max_length:
            raise DataError(f"the text {text[:80]!r} has {len(row)} tokens, the network takes at most {max_length}")
    ids = _pad(rows, tokenizer.pad_id)
    lengths = np.array([len(row) for row in rows])[:, None]
    mask = (np.arange(ids.shape[1]) < lengths).astype(np.int32)
    positions = _pad(masks, 0)
    network.set_train(False)
    columns = (ids, mask, np.zeros_like(ids), positions)
    logits, _ = network(*(Tensor(column) for column in columns), Tensor(0, ms.int32))
    logits = logits.asnumpy().astype(np.float64).reshape((*positions.shape, -1))  # texts, masks, vocabulary
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    return [
        [_likeliest(probabilities[i, j], tokenizer, top_k) for j in range(len(places))]
        for i, places in enumerate(masks)
    ]


def _pad(rows: Sequence[Sequence[int]], value: int) -> np.ndarray:
    padded = np.full((len(rows), max(map(len, rows))), value, np.int32)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def _likeliest(probabilities: np.ndarray, tokenizer: FullTokenizer, top_k: int) -> list[dict[str, Any]]:
    order = np.argsort(-probabilities, kind="stable")[:top_k]
    tokens = tokenizer.convert_ids_to_tokens(order)
    return [{"token": token, "probability": float(probabilities[i])} for token, i in zip(tokens, order, strict=True)]


def main(config: FillMaskConfig) -> None:
    """Load the checkpoint and its vocabulary and print the likeliest tokens for each line of the text."""
    device = setup_device(config.device_target, config.device_id)
    weights = Path(config.load_checkpoint_path)
    tokenizer = load_tokenizer(weights, config.vocab_file, config.spm_model_file)
    architecture = config.albert_config(tokenizer.vocab_size, config.compute_type or device.compute_type)
    network = PreTrainingScores(architecture)
    load_backbone(network, find_checkpoint(weights), needed=(BACKBONE, "mlm."))
    texts = [line for line in config.text.splitlines() if line.strip()]
    answers = fill_mask(network, tokenizer, texts, config.top_k, architecture.max_position_embeddings)
    for text, per_mask in zip(texts, answers, strict=True):
        print(text)
        for number, tokens in enumerate(per_mask, 1):
            print(f"  {number}: " + ", ".join(f"{each['token']} {each['probability']:.3f}" for each in tokens))


if __name__ == "__main__":
    run_main(main, FillMaskConfig)
