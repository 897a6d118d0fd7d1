"""A tool that returns an error until something else is done: the hint names the failure and what made the call work."""

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from tests.runtime.integrations.scripted import call, create_agent, model

from hardwon.memory import State
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, remember

ERROR = "Error: identity of the customer is not verified"


def test_the_hint_of_functions_names_what_made_a_call_work(library):
    is_verified = False

    @remember
    def refund(order):
        return "refunded" if is_verified else ERROR

    @remember
    def verify(customer):
        nonlocal is_verified
        is_verified = True
        return "verified"

    for number in range(6):
        is_verified = False
        with FunctionEpisode(library, f"Refund order A-{number}.") as episode:
            refund(f"A-{number}")
            verify("Ada")
            refund(f"A-{number}")
    assert [step.return_to_go for step in library.episodes.get(episode.id).steps] == [0.0, 0.95, 1.0]
    # An item is withheld at random from some runs, to measure what it is worth.
    hints = [FunctionEpisode(library, "Refund order A-77.").hint for _ in range(12)]
    hint = max(hints, key=len)
    assert "`refund(order={order})` failed (tool_error)" in hint
    assert 'First `verify(customer="Ada")`, then `refund(order={order})`. Without that, it failed' in hint
    assert not [
        line for line in hint.splitlines() if line.startswith("- in") and "`refund" in line and "return" in line
    ]


def test_a_tool_of_an_agent_that_returns_an_error_is_not_recommended(library):
    @tool
    def refund(order: str) -> str:
        """Refund."""
        return ERROR

    agent = create_agent(
        model(*(message for _ in range(4) for message in (call("refund", order="A-1"), AIMessage("Sorry.")))),
        [refund],
        middleware=[ExperienceMiddleware(library)],
    )
    for _ in range(4):
        agent.invoke({"messages": [("user", "Refund order A-1.")]})
    state, call_text = State("Request: Refund order A-1.", task="Refund order A-1."), 'refund(order="A-1")'
    assert {row["success"] for row in library.episodes.find()} == {False}
    assert library.recall(state, actions={call_text: ""}).estimates[call_text].value == 0.0
