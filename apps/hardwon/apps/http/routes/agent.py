"""Routes that an agent calls at every step, and at the end of an episode."""

from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter, Response

from hardwon.apps.http.access.auth import RIGHTS, Caller
from hardwon.apps.shared.general_search import recall_general
from hardwon.memory import EvolutionReport, ExperienceLibrary, Recollection, State, Verdict
from hardwon.memory.errors import LibraryBusy
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.values.lookahead import Lookahead
from hardwon.runtime.guidance.abstraction import abstract_item, abstract_recollection, abstract_verdict
from hardwon.runtime.guidance.base import Guidance, lines_of
from hardwon.runtime.guidance.rendering import Visible
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.loop.enforcement import limit

from .bodies import CheckedRoute
from .models import (
    About,
    ActionAsked,
    ActionVerdict,
    Around,
    CheckAsked,
    EpisodesTold,
    IdList,
    KeyList,
    KeysAsked,
    LookaheadAsked,
    NamespaceList,
    NamespaceTold,
    Offered,
    OfferedAsked,
    PlanAsked,
    RecallAsked,
    Recalled,
    checked,
    recalled,
    to_response,
)
from .place import At, RequestContext, in_turn, once

router = APIRouter(prefix="/v1", tags=["agent"], route_class=CheckedRoute)


def may_see(caller: Caller, namespace: str) -> bool:
    """Return whether a caller may know that a namespace exists."""
    return caller.may(namespace, "read") or caller.may(namespace, "record")


@router.get("/namespaces", response_model=NamespaceList)
def namespaces(at: At) -> Response:
    """Return the namespaces that this token may read or record to."""
    return to_response(
        NamespaceList, NamespaceList(namespaces=[name for name in at.shelf.names() if may_see(at.caller, name)])
    )


@router.post("/namespaces", response_model=About)
def make_namespace(body: NamespaceTold, at: At) -> Response:
    """Create a namespace if it does not exist, and describe it."""
    answer = _make(at=replace(at, namespace=body.name))
    if body.name not in at.shelf.names():
        raise LibraryBusy(f"another writer has locked {at.shelf.name}. Stop it, then try again.")
    return answer


@router.get("/about", response_model=About)
def about(at: At) -> Response:
    """Describe this namespace and the rights of this token in it."""
    return _about(at)


@once(RequestContext.recording, change="idempotent")
def _make(at: RequestContext) -> Response:
    return _about(at, make=True)


def _about(at: RequestContext, *, make: bool = False) -> Response:
    """Describe a namespace, and create it first if `make` is set."""
    with at.recording() if make else at.seeing() as library:
        episodes, edition = library.revision
        description = About(
            namespace=library.namespace,
            episodes=episodes,
            edition=edition,
            read_only=library.admin.read_only or not at.caller.may(library.namespace, "record"),
            rights=[right for right in RIGHTS if at.caller.may(library.namespace, right)],
            embedder=library.admin.embedder.name,
            fingerprint=library.admin.embedder.fingerprint,
        )
    return to_response(About, description)


@router.post("/recall", response_model=Recalled)
@in_turn
def recall(body: RecallAsked, at: At) -> Response:
    """Return past experience that fits a state or a text: items, similar steps, estimates and guardrails.

    An empty result is a valid answer. Values of other requests are left out, unless a token with the right `log` sets
    `raw`. A text is then compared with what the answer may show: general items and forms of actions.
    """
    if body.raw:
        at.must_read_raw()
    query = body.state if body.state is not None else body.text or ""
    with at.reading() as library, at.measures.recall():
        recollection = library.recall(
            query,
            task=body.task,
            k=body.k,
            kinds=body.kinds,
            budget_tokens=body.budget_tokens,
            level=body.level,
            actions=body.actions,
            after=body.after,
        )
        if body.text is not None and not body.raw:
            recollection = recall_general(
                library, body.text, recollection, k=body.k, kinds=body.kinds, budget_tokens=body.budget_tokens
            )
    if body.raw:
        return recalled(recollection)
    state, actions = query if isinstance(query, State) else State(query, task=body.task or ""), list(body.actions or ())
    result = abstract_recollection(recollection, state, actions)
    return recalled(result, _write_lines(at.guidance, result, state, actions))


def _write_lines(
    guidance: Guidance | None, recollection: Recollection, state: State, actions: Sequence[str]
) -> list[str]:
    """Return the lines of a recall: what was recalled, or the hint of a guide."""
    if guidance is None:
        return [line.text for line in lines_of(recollection, state, actions)]
    hint = guidance.propose(Context(state, tuple(actions), recollection))
    return hint.text.splitlines() if hint is not None else []


