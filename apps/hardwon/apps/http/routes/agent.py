"""What an agent asks at every step, and what it tells at the end of an episode."""

from dataclasses import replace

from fastapi import APIRouter, Response

from hardwon.apps.http.access.auth import RIGHTS, Caller
from hardwon.memory import EvolutionReport, ExperienceLibrary, Verdict
from hardwon.runtime.loop.enforcement import limit

from .bodies import CheckedRoute
from .models import (
    About,
    ActionAsked,
    Around,
    CheckAsked,
    EpisodesTold,
    Ids,
    KeysAsked,
    Names,
    NamespaceTold,
    Offered,
    OfferedAsked,
    PlanAsked,
    RecallAsked,
    Recalled,
    Words,
    recalled,
    said,
)
from .place import At, Place, in_turn

router = APIRouter(prefix="/v1", tags=["agent"], route_class=CheckedRoute)


def may_see(caller: Caller, namespace: str) -> bool:
    """Return whether a caller may know that a namespace is there."""
    return caller.may(namespace, "read") or caller.may(namespace, "record")


@router.get("/namespaces", response_model=Names)
def namespaces(at: At) -> Response:
    """The namespaces that this token may read."""
    return said(Names, Names(namespaces=[name for name in at.shelf.names() if may_see(at.caller, name)]))


@router.post("/namespaces", response_model=About)
def make_namespace(told: NamespaceTold, at: At) -> Response:
    """Make a namespace, or find the one that is there."""
    return _about(replace(at, namespace=told.name), make=True)


@router.get("/about", response_model=About)
def about(at: At) -> Response:
    """What this namespace is, and whether this token may write it."""
    return _about(at)


def _about(at: Place, *, make: bool = False) -> Response:
    with at.recording() if make else at.seeing() as library:
        told = About(
            namespace=library.namespace,
            episodes=library.episodes,
            read_only=library.read_only or not at.caller.may(library.namespace, "record"),
            rights=[right for right in RIGHTS if at.caller.may(library.namespace, right)],
            embedder=library.embedder.name,
            fingerprint=library.embedder.fingerprint,
        )
    return said(About, told)


@router.post("/recall", response_model=Recalled)
@in_turn
def recall(asked: RecallAsked, at: At) -> Response:
    """What past experience says about a state or a text. Empty is a valid answer."""
    wanted = asked.state if asked.state is not None else asked.text or ""
    with at.reading() as library, at.measures.recall():
        found = library.recall(
            wanted,
            task=asked.task,
            k=asked.k,
            kinds=asked.kinds,
            budget_tokens=asked.budget_tokens,
            level=asked.level,
            actions=asked.actions,
            after=asked.after,
        )
    return recalled(found)


@router.post("/check", response_model=Verdict)
@in_turn
def check(asked: CheckAsked, at: At) -> Response:
    """Whether a guardrail forbids this action in this state.

    A guardrail is on probation: now and then the answer allows the action with `trial` true. Send the step's outcome
    with `why`: {"overrode": items, "trial": items}; it decides. With a token that may only read nothing is counted.
    Send how often the action was refused in this run: after 3 refusals it is allowed without a trial, unless a person
    pinned the guardrail; then the answer is `over`.
    """
    rights = all(at.caller.may(at.namespace, right) for right in ("read", "record"))
    may_count = asked.about_to_run and rights and not at.shelf.read_only
    with at.recording() if may_count else at.reading() as library:
        counted = asked.about_to_run and not library.read_only
        ask = library.enforce if counted else library.check
        verdict = ask(asked.state, asked.action, again=asked.again)
        if asked.about_to_run and not verdict.allowed:
            verdict = _limited(library, verdict, asked)
        return said(Verdict, verdict)


def _limited(library: ExperienceLibrary, verdict: Verdict, asked: CheckAsked) -> Verdict:
    """Return the verdict on a call that is forbidden, given how often this run was refused it."""
    ruling = limit(library, verdict, asked.refused)
    return replace(verdict, allowed=ruling.runs, over=ruling.over)


@router.post("/check-plan", response_model=Verdict)
@in_turn
def check_plan(asked: PlanAsked, at: At) -> Response:
    """Whether a guardrail on whole plans forbids one of these actions to a plan made in this state."""
    with at.reading() as library:
        return said(Verdict, library.check_plan(asked.state, asked.actions))


@router.post("/offered", response_model=Offered)
@in_turn
def offered(asked: OfferedAsked, at: At) -> Response:
    """Active skills and remedies whose condition holds here, the best first."""
    with at.reading() as library:
        return said(
            Offered, Offered.model_construct(items=list(library.offered(asked.state, asked.kinds, masked=asked.masked)))
        )


@router.post("/keys", response_model=Words)
@in_turn
def keys(asked: KeysAsked, at: At) -> Response:
    """All keys under which a step with this action in this state is filed."""
    with at.reading() as library:
        return said(Words, Words(keys=list(library.keys(asked.state, asked.action, asked.counts))))


@router.post("/context", response_model=Around)
@in_turn
def context(asked: ActionAsked, at: At) -> Response:
    """What holds around the arguments of an action here."""
    with at.reading() as library:
        return said(Around, Around(context=library.context(asked.state, asked.action)))


@router.post("/episodes", response_model=Ids)
def record(told: EpisodesTold, at: At) -> Response:
    """Write episodes in one transaction; durable on return.

    Writer, trust and keys are the server's, whatever an episode says of itself. What a token without the right to
    write has recorded is distilled at once, for it may not call `/v1/evolve`.
    """
    with at.recording() as library:
        ids = library.receive(told.episodes, writer=at.writer, trust=at.trust)
        if not at.caller.write:
            library.evolve()
    return said(Ids, Ids(ids=ids))


@router.post("/evolve", response_model=EvolutionReport)
def evolve(at: At) -> Response:
    """Distil what was recorded since the last call into items, within the rate limits."""
    with at.changing() as library:
        return said(EvolutionReport, library.evolve())
