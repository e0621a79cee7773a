"""The command line: what it prints, writes, refuses, and with which status it exits."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simmoe import pipeline
from simmoe.cli.remedies import remedies
from simmoe.cli.screen import bar, count, seconds
from simmoe.errors import InternalError
from simmoe.report.summary import summary_text
from tests.command_line import Simmoe, files, in_folder
from tests.scenarios import SMALL, small

TOO_BIG = ("--set", "plan.expert_parallel=1", "--set", "model.num_layers=16")


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in an empty folder."""
    return in_folder(tmp_path, monkeypatch, capsys)


# ---------------------------------------------------------------- simulate


def test_simulate_reports_what_matters(simmoe: Simmoe) -> None:
    found = simmoe("simulate", SMALL)
    assert (found.status, found.err) == (0, "")
    result = pipeline.run(small())
    assert f"Step time         {seconds(result.step_time_s)}" in found.out
    assert f"{result.model_tflops_per_gpu:.1f} TFLOP/s per GPU" in found.out
    for words in ("80 % interval", "fits", "What holds it back", "expert matrix products", "all-to-all", "idle"):
        assert words in found.out
    for words in ("Peak memory of one GPU", "activations", "Guesses", f"simmoe cite {SMALL}"):
        assert words in found.out


def test_simulate_names_every_class_of_time_it_shows(simmoe: Simmoe) -> None:
    out = simmoe("simulate", SMALL).out
    assert "grouped_gemm" not in out
    assert "send_recv" not in out


