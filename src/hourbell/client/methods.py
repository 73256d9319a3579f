"""Turns a method that returns a plan into one that carries it out, for both clients.

A resource is written once: each method returns a `Call`, or yields several. The descriptors here
give the method its two types: on a resource of `Client` it is awaited, on one of `SyncClient` it
blocks.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from hourbell.client.calls import Plan
from hourbell.client.values import Page

P = ParamSpec("P")
T = TypeVar("T")


class AsyncRunner(ABC):
    """Carries out plans."""

    @abstractmethod
    async def run(self, plan: Plan[T]) -> T: ...


class SyncRunner(ABC):
    """Carries out plans, blocking."""

    @abstractmethod
    def run(self, plan: Plan[T]) -> T: ...


R = TypeVar("R", bound=AsyncRunner | SyncRunner)


class Part(Generic[R]):
    """A part of a client: the methods of one resource."""

    def __init__(self, runner: R) -> None:
        self._runner = runner


class Method(Generic[P, T]):
    """A method that returns a plan."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Plan[T]]) -> None:
        self.plan = plan
        self.__doc__ = plan.__doc__

    @overload
    def __get__(
        self, part: Part[AsyncRunner], of: object = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, part: Part[SyncRunner], of: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, part: None, of: object = None) -> Method[P, T]: ...

    def __get__(
        self, part: Part[AsyncRunner] | Part[SyncRunner] | None, of: object = None
    ) -> object:
        if part is None:
            return self
        runner = part._runner

        @functools.wraps(self.plan)
        def call(*args: P.args, **kwargs: P.kwargs) -> object:
            return runner.run(self.plan(part, *args, **kwargs))

        return call


class Items(Generic[P, T]):
    """Every item of a list, through all its pages."""

    def __init__(self, pages: Method[P, Page[T]]) -> None:
        self._plan: Callable[..., Plan[Page[T]]] = pages.plan
        self.__doc__ = f"Each item of every page. {pages.plan.__doc__}"

    @overload
    def __get__(
        self, part: Part[AsyncRunner], of: object = None
    ) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, part: Part[SyncRunner], of: object = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, part: None, of: object = None) -> Items[P, T]: ...

    def __get__(
        self, part: Part[AsyncRunner] | Part[SyncRunner] | None, of: object = None
    ) -> object:
        if part is None:
            return self
        plan = functools.partial(self._plan, part)
        runner = part._runner
        if isinstance(runner, AsyncRunner):
            each: Callable[..., object] = functools.partial(_each_async, runner, plan)
        else:
            each = functools.partial(_each, runner, plan)
        made = functools.wraps(self._plan)(each)
        made.__doc__ = self.__doc__
        return made


async def _each_async(
    runner: AsyncRunner, plan: Callable[..., Plan[Page[T]]], *args: Any, **kwargs: Any
) -> AsyncIterator[T]:
    while True:
        page = await runner.run(plan(*args, **kwargs))
        for item in page.items:
            yield item
        if page.next_page_token is None:
            return
        kwargs["page_token"] = page.next_page_token


def _each(
    runner: SyncRunner, plan: Callable[..., Plan[Page[T]]], *args: Any, **kwargs: Any
) -> Iterator[T]:
    while True:
        page = runner.run(plan(*args, **kwargs))
        yield from page.items
        if page.next_page_token is None:
            return
        kwargs["page_token"] = page.next_page_token
