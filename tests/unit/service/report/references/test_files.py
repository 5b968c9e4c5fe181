"""Files below the folder of references: which are read, and as what."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from darksight_service.errors import NotFoundError
from darksight_service.report.references.files import MAX_BYTES, MAX_TEXT, media_type, read_file
from darksight_service.report.references.pictures import encode_png, read_picture

from darksight_core.errors import ConfigError

PNG = encode_png(np.arange(64, dtype=np.uint8).reshape(8, 8))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0JFIF", "image/jpeg"),
        (b"GIF89a,", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "audio/wav"),
        (b"RIFF\x10\0\0\0AVI LIST", ""),
        (b"ID3\x04\0", "audio/mpeg"),
        (b"\xff\xfb\x90\x64\0", "audio/mpeg"),
        (b"OggS\0\2", "audio/ogg"),
        (b"a text", "text/plain; charset=utf-8"),
        (b"", "text/plain; charset=utf-8"),
        ("ü".encode() * MAX_TEXT, "text/plain; charset=utf-8"),
        (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "text/plain; charset=utf-8"),
        (b"<!doctype html><script>alert(1)</script>", "text/plain; charset=utf-8"),
        (b"%PDF-1.7\n\xe2\xe3\xcf\xd3", ""),
        (b"PK\3\4\0\0", ""),
        (b"\x7fELF\0", ""),
        (b"caf\xe9", ""),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_file_is_what_its_bytes_say(data: bytes, expected: str) -> None:
    """Pages and SVG pictures are text, and so is everything that is UTF-8."""
    assert media_type(data) == expected


def test_a_file_is_read_below_the_folder(tmp_path: Path) -> None:
    """In folders too; a long text is cut, and a character that is cut in two is left out."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "7.png").write_bytes(PNG)
    (tmp_path / "long.txt").write_text("é" + "ü" * MAX_TEXT, encoding="utf-8")
    (tmp_path / "odd.txt").write_text("x" + "ü" * MAX_TEXT, encoding="utf-8")

    picture, text = read_file(tmp_path, ("a b", "7.png")), read_file(tmp_path, ("odd.txt",))

    assert (picture.kind, picture.data) == ("image", PNG)
    assert read_file(tmp_path, ("long.txt",)).is_cut
    assert (text.kind, text.is_cut, len(text.data)) == ("text", True, MAX_TEXT)
    assert text.text == "x" + "ü" * ((MAX_TEXT - 1) // 2)


def test_nothing_leads_out_of_the_folder(tmp_path: Path) -> None:
    """Neither links to files and folders, nor parts that a path may not have."""
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    (secret / "key.txt").write_text("secret", encoding="utf-8")
    (folder / "link").symlink_to(secret)
    (folder / "key.txt").symlink_to(secret / "key.txt")
    (folder / "inside.txt").write_text("x", encoding="utf-8")
    (folder / "again.txt").symlink_to(folder / "inside.txt")

    for parts in (
        ("link", "key.txt"),
        ("key.txt",),
        ("..", "secret", "key.txt"),
        ("again.txt",),
        ("a\0b",),
        ("x" * 300,),
    ):
        if parts[0] != "..":
            with pytest.raises(NotFoundError, match="no such file"):
                read_file(folder, parts)
    with pytest.raises(NotFoundError, match="no such file"):
        read_file(tmp_path / "missing", ("key.txt",))


def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe without a writer would wait for ever, a folder has no bytes."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for name in ("pipe", "folder"):
        with pytest.raises(NotFoundError, match="is not a file"):
            read_file(tmp_path, (name,))


def test_large_and_unknown_files_are_refused(tmp_path: Path) -> None:
    """Before they are read whole."""
    with (tmp_path / "large.png").open("wb") as file:
        file.write(PNG)
        file.truncate(MAX_BYTES + 1)
    (tmp_path / "program").write_bytes(b"\x7fELF\0")

    with pytest.raises(NotFoundError, match="larger than 16 MiB"):
        read_file(tmp_path, ("large.png",))
    with pytest.raises(NotFoundError, match="no picture, sound or text"):
        read_file(tmp_path, ("program",))


def test_pictures_become_small_arrays() -> None:
    """A damaged picture and one of too many pixels are refused."""
    large = encode_png(np.zeros((8, 8, 3), dtype=np.uint8))
    bomb = bytearray(large)
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2

    assert read_picture(large).shape == (8, 8, 3)
    for data in (bytes(bomb), large[:40], b"GIF89a", b"not a picture"):
        with pytest.raises(ConfigError, match="picture"):
            read_picture(data)
