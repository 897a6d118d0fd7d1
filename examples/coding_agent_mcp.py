"""Connect a coding agent to a `hardwon mcp` server: it recalls before the work and records afterwards.

    pip install '.[agent]'
    python examples/coding_agent_mcp.py                                offline, with a rule-based model
    HARDWON_MODEL=openai:gpt-5 python examples/coding_agent_mcp.py       with a real model; needs its API key

Two projects in separate folders have the same trap: every build overwrites `settings.py` from `settings.template`, so
edits to `settings.py` are lost. In the first project the agent finds this out from a failed build. In the second,
recall returns the earlier failure, and the agent edits the template at once.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, ToolException, tool
from mcp import StdioServerParameters

from hardwon.runtime import McpTools

INSTRUCTIONS = (
    "You work on a project with the tools edit and build. First call recall with the task. When the build works, call "
    "record with the task, every edit and build that you made, failures too, and success=true. Then answer in one line."
)


def build_tools(folder: Path) -> list[BaseTool]:
    """Return the tools of a coding agent for one folder."""
    (folder / "settings.template").write_text("PORT = 80\n", encoding="utf-8")

    @tool
    def edit(file: str, text: str) -> str:
        """Overwrite a file of the project."""
        (folder / Path(file).name).write_text(text, encoding="utf-8")
        return f"wrote {file}"

    @tool
    def build() -> str:
        """Build the project and run its tests."""
        (folder / "settings.py").write_text((folder / "settings.template").read_text(encoding="utf-8"), "utf-8")
        if "8080" not in (folder / "settings.py").read_text(encoding="utf-8"):
            raise ToolException("test failed: PORT is 80. Every build writes settings.py from settings.template")
        return "all tests pass"

    build.handle_tool_error = True  # the model gets a failed build as a tool message, not as an exception
    return [edit, build]


class Coder(BaseChatModel):
    """A rule-based stand-in for a model: recall, edit, build, fix the cause of a failed build, record."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        task = next(message.text for message in messages if message.type == "human")
        answers = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
        calls = [call for message in messages for call in getattr(message, "tool_calls", ())]
        names = [call["name"] for call in calls]
        replies = "".join(answer.text for answer in answers.values())
        if "recall" not in names:
            return _call_tool(calls, "recall", task=task)
        if names[-1] == "record":
            return _build_result("The port is 8080 now.")
        if names[-1] == "build" and answers[calls[-1]["id"]].text == "all tests pass":
            steps = [_describe_step(call, answers[call["id"]]) for call in calls if call["name"] in ("edit", "build")]
            return _call_tool(calls, "record", task=task, steps=steps, success=True)
        if names[-1] == "edit":
            return _call_tool(calls, "build")
        file = "settings.template" if "settings.template" in replies else "settings.py"
        return _call_tool(calls, "edit", file=file, text="PORT = 8080\n")

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        """Return this model unchanged; its answers do not depend on the tools."""
        return self

    @property
    def _llm_type(self) -> str:
        return "coder"


def _build_result(text: str, tool_calls: Any = ()) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=AIMessage(text, tool_calls=list(tool_calls)))])


def _call_tool(calls: list[Any], name: str, **arguments: Any) -> ChatResult:
    return _build_result("", [{"name": name, "args": arguments, "id": f"call_{len(calls)}"}])


def _describe_step(call: Any, answer: ToolMessage) -> dict[str, Any]:
    arguments = ", ".join(f'{name}="{value.strip()}"' for name, value in call["args"].items())
    return {"action": f"{call['name']}({arguments})", "result": answer.text, "failed": answer.status == "error"}


def run_project(task: str, memory: McpTools) -> None:
    """Run the agent on one project and print its tool calls and their results."""
    print(f"\n{task}")
    with TemporaryDirectory() as folder:
        tools = [*build_tools(Path(folder)), *memory.tools]
        model = os.environ.get("HARDWON_MODEL") or Coder()
        agent: Any = create_agent(model, tools, system_prompt=INSTRUCTIONS)
        for message in agent.invoke({"messages": [("user", task)]})["messages"]:
            for call in getattr(message, "tool_calls", ()):
                print(f"  {call['name']} {call['args'].get('file', '')}".rstrip())
            if isinstance(message, ToolMessage) and message.name in ("build", "recall"):
                print(f"    -> {' '.join(message.text.split())[:600]}")


def main() -> None:
    """Run two projects that share one memory server, which is a separate process."""
    path = Path("runs/coding.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    command = ["-c", "from hardwon.apps.cli.app import main; main()", "mcp", str(path), "--trusted"]
    # The same as `hardwon mcp runs/coding.db --trusted`. Without --trusted, what this client records stays in
    # quarantine, and no agent sees it.
    with McpTools(StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))) as memory:
        run_project("Let the shop listen on port 8080.", memory)
        run_project("Let the warehouse listen on port 8080.", memory)
    print(f"\nList the recorded episodes: hardwon memory ls {path} --episodes")


if __name__ == "__main__":
    main()
