"""The line on which a long command shows how far it is."""

import io
import sys

import pytest

from hourbell.cli.output import Progress, progress_line


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("total", [1, 7, 1_234_567])
def test_the_bar_fits_grows_and_is_full_at_the_end(width: int, total: int) -> None:
    lines = [progress_line("Applying", done, total, width) for done in (0, total // 2, total)]
    assert all(len(line) <= width for line in lines)
    filled = [line.count("#") for line in lines]
    assert filled == sorted(filled)
    if width >= 80:
        assert "[" + 40 * " " + "]" in lines[0]
        assert "[" + 40 * "#" + "]" in lines[2]
        assert lines[2].endswith(f"{total:,} of {total:,}")


def test_without_a_total_there_is_a_number() -> None:
    assert progress_line("Jobs paused", 1_000, None, 80) == "Jobs paused: 1,000"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """The lines that a terminal shows; a carriage return leads back to the first column."""
    lines = []
    for line in written.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_nothing_is_left_of_it_beside_other_output_or_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("Applying", 3) as progress:
        progress.show(0)
        assert screen(terminal.getvalue())[0].startswith("Applying")
        progress.hide()
        terminal.write("refused\n")
        progress.show(2)
        assert screen(terminal.getvalue())[1].endswith("2 of 3")
    assert screen(terminal.getvalue()) == ["refused", ""]
