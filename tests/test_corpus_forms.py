"""Every layout of a corpus, compressed or not, gives the same documents; damaged files are refused."""

import bz2
import functools
import gzip
import html
import json
import lzma
import random
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import zstandard

from model_utils.errors import DataError
from src.text import corpus
from src.text.corpus import iter_documents, read_documents
from src.text.corpus_files import expand_glob
from src.utils import estimate_text_bytes
from tests.helpers.corpus_memory import peak_memory

Document = tuple[str | None, list[str]]  # title, if one is named, and text
MAGIC_OF_A_SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18"


def in_two(pack: Callable[[bytes], bytes], between: bytes = b"") -> Callable[[bytes], bytes]:
    """Compress the halves of a file by themselves, as parallel compressors do."""
    return lambda raw: pack(raw[: len(raw) // 2]) + between + pack(raw[len(raw) // 2 :])


def zstd_without_size(raw: bytes) -> bytes:
    """Compress as from a pipe, where the frame does not say how much it holds."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(raw) + compressor.flush()


def zstd_with_long_window(raw: bytes) -> bytes:
    """Compress as `zstd --long=31` does from a pipe."""
    settings = {"window_log": 31, "hash_log": 10, "chain_log": 10, "strategy": zstandard.STRATEGY_FAST}
    parameters = zstandard.ZstdCompressionParameters(**settings)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(raw) + compressor.flush()


def skippable_frame(content: bytes) -> bytes:
    return MAGIC_OF_A_SKIPPABLE_FRAME + len(content).to_bytes(4, "little") + content


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "gzip, two members": in_two(gzip.compress),
    "gzip, padded": lambda raw: gzip.compress(raw) + bytes(512),
    "zstd": zstandard.compress,
    "zstd, no size": zstd_without_size,
    "zstd, long window": zstd_with_long_window,
    "zstd, two frames": in_two(zstandard.compress),
    "zstd, skippable frames": lambda raw: in_two(zstandard.compress, skippable_frame(b"abc"))(raw),
    "zstd, skippable first": lambda raw: skippable_frame(b"index") + zstandard.compress(raw),
    "bzip2": bz2.compress,
    "bzip2, two streams": in_two(bz2.compress),
    "xz": lzma.compress,
    "xz, two streams": in_two(lzma.compress),
}
PACKED = {name: pack for name, pack in COMPRESSIONS.items() if name != "plain"}

TITLES: list[Document] = [
    ("Repeated", ["Repeated", "A text. Two."]),
    ("Not repeated", ["A first line.", "A text."]),
    ("Begins it", ["Begins it, and goes on.", "A text."]),
    ("Twice", ["Twice", "Twice", "A text."]),
    ("Second", ["A first line.", "Second", "A text."]),
    ("With_underscores  and spaces", ["With underscores and spaces", "A text."]),
    ('Q&A: "quoted" <b>', ['Q&A: "quoted" <b>', "A text with & and <i>."]),
    ("字", ["字", "字是文字。"]),
    ("Alone", ["Alone"]),
    ("1984", ["1984", "A year."]),
    ("", ["Blank", "A text."]),
    (" \u00a0 ", ["Of white space", "A text."]),
    ("_", ["__", "A text."]),
    (None, ["None", "A text without a title."]),
]


def without_titles(documents: Iterable[Document]) -> list[list[str]]:
    """Return the documents that are to be read."""
    texts = []
    for title, lines in documents:
        name = " ".join((title or "").replace("_", " ").split())
        repeated = name != "" and " ".join(lines[0].replace("_", " ").split()) == name
        texts.append(lines[repeated:])
    return [text for text in texts if text]


def wikiextractor(documents: Iterable[Document]) -> str:
    articles = []
    for title, lines in documents:
        attribute = "" if title is None else f' title="{html.escape(title)}"'
        text = "\n\n".join(html.escape(line, quote=False) for line in lines)
        articles.append(f'<doc id="1" url="u"{attribute}>\n{text}\n\n</doc>\n')
    return "".join(articles)


def wikiextractor_json(documents: Iterable[Document]) -> str:
    articles = []
    for title, lines in documents:
        text = "\n\n".join(html.escape(line, quote=False) for line in lines)
        # A title that is missing cannot be told from another kind of JSON, which has no entities.
        article = {"id": "1", "url": "u", "title": title or "", "text": text}
        articles.append(json.dumps(article, ensure_ascii=False) + "\n")
    return "".join(articles)


def json_lines(documents: Iterable[Document], text_key: str = "text") -> str:
    lines = []
    for title, text in documents:
        record = {text_key: "\n".join(text)}
        if title is not None:
            record["title"] = title
        lines.append(json.dumps(record) + "\n")
    return "".join(lines)


LAYOUTS = {
    "WikiExtractor": wikiextractor,
    "WikiExtractor --json": wikiextractor_json,
    "JSON lines": json_lines,
    "JSON lines, content": lambda documents: json_lines(documents, "content"),
    "plain": lambda documents: "\n\n".join("\n".join(lines) for _, lines in documents),
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_come_out_of_every_layout_and_compression(tmp_path: Path, layout: str, compression: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(COMPRESSIONS[compression](LAYOUTS[layout](TITLES).encode()))
    expected = [lines for _, lines in TITLES] if layout == "plain" else without_titles(TITLES)
    text_key = "content" if layout.endswith("content") else "text"
    assert list(iter_documents(path, text_key)) == expected


@pytest.mark.parametrize("layout", ["WikiExtractor", "WikiExtractor --json", "JSON lines"])
@pytest.mark.parametrize("document", TITLES)
def test_a_first_line_is_left_out_where_it_is_the_title(tmp_path: Path, layout: str, document: Document) -> None:
    path = tmp_path / "text"
    path.write_text(LAYOUTS[layout]([document]), encoding="utf-8")
    assert list(iter_documents(path)) == without_titles([document])


@pytest.mark.parametrize("title", [None, 1984, ["A"], {"A": 1}, True])
def test_a_title_that_is_no_text_is_no_title(tmp_path: Path, title: object) -> None:
    path = tmp_path / "text"
    path.write_text(json.dumps({"title": title, "text": f"{title}\nA text."}))
    assert list(iter_documents(path)) == [[str(title), "A text."]]


@pytest.mark.parametrize("name", ["text.gz", "text.zst", "text.txt"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_first_bytes_decide_and_not_the_name(tmp_path: Path, name: str, compression: str) -> None:
    path = tmp_path / name
    path.write_bytes(COMPRESSIONS[compression](b"One.\n\nTwo.\n"))
    assert list(iter_documents(path)) == [["One."], ["Two."]]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_without_text_has_no_documents(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "empty"
    path.write_bytes(pack(b""))
    assert list(iter_documents(path)) == []
    with pytest.raises(DataError, match=r"empty.*1 file"):
        list(read_documents([path]))


@functools.cache
def random_text(characters: int) -> bytes:
    """Text that compresses to a third or so, and so has many blocks."""
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(5000)]
    return "\n".join(" ".join(generator.choices(words, k=10)) for _ in range(characters // 70)).encode()


@pytest.mark.parametrize("compression", PACKED)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.8, 0.999])
def test_a_file_that_is_cut_short_is_refused_by_name(tmp_path: Path, compression: str, share: float) -> None:
    raw = PACKED[compression](random_text(600_000))
    path = tmp_path / "cut"
    path.write_bytes(raw[: int(len(raw) * share)])
    if compression == "gzip, padded" and share > 0.99:
        pytest.skip("only the padding is cut")
    with pytest.raises(DataError, match=r"/cut is damaged or cut short"):
        list(iter_documents(path))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
def test_a_later_stream_that_is_damaged_is_not_passed_over(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(pack(b"One.\n") + b"?" + pack(b"Two.\n")[1:])
    with pytest.raises(DataError, match=r"/damaged (is damaged|cannot be read)"):
        list(iter_documents(path))


@pytest.mark.parametrize("length", range(4, 10))
def test_bzip2_that_is_cut_inside_its_first_bytes_is_no_text(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut"
    path.write_bytes(bz2.compress(b"One.\n")[:length])
    with pytest.raises(DataError, match=r"/cut is damaged or cut short"):
        list(iter_documents(path))


def test_xz_may_be_padded(tmp_path: Path) -> None:
    path = tmp_path / "padded"
    path.write_bytes(lzma.compress(b"One.\n") + bytes(8) + lzma.compress(b"Two.\n") + bytes(4))
    assert list(iter_documents(path)) == [["One.", "Two."]]


@pytest.mark.parametrize("compression", PACKED)
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_file_is_refused_by_name_or_read(tmp_path: Path, compression: str, seed: int) -> None:
    """A zstd frame without a checksum may be read with another byte in it."""
    generator = random.Random(seed)
    raw = bytearray(PACKED[compression](random_text(60_000)))
    for _ in range(20):
        raw[generator.randrange(20, len(raw))] ^= 1 << generator.randrange(8)
    path = tmp_path / "damaged"
    path.write_bytes(raw)
    error = ""
    try:
        list(iter_documents(path))
    except DataError as refused:
        error = str(refused)
    assert str(path) in error or compression.startswith("zstd")
    assert len(error) < 500


@pytest.mark.parametrize("compression", PACKED)
def test_a_file_that_unpacks_to_something_else_is_refused_by_name(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "odd"
    path.write_bytes(PACKED[compression](bytes(range(128, 256)) * 100))
    with pytest.raises(DataError, match=r"/odd: byte 0x80 at offset 0"):
        list(iter_documents(path))
    path.write_bytes(PACKED[compression]("Text.\n".encode("utf-16") * 100))
    with pytest.raises(DataError, match="/odd"):
        list(iter_documents(path))


@pytest.mark.parametrize("outer", ["gzip", "zstd", "bzip2", "xz"])
@pytest.mark.parametrize("inner", ["gzip", "zstd", "bzip2", "xz"])
def test_a_file_that_is_compressed_twice_is_refused(tmp_path: Path, outer: str, inner: str) -> None:
    path = tmp_path / "twice"
    path.write_bytes(COMPRESSIONS[outer](COMPRESSIONS[inner](b"One. Two.\n")))
    command = {"gzip": "gunzip", "zstd": "unzstd", "bzip2": "bunzip2", "xz": "unxz"}[inner]
    with pytest.raises(DataError, match=rf"/twice is compressed.*{command}"):
        list(iter_documents(path))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_an_archive_of_files_is_refused(tmp_path: Path, mode: str) -> None:
    (tmp_path / "text.txt").write_text("One. Two.\n")
    with tarfile.open(tmp_path / "text.tar", mode) as archive:
        archive.add(tmp_path / "text.txt", "text.txt")
    with pytest.raises(DataError, match=r"text\.tar is an archive.*tar -xf"):
        list(iter_documents(tmp_path / "text.tar"))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, zstd_without_size, lzma.compress])
def test_memory_does_not_grow_with_what_a_file_unpacks_to(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "text"
    path.write_bytes(pack((b"Text that says little. " * 100 + b"\n\n") * 15_000))
    assert path.stat().st_size < 1e6
    assert peak_memory(path, 15_000) < 15e6
    (tmp_path / "line").write_bytes(pack(b"word " * 4_000_000))
    assert peak_memory(tmp_path / "line") < 20e6


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_long_lines_come_in_the_same_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 10)
    text = "one two  three four five six seven\nno_space_in_this_one\n字字字字字字\n" * 3
    (tmp_path / "plain").write_text(text, encoding="utf-8")
    (tmp_path / "text").write_bytes(COMPRESSIONS[compression](text.encode()))
    assert list(iter_documents(tmp_path / "text")) == list(iter_documents(tmp_path / "plain"))


# --- sizes ---


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("megabytes", [0.01, 1, 12])
def test_estimates_are_of_the_text_and_not_of_the_file(tmp_path: Path, compression: str, megabytes: float) -> None:
    if megabytes > 1 and compression.startswith(("xz", "bzip2")):
        pytest.skip("takes seconds to compress")
    text = random_text(int(megabytes * 1e6))
    paths = [tmp_path / "one", tmp_path / "two"]
    paths[0].write_bytes(COMPRESSIONS[compression](text))
    paths[1].write_bytes(text)
    tolerance = 0 if compression == "plain" else 0.1
    assert estimate_text_bytes(paths) == pytest.approx(2 * len(text), rel=tolerance)


# --- keys of the text ---


def test_another_key_may_hold_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"content": "One.", "text": "Not this."}\n\n{"title": "Two", "content": "Two\\nThree."}\n')
    assert list(read_documents([path], "content")) == [["One."], ["Three."]]
    with pytest.raises(DataError, match=r"line 3 has no 'text', but 'title', 'content'.*text_key"):
        list(read_documents([path]))
    with pytest.raises(DataError, match="line 1 has no 'body'"):
        list(read_documents([path], "body"))


def test_titles_may_be_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(json.dumps({"title": "A headline", "text": "An article."}))
    assert list(iter_documents(path, "title")) == [["A headline"]]


def test_text_under_another_key_has_no_entities(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"url": "u", "title": "A", "text": "", "content": "Write &amp; for &."}))
    assert list(iter_documents(path, "content")) == [["Write &amp; for &."]]


# --- sentences stay short ---


def test_sentences_about_many_files_name_a_few(tmp_path: Path) -> None:
    files = [tmp_path / f"part_{number:05}.txt" for number in range(300)]
    for file in files:
        file.touch()
    with pytest.raises(DataError, match="300 file") as caught:
        expand_glob(",".join(map(str, files)))
    assert len(str(caught.value)) < 500
    for file in files:
        file.write_text("\n")
    with pytest.raises(DataError, match=r"part_00000.*300 file") as caught:
        list(read_documents(files))
    assert len(str(caught.value)) < 2000


def test_sentences_about_json_do_not_quote_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    for record, key in (({"k" * 9999: 1}, "text"), ({"text": ["x"] * 9999}, "text"), ({"a": 1}, "k" * 9999)):
        path.write_text(json.dumps(record))
        with pytest.raises(DataError, match="line 1") as caught:
            list(iter_documents(path, key))
        assert len(str(caught.value)) < 1000
