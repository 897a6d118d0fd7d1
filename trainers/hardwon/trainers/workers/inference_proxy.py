"""The inference proxy: the learner's engine answers the requests of episodes that run in other processes.

Episodes of all workers share the rounds of one engine, so their batches are those of a run without workers, and so are
the bits of its results. Completions are kept until an episode is counted: an episode that is played again, because its
worker died, sends the same requests and gets the same answers, and the engine waits for it meanwhile.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.engines.grammar import Grammar

from .messages import GrammarText, Inquiry, Reply


@dataclass(slots=True)
class _Entry:
    """A request and its completion."""

    question: tuple[Any, ...]
    task: "asyncio.Task[tuple[Completion, Any]]"


class InferenceProxy:
    """Answers requests with an engine, each request of an episode once."""

    def __init__(self, engine: Engine, tokenizer: Any) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._journal: dict[str, list[_Entry]] = {}

    async def answer(self, inquiry: Inquiry) -> Reply:
        """Return the answer to a request; an error of the engine is an answer, too."""
        try:
            completion, chance = await asyncio.shield((await self._find(inquiry)).task)
        except Exception as error:
            return Reply(inquiry.session, inquiry.number, error=error)
        return Reply(inquiry.session, inquiry.number, completion, chance)

    async def _find(self, inquiry: Inquiry) -> _Entry:
        """Return the entry of a request, which is sent to the engine if it is new."""
        request = inquiry.request
        chance = None if request.chance is None else request.chance.getstate()
        question = (
            *(request.prompt, request.role, request.max_tokens, request.temperature, request.stop, request.session),
            *(chance, inquiry.grammar),
        )
        entries = self._journal.setdefault(inquiry.session, [])
        if inquiry.number < len(entries) and entries[inquiry.number].question == question:
            return entries[inquiry.number]
        # another question than the first time: the environment does not repeat, so the episode goes its own way
        while len(entries) > inquiry.number:
            await asyncio.wait([entries.pop().task])  # an engine takes one request of a session at a time
        entry = _Entry(question, asyncio.get_running_loop().create_task(self._generate(request, inquiry.grammar)))
        entries.append(entry)
        return entry

    async def _generate(self, request: Request, grammar: GrammarText | None) -> tuple[Completion, Any]:
        """Return a completion and the state of the request's random generator after it."""
        if grammar is not None:
            allowed = Grammar(self._tokenizer, grammar.lark, max_tokens=grammar.max_tokens, end=grammar.end)
            request = replace(request, allowed=allowed)
        completion = await self._engine.generate(request)
        return completion, None if request.chance is None else request.chance.getstate()

    def forget(self, sessions: Iterable[str]) -> None:
        """Drop the completions of episodes that are counted."""
        for session in sessions:
            for entry in self._journal.pop(session, ()):
                entry.task.cancel()
