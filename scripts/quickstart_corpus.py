"""Real English that every Python carries: the reference texts of pydoc and the docstrings of the standard library.

`python -m scripts.quickstart_corpus --output_dir DIR` writes DIR/train.txt and DIR/heldout.txt for
scripts/quickstart.sh: one paragraph a line, a blank line between documents. A document is a topic of pydoc or a
module; a module is either trained on or held out, and no paragraph stands twice.
"""

import ast
import re
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

from model_utils.config import run_main
from model_utils.files import write_text
from model_utils.schema import Config, option

HELD_OUT_SHARE = 0.06  # of the documents
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "turtledemo", "pydoc_data"}
_SENTENCE_END = re.compile(r"[.!?:][\"')]*$")
_CODE = re.compile(r">>>|::=|[{}|<>\\]|\w\(\w*,|(?<!\w)--?\w|\w=\w|_\w+_\w")


class QuickstartCorpusConfig(Config):
    """Write the English text that comes with Python as documents: python -m scripts.quickstart_corpus."""

    output_dir: str = option("", "folder for train.txt and heldout.txt", required=True)


def prose(text: str) -> Iterator[str]:
    """The paragraphs of a docstring that are English sentences, each as one line, without code, tables and titles."""
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split()).removeprefix("* ")
        words = paragraph.split()
        plain = sum(word.strip("\"'`*().,;:!?").isalpha() for word in words)
        sentences = len(words) >= 6 and plain >= 0.8 * len(words) and _SENTENCE_END.search(paragraph)
        if sentences and not _CODE.search(paragraph):
            yield paragraph


def documents() -> Iterator[tuple[str, Iterable[str]]]:
    """(name, docstrings) of every topic and of every module of the standard library that is written in Python."""
    for name in sorted(topics):
        yield f"topic {name}", [topics[name]]
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted(library.rglob("*.py")):
        parts = file.relative_to(library).with_suffix("").parts
        if not NOT_LIBRARY & set(parts):
            yield ".".join(parts), docstrings(file.read_bytes())


def docstrings(source: bytes) -> list[str]:
    """The docstrings of a module, its classes and functions, in the order of the source; none if it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates and examples of other versions
        return []
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (getattr(node, "lineno", 0), ast.get_docstring(node)) for node in ast.walk(tree) if isinstance(node, owners)
    ]
    return [text for _, text in sorted((line, text) for line, text in found if text)]


def split_documents() -> dict[str, list[list[str]]]:
    """{"train": documents, "heldout": documents}; a document is a list of paragraphs. The same for the same Python."""
    split: dict[str, list[list[str]]] = {"train": [], "heldout": []}
    seen: set[str] = set()
    for name, texts in documents():
        paragraphs = dict.fromkeys(paragraph for text in texts for paragraph in prose(text))
        new = [paragraph for paragraph in paragraphs if paragraph not in seen]
        seen.update(new)
        if new:
            held_out = zlib.crc32(name.encode()) < HELD_OUT_SHARE * 2**32
            split["heldout" if held_out else "train"].append(new)
    return split


def main(config: QuickstartCorpusConfig) -> None:
    """Write both files."""
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in split_documents().items():
        text = "\n\n".join("\n".join(document) for document in chosen) + "\n"
        write_text(folder / f"{name}.txt", text)
        print(f"{folder / name}.txt: {len(chosen)} documents, {len(text.split()):,} words")


if __name__ == "__main__":
    run_main(main, QuickstartCorpusConfig)
