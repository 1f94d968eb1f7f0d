"""An agent that searches over the Model Context Protocol.

The script is the agent's side: it starts `llmopt mcp`, creates a search, asks for points, tells how
they scored, and looks at the best. An agent in an editor or a chat calls the same tools by itself.

    python agent.py
"""

import asyncio
import sys
import tempfile

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

SPACE = {
    "x": {"type": "number", "minimum": -5, "maximum": 5},
    "kind": {"enum": ["round", "square"]},
}


def score(point: dict) -> float:
    return (point["x"] - 2) ** 2 + (point["kind"] == "square")


async def main(folder: str) -> None:
    command = ["-m", "llmopt", "mcp", "--folder", folder, "--model", "network"]
    server = StdioServerParameters(command=sys.executable, args=command)
    async with Client(stdio_client(server)) as client:

        async def call(tool: str, **arguments: object) -> dict:
            return (await client.call_tool(tool, {"name": "bowl", **arguments})).structured_content

        await call("create_search", space=SPACE, direction="minimize", options={"seed": 0})
        for _ in range(20):
            point = (await call("ask"))["points"][0]["params"]
            await call("tell", params=point, reward=score(point), feedback="smooth")
        print("best:", (await call("status"))["best"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
