"""Labelled text that comes with every Python: docstrings and the part of the standard library they belong to.

`python -m scripts.quickstart_parts --output_dir DIR` writes DIR/train.tsv and DIR/dev.tsv (columns docstring, part) for
scripts/quickstart.sh. No docstring occurs twice; a hash of its text decides which file it goes to.
"""

import zlib
from pathlib import Path

from model_utils.config import run_main
from model_utils.files import write_text
from model_utils.schema import Config, option
from scripts.quickstart_corpus import documents, prose

DEV_SHARE = 0.15
# Chapters of the library's reference manual, by the modules in them that have many docstrings.
PARTS = {
    "concurrency": "asyncio concurrent multiprocessing queue sched subprocess threading",
    "files": "bz2 fileinput glob gzip lzma os pathlib shutil stat tarfile tempfile zipfile zipimport",
    "gui": "idlelib tkinter turtle",
    "internet": "ftplib http imaplib ipaddress nntplib poplib smtplib socket socketserver ssl urllib wsgiref xmlrpc",
    "language": "ast code codeop dis importlib inspect lib2to3 pkgutil symtable token tokenize traceback",
    "mail": "email mailbox mimetypes",
    "numbers": "_pydecimal decimal fractions numbers random statistics",
    "testing": "bdb doctest pdb trace tracemalloc unittest",
}


class QuickstartPartsConfig(Config):
    """Write labelled docstrings of the standard library: python -m scripts.quickstart_parts."""

    output_dir: str = option("", "folder for train.tsv and dev.tsv", required=True)


def split_docstrings() -> dict[str, list[tuple[str, str]]]:
    """Return {"train": rows, "dev": rows} of (docstring's prose on one line, part); fixed for a Python version."""
    part_of = {module: part for part, modules in PARTS.items() for module in modules.split()}
    split: dict[str, list[tuple[str, str]]] = {"train": [], "dev": []}
    seen: set[str] = set()
    for name, texts in documents():
        part = part_of.get(name.partition(".")[0])
        for text in texts if part else ():
            docstring = " ".join(prose(text))
            if docstring and docstring not in seen:
                seen.add(docstring)
                is_dev = zlib.crc32(docstring.encode()) < DEV_SHARE * 2**32
                split["dev" if is_dev else "train"].append((docstring, part))
    return split


def main(config: QuickstartPartsConfig) -> None:
    """Write train.tsv and dev.tsv."""
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in split_docstrings().items():
        text = "".join(f"{docstring}\t{part}\n" for docstring, part in [("docstring", "part"), *rows])
        write_text(folder / f"{name}.tsv", text)
        print(f"{folder / name}.tsv: {len(rows):,} docstrings of {len({part for _, part in rows})} parts")


if __name__ == "__main__":
    run_main(main, QuickstartPartsConfig)
