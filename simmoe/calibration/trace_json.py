"""Events of a Kineto or Chrome trace, block by block: a file of gigabytes is read in bounded memory.

A block of text ends behind some event; that it is one is known because it can be decoded. What is not asked for is
checked by the decoder and never becomes an object.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from simmoe.calibration.trace_file import CHUNK, chunks
from simmoe.errors import SpecError

MOST_HEADER = 2**27
"""Of what stands before and behind the events [B]."""
_NONE = Raw()


class Event(msgspec.Struct, gc=False):
    """One event; figures and arguments are text until they are asked for."""

    ph: str = ""
    cat: str | None = ""
    name: Raw = _NONE
    ts: Raw = _NONE
    dur: Raw = _NONE
    pid: Raw = _NONE
    tid: Raw = _NONE
    args: Raw = _NONE


class Header(msgspec.Struct, frozen=True):
    """What is read of a trace besides its events; all else (environments, job names) is dropped unread."""

    baseTimeNanoseconds: Raw = _NONE  # noqa: N815 - keys of the file
    distributedInfo: Raw = _NONE  # noqa: N815


_BLOCK = msgspec.json.Decoder(list[Event])
_ONE = msgspec.json.Decoder(Event)
_HEADER = msgspec.json.Decoder(Header)
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NOT_A_NUMBER = re.compile(rb"(?<=[:\[,\s])-?(?:Infinity|NaN)(?=\s*[,}\]])")
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_GAP = b" \t\r\n,"
_ERRORS = (msgspec.DecodeError, RecursionError)


class TraceText:
    """The events of one file.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    header : list of Header
        Complete when all blocks have been read.
    skipped : int
        Events that could not be decoded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: list[Header] = []
        self.skipped = 0
        self._read = 0
        self._open_list = False  # Chrome's format lets a list of events end without its bracket

    def blocks(self) -> Iterator[list[Event]]:
        """Events in the order of the file, some at a time.

        Raises
        ------
        SpecError
            If the file holds no events, or ends in their midst.
        """
        source = self._counted()
        rest = self._begin(source)
        for chunk in source:
            rest += chunk
            if len(rest) < CHUNK:
                continue
            events, rest, done = self._block(rest)
            if events:
                yield events
            if done:
                return self._end(rest, source)
        yield from self._last(rest)
        return None

    def _counted(self) -> Iterator[bytes]:
        for chunk in chunks(self.path):
            self._read += len(chunk)
            yield chunk

    def _begin(self, source: Iterator[bytes]) -> bytes:
        """Everything behind the bracket that opens the events; what stands before is header."""
        text = b""
        for chunk in source:
            text += chunk
            bare = text.lstrip(b"\xef\xbb\xbf \t\r\n")
            if bare[:1] == b"[":
                self._open_list = True
                return bare[1:]
            if bare[:1] not in {b"{", b""}:
                raise SpecError([f"{self.path}: is no JSON, give a trace of the torch profiler (.json or .json.gz)"])
            found = _START.search(text)
            if found:
                self._head(text[: found.end()] + b"]}")
                return text[found.end() :]
            if len(text) > MOST_HEADER:
                break
        raise SpecError([f"{self.path}: {_without_events(text)}"])

    def _head(self, text: bytes) -> None:
        """Read what stands before or behind the events; what is not JSON is not worth an error."""
        for candidate in _readings(text):
            try:
                self.header.append(_HEADER.decode(candidate.lstrip(b"\xef\xbb\xbf")))
            except _ERRORS:
                continue
            return

    def _block(self, text: bytes) -> tuple[list[Event], bytes, bool]:
        """Events of as much text as can be decoded, the rest, and whether the array has ended."""
        cut = text.rfind(b"}")
        for _ in range(64):
            if cut < 0:
                break
            events, end = self._decoded(text[: cut + 1])
            if end is not None:
                return events, text[end:], True
            if events:
                return events, text[cut + 1 :].lstrip(b" \t\r\n").removeprefix(b","), False
            cut = text.rfind(b"}", 0, cut)
        return self._tolerant(text)

    def _decoded(self, text: bytes) -> tuple[list[Event], int | None]:
        """The events of some text, none if it cannot be decoded; and where the array ended, if it did."""
        for candidate in _readings(text):
            try:
                return _BLOCK.decode(b"[" + candidate + b"]"), None
            except msgspec.DecodeError as error:
                ended = _TRAILING.search(str(error))
                if ended and candidate is text:
                    end = int(ended[1]) - 2  # it counts the bracket put before the text, and from 1
                    return _BLOCK.decode(b"[" + text[:end]), end
            except RecursionError:
                break
        return [], None

    def _tolerant(self, text: bytes) -> tuple[list[Event], bytes, bool]:
        """Event by event, those that are no JSON left out; the last one may not be whole."""
        events: list[Event] = []
        pieces = _BETWEEN.split(text)
        for piece in pieces[:-1]:
            whole = _NOT_A_NUMBER.sub(b"null", piece.lstrip(b" \t\r\n,") + b"}")
            try:
                events.append(_ONE.decode(whole))
            except _ERRORS:
                self.skipped += 1
        if len(pieces) == 1 and len(text) > MOST_HEADER:
            raise SpecError([f"{self.path}: one event is longer than {MOST_HEADER // 2**20} MiB, which no trace has"])
        return events, pieces[-1], False

    def _last(self, text: bytes) -> Iterator[list[Event]]:
        """What is left at the end of the file."""
        bare = text.lstrip(_GAP)
        while bare and bare[:1] != b"]":
            events, rest, done = self._block(bare)
            if events:
                yield events
            if done:
                return self._end(rest, iter(()))
            rest = rest.lstrip(_GAP)
            if len(rest) >= len(bare):
                if not bare.rstrip().endswith((b"]", b"]}")):
                    raise SpecError([self._cut_off()])
                self.skipped += 1  # the last event is no JSON, but the file ends as it should
                return None
            bare = rest
        if bare:
            return self._end(bare[1:], iter(()))
        if not self._open_list:
            raise SpecError([self._cut_off()])
        return None

    def _cut_off(self) -> str:
        return f"{self.path}: the JSON ends in the midst of an event (byte {self._read:,}), copy the file again"

    def _end(self, text: bytes, source: Iterator[bytes]) -> None:
        """What stands behind the events."""
        rest = text
        for chunk in source:
            if len(rest) < MOST_HEADER:
                rest += chunk
        if _START.search(rest):
            raise SpecError([f"{self.path}: holds two traces, one behind the other; cut the file in two"])
        rest = rest.lstrip(b" \t\r\n,")
        if rest.strip(b" \t\r\n}"):
            self._head(b"{" + rest)


def _readings(text: bytes) -> Iterator[bytes]:
    """A text, and if that is no JSON, the same without numbers that are none."""
    yield text
    if b"NaN" in text or b"Infinity" in text:
        yield _NOT_A_NUMBER.sub(b"null", text)


def _without_events(text: bytes) -> str:
    """What a file without events may be."""
    if b'"nodes"' in text and b'"schema"' in text:
        return "is an execution trace (it has nodes, not traceEvents); give the trace of the torch profiler"
    return "has no traceEvents, so it is no trace of the torch profiler; export one with export_chrome_trace"


def plain(text: Raw | bytes) -> Any:
    """A part of an event as Python has it; None if it is missing or no JSON.

    Parameters
    ----------
    text : Raw or bytes
    """
    raw = bytes(text)
    if not raw:
        return None
    for candidate in _readings(raw):
        try:
            return msgspec.json.decode(candidate)
        except (*_ERRORS, UnicodeDecodeError):
            continue
    try:
        return msgspec.json.decode(raw.decode("utf-8", "replace").encode())
    except _ERRORS:
        return None
