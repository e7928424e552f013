"""A proxy before a server on this machine, to simulate a slow or broken network."""

import asyncio
import contextlib
import threading


class Proxy:
    """Forward connections to a port of this machine, in a thread.

    Attributes:
      port: where it listens.
      delay: seconds that each chunk of a request or response is delayed.
      gone: True to break all connections.
      connections: number of connections so far.
    """

    def __init__(self, target):
        self.delay, self.gone, self.connections = 0.0, False, 0
        self._target, ready = target, threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._serve(ready)], daemon=True)
        self._thread.start()
        ready.wait()

    async def _serve(self, ready):
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._closed.wait()
        server.close()

    async def _connect(self, reader, writer):
        self.connections += 1
        if self.gone:
            writer.transport.abort()
            return
        answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._forward(reader, requests), self._forward(answers, writer))

    async def _forward(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(self.delay)
                if self.gone:
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        writer.close()

    def close(self):
        """End all connections."""
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()
