import pytest

from hourbell.model.errors import ConfigurationError
from hourbell.model.log_levels import parse_log_levels


def test_one_level_is_that_of_every_component() -> None:
    levels = parse_log_levels("warning")
    assert [levels.of(None), levels.of("worker"), levels.of("api")] == [30, 30, 30]


def test_components_have_levels_of_their_own_beside_the_default() -> None:
    levels = parse_log_levels("worker=debug, api=error,warning")
    assert [levels.of("worker"), levels.of("api"), levels.of("tasks")] == [10, 40, 30]
    assert parse_log_levels("worker=debug").of("api") == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loud", "'loud' is not a log level"),
        ("worker=", "'' is not a log level"),
        ("wroker=debug", "Did you mean worker?"),
        ("xyz=debug", "Use one of api, process"),
        ("info,debug", "two levels without a component"),
    ],
)
def test_a_mistake_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match="(?s)" + said.replace("?", r"\?")):
        parse_log_levels(text)
