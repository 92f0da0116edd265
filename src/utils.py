"""Text from the bytes of files."""

from pathlib import Path

from model_utils.errors import DataError


def decode(raw: bytes, path: Path, position: int) -> str:
    """UTF-8 text of a part of a file that begins at byte `position`.

    Raises:
        DataError: a byte is not UTF-8; names the file and the byte.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {raw[error.start]:#04x} at offset {position + error.start} is not UTF-8 text; convert the "
            "file to UTF-8 (for instance with iconv)"
        ) from None
