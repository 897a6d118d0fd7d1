"""A coding agent over MCP: it asks a running `hardwon mcp` before it starts, and tells it what came of its work.

    pip install '.[chat,mcp]'
    python examples/coding_agent_mcp.py                                offline: a model that acts by a few rules
    HARDWON_MODEL=openai:gpt-5 python examples/coding_agent_mcp.py       a real one, with its key in the environment

Two projects, each in a folder of its own, have the same trap: `settings.py` is written anew from
`settings.template` by every build, so that what is changed in it is lost. In the first one the agent finds out
by itself; in the second it is told by the memory, and changes the template at once.
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


def workshop(folder: Path) -> list[BaseTool]:
    """The tools of a coding agent, in one folder."""
    (folder / "settings.template").write_text("PORT = 80\n", encoding="utf-8")

    @tool
    def edit(file: str, text: str) -> str:
        """Write a file of the project anew."""
        (folder / Path(file).name).write_text(text, encoding="utf-8")
        return f"{file} was written"

    @tool
    def build() -> str:
        """Build the project and run its tests."""
        (folder / "settings.py").write_text((folder / "settings.template").read_text(encoding="utf-8"), "utf-8")
        if "8080" not in (folder / "settings.py").read_text(encoding="utf-8"):
            raise ToolException("test failed: PORT is 80. settings.py is made from settings.template by every build")
        return "all tests pass"

    build.handle_tool_error = True
    return [edit, build]


class Coder(BaseChatModel):
    """Stands for a model: recalls, edits, builds, mends what the build complains of, records."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        task = next(message.text for message in messages if message.type == "human")
        answers = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
        made = [call for message in messages for call in getattr(message, "tool_calls", ())]
        names = [call["name"] for call in made]
        told = "".join(answer.text for answer in answers.values())
        if "recall" not in names:
            return _call(made, "recall", task=task)
        if names[-1] == "record":
            return _say("The port is 8080 now.")
        if names[-1] == "build" and answers[made[-1]["id"]].text == "all tests pass":
            steps = [_step(call, answers[call["id"]]) for call in made if call["name"] in ("edit", "build")]
            return _call(made, "record", task=task, steps=steps, success=True)
        if names[-1] == "edit":
            return _call(made, "build")
        file = "settings.template" if "settings.template" in told else "settings.py"
        return _call(made, "edit", file=file, text="PORT = 8080\n")

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "coder"


def _say(text: str, calls: Any = ()) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=AIMessage(text, tool_calls=list(calls)))])


def _call(made: list[Any], name: str, **arguments: Any) -> ChatResult:
    return _say("", [{"name": name, "args": arguments, "id": f"call_{len(made)}"}])


def _step(call: Any, answer: ToolMessage) -> dict[str, Any]:
    arguments = ", ".join(f'{name}="{value.strip()}"' for name, value in call["args"].items())
    return {"action": f"{call['name']}({arguments})", "result": answer.text, "failed": answer.status == "error"}


def work(task: str, memory: McpTools) -> None:
    """One project: what the agent does, and what comes of it."""
    print(f"\n{task}")
    with TemporaryDirectory() as folder:
        tools = [*workshop(Path(folder)), *memory.tools]
        model = os.environ.get("HARDWON_MODEL") or Coder()
        agent: Any = create_agent(model, tools, system_prompt=INSTRUCTIONS)
        for message in agent.invoke({"messages": [("user", task)]})["messages"]:
            for call in getattr(message, "tool_calls", ()):
                print(f"  {call['name']} {call['args'].get('file', '')}".rstrip())
            if isinstance(message, ToolMessage) and message.name in ("build", "recall"):
                print(f"    -> {' '.join(message.text.split())[:600]}")


def main() -> None:
    """Two projects, and one memory that is a process of its own."""
    path = Path("runs/coding.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    command = ["-c", "from hardwon.apps.cli.app import main; main()", "mcp", str(path), "--trusted"]
    # `hardwon mcp runs/coding.db --trusted`: without --trusted, words that this client records are shown to nobody.
    with McpTools(StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))) as memory:
        work("Let the shop listen on port 8080.", memory)
        work("Let the warehouse listen on port 8080.", memory)
    print(f"\nWhat it keeps: hardwon memory ls {path} --episodes")


if __name__ == "__main__":
    main()
