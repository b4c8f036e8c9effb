"""gradio's Blocks with what every event and endpoint of the page passes through: file checks, errors in words."""

from __future__ import annotations

import logging
from typing import Any, cast

import gradio as gr

from vitviz.server.scheduler import Cancelled, Kind, Scheduler
from vitviz.server.uploads import UploadError, upload_folder

MOST_WAITING, MOST_OF_ADDRESS = 64, 40  # events in gradio's queue before a visitor is told to come back

log = logging.getLogger(__name__)


class CheckedBlocks(gr.Blocks):
    """Blocks that check every file which a request names, and never answer with Python's own words.

    Args:
        scheduler: of the page's computations.
        options: gradio's own.
    """

    def __init__(self, *, scheduler: Scheduler | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.scheduler = scheduler or Scheduler()

    def busy(self, address: str) -> str:
        """Return why an event of a visitor's is not taken now, and how long it may take; empty if it is taken."""
        # The queue is gradio's inner business: gradio is pinned, and a test fills it.
        queues = self._queue.event_queue_per_concurrency_id.values()
        waiting = [event for queue in queues for event in queue.queue]
        own = sum(event.request.client is not None and event.request.client.host == address for event in waiting)
        if len(waiting) < MOST_WAITING and own < MOST_OF_ADDRESS:
            return ""
        seconds = len(waiting) * self.scheduler.mean(Kind.PHOTO)
        return f"Busy: {len(waiting)} requests are waiting. Try again in about {max(1, seconds):.0f} s."

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **options: Any) -> list[Any]:
        """Check the files in a request's data, at any depth, then hand it to gradio, which checks only some."""
        upload_folder().check_all(inputs)
        return cast("list[Any]", await super().preprocess_data(block_fn, inputs, *args, **options))

    async def process_api(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Answer a request.

        Raises:
            gr.Error: in words, whatever went wrong.
        """
        try:
            return await super().process_api(*args, **options)
        except gr.Error:
            raise
        except (UploadError, Cancelled) as error:
            raise gr.Error(str(error) or "The visitor has left.", print_exception=False) from error
        except Exception as error:
            log.exception("A request could not be answered.")
            words = "Expected arguments of the types that /gradio_api/info lists, got others. Check them."
            raise gr.Error(words, print_exception=False) from error
