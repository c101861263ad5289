"""Samples many answers at once: one thread, one token for every running request per turn.

Requests join as soon as there is room and leave when they end; nobody waits for the longest answer. A prompt that
several requests share is run once. The adapter that a request was admitted under is part of the request: the running
batch always belongs to one adapter, and requests for another wait until it has drained.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from tttd.local.decoding import SamplingOptions, TokenStream, choose_tokens
from tttd.local.kv_cache import Prefix, RowCache, cache_tokens, prompt_layers
from tttd.local.policy import PolicyModel

logger = logging.getLogger(__name__)

AdapterReader = Callable[[str], Mapping[str, Tensor] | None]
"""Reads a checkpoint's adapter; None is the initial one."""

TokenListener = Callable[[int], None]
"""Told each token of one answer in the sampling thread, so it has to return at once."""

_KEPT_PREFIXES = 16


@dataclass(frozen=True)
class SampledAnswer:
    """The exact tokens of an answer (its stop token included) and each one's log-probability under the policy."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


@dataclass(eq=False)
class _Request:
    checkpoint_id: str
    prompt: tuple[int, ...]
    options: SamplingOptions
    answer: Future[SampledAnswer]
    stream: TokenStream
    listener: TokenListener | None = None
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        return len(self.prompt) + self.options.max_tokens


class BatchedSampler:
    """Owns the sampling model.  `submit` may be called from any thread."""

    def __init__(
        self, policy: PolicyModel, read_adapter: AdapterReader, *, max_rows: int = 64, max_cache_tokens: int = 65536
    ) -> None:
        self._policy = policy
        self._read_adapter = read_adapter
        self._max_rows = max_rows
        self._max_cache_tokens = max_cache_tokens
        self._changed = Condition()
        self._waiting: deque[_Request] = deque()
        self._closed = False
        self._running: list[_Request] = []
        self._cache = RowCache()
        self._prefixes: OrderedDict[tuple[int, ...], Prefix] = OrderedDict()
        self._loaded: str | None = None
        self._thread = Thread(target=self._run, name="tttd-sampler", daemon=True)
        self._thread.start()

    def submit(
        self,
        checkpoint_id: str,
        prompt: list[int],
        options: SamplingOptions,
        listener: TokenListener | None = None,
    ) -> Future[SampledAnswer]:
        """Queue a request; cancelling the returned future frees its place in the batch.

        A `listener` is told every token before the future is done.
        """
        request = _Request(checkpoint_id, tuple(prompt), options, Future(), TokenStream(options.seed), listener)
        with self._changed:
            if self._closed:
                raise RuntimeError("the sampler is shut down")
            self._waiting.append(request)
            self._changed.notify()
        return request.answer

    def load(self) -> dict[str, int]:
        """How many requests are being sampled and how many wait."""
        with self._changed:
            return {"running": len(self._running), "waiting": len(self._waiting)}

    def close(self) -> None:
        """Stop the thread; requests that have not ended fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=30.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting or self._running)
                if self._closed:
                    break
            try:
                with torch.inference_mode():
                    self._turn()
            except Exception as error:
                logger.exception("sampling failed; %d running requests are given up", len(self._running))
                self._give_up(error)
        self._give_up(RuntimeError("the service is shutting down"), waiting=True)

    def _turn(self) -> None:
        """Drop cancelled requests, admit what fits, and sample one token for every running request."""
        for cancelled in [request for request in self._running if request.answer.cancelled()]:
            self._leave(cancelled)
        while (joining := self._next_request()) is not None:
            self._admit(joining)
        if not self._running:
            return
        positions, mask = self._cache.begin_step(self._policy.device)
        last = torch.tensor([[request.tokens[-1]] for request in self._running], device=self._policy.device)
        output = self._policy.sampling_model(
            input_ids=last, position_ids=positions, attention_mask=mask, cache=self._cache, use_cache=True
        )
        self._append(list(self._running), output.logits[:, -1])

    def _next_request(self) -> _Request | None:
        """The first waiting request, if it may join the running ones now.

        Strictly first come, first served: a later request never overtakes one that needs another adapter or more room.
        """
        with self._changed:
            while self._waiting and self._waiting[0].answer.cancelled():
                self._waiting.popleft()
            if not self._waiting:
                return None
            request = self._waiting[0]
            if self._running:
                lengths = [other.capacity for other in (*self._running, request)]
                full = len(lengths) > self._max_rows or cache_tokens(lengths) > self._max_cache_tokens
                if full or request.checkpoint_id != self._loaded:
                    return None
            self._waiting.popleft()
            # Counted as running from here on, so that a failure below reaches its caller.
            self._running.append(request)
            return request

    def _admit(self, request: _Request) -> None:
        """Give a request its row and first token; a failure here is its own, not that of its neighbours."""
        try:
            self._load_adapter(request.checkpoint_id)
            prefix = self._prefix(request.prompt)
            self._cache.add(prefix, request.capacity)
        except Exception as error:
            logger.exception("a request of checkpoint %s cannot be started", request.checkpoint_id)
            self._running.pop()
            _resolve(request.answer, error)
            return
        self._append([request], prefix.logits[None, :])

    def _load_adapter(self, checkpoint_id: str) -> None:
        if checkpoint_id == self._loaded:
            return
        self._loaded = None
        self._prefixes.clear()
        self._policy.use_for_sampling(self._read_adapter(checkpoint_id))
        self._loaded = checkpoint_id

    def _prefix(self, prompt: tuple[int, ...]) -> Prefix:
        known = self._prefixes.get(prompt)
        if known is not None:
            self._prefixes.move_to_end(prompt)
            return known
        cache = DynamicCache()
        output = self._policy.sampling_model(
            input_ids=torch.tensor([prompt], device=self._policy.device), cache=cache, use_cache=True, logits_to_keep=1
        )
        layers = prompt_layers(cache)
        prefix = Prefix(
            tuple(keys[0] for _, keys, _ in layers), tuple(values[0] for _, _, values in layers), output.logits[0, -1]
        )
        self._prefixes[prompt] = prefix
        while len(self._prefixes) > 1 and (
            len(self._prefixes) > _KEPT_PREFIXES or sum(map(len, self._prefixes)) > self._max_cache_tokens // 4
        ):
            self._prefixes.popitem(last=False)
        return prefix

    def _append(self, requests: list[_Request], logits: Tensor) -> None:
        """Draw the next token of each request; answer those that have ended."""
        tokens, log_probabilities = choose_tokens(
            logits, [request.options for request in requests], [request.stream for request in requests]
        )
        for request, token, log_probability in zip(requests, tokens, log_probabilities, strict=True):
            request.tokens.append(token)
            request.log_probabilities.append(log_probability)
            _tell(request, token)
            stopped = token in self._policy.stop_ids
            if stopped or len(request.tokens) >= request.options.max_tokens:
                answer = SampledAnswer(
                    tuple(request.tokens), tuple(request.log_probabilities), "stop" if stopped else "length"
                )
                self._leave(request)
                _resolve(request.answer, answer)

    def _leave(self, request: _Request) -> None:
        """Free a request's row; the cache moves its last row into the gap, and so does the list."""
        row = self._running.index(request)
        self._cache.remove(row)
        last = self._running.pop()
        if last is not request:
            self._running[row] = last

    def _give_up(self, error: Exception, *, waiting: bool = False) -> None:
        with self._changed:
            failed = [*self._running, *(self._waiting if waiting else ())]
            self._running.clear()
            if waiting:
                self._waiting.clear()
        self._cache = RowCache()
        for request in failed:
            _resolve(request.answer, error)


def _tell(request: _Request, token: int) -> None:
    """Pass a token on; a listener that fails gives up its own request, not the batch."""
    if request.listener is None or request.answer.cancelled():
        return
    try:
        request.listener(token)
    except Exception:
        logger.exception("the reader of a streamed answer failed; its request is given up")
        request.answer.cancel()


def _resolve(future: Future[SampledAnswer], outcome: SampledAnswer | Exception) -> None:
    """Complete a future that its owner may be cancelling at the same moment."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
