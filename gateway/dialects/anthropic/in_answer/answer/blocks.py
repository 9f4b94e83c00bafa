"""The blocks of a streamed message, one after the other, and what waits for the open one to end.

One block is open at a time, each begun is ended, and places count up from 0. What comes while a call is open that is not yet
whole (another call's arguments, words) waits until it is, so that arguments that come interleaved leave one call after the
other. Words of white space alone wait for others, because Anthropic refuses a block of such when it is sent back.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.dialects.anthropic.in_answer.answer.open_blocks import TEXT, THINKING, MessageBlock, ToolUse, event
from gateway.dialects.anthropic.in_request import thinking
from gateway.dialects.base.base import Json, MalformedAnswer

MOST_HELD: Final = 1024 * 1024
"""The characters of one call, or of all words, that wait for another call's end."""
MOST_WAITING: Final = 16_384
"""The calls and pieces of words that wait at a time."""
_Waiting = ToolUse | tuple[str, list[Json] | None]
"""A call, or words, with the details of reasoning where they are such."""


class MessageBlocks:
    """Begins and ends blocks. All methods add events to `made`, and raise MalformedAnswer where the stream makes no sense."""

    def __init__(self, *, is_to_mark: bool = False) -> None:
        """`is_to_mark`: calls that no thought comes before get a mark before them."""
        self.open: MessageBlock | None = None
        self.count = 0
        """The blocks begun so far: the place of the next one."""
        self.told = 0
        """The characters in those that have ended."""
        self._blank: list[str] = []
        """White space that no words have followed yet."""
        self._blanks = 0
        """The characters of it."""
        self._waiting: deque[_Waiting] = deque()
        """What follows the open call."""
        self._held = 0
        """The characters of words that wait."""
        self._format: object = None
        """Whose the reasoning is, which only the first piece of it may say."""
        self._is_to_mark = is_to_mark

    def think(self, made: list[bytes], thought: str, details: list[Json]) -> None:
        self._catch_up(made)
        if isinstance(self.open, ToolUse):
            self._wait((thought, details))
        else:
            self._tell_thought(made, thought, details)

    def say(self, made: list[bytes], text: str) -> None:
        self._catch_up(made)
        if isinstance(self.open, ToolUse):
            self._wait((text, None))
        else:
            self._tell(made, text)

    def add_to_call(self, made: list[bytes], call: ToolUse, text: str) -> None:
        """Tells what a call is called with, now or when its turn has come."""
        if call is self.open:
            if text:
                made.append(call.more(text))
            return
        if call.is_closed:
            if text.strip():
                raise MalformedAnswer("the provider went on with a call that was whole")
            return
        call.hold(text)
        if call.held_characters > MOST_HELD:
            raise MalformedAnswer("the provider sends too much of several calls at once")
        if not call.is_waiting:
            call.is_waiting = True
            self._wait(call)
        self._catch_up(made)

    def end(self, made: list[bytes], *, is_cut: bool) -> None:
        """Ends the last block; `is_cut`: the answer was, so that a call may be in the middle."""
        self._catch_up(made, is_end=True, is_cut=is_cut)
        if self._waiting:
            raise MalformedAnswer("the provider called a tool without a name")
        self._close(made, is_cut=is_cut)

    def _wait(self, one: _Waiting) -> None:
        """Has something wait for the end of the open call. Raises MalformedAnswer where too much does."""
        self._waiting.append(one)
        self._held += 0 if isinstance(one, ToolUse) else len(one[0])
        if len(self._waiting) > MOST_WAITING or self._held > MOST_HELD:
            raise MalformedAnswer("the provider says too much in the middle of a call")

    def _catch_up(self, made: list[bytes], *, is_end: bool = False, is_cut: bool = False) -> None:
        """Tells what waits, as far as the calls before it are whole."""
        while self._waiting:
            if isinstance(self.open, ToolUse) and not (is_end or self.open.is_whole()):
                return
            first = self._waiting[0]
            if isinstance(first, ToolUse):
                if not first.name:
                    return
                self._close(made, is_cut=is_cut)
                self._open_call(made, first)
            else:
                if isinstance(self.open, ToolUse):
                    self._close(made, is_cut=is_cut)
                self._held -= len(first[0])
                if first[1] is None:
                    self._tell(made, first[0])
                else:
                    self._tell_thought(made, first[0], first[1])
            self._waiting.popleft()

    def _tell_thought(self, made: list[bytes], thought: str, details: list[Json]) -> None:
        """Tells what the model thinks, and the signatures that came with it; what is encrypted is a block of its own."""
        if text := thought or "".join(map(thinking.words_of, details)):
            made.append(self._open(made, THINKING).more(text))
        for detail in details:
            self._format = detail.get("format") or self._format
            proof = thinking.signature_for({**detail, "format": self._format})
            if proof and detail.get("type") == "reasoning.encrypted":
                self._tell_whole(made, thinking.redacted_block(proof))
            elif proof:
                made.append(self._open(made, THINKING).sign(proof))

    def _tell(self, made: list[bytes], text: str) -> None:
        if self.open is None or self.open.kind is not TEXT:
            if not text.strip():
                self._blanks += len(text)
                if self._blanks <= MOST_HELD:  # models have written nothing else for as long as they were let
                    self._blank.append(text)
                return
            text = "".join((*self._blank, text))
            self._forget_blank()
        made.append(self._open(made, TEXT).more(text))

    def _open_call(self, made: list[bytes], call: ToolUse) -> None:
        if call.extra:
            self._tell_whole(made, thinking.extra_block(call.told_id, call.extra))
        elif self._is_to_mark:
            self._tell_whole(made, thinking.redacted_block(thinking.MARK))
        self._forget_blank()
        self._begin_block(made, call, call.begun())
        if text := call.release():
            made.append(call.more(text))

    def _forget_blank(self) -> None:
        self._blank, self._blanks = [], 0

    def _open(self, made: list[bytes], kind: str) -> MessageBlock:
        """Returns the open block of this kind; begins it, and ends what is open, if that is another."""
        block = self.open
        if block is None or block.kind is not kind or block.is_signed:
            self._close(made)
            begun = {"type": TEXT, "text": ""} if kind is TEXT else {"type": THINKING, "thinking": "", "signature": ""}
            self._is_to_mark = self._is_to_mark and kind is TEXT
            block = MessageBlock(kind)
            self._begin_block(made, block, begun)
        return block

    def _begin_block(self, made: list[bytes], block: MessageBlock, begun: Json) -> None:
        self.open = block
        block.begin(self.count)
        made.append(event("content_block_start", index=self.count, content_block=begun))
        self.count += 1

    def _tell_whole(self, made: list[bytes], block: Json) -> None:
        """Tells a block that comes in one piece: a thought that is not shown."""
        self._is_to_mark = False
        self._close(made)
        made.append(event("content_block_start", index=self.count, content_block=block))
        made.append(event("content_block_stop", index=self.count))
        self.count += 1

    def _close(self, made: list[bytes], *, is_cut: bool = False) -> None:
        block, self.open = self.open, None
        if block is None:
            return
        if isinstance(block, ToolUse) and not (is_cut or block.is_sound()):
            raise MalformedAnswer("the provider called a tool with something else than a JSON object")
        made.append(block.ended())
        self.told += block.told
