import asyncio
from typing import Literal

import pytest

from hardwon.runtime.interfaces.types import Context, Decision


@pytest.fixture
def bank(library):
    """A bank of one task."""
    with library.admin.bank("find the spoon") as opened:
        yield opened


class Takes:
    """A policy that answers in turn and remembers what it was shown."""

    name = "takes"

    def __init__(self, *actions: str, reads: Literal["values", "text"] = "text") -> None:
        self.actions, self.seen = list(actions), list[Context]()
        self.reads: Literal["values", "text"] = reads

    async def adecide(self, context):
        self.seen.append(context)
        return Decision(self.actions.pop(0))

    def decide(self, context):
        return asyncio.run(self.adecide(context))
