"""The tools of an MCP server, for any LangChain agent or as an environment.

    with McpTools(StdioServerParameters(command="hardwon", args=["mcp", "work.db"])) as server:
        agent = create_agent(model, [*my_tools, *server.tools])

    environment = McpEnvironment("http://127.0.0.1:8000/mcp", grader)

The connection runs in its own thread and event loop, because the SDK's client must be closed by the task that
opened it. Errors returned by a tool become the error of the step; a lost server is a broken environment.
"""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from langchain_core.tools import BaseTool, ToolException

from hardwon.memory.errors import ConfigError, EnvironmentCrashed, MissingExtra

from .environment import TaskGrader, ToolEnvironment

if TYPE_CHECKING:
    from mcp import Client, StdioServerParameters
    from mcp.server import MCPServer

    Server = str | StdioServerParameters | MCPServer

START_S = 60.0
"""Seconds to wait for a server to start and to list its tools."""
ALIVE_S = 5.0
"""Seconds to wait for a sign of life after a failed call."""


class McpTool(BaseTool):
    """A server's tool; its errors become answers with the status `error` and do not end the agent."""

    handle_tool_error: Any = True
    server: Any

    def _run(self, **arguments: Any) -> str:
        return str(self.server.call(self.name, arguments))


class McpTools:
    """A connection to an MCP server, and its tools as LangChain tools.

    Use it as a context manager, or call `open` and `close`. `tools` is empty until the connection is open.
    """

    def __init__(self, server: "Server", *, timeout_s: float = 30.0) -> None:
        """Prepare a connection; nothing is started before `open`.

        Args:
            server: The command that starts a server, the URL of a running one, or a server in this process.
            timeout_s: Seconds to wait for the result of a call.

        Raises:
            MissingExtra: The MCP SDK is not installed.
            ConfigError: `server` is of another type.
        """
        try:
            from mcp import StdioServerParameters
            from mcp.server import MCPServer
        except ModuleNotFoundError as error:
            raise MissingExtra.of("mcp", "agent") from error
        if not isinstance(server, str | StdioServerParameters | MCPServer):
            raise ConfigError(f"server is {server!r:.100}; pass StdioServerParameters, a URL, or an MCPServer.")
        self.tools: list[BaseTool] = []
        self._server, self._timeout_s = server, timeout_s
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> list[BaseTool]:
        """Connect if necessary, and return the server's tools.

        Raises:
            EnvironmentCrashed: The server does not start or answer within `START_S` seconds.
        """
        if self._thread is None:
            ready: Future[list[Any]] = Future()
            self._thread = threading.Thread(target=lambda: asyncio.run(self._hold_connection(ready)), daemon=True)
            self._thread.start()
            try:
                listed = ready.result(START_S)
            except Exception as error:
                # The thread may still wait for the server; a later `open` would take it for a connection.
                self.close()
                raise EnvironmentCrashed(
                    f"the MCP server {_describe_server(self._server)} does not answer: {error!r}"
                ) from error
            self.tools = [
                McpTool(name=tool.name, description=tool.description or "", args_schema=tool.input_schema, server=self)
                for tool in listed
            ]
        return self.tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return its result as text.

        Args:
            name: Name of the tool.
            arguments: Arguments by name.

        Raises:
            ToolException: The tool reports an error, does not answer in time, or the connection is closed.
        """
        if self._loop is None or self._client is None:
            raise ToolException(f"the connection to the MCP server {_describe_server(self._server)} is closed")
        future = asyncio.run_coroutine_threadsafe(self._client.call_tool(name, dict(arguments)), self._loop)
        try:
            answer = future.result(self._timeout_s)
        except TimeoutError:
            future.cancel()
            raise ToolException(
                f"{name} gave no answer within {self._timeout_s:g} s; it may still have taken effect."
            ) from None
        except Exception as error:
            raise ToolException(f"{type(error).__name__}: {error}") from error
        text = "\n".join(_extract_text(block) for block in answer.content)
        if answer.is_error:
            raise ToolException(text or f"{name} failed")
        return text

    def is_alive(self) -> bool:
        """Return whether the server answers within `ALIVE_S` seconds."""
        if self._loop is None or self._client is None:
            return False
        try:
            asyncio.run_coroutine_threadsafe(self._client.session.list_tools(), self._loop).result(ALIVE_S)
        except Exception:  # transports raise errors of many types when the server is gone
            return False
        return True

    def close(self) -> None:
        """Disconnect, which ends a server that was started by `open`.

        Closing twice has no effect, and the connection can be opened again.
        """
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

    async def _hold_connection(self, ready: "Future[list[Any]]") -> None:
        """Hold the connection open until `close` cancels this task."""
        from mcp import Client

        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            async with Client(self._server) as client:
                page = await client.list_tools()
                tools = list(page.tools)
                while page.next_cursor:
                    page = await client.list_tools(cursor=page.next_cursor)
                    tools += page.tools
                # Before `ready`, because `open` returns at once and the first call needs the client.
                self._client = client
                ready.set_result(tools)
                await asyncio.Event().wait()
        except asyncio.CancelledError:  # cancelled by `close`
            return
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)


class McpEnvironment(ToolEnvironment):
    """An MCP server's tools as the actions of an agent. Every clone has its own connection."""

    def __init__(
        self,
        server: "Server",
        grader: TaskGrader | None = None,
        *,
        name: str = "mcp",
        call_timeout_s: float = 30.0,
        shown_calls: int = 8,
        shown_chars: int = 2000,
    ) -> None:
        """Create an environment from the tools of an MCP server.

        The server keeps its data between episodes.

        Args:
            server: The command that starts a server, the URL of a running one, or a server in this process.
            grader: See `ToolEnvironment`.
            name: Name of the environment.
            call_timeout_s: Seconds to wait for the result of a call.
            shown_calls: Number of recent results in an observation.
            shown_chars: Maximum characters of each result.

        Raises:
            MissingExtra: The MCP SDK is not installed.
            ConfigError: `server` is of another type.
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
        """Return another environment with its own connection to the server."""
        return McpEnvironment(self._server, self._grader, **self._settings)

    def close(self) -> None:
        """Disconnect, and stop the tool thread."""
        super().close()
        self._connection.close()

    def _call(self, name: str, arguments: dict[str, Any]) -> tuple[str, str]:
        result, error = super()._call(name, arguments)
        # A failed call alone does not tell an error of the tool from a lost server, so ping it.
        if error and not self._connection.is_alive():
            self._connection.close()
            raise EnvironmentCrashed(f"the MCP server {_describe_server(self._server)} is gone: {error}")
        return result, error


def _describe_server(server: Any) -> str:
    command = getattr(server, "command", None)
    return " ".join([command, *server.args]) if command else str(getattr(server, "name", server))


def _extract_text(block: Any) -> str:
    """Return a content block as text; other blocks than text appear as their type."""
    text = getattr(block, "text", None)
    return text if isinstance(text, str) else f"[{getattr(block, 'type', 'data')}]"
