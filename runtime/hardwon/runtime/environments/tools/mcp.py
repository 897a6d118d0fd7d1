"""The tools of an MCP server: for any agent of LangChain's, and as an environment.

    with McpTools(StdioServerParameters(command="hardwon", args=["mcp", "work.db"])) as server:
        agent = create_agent(model, [*my_tools, *server.tools])

    environment = McpEnvironment("http://127.0.0.1:8000/mcp", grader)

The connection lives in a thread with a loop of its own, for as long as it is open: the SDK's client must be
left in the task in which it was entered. What a tool answers as an error is the error of that step; a server
that is gone is a broken environment.
"""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from langchain_core.tools import BaseTool, ToolException

from hardwon.memory.errors import ConfigError, EnvironmentCrashed, MissingExtra

from .environment import Grader, ToolEnvironment

if TYPE_CHECKING:
    from mcp import Client, StdioServerParameters
    from mcp.server import MCPServer

    Server = str | StdioServerParameters | MCPServer

START_S = 60.0
"""How long a server gets to start and to list its tools."""
ALIVE_S = 5.0
"""How long a server gets to say that it is there, after a call that failed."""


class McpTool(BaseTool):
    """One tool of a server. Its errors are answers with the status `error`, so that they end no agent."""

    handle_tool_error: Any = True
    server: Any

    def _run(self, **arguments: Any) -> str:
        return str(self.server.call(self.name, arguments))


class McpTools:
    """A connection to one server, and its tools; see the module's docstring."""

    def __init__(self, server: "Server", *, timeout_s: float = 30.0) -> None:
        """`server`: the command that starts it, the address of one that runs, or one in this process.

        Raises: MissingExtra without the SDK, ConfigError for what is no server.
        """
        try:
            from mcp import StdioServerParameters
            from mcp.server import MCPServer
        except ModuleNotFoundError as error:
            raise MissingExtra.of("mcp", "mcp") from error
        if not isinstance(server, str | StdioServerParameters | MCPServer):
            raise ConfigError(f"server is {server!r:.100}; give StdioServerParameters, an address, or an MCPServer.")
        self.tools: list[BaseTool] = []
        self._server, self._timeout_s = server, timeout_s
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> list[BaseTool]:
        """Connect, unless it is connected, and list the tools. Raises EnvironmentCrashed when that fails."""
        if self._thread is None:
            ready: Future[list[Any]] = Future()
            self._thread = threading.Thread(target=lambda: asyncio.run(self._keep(ready)), daemon=True)
            self._thread.start()
            try:
                listed = ready.result(START_S)
            except Exception as error:
                self.close()
                raise EnvironmentCrashed(f"the MCP server {_named(self._server)} does not answer: {error!r}") from error
            self.tools = [
                McpTool(name=tool.name, description=tool.description or "", args_schema=tool.input_schema, server=self)
                for tool in listed
            ]
        return self.tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool answers, as text. Raises ToolException for an error, and when there is no answer in time."""
        if self._loop is None or self._client is None:
            raise ToolException(f"the connection to the MCP server {_named(self._server)} is closed")
        asked = asyncio.run_coroutine_threadsafe(self._client.call_tool(name, dict(arguments)), self._loop)
        try:
            answer = asked.result(self._timeout_s)
        except TimeoutError:
            asked.cancel()
            raise ToolException(
                f"{name} gave no answer within {self._timeout_s:g} s; it may have done its work all the same."
            ) from None
        except Exception as error:
            raise ToolException(f"{type(error).__name__}: {error}") from error
        text = "\n".join(_text(block) for block in answer.content)
        if answer.is_error:
            raise ToolException(text or f"{name} failed")
        return text

    def is_alive(self) -> bool:
        """Whether the server still answers."""
        if self._loop is None or self._client is None:
            return False
        try:
            asyncio.run_coroutine_threadsafe(self._client.session.list_tools(), self._loop).result(ALIVE_S)
        except Exception:
            return False
        return True

    def close(self) -> None:
        """Disconnect; a server that was started ends. Closing twice is fine, and it may be opened again."""
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread is not None:
            self._thread.join(START_S)
        self._thread = self._loop = self._task = self._client = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def _keep(self, ready: "Future[list[Any]]") -> None:
        """Hold the connection until it is to be closed."""
        from mcp import Client

        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            async with Client(self._server) as client:
                page = await client.list_tools()
                tools = list(page.tools)
                while page.next_cursor:
                    page = await client.list_tools(cursor=page.next_cursor)
                    tools += page.tools
                self._client = client
                ready.set_result(tools)
                await asyncio.Event().wait()
        except asyncio.CancelledError:  # by `close`
            return
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)


class McpEnvironment(ToolEnvironment):
    """Any MCP server's tools as an agent's actions. Every clone has a connection of its own."""

    def __init__(
        self,
        server: "Server",
        grader: Grader | None = None,
        *,
        name: str = "mcp",
        call_timeout_s: float = 30.0,
        shown_calls: int = 8,
        shown_chars: int = 2000,
    ) -> None:
        """As `ToolEnvironment`, with the tools of `server`; a server keeps what it did from episode to episode.

        Raises: as `McpTools` does.
        """
        self._server = server
        self._connection = McpTools(server, timeout_s=call_timeout_s)
        self._settings: dict[str, Any] = {
            "name": name,
            "call_timeout_s": call_timeout_s,
            "shown_calls": shown_calls,
            "shown_chars": shown_chars,
        }
        super().__init__(lambda task, seed: self._connection.open(), grader, **self._settings)

    def clone(self) -> "McpEnvironment":
        """Another environment, with a connection of its own."""
        return McpEnvironment(self._server, self._grader, **self._settings)

    def close(self) -> None:
        """Disconnect, and end the thread in which the tools run."""
        super().close()
        self._connection.close()

    def _call(self, name: str, arguments: dict[str, Any]) -> tuple[str, str]:
        result, error = super()._call(name, arguments)
        if error and not self._connection.is_alive():
            self._connection.close()
            raise EnvironmentCrashed(f"the MCP server {_named(self._server)} is gone: {error}")
        return result, error


def _named(server: Any) -> str:
    command = getattr(server, "command", None)
    return " ".join([command, *server.args]) if command else str(getattr(server, "name", server))


def _text(block: Any) -> str:
    """A block of an answer in words: what is no text is named by its kind."""
    text = getattr(block, "text", None)
    return text if isinstance(text, str) else f"[{getattr(block, 'type', 'data')}]"
