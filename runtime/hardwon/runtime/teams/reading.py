"""A team member that is shown what fits its task, instead of choosing what to pull.

The newest entry of another team whose key shares words with the task is pulled before a decision and shown as guidance,
after the member's own hint if it has one.
The policy sees neither keys nor pull actions: a policy that was trained alone knows guidance, and has met no `pull`.
"""

import asyncio
from dataclasses import replace
from typing import Literal

from hardwon.runtime.interfaces.types import Context, Decision, Policy

from .sharing import BankClient, SharedPolicy
from .sharing_policy import extract_words


class ReadingPolicy(SharedPolicy):
    """A policy that shares its steps, and is shown the newest fitting entry of another team."""

    reads: Literal["values", "text"] = "text"

    def __init__(self, inner: Policy, client: BankClient) -> None:
        super().__init__(inner, client)
        self._read: set[int] = set()
        self._offered: str | None = None

    async def adecide(self, context: Context) -> Decision:
        """Share new steps, pull the newest fitting entry, and return the policy's action."""
        if len(context.history) < self._shared_count:  # a new episode must not begin with what an earlier one was shown
            self._read.clear()
            self._offered = None
        await self.tell(context.history)
        await self._client.look()
        wanted = extract_words(context.state.task)
        fitting = [
            entry
            for entry in self._client.foreign_entries
            if entry.id not in self._read and extract_words(entry.key) & wanted
        ]
        if fitting:
            self._read.add(fitting[-1].id)
            self._offered = await self._client.pull(fitting[-1].id) or self._offered
        advice = "\n".join(text for text in (context.guidance, self._offered) if text)
        return await self._inner.adecide(replace(context, guidance=advice or None))

    def decide(self, context: Context) -> Decision:
        """Return the policy's action; the synchronous version of `adecide`."""
        return asyncio.run(self.adecide(context))
