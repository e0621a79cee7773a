"""Every error that SimMoE raises on purpose, and every warning it gives.

An error's text is one or more complete sentences naming the file, the key, the value and the remedy.
The command line prints it and exits with `exit_status`; it never shows a traceback for these.
"""


class SimmoeError(Exception):
    """Base of all errors a user can cause; the command line exits with status 2."""

    exit_status = 2


class UnitError(SimmoeError):
    """A quantity cannot be read: unknown unit, wrong dimension or not a finite number."""


class SpecError(SimmoeError):
    """A file or an override is wrong; carries every problem found, one sentence each.

    Parameters
    ----------
    problems : sequence of str
        One line each, ``file:line:column: key: what is wrong (got ...), what to do``.
    """

    def __init__(self, problems: list[str] | tuple[str, ...]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type["SpecError"], tuple[tuple[str, ...]]]:
        """How a worker process hands the error back: the text that `Exception` would pass is not the list."""
        return type(self), (self.problems,)


class NotFoundError(SimmoeError):
    """An id is not in the catalogue; the message lists the nearest ones."""


class OutputError(SimmoeError):
    """A result cannot be written where it was asked to go."""


class InternalError(SimmoeError):
    """A graph or a schedule contradicts itself: a defect of SimMoE, not of the input."""

    exit_status = 70  # EX_SOFTWARE of sysexits.h
