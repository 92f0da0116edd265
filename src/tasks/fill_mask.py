"""Task of pre-trained weights without fine-tuning: fill in [MASK]."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from scipy.special import softmax

from model_utils.errors import DataError
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged
from src.data.features import token_columns, token_values
from src.data.length_buckets import power_of_two
from src.finetune_eval_model import FillMaskScores
from src.tasks.record_processor import Answer, Outputs, Probability, Record, RecordProcessor
from src.tasks.spec import RecordField, TaskSpec
from src.tokenization import FullTokenizer

MASK = "[MASK]"
WORD_START, CONTINUATION = "▁", "##"  # prefixes of SentencePiece's first and of WordPiece's further pieces of a word
MaskedText = tuple[list[int], list[int], str]  # ids, positions of masks, text


def encode_masked(text: str, tokenizer: FullTokenizer, max_length: int) -> list[int]:
    """Return the ids of [CLS] text [SEP], with the mask token at each [MASK].

    Raises:
        DataError: the text has no [MASK] or too many tokens.
    """
    ids = [tokenizer.cls_id]
    for index, part in enumerate(text.split(MASK)):
        if index > 0:
            ids.append(tokenizer.mask_id)
        ids += tokenizer.encode(part, follows_token=index > 0)
    if tokenizer.mask_id not in ids:
        raise DataError(f"the text {text[:80]!r} has no {MASK} to fill in")
    if len(ids) >= max_length:
        raise DataError(f"the text {text[:80]!r} has {len(ids) + 1} tokens, the network takes at most {max_length}")
    return [*ids, tokenizer.sep_id]


def likeliest(logits: np.ndarray, tokenizer: FullTokenizer, top_k: int) -> list[dict[str, Any]]:
    """Return [{"token", "probability"}, ...] of the top_k likeliest tokens, best first, given logits (V,)."""
    probabilities = softmax(logits.astype(np.float64))
    order = np.argsort(-probabilities, kind="stable")[:top_k]
    tokens = tokenizer.convert_ids_to_tokens(order)
    best = probabilities[order].tolist()
    return [{"token": token, "probability": value} for token, value in zip(tokens, best, strict=True)]


def fill_masks(text: str, tokens: Sequence[str], is_sentencepiece: bool) -> str:
    """Return the text with a token in place of each [MASK].

    A token within a word is joined to the text before it, a token that starts a word is parted from a letter or digit.
    """
    first, *parts = text.split(MASK)
    result = first
    for token, part in zip(tokens, parts, strict=True):
        starts_word = token.startswith(WORD_START) if is_sentencepiece else not token.startswith(CONTINUATION)
        word = token.removeprefix(WORD_START if is_sentencepiece else CONTINUATION)
        if not starts_word:
            result = result.rstrip(" ")
        elif result[-1:].isalnum() and result[-1:].isascii() and word[:1].isalnum():
            result += " "
        result += word + part
    return result


class MaskProcessor(RecordProcessor):
    """Processor: text with [MASK] -> predictions, the likeliest tokens for each mask, and the text filled with them."""

    text_keys = ("text",)
    top_k = 5

    def parse(self, record: Record) -> MaskedText:
        text = self.text(record, "text")
        ids = encode_masked(text, self.tokenizer, self.length)
        return ids, [position for position, token in enumerate(ids) if token == self.tokenizer.mask_id], text

    def output_size(self, item: MaskedText) -> int:
        return power_of_two(len(item[1])) * self.tokenizer.vocab_size

    def encode(self, items: Sequence[MaskedText]) -> Features:
        counts = np.array([len(ids) for ids, _, _ in items], np.int64)
        ids = np.concatenate([ids for ids, _, _ in items]).astype(np.int32)
        columns = token_columns(self.tokenizer, self.length)
        values = token_values(counts, ids)
        width = power_of_two(max(len(positions) for _, positions, _ in items))  # each width is compiled once
        padded = np.zeros((len(items), width), np.int32)
        for row, (_, positions, _) in zip(padded, items, strict=True):
            row[: len(positions)] = positions
        columns["masked_lm_positions"] = Column("int32", width)
        values["masked_lm_positions"] = Ragged(padded.ravel(), np.full(len(items), width))
        return Features(columns, values)

    def postprocess(self, items: Sequence[MaskedText], features: Features, outputs: Outputs) -> list[Record]:
        answers = []
        for (_, positions, text), rows in zip(items, outputs["mlm_logits"], strict=True):
            predictions = [likeliest(logits, self.tokenizer, self.top_k) for logits in rows[: len(positions)]]
            best = [tokens[0]["token"] for tokens in predictions]
            filled = fill_masks(text, best, self.tokenizer.is_sentencepiece)
            answers.append({"predictions": predictions, "filled": filled})
        return answers


class TokenProbability(BaseModel):
    token: str
    probability: Probability


class MaskAnswer(Answer):
    predictions: list[list[TokenProbability]] = Field(description="for each [MASK] the likeliest tokens, best first")
    filled: str = Field(description="the text with the likeliest token in place of each [MASK]")


FILL_MASK = TaskSpec(
    "fill_mask",
    lambda architecture, _: FillMaskScores(architecture),
    MaskProcessor,
    {"text": RecordField()},
    MaskAnswer,
    needed=("albert.", "mlm."),
)
