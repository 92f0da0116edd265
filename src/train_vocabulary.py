"""Script that trains a vocabulary: python -m src.train_vocabulary --input_file GLOB --output_prefix PATH.

SentencePiece with the settings of ALBERT's 30k-clean.model, or WordPiece with BERT's layout, as for Chinese. The text
is preprocessed as in tokenization.
"""

import io
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import sentencepiece
import tokenizers

from model_utils.config import check_output_folder, run_main
from model_utils.errors import ConfigError, DataError
from model_utils.files import write_atomically
from model_utils.remote_files import TextFile
from model_utils.schema import option
from src.text.corpus import read_documents, split_sentences
from src.text.corpus_files import CorpusConfig, expand_glob
from src.text.sentence_piece import SENTENCEPIECE_SPECIALS, preprocess_text
from src.text.wordpiece import LONGEST_WORD, split_words
from src.tokenization import WORDPIECE_SPECIALS, open_tokenizer

logger = logging.getLogger(__name__)
COVERAGE = {"sentencepiece": 0.99995, "wordpiece": 0.9995}  # ALBERT's; leaves room for words in Chinese vocabularies
LEAST_COVERAGE = 0.98  # minimum of SentencePiece
OWN_PIECES = ("(", ")", '"', "-", ".", "–", "£", "€")  # characters that ALBERT never joins to others
LONGEST_SENTENCE = 4_000  # characters; SentencePiece's scores are not finite for several 100,000 without a space
SEED = 12345  # for sampling max_sentences sentences
LEAST_ENTRIES = 16  # minimum and maximum vocab_size
ENTRIES = 1_000_000
SENTENCES = 10_000_000  # maximum max_sentences: about 20 GB of memory
# SentencePiece removes the names of its own symbols, such as <unk>, from the text.
_SYMBOL = re.compile(rf"([<\[])(?={'|'.join(re.escape(name[1:]) for name in SENTENCEPIECE_SPECIALS.values())})")

Reader = Callable[[], Iterable[str]]
Trainer = Callable[..., tuple[bytes, ...]]


class TrainVocabularyConfig(CorpusConfig):
    """Train a vocabulary on text files: python -m src.train_vocabulary."""

    output_prefix: str = option(
        "", "prefix of the output; PREFIX.model and .vocab (sentencepiece) or PREFIX.vocab.txt", required=True
    )
    vocab_size: int = option(30000, "entries; including special tokens", minimum=LEAST_ENTRIES, maximum=ENTRIES)
    kind: str = option("sentencepiece", "like ALBERT's or like Chinese BERT's", choices=("sentencepiece", "wordpiece"))
    do_lower_case: bool = option(True, "lower-case the text; use the vocabulary with the same setting")
    character_coverage: float = option(
        0.0,
        "share of characters in the vocabulary; by their frequency, at least 0.98; 0: 0.99995 (sentencepiece) or "
        "0.9995 (wordpiece)",
        minimum=0,
        maximum=1,
    )
    max_sentences: int = option(
        1_000_000,
        "maximum sentences to train on; sampled from larger text; 1000000 need about 2 GB of memory",
        minimum=1,
        maximum=SENTENCES,
        needs=("kind", "sentencepiece"),
    )

    @property
    def coverage(self) -> float:
        """Fraction of the text that is covered by the characters in the vocabulary."""
        return self.character_coverage or COVERAGE[self.kind]

    def check_together(self) -> None:
        if 0 < self.character_coverage < LEAST_COVERAGE:
            raise self.error_of("character_coverage", expected=f"0 or from {LEAST_COVERAGE} to 1")


def main(config: TrainVocabularyConfig) -> None:
    """Train the vocabulary of a configuration and write it."""
    train: Trainer = {"sentencepiece": train_sentencepiece, "wordpiece": train_wordpiece}[config.kind]
    suffixes = {"sentencepiece": (".vocab", ".model"), "wordpiece": (".vocab.txt",)}[config.kind]
    if Path(config.output_prefix).name != config.output_prefix.rpartition("/")[2]:
        raise config.error_of("output_prefix", expected="the beginning of a file's name")
    targets = [Path(config.output_prefix + suffix) for suffix in suffixes]
    for target in targets:
        if target.exists():
            raise ConfigError(f"{target} exists already; give another output_prefix, or delete it")
    check_output_folder(targets[-1].parent, "output_prefix's folder")
    paths = expand_glob(config.input_file)
    logger.info(f"training a {config.kind} vocabulary of {config.vocab_size} entries on {len(paths)} file(s)")
    contents = train(lambda: _read_sentences(paths, config.text_key), config)
    targets[-1].parent.mkdir(parents=True, exist_ok=True)
    # The model comes first: its listing is of no use alone.
    for target, content in reversed([*zip(targets, contents, strict=True)]):
        write_atomically(target, partial(Path.write_bytes, data=content))
    tokenizer = open_tokenizer(targets[-1], config.do_lower_case)
    logger.info(f"wrote {tokenizer.file}: {tokenizer.vocab_size} entries, sha256 {tokenizer.sha256}")


