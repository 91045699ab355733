"""Streamed text of a batch; needs transformers."""

from __future__ import annotations

from transformers.generation.streamers import BaseStreamer, TextIteratorStreamer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional


class TextIteratorStreamerBatch(BaseStreamer):  # type: ignore[misc]
    """A TextIteratorStreamer for each row of a batch.

    Iterating gives lists of {"text": ...}, one per row, until one row has ended.
    """

    def __init__(
        self, tokenizer: Any, batch_size: int, skip_prompt: bool = False, timeout: Optional[float] = None, **decode_kwargs: Any
    ) -> None:
        self.batch_size = batch_size
        self.streamers = [TextIteratorStreamer(tokenizer, skip_prompt, timeout, **decode_kwargs) for _ in range(batch_size)]
        self.streamer_iterators = [iter(streamer) for streamer in self.streamers]

    def put(self, value: Any) -> None:
        """Take the next tokens, a tensor with a row for each of the batch."""
        if len(value) != self.batch_size:
            raise ValueError("tokens of shape %s for a batch of %d rows" % (tuple(value.shape), self.batch_size))
        for index, streamer in enumerate(self.streamers):
            streamer.put(value[index : index + 1])

    def end(self) -> None:
        """No more tokens will come."""
        for streamer in self.streamers:
            streamer.end()

    def __iter__(self) -> TextIteratorStreamerBatch:
        return self

    def __next__(self) -> List[Dict[str, str]]:
        # Every row is asked, also after one has ended: that keeps them in step.
        texts = [next(iterator, None) for iterator in self.streamer_iterators]
        if any(text is None for text in texts):
            raise StopIteration
        return [{"text": str(text)} for text in texts]
