"""The nodes of one episode."""

import pytest

from hardwon.runtime.guidance.base import RetrievalGuidance
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.loop.nodes import Nodes
from hardwon.runtime.loop.state import LiveEpisode, Settings


@pytest.fixture
def nodes(library, rooms, script):
    """The nodes of one episode under thread `t`, in the red room."""
    world = rooms()
    world.reset()
    return Nodes(
        script("go east"), library, RetrievalGuidance(), Settings(), {"t": LiveEpisode(world, WorkingMemory())}
    )
