"""Converts an async class to a sync one: one line for each method, with the types of the original.

class Traces(Part[AsyncTraces]):
    add = blocking(AsyncTraces.add)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from hark.sync.portal import Portal

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
F = TypeVar("F", bound="Facade[object]")
P = ParamSpec("P")
R = TypeVar("R")


class Facade(Protocol[A_co]):
    """A sync object around an async one."""

    @property
    def inner(self) -> A_co:
        """The async object that does the work."""

    @property
    def portal(self) -> Portal:
        """The portal that runs it."""


class Part(Generic[A]):
    """A facade of one object."""

    def __init__(self, inner: A, portal: Portal) -> None:
        self.inner = inner
        self.portal = portal


class blocking(Generic[A, P, R]):  # Reads like a decorator.
    """Converts a coroutine method to a blocking one."""

    def __init__(self, method: Callable[Concatenate[A, P], Coroutine[object, object, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, facade: Facade[A], kind: type | None = None) -> Callable[P, R]:
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return facade.portal.run(self._method(facade.inner, *args, **kwargs))

        return update_wrapper(call, self._method) if facade is not None else cast(Callable[P, R], self)


class iterating(Generic[A, P, R]):
    """Converts a method that returns an async iterator to one that returns an iterator."""

    def __init__(self, method: Callable[Concatenate[A, P], AsyncIterator[R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, facade: Facade[A], kind: type | None = None) -> Callable[P, Iterator[R]]:
        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
            return facade.portal.iterate(self._method(facade.inner, *args, **kwargs))

        return update_wrapper(call, self._method) if facade is not None else cast(Callable[P, Iterator[R]], self)


class fluent(Generic[A, P]):
    """Converts a method that returns its own object to one that returns the facade."""

    def __init__(self, method: Callable[Concatenate[A, P], A]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, facade: F, kind: type | None = None) -> Callable[P, F]:
        def call(*args: P.args, **kwargs: P.kwargs) -> F:
            self._method(cast(A, facade.inner), *args, **kwargs)
            return facade

        return update_wrapper(call, self._method) if facade is not None else cast(Callable[P, F], self)
