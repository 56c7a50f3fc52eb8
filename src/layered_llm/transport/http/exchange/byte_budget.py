"""Bytes that one process keeps for its clients: a limit for all together, and one for each account.

Must not know: what the bytes are, what an account is.

Invariant: what is held is at most the limit, for each account and for all together, and with no open hold it is nothing.
"""

import enum

import attrs


class Over(enum.Enum):
    """Which limit has no room."""

    ACCOUNT = enum.auto()
    PROCESS = enum.auto()


@attrs.define(eq=False)
class ByteBudget:
    """Who holds how much; each user of it opens a hold of its own."""

    _process_bytes: int
    _account_bytes: int
    _held_bytes: int = attrs.field(init=False, default=0)
    _accounts: dict[str, int] = attrs.field(init=False, factory=dict)
    """Bytes of each account that holds any."""

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def account_bytes(self) -> int:
        """The limit of one account."""
        return self._account_bytes

    def held_by(self, account: str) -> int:
        return self._accounts.get(account, 0)

    def open(self, account: str) -> "ByteHold":
        """A hold of nothing yet."""
        return ByteHold(self, account)

    def take(self, account: str, count: int) -> Over | None:
        """Books `count` bytes, or none where they do not fit."""
        held = self._accounts.get(account, 0) + count
        if held > self._account_bytes:
            return Over.ACCOUNT
        if self._held_bytes + count > self._process_bytes:
            return Over.PROCESS
        if count:
            self._accounts[account] = held
            self._held_bytes += count
        return None

    def give_back(self, account: str, count: int) -> None:
        self._held_bytes -= count
        left = self._accounts.get(account, 0) - count
        if left:
            self._accounts[account] = left
        else:
            self._accounts.pop(account, None)


@attrs.define(eq=False)
class ByteHold:
    """What one user of a budget holds."""

    _budget: ByteBudget
    _account: str
    _held_bytes: int = attrs.field(init=False, default=0)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def is_alone(self) -> bool:
        """Whether its account holds nothing but this."""
        return self._budget.held_by(self._account) == self._held_bytes

    def take(self, count: int) -> Over | None:
        """Holds `count` bytes more, or says which limit has no room for them."""
        over = self._budget.take(self._account, count)
        if over is None:
            self._held_bytes += count
        return over

    def give_back(self, count: int) -> None:
        """`count` of the bytes are not held any more."""
        self._budget.give_back(self._account, count)
        self._held_bytes -= count

    def release(self) -> None:
        """Gives everything back; harmless when repeated."""
        self._budget.give_back(self._account, self._held_bytes)
        self._held_bytes = 0
