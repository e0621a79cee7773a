"""What a user gets to read for files that are missing, empty, too large, hostile or of another kind."""

import errno
import json
import os
import time
from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.specs import catalog
from simmoe.specs.reader import load_scenario


def refusal(path: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_scenario(path)
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_a_file_that_is_missing():
    assert refusal("no/such.yaml") == "no/such.yaml: there is no such file, check the path"


def test_a_directory(tmp_path):
    assert refusal(str(tmp_path)) == f"{tmp_path}: is a directory, name a file in it"


@pytest.mark.parametrize("content", [b"", b" \n\n", b"# nothing\n", b"---\n", b"null\n", b"\xef\xbb\xbf"])
def test_an_empty_file(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_bytes(content)
    assert refusal("s.yaml") == "s.yaml: the file is empty, write key: value lines into it"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n", "s.yaml:1:1: key: value lines are expected (got a list of 1), start a line with a key and a colon"),
        ("a\n", "s.yaml:1:1: key: value lines are expected (got 'a'), start a line with a key and a colon"),
        ("\n3\n", "s.yaml:2:1: key: value lines are expected (got 3), start a line with a key and a colon"),
    ],
)
def test_a_file_that_is_no_mapping(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(content)
    assert refusal("s.yaml") == message


def test_a_200_mb_file_is_refused_without_reading_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Path("s.yaml").open("wb") as stream:
        stream.truncate(200 * 10**6)
    began = time.perf_counter()
    message = refusal("s.yaml")
    assert time.perf_counter() - began < 0.1
    assert message == (
        "s.yaml: the file is too large (got 190.7 MiB, at most 1 MiB), keep bulk data in CSV files of their own"
    )


def test_bytes_that_are_not_utf_8(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_bytes(b"name: demo\nmodel: caf\xe9\n")
    assert refusal("s.yaml") == "s.yaml:2: not UTF-8 text (got byte 0xe9), save the file as UTF-8"


def test_a_device_or_a_pipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    assert refusal("pipe.yaml") == "pipe.yaml: is not a regular file, name a file on disk"
    assert refusal(os.devnull) == f"{os.devnull}: is not a regular file, name a file on disk"


def test_names_that_the_system_refuses():
    assert refusal("a\0b") == "a\\x00b: is no file name, check the path"
    long = "x" * 300
    assert refusal(long) == f"{long}: cannot be read (File name too long), check the path and its permissions"


def test_a_file_without_permission(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")  # chmod would not stop root

    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text("name: x\n")
    monkeypatch.setattr(Path, "open", refuse)
    assert refusal("s.yaml") == "s.yaml: cannot be read (Permission denied), check the path and its permissions"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 300_000,
        "a: [" + "1," * 300_000,
        "a: [" + "[]," * 300_000,
        "- " * 300_000,
        "? " * 300_000,
        "{a: " * 200_000,
        "#" * 300_000,
        "\n" * 300_000,
        'a: "' + "x" * 1_000_000,
        "a: " + "9" * 300_000,
        "a: |\n" + " x\n" * 100_000,
        " " * 1_000_000 + "a",
        "".join(f"k{i}: 1\n" for i in range(60_000)),
    ],
    ids=range(13),
)
def test_a_hostile_file_ends_soon_in_one_line(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_scenario("s.yaml")
    assert all(len(line) < 300 and line.startswith("s.yaml") for line in caught.value.problems)
    assert str(caught.value).isprintable() or len(caught.value.problems) > 1


# ---------------------------------------------------------------- config.json


def config_refusal(catalogue: Path, content: str | bytes) -> str:
    folder = Path("bert")
    folder.mkdir()
    raw = content if isinstance(content, bytes) else content.encode()
    (folder / "config.json").write_bytes(raw)
    with pytest.raises(SpecError) as caught:
        catalog.model("bert/config.json")
    return str(caught.value)


def test_a_config_of_an_unsupported_family(catalogue):
    message = config_refusal(catalogue, json.dumps({"model_type": "bert", "hidden_size": 768}))
    assert message.startswith("bert/config.json: ")
    assert "'bert'" in message
    assert "mixtral" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "bert/config.json:1:2: not valid JSON (Expecting property name enclosed in double quotes), "
              "correct the text around it"),
        ("[1]", 'bert/config.json: an object {"key": value} is expected (got a list of 1), name a config.json'),
        ('{"a": NaN}', "bert/config.json: not a finite number (got NaN), write a number"),
        ('{"a": -Infinity}', "bert/config.json: not a finite number (got -Infinity), write a number"),
        ('{"a": 1e400}', "bert/config.json: too large for a number (got '1e400'), write less"),
        ('{"a": 1, "a": 2}', "bert/config.json: a: the key is given twice, remove one of the two"),
        ('{"a": ' + "9" * 5000 + "}", f"bert/config.json: too large for a number (got '{'9' * 59}...), write less"),
        ("[" * 200_000, "bert/config.json: nested too deeply, write it flatter"),
        (b'{"a": "\xff"}', "bert/config.json:1: not UTF-8 text (got byte 0xff), save the file as UTF-8"),
        ("", "bert/config.json: the file is empty, write key: value lines into it"),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_config_that_is_no_plain_json(catalogue, content, message):
    assert config_refusal(catalogue, content) == message


def test_a_config_of_more_than_4_mib(catalogue):
    Path("config.json").touch()
    os.truncate("config.json", 200 * 10**6)
    with pytest.raises(SpecError, match=r"too large \(got 190\.7 MiB, at most 4 MiB\)"):
        catalog.model("./config.json")