def train_sentencepiece(read: Reader, config: TrainVocabularyConfig) -> tuple[bytes, bytes]:
    """Train a SentencePiece model with the settings of google's 30k-clean.model.

    Returns:
        The listing (a line with piece, tab and score for each entry) and the model.
    """
    # SentencePiece's own sampling has another seed in every process.
    sentences = _sample(read(), config.max_sentences)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(
                _SYMBOL.sub(r"\1 ", preprocess_text(sentence, config.do_lower_case)) for sentence in sentences
            ),
            model_writer=model,
            model_type="unigram",
            vocab_size=config.vocab_size,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[SENTENCEPIECE_SPECIALS[name] for name in ("cls", "sep", "mask")],
            user_defined_symbols=list(OWN_PIECES),
            character_coverage=config.coverage,
            max_sentence_length=64 * LONGEST_SENTENCE,  # bytes: more than any sentence has, longer ones are dropped
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _translate_error(error, config.vocab_size) from None
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    indices = range(processor.get_piece_size())
    listing = "".join(f"{processor.id_to_piece(index)}\t{processor.get_score(index):g}\n" for index in indices)
    return listing.encode(), model.getvalue()


def train_wordpiece(read: Reader, config: TrainVocabularyConfig) -> tuple[bytes]:
    """Train a WordPiece vocabulary: special tokens, characters, characters inside words, longer pieces.

    Args:
        read: returns a new iterable of the sentences at each call.
    """
    specials = list(WORDPIECE_SPECIALS.values())
    alphabet, inner_characters = _choose_alphabet(read(), config, config.vocab_size - len(specials))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=WORDPIECE_SPECIALS["unk"]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        # Without an explicit list, the library numbers the characters inside words in random order and breaks ties
        # between pieces by these numbers.
        special_tokens=[*specials, *alphabet, *inner_characters],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    words = (" ".join(_words(sentence, config)) for sentence in read())
    tokenizer.train_from_iterator(words, trainer)
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if len(entries) != config.vocab_size:
        hint = f"set it to {len(entries)}"
        if len(entries) < LEAST_ENTRIES:
            hint = f"use more text, at least {LEAST_ENTRIES} are needed"
        raise config.error_of("vocab_size", f"this text gives {len(entries)} entries", hint=hint)
    return ("".join(f"{token}\n" for token, _ in entries).encode(),)


def _choose_alphabet(sentences: Iterable[str], config: TrainVocabularyConfig, room: int) -> tuple[list[str], list[str]]:
    """Return the most frequent characters, and those of them seen inside words with the prefix "##".

    Args:
        room: maximum number of entries for both; config.coverage may need fewer.
    """
    counts: Counter[str] = Counter()
    inner_characters: set[str] = set()
    for sentence in sentences:
        for word in _words(sentence, config):
            counts.update(word)
            inner_characters.update(word[1:])
    alphabet: list[str] = []
    uncovered = counts.total()
    max_uncovered = uncovered * (1 - config.coverage)
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        room -= 2 if character in inner_characters else 1
        if room < 0 or uncovered <= max_uncovered:
            break
        alphabet.append(character)
        uncovered -= counts[character]
    alphabet.sort()
    return alphabet, [f"##{character}" for character in alphabet if character in inner_characters]


def _words(sentence: str, config: TrainVocabularyConfig) -> list[str]:
    """Return the words of a sentence that WordPiece can split."""
    return [word for word in split_words(sentence, config.do_lower_case) if len(word) <= LONGEST_WORD]


def _read_sentences(paths: Sequence[TextFile], text_key: str) -> Iterator[str]:
    for document in read_documents(paths, text_key):
        for unit in document:
            for sentence in split_sentences(unit):
                yield from _cut(sentence)


def _cut(sentence: str) -> Iterator[str]:
    """Yield pieces of a sentence of at most LONGEST_SENTENCE characters, cut at a space if there is one."""
    while len(sentence) > LONGEST_SENTENCE:
        end = sentence.rfind(" ", 1, LONGEST_SENTENCE) + 1 or LONGEST_SENTENCE
        yield sentence[:end].strip()
        sentence = sentence[end:]
    yield sentence.strip()


def _sample(sentences: Iterable[str], max_sentences: int) -> list[str]:
    """Return all sentences, or a uniform random sample of max_sentences (reservoir sampling)."""
    generator = random.Random(SEED)
    sample: list[str] = []
    for index, sentence in enumerate(sentences):
        if index < max_sentences:
            sample.append(sentence)
        elif (replaced_index := generator.randint(0, index)) < max_sentences:
            sample[replaced_index] = sentence
    return sample


def _translate_error(error: RuntimeError, vocab_size: int) -> Exception:
    """Return an error of SentencePiece as an error for the user."""
    text = str(error)
    if maximum := re.search(r"Please set it to a value <= (\d+)", text):
        return ConfigError(key="vocab_size", value=vocab_size, expected=f"at most {maximum[1]} for this text")
    if minimum := re.search(r"smaller than required_chars. \d+ vs (\d+)", text):
        expected = f"at least {minimum[1]} with this character_coverage"
        return ConfigError(key="vocab_size", value=vocab_size, expected=expected)
    return DataError(f"SentencePiece cannot train a vocabulary on this text: {text.strip()}")


if __name__ == "__main__":
    run_main(main, TrainVocabularyConfig)
