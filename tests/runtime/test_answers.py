"""Lines of a body that arrives in pieces."""

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from runtime import answers


@given(st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"."))), st.data())
def test_lines_are_complete_however_the_stream_is_split(texts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(text + b"\n" for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    tail = data.draw(st.sampled_from([b"", b"cut of"]))

    async def pieces() -> AsyncIterator[bytes]:
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            yield whole[start:end]
        yield tail

    async def read() -> list[bytes]:
        return [line async for line in answers.lines(pieces(), 1000, 1000)]

    assert asyncio.run(read()) == [text for text in texts if text.strip()]
