"""Operations of training, counted.

Counted are matrix products alone, 2 operations for each multiply-add, forward and backward: three times the forward
pass, since each product has two in its gradient (Chowdhery et al. 2022, appendix B; Kaplan et al. 2020, section 2.1).
What `recompute` repeats is not counted, nor are heads of tasks, whose products add less than a hundredth.
"""

from src.albert_config import AlbertConfig


def forward_flops(
    config: AlbertConfig, rows: int, length: int, predictions: int = 0, reads_tokens: bool = True
) -> float:
    """Return the operations of a forward pass over `rows` sequences of `length` tokens.

    Args:
        predictions: masked tokens of a sequence in pre-training, which predicts the order of its segments as well.
        reads_tokens: as ScoresNetwork has it; else the last layer computes what follows its keys and values
            for each text's first token only.
    """
    tokens = rows * length
    hidden = config.hidden_size
    tokens_read = rows  # of the last layer's output
    if predictions:
        tokens_read = rows * (1 + predictions)
    elif reads_tokens:
        tokens_read = tokens
    projections = 3 * 2 * tokens * hidden * hidden  # query, key, value
    per_query = 2 * 2 * hidden  # scores and context, for each key
    scores_and_context = per_query * tokens * length
    if config.use_relative_positions:  # each again with the embeddings of distances, or of keys if these are fewer
        scores_and_context += per_query * tokens * min(length, 2 * config.max_relative_position + 1)
    behind_attention = 2 * hidden * (hidden + 2 * config.intermediate_size)  # for each token
    blocks = config.num_hidden_layers * config.inner_group_num
    layers = blocks * (projections + scores_and_context) + ((blocks - 1) * tokens + tokens_read) * behind_attention
    mapping = 2 * tokens * config.embedding_size * hidden if config.embedding_projection else 0
    pooler = 2 * rows * hidden * hidden
    masked_tokens = 2 * rows * predictions * config.embedding_size * (hidden + config.vocab_size)
    order = 2 * rows * hidden * 2 if predictions else 0
    return float(mapping + layers + pooler + masked_tokens + order)
