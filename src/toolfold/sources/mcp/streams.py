"""What the SDK wants of a stream beside its messages. Closing is left to whoever opened the pipes."""

from __future__ import annotations

from typing import Self


class Stream:
    """One direction, without a task of its own between the SDK and the pipe."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        return