def test_no_line_is_wider_than_the_screen_or_ends_in_blanks(
    simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(SMALL, tmp_path / "s.yaml")
    for width in (80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        for line in simmoe("simulate", "s.yaml").out.splitlines():
            assert len(line) <= width, line
            assert line == line.rstrip(), line
            assert "…" not in line, line


def test_a_published_result_is_shown_with_its_error(simmoe: Simmoe) -> None:
    published = "published=[{metric: mfu, value: 0.4, tolerance: 0.01, source: a paper}]"
    out = simmoe("simulate", SMALL, "--set", published).out
    error = pipeline.run(small()).mfu / 0.4 - 1
    line = next(line for line in out.splitlines() if line.startswith("  MFU "))
    assert "  from a paper\n" in out
    assert f"{100 * error:+.1f} %" in line
    assert "OUTSIDE" in line


def test_json_alone_goes_to_the_output(simmoe: Simmoe) -> None:
    found = simmoe("simulate", SMALL, "--json", "-")
    assert (found.status, found.err) == (0, "")
    assert found.out == summary_text(pipeline.run(small()))


def test_json_is_written_to_a_file_beside_the_report(simmoe: Simmoe) -> None:
    found = simmoe("simulate", SMALL, "--json", "r.json")
    assert "Wrote r.json" in found.out
    assert Path("r.json").read_text() == summary_text(pipeline.run(small()))
    assert files() == ["r.json"]


def test_trace_and_plot_are_written(simmoe: Simmoe) -> None:
    pytest.importorskip("matplotlib")
    found = simmoe("simulate", SMALL, "--trace", "t.json", "--plot", "p.svg")
    assert found.status == 0, found.err
    assert json.loads(Path("t.json").read_text())["traceEvents"]
    assert "<svg" in Path("p.svg").read_text()
    assert "Wrote t.json\nWrote p.svg" in found.out


@pytest.fixture
def unsimulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation is an error."""

    def run(_: object) -> None:
        raise AssertionError("simulated although the result cannot be written")

    monkeypatch.setattr(pipeline, "run", run)


@pytest.mark.usefixtures("unsimulated")
@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--json", "no/r.json", "cannot write no/r.json: folder no does not exist; create it"),
        ("--json", ".", "cannot write .: it is a folder; name a file"),
        ("--trace", "no/t.json.gz", "cannot write no/t.json.gz: folder no does not exist; create it"),
        ("--plot", "no/p.png", "cannot write no/p.png: folder no does not exist; create it"),
        ("--plot", "p.gif", "cannot draw p.gif: its suffix is none of .svg, .pdf, .png; use one"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_simulation(
    simmoe: Simmoe, option: str, name: str, message: str
) -> None:
    assert simmoe("simulate", SMALL, option, name) == (2, "", f"{message}\n")
    assert files() == []


def test_an_existing_file_is_untouched_when_the_scenario_is_wrong(simmoe: Simmoe) -> None:
    Path("r.json").write_text("old")
    assert simmoe("simulate", SMALL, "--json", "r.json", "--set", "plan.tensor_parallel=3").status == 2
    assert Path("r.json").read_text() == "old"
    assert files() == ["r.json"]


def test_a_plan_that_does_not_fit_says_so_and_what_would_help(simmoe: Simmoe) -> None:
    found = simmoe("simulate", SMALL, *TOO_BIG, "--json", "r.json")
    assert found.status == 3
    assert "DOES NOT FIT" in found.out
    first, *rest = found.err.splitlines()
    memory = pipeline.stage_memory(small(*TOO_BIG[1::2]))[0].total / 2**30
    assert first == (
        f"Stage 0 does not fit: each of its 8 NVIDIA H100 SXM5 80 GB needs {memory:.1f} GiB, "
        f"{memory - 80:.1f} GiB more than the 80.0 GiB it has."
    )
    assert "Each of these changes alone makes it fit:" in rest
    assert json.loads(Path("r.json").read_text())["fits"] is False


def test_json_stays_alone_when_the_plan_does_not_fit(simmoe: Simmoe) -> None:
    found = simmoe("simulate", SMALL, *TOO_BIG, "--json", "-")
    assert found.status == 3
    assert json.loads(found.out)["fits"] is False
    assert found.err.startswith("Stage 0 does not fit: ")


@pytest.mark.parametrize(
    ("overrides", "together"),
    [
        (("plan.expert_parallel=1", "model.num_layers=16"), 1),
        (("plan.expert_parallel=1", "model.num_layers=32", "training.micro_batch_size=2"), 2),
    ],
)
def test_every_remedy_makes_it_fit(overrides: tuple[str, ...], together: int) -> None:
    found = list(remedies(small(*overrides), SMALL, overrides))
    assert found
    for change in found:
        assert len(change) == together
        assert pipeline.run(small(*overrides, *change)).fits, change


def test_when_nothing_helps_that_is_said(simmoe: Simmoe) -> None:
    found = simmoe("simulate", SMALL, "--set", "model=deepseek-v3", "--set", "plan.stage_layers=[30, 31]")
    assert found.status == 3
    assert found.err.splitlines()[-1] == "No change of the plan that was tried makes it fit: take more or larger GPUs."


# ---------------------------------------------------------------- errors


def test_a_wrong_scenario_is_told_in_lines_without_a_traceback(simmoe: Simmoe) -> None:
    found = simmoe("simulate", SMALL, "--set", "training.micro_batch_size=-1", "--set", "plan.tensor_parallell=2")
    assert (found.status, found.out) == (2, "")
    keys = {line.split(": ")[1] for line in found.err.splitlines()}
    assert keys == {"training.micro_batch_size", "plan.tensor_parallell"}


def test_a_missing_scenario_is_told(simmoe: Simmoe) -> None:
    assert simmoe("simulate", "no.yaml") == (2, "", "no.yaml: there is no such file, check the path\n")


def test_an_override_needs_an_equals_sign(simmoe: Simmoe) -> None:
    message = "--set plan.tensor_parallel: not an override, write --set key.key=value\n"
    assert simmoe("simulate", SMALL, "--set", "plan.tensor_parallel") == (2, "", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulat", "s.yaml"), "No such command 'simulat'."),
        (("simulate", "s.yaml", "--jsn", "-"), "No such option: --jsn"),
        (("simulate",), "Missing argument 'SCENARIO'."),
        (("new", "--model", "m", "--node", "n", "--count", "0"), "Invalid value for '--count'"),
    ],
)
def test_a_wrong_command_line_exits_with_2(simmoe: Simmoe, arguments: tuple[str, ...], message: str) -> None:
    found = simmoe(*arguments)
    assert (found.status, found.out) == (2, "")
    assert message in found.err


def test_an_interrupt_is_quiet(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run", interrupted)
    assert simmoe("simulate", SMALL, "--json", "r.json") == (130, "", "")
    assert files() == []


def test_a_defect_of_ours_has_its_own_status(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise InternalError("the graph contradicts itself")

    monkeypatch.setattr(pipeline, "run", broken)
    assert simmoe("simulate", SMALL) == (70, "", "the graph contradicts itself\n")


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m simmoe db show h100-sxm5-80gb --json | head -n 1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("{\n", "")


def test_an_output_without_unicode_gets_other_characters_instead() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "simmoe", "simulate", SMALL],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert b"expert matrix products" in found.stdout


# ---------------------------------------------------------------- help and version

PROBE = """
import sys
sys.argv = ["simmoe", *{arguments!r}]
from simmoe.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*sorted(name for name in sys.modules if "." not in name), sep=chr(10), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["simulate", "--help"], ["db", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = PROBE.format(arguments=arguments)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "simpy", "ruamel", "matplotlib"}
    if len(arguments) == 1:
        heavy.add("pydantic")  # typer itself imports it to read the options of a subcommand
    assert heavy.isdisjoint(found.stderr.split())


def test_version(simmoe: Simmoe) -> None:
    import simmoe as package

    assert simmoe("--version") == (0, f"simmoe {package.__version__}\n", "")


@pytest.mark.parametrize("command", ["simulate", "new", "cite", "db", "models"])
def test_help_names_every_command_and_each_has_its_own(simmoe: Simmoe, command: str) -> None:
    assert command in simmoe("--help").out
    assert f"simmoe {command}" in simmoe(command, "-h").out


# ---------------------------------------------------------------- numbers on screen


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (1e-6, "1.0 us"),
        (9.996e-4, "1.0 ms"),
        (0.9996, "1.000 s"),
        (9.9996, "10.00 s"),
        (123.456, "123.5 s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (999.0, "999"), (999.99, "1.000 k"), (1e6, "1.000 M"), (1.04e12, "1.040 T")]
)
def test_count(value: float, text: str) -> None:
    assert count(value) == text


def test_a_bar_is_as_long_as_its_share() -> None:
    assert bar(1.0).plain == "█" * 10
    assert bar(0.0).plain == " " * 10
    assert bar(0.5).plain == "█████     "
    assert len(bar(0.333).plain) == 10
    assert bar(2.0).plain == bar(1.0).plain


def test_both_engines_give_the_same_figures(simmoe: Simmoe) -> None:
    fast, simpy = (simmoe("simulate", SMALL, "--json", "-", "--engine", engine).out for engine in ("fast", "simpy"))
    assert fast.replace('"engine": "fast"', '"engine": "simpy"') == simpy
