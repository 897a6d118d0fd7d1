import pickle

import pytest

from hardwon.memory import errors
from hardwon.memory.errors import HardwonError, MissingExtra, UnknownName

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HardwonError)]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_drawn_in_the_tree(kind):
    """The docstring of the module is the map."""
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", ALL)
def test_every_error_travels_between_processes(kind):
    """Rollouts raise in one process and are caught in another."""
    error = pickle.loads(pickle.dumps(kind("what was seen; what to do")))
    assert type(error) is kind
    assert str(error) == "what was seen; what to do"


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not HardwonError])
def test_every_error_is_one_of_the_standard_library_too(kind):
    """People catch ValueError and RuntimeError already."""
    assert any(issubclass(kind, known) for known in (ValueError, LookupError, ImportError, RuntimeError))


def test_an_unknown_name_suggests_the_nearest():
    """A typo is answered with what was meant, and with all there is."""
    assert str(UnknownName.of("game", "coinn", ["twc", "coin"])) == (
        "unknown game 'coinn'. Did you mean 'coin'? There are: coin, twc."
    )


def test_an_unknown_name_among_none():
    """Where there is nothing, the message says so."""
    assert str(UnknownName.of("item", "x", [])) == "unknown item 'x'. There are: none."


def test_a_missing_package_names_the_extra():
    """The next step can be copied."""
    assert str(MissingExtra.of("minigrid", "games")).endswith("pip install '.[games]'")
