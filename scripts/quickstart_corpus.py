"""English text that comes with every Python: the reference texts of pydoc and docstrings of the standard library.

`python -m scripts.quickstart_corpus --output_dir DIR` writes DIR/train.txt and DIR/heldout.txt for
scripts/quickstart.sh: one paragraph per line, a blank line between documents. A document is a topic of pydoc or a
module; it is either in the training or in the held-out text, and no paragraph occurs twice.
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
    """Yield the paragraphs of a docstring that are English sentences, on one line each; no code, tables or titles."""
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split()).removeprefix("* ")
        words = paragraph.split()
        alphabetic = sum(word.strip("\"'`*().,;:!?").isalpha() for word in words)
        is_prose = len(words) >= 6 and alphabetic >= 0.8 * len(words) and _SENTENCE_END.search(paragraph)
        if is_prose and not _CODE.search(paragraph):
            yield paragraph


def documents() -> Iterator[tuple[str, Iterable[str]]]:
    """Yield (name, docstrings) of every pydoc topic and every Python module of the standard library."""
    for name in sorted(topics):
        yield f"topic {name}", [topics[name]]
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted(library.rglob("*.py")):
        module_path = file.relative_to(library).with_suffix("").parts
        if not NOT_LIBRARY & set(module_path):
            yield ".".join(module_path), docstrings(file.read_bytes())


def docstrings(source: bytes) -> list[str]:
    """Return the docstrings of a module, its classes and functions, in source order; [] if it cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates, and examples for other Python versions
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    line_and_text = [(getattr(node, "lineno", 0), ast.get_docstring(node)) for node in nodes]
    return [text for _, text in sorted((line, text) for line, text in line_and_text if text)]


def split_documents() -> dict[str, list[list[str]]]:
    """Return {"train": documents, "heldout": documents}, a document being a list of paragraphs.

    The split depends only on the Python version: a hash of a document's name decides.
    """
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
    """Write train.txt and heldout.txt."""
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in split_documents().items():
        text = "\n\n".join("\n".join(document) for document in split) + "\n"
        write_text(folder / f"{name}.txt", text)
        print(f"{folder / name}.txt: {len(split)} documents, {len(text.split()):,} words")


if __name__ == "__main__":
    run_main(main, QuickstartCorpusConfig)