@router.post("/check", response_model=ActionVerdict)
@in_turn
def check(body: CheckAsked, at: At) -> Response:
    """Return whether a guardrail forbids this action in this state.

    A guardrail on probation occasionally allows the action, with `trial` set to true. Report the outcome of the step
    with `why`: {"overrode": items, "trial": items}; it decides whether the guardrail stays. Nothing is counted for a
    token that may only read. Send in `refused` how often this run was refused the action. After 3 refusals it is
    allowed without a trial, unless a person pinned the guardrail; in that case the answer sets `over`. `cause` holds no
    values of other requests.
    """
    rights = all(at.caller.may(at.namespace, right) for right in ("read", "record"))
    may_count = body.about_to_run and rights and not at.shelf.read_only
    with at.recording() if may_count else at.reading() as library:
        counted = may_count and not library.admin.read_only
        decide = library.enforce if counted else library.check
        verdict = decide(body.state, body.action, again=body.again)
        if body.about_to_run and not verdict.allowed:
            verdict = _limited(library, verdict, body)
        return checked(abstract_verdict(library, verdict, body.state, body.action))


def _limited(library: ExperienceLibrary, verdict: Verdict, body: CheckAsked) -> Verdict:
    """Return the verdict on a forbidden action, given how often this run was refused it."""
    ruling = limit(library, verdict, body.refused)
    return replace(verdict, allowed=ruling.runs, over=ruling.over)


@router.post("/check-plan", response_model=ActionVerdict)
@in_turn
def check_plan(body: PlanAsked, at: At) -> Response:
    """Return whether a guardrail on plans forbids one of these actions in a plan made in this state."""
    with at.reading() as library:
        verdict = library.check(body.state, body.actions)
        return checked(abstract_verdict(library, verdict, body.state, *body.actions))


@router.post("/foresee", response_model=Lookahead)
@in_turn
def look_ahead(body: LookaheadAsked, at: At) -> Response:
    """Return what each action is expected to bring and to make possible, here and at the other known locations."""
    if body.raw:
        at.must_read_raw()
    with at.reading() as library:
        lookahead = library.look_ahead(body.state, body.actions, EpisodeMap.of(body.trail))
    if not body.raw:
        possible = {(visit.state.location, action) for visit in body.trail.visits for action in visit.actions}
        elsewhere = tuple(far for far in lookahead.elsewhere if (far.location, far.action) in possible)
        lookahead = replace(lookahead, elsewhere=elsewhere)
    return to_response(Lookahead, lookahead)


@router.post("/offered", response_model=Offered)
@in_turn
def offered(body: OfferedAsked, at: At) -> Response:
    """Return active skills and remedies whose condition holds in this state, best first."""
    if body.raw:
        at.must_read_raw()
    with at.reading() as library:
        rows = list(library.offered(body.state, body.kinds, masked=body.masked))
    if not body.raw:
        visible = Visible(body.state)
        rows = [abstract_item(item, visible) for item in rows]
    return to_response(Offered, Offered.model_construct(items=rows))


@router.post("/keys", response_model=KeyList)
@in_turn
def keys(body: KeysAsked, at: At) -> Response:
    """Return all keys under which a step with this action in this state is indexed."""
    with at.reading() as library:
        return to_response(KeyList, KeyList(keys=list(library.episodes.keys(body.state, body.action, body.counts))))


@router.post("/context", response_model=Around)
@in_turn
def context(body: ActionAsked, at: At) -> Response:
    """Describe the context of an action's arguments in this state."""
    with at.reading() as library:
        return to_response(Around, Around(context=library.episodes.context(body.state, body.action)))


@router.post("/episodes", response_model=IdList)
def record(body: EpisodesTold, at: At) -> Response:
    """Record episodes in one transaction. They are durable when the call returns.

    The server sets writer, trust and keys, whatever an episode says. If the token may only record, the new episodes are
    distilled at once, because it may not call `/v1/evolve`. If the server has an extractor, it reads the episodes after
    the answer is sent.
    """
    answer = _record(at=at, body=body)
    if not at.caller.write:
        with at.recording() as library:
            library.evolve()
    if at.reader is not None:
        at.reader.submit(at.namespace, IdList.model_validate_json(bytes(answer.body)).ids)
    return answer


@once(RequestContext.recording, change="records")
def _record(body: EpisodesTold, at: RequestContext) -> Response:
    with at.recording() as library:
        return to_response(
            IdList, IdList(ids=library.episodes.receive(body.episodes, writer=at.writer, trust=at.trust))
        )


@router.post("/evolve", response_model=EvolutionReport)
@once(RequestContext.changing, change="idempotent")
def evolve(at: At) -> Response:
    """Distill episodes recorded since the last call into items, within the rate limits."""
    with at.changing() as library:
        return to_response(EvolutionReport, library.evolve())
