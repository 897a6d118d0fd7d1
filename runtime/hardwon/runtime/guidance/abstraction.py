"""Abstraction: recalled experience as records that hold no values of other requests.

The middleware renders such values as holes when it writes a hint (see `rendering`). This module applies the same rules
to the records themselves, for readers who may use experience but may not read the log: over HTTP, and in the reasons of
refused calls. Steps that did the same become one step with their mean return, which stands for all of them; it has no
states. Rendering an abstracted recollection gives the same lines as rendering the original.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from hardwon.memory import Diagnosis, ExperienceLibrary, Hit, Item, Reasons, Recollection, State, Step, Summary, Verdict
from hardwon.memory.errors import UnknownName
from hardwon.memory.situations.actions import is_of, parse_action
from hardwon.memory.situations.titles import end_sentence
from hardwon.memory.trust.testimony import find_chosen_words

from .coverage import find_done, is_prepared
from .rendering import StepGroup, Visible, describe_item, generalize_action, group_steps, may_show, render_item

_NO_STATE = State("", signature="-")


def abstract_recollection(
    recollection: Recollection, state: State | None = None, actions: Sequence[str] = ()
) -> Recollection:
    """Return a recollection without the values of other requests."""
    visible = Visible(state, actions)
    return replace(
        recollection,
        items=tuple(abstract_hits(recollection.items, visible)),
        steps=tuple(abstract_hits(recollection.steps, visible)),
        guardrails=tuple(abstract_item(item, visible) for item in recollection.guardrails),
        summaries=tuple(abstract_summary(summary, visible) for summary in recollection.summaries),
        outcomes={action: what for action, what in recollection.outcomes.items() if may_show(action, visible)},
    )


def abstract_hits(hits: Iterable[Hit], visible: Visible) -> list[Hit]:
    """Return hits on abstracted items, then on abstracted steps; see the module docstring."""
    hits = list(hits)
    steps = [hit.what for hit in hits if isinstance(hit.what, Step)]
    hits_by_id = {id(hit.what): hit for hit in hits}
    items = [replace(hit, what=abstract_item(hit.what, visible)) for hit in hits if isinstance(hit.what, Item)]
    groups = group_steps(steps, visible)
    # Of a group, the first and therefore best hit gives the similarity and the reason.
    return [
        *items,
        *(replace(hits_by_id[id(group.example)], what=_merge_group(group)) for group in groups),
        *(hit for hit in hits if isinstance(hit.what, Step) and hit.what.why.untrusted),
    ]


def _merge_group(group: StepGroup) -> Step:
    """Return one step that stands for a group of steps."""
    diagnosis = group.example.diagnosis
    return Step(
        _NO_STATE,
        group.action,
        _NO_STATE,
        Diagnosis(diagnosis.success, diagnosis.failure, evidence=group.message),
        why=Reasons(similar=tuple(group.ids), count=group.n, failed=None if group.won is None else group.n - group.won),
        return_to_go=group.mean,
    )


def abstract_item(item: Item, visible: Visible) -> Item:
    """Return an item without the values of other requests.

    Only items mined from experience hold such values. Their condition, locations and tags are words of recorded states,
    so they are dropped. The patterns keep numbered holes.
    """
    if item.source != "experience":
        return item
    general = describe_item(item, visible)
    # Enough requests support the words of an item without a general form.
    abstract = partial(_hide_words if general else _abstract_pattern, visible=visible)
    title, body = (general, "") if general else (item.title, item.body)
    return replace(
        item,
        title=title,
        body=body,
        when_to_use="" if general else item.when_to_use,
        forbids=None if item.forbids is None else abstract(item.forbids),
        steps=tuple(map(abstract, item.steps)),
        # A guardrail must have a condition; this one is always true. The library itself enforces the original.
        condition={"all": []} if item.kind == "guardrail" else None,
        verify=None,
        signatures=(),
        locations=(),
        tags=(),
    )


def _abstract_pattern(pattern: str, visible: Visible) -> str:
    """Return a pattern with numbered holes, which the library can match, for the values that are not shown."""
    return pattern if generalize_action(pattern, visible) == pattern else parse_action(pattern).template


def _hide_words(pattern: str, visible: Visible) -> str:
    """Return a pattern like `_abstract_pattern`, without the words of its form that are not shown either."""
    if all(map(visible.shows, find_chosen_words(pattern))):
        return _abstract_pattern(pattern, visible)
    # A named hole matches no value, so the form of a guardrail does not speak about other calls of the tool.
    return generalize_action(pattern, visible)


def abstract_summary(summary: Summary, visible: Visible) -> Summary:
    """Return a summary whose pattern holds no values of other requests."""
    return replace(summary, pattern=_hide_words(summary.pattern, visible))


def abstract_verdict(
    library: ExperienceLibrary, verdict: Verdict, state: State, *actions: str, history: Sequence[Step] = ()
) -> Verdict:
    """Return a verdict whose cause holds no values of other requests.

    A remedy of an allowed call is left out if the run has done what it says; `history` has the steps of the run.
    """
    refs = (*filter(None, [verdict.item_id]), *verdict.items)
    if not refs:
        return verdict
    try:
        item = library.items.get(refs[0])
    except UnknownName:  # another process has deleted it
        return replace(verdict, cause="") if verdict.items else Verdict(verdict.allowed)
    if not verdict.items:
        text = _render_fix(item, Visible(state, actions))
        is_open = text and not any(is_prepared(item, action, find_done(state, history)) for action in actions)
        return replace(verdict, cause=text) if is_open else Verdict(verdict.allowed)
    cause = describe_item(item, Visible(state, actions)) or item.body or item.title
    fix = find_fix(library, state, actions)
    return replace(verdict, cause=f"{end_sentence(cause)} {fix}" if fix else cause)


def find_fix(library: ExperienceLibrary, state: State, actions: Sequence[str]) -> str:
    """Return what made one of these actions work after it failed, the best remedy that may be shown; else empty."""
    visible = Visible(state, actions)
    about = (
        item for item in library.offered(state, ["remedy"])
        if item.steps and any(is_of(item.forbids or item.steps[-1], action) for action in actions)
    )  # fmt: skip
    return next(filter(None, (_render_fix(item, visible) for item in about)), "")


def _render_fix(item: Item, visible: Visible) -> str:
    """Return what a remedy says, without the mark of its line."""
    return render_item(item, visible).removeprefix("- remedy: ")
