"""Write pairs of texts that share words, as JSON lines of pre-training text: see 2026-11-29-pairs-for-a-student.md.

usage: python docs/experiments/2026-11-29-pairs-for-a-student.py 'wiki_en/*' train.json,shifts.json pairs.jsonl

A pair is a document of two lines in lower case, which no rule splits into more sentences: a shortened sentence of
Wikipedia and its own paragraph, or in a quarter of the pairs another one of the article; a question of SQuAD and the
words around its answer.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from src.text.corpus import iter_documents, split_sentences
from src.text.corpus_files import expand_glob

PARAGRAPH_WORDS = 75
random = Random(1)


def shorten(words: list[str]) -> list[str]:
    """Return a span of the words, or some of them, in a fifth of all cases in another order."""
    style = random.random()
    if style < 0.4:
        length = random.randint(4, max(4, int(len(words) * 0.7)))
        start = random.randint(0, max(0, len(words) - length))
        return words[start : start + length]
    share = random.uniform(0.5, 1)
    kept = [word for word in words if random.random() < share]
    if style > 0.8:
        random.shuffle(kept)
    return kept


def pairs_of_article(sentences: list[str]) -> Iterator[tuple[str, str]]:
    """Yield one pair of a short article, three of a longer one."""
    for _ in range(1 if len(sentences) < 20 else 3):
        place = random.randrange(len(sentences))
        first = shorten(sentences[place].split())
        if len(first) < 3:
            continue
        if random.random() < 0.35:  # a sentence: the same, or a neighbour
            neighbours = [index for index in (place - 1, place + 1) if 0 <= index < len(sentences)]
            second = sentences[place if random.random() < 0.7 else random.choice(neighbours)]
        else:
            middle = place if random.random() < 0.75 else random.randrange(len(sentences))
            start = max(0, middle - random.randint(0, 2))
            second = " ".join(sentences[start : start + 3])
        yield " ".join(first), " ".join(second.split()[:PARAGRAPH_WORDS])


def pairs_of_squad(file: str) -> Iterator[tuple[str, str]]:
    """Yield questions and the words around their answers."""
    for article in json.loads(Path(file).read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            words = paragraph["context"].split()
            for question in paragraph["qas"]:
                answer = len(paragraph["context"][: question["answers"][0]["answer_start"]].split())
                start = max(0, answer - random.randint(5, 55))
                yield " ".join(question["question"].split()), " ".join(words[start : start + 70])


def all_pairs(texts: str, squad_files: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of all files."""
    for file in expand_glob(texts):
        for document in iter_documents(file):
            sentences = [sentence for text in document for sentence in split_sentences(text)]
            sentences = [sentence for sentence in sentences if 5 <= len(sentence.split()) <= 45]
            if len(sentences) >= 5:
                yield from pairs_of_article(sentences)
    for file in squad_files.split(","):
        yield from pairs_of_squad(file)


texts, squad_files, output = sys.argv[1:]
with Path(output).open("w", encoding="utf-8") as stream:
    for first, second in all_pairs(texts, squad_files):
        stream.write(json.dumps({"text": f"{first.lower()}\n{second.lower()}"}) + "\n")
