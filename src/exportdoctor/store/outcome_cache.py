"""Outcomes of single probes, kept across runs in one SQLite file of bounded size.

Only outcomes that no limit decided are kept; a damaged or locked file is a cache miss, never an error.
diskcache would do the same, but raises where the file is unusable, and would be one more dependency.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from pathlib import Path

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.store.places import cache_home

_MIB = 1024 * 1024
_TABLE = "CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, used REAL, size INTEGER, value BLOB) WITHOUT ROWID"


class OutcomeCache:
    """`get` and `add` by key (see `digest.probe_digest`). `limit_mb` bounds the stored answers, in MiB.

    Opened on first use, from one thread; several processes may share the file.
    """

    def __init__(self, path: Path | None = None, *, limit_mb: float = 128) -> None:
        self.path = path or cache_home() / "outcomes-1.sqlite"
        self.limit = int(limit_mb * _MIB)
        self._base: sqlite3.Connection | None = None
        self._off = False
        self._used: set[str] = set()

    def get(self, key: str) -> Outcome | None:
        """The outcome stored for `key`, if any."""
        rows = self._do("SELECT value FROM outcomes WHERE key = ?", key)
        if not rows:
            return None
        try:
            outcome: Outcome = decode(zlib.decompress(rows[0][0]), Outcome)
        except (StoreError, zlib.error, TypeError):  # another program may have written values of another type
            return None
        self._used.add(key)
        return outcome

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome; crashes and exceeded limits are not kept, because they may not happen again."""
        if not outcome.status.is_repeatable:
            return
        value = zlib.compress(encode(outcome), 1)
        self._do("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?)", key, time.time(), len(value), value)

    def remove(self, key: str) -> None:
        """Forget the outcome stored for `key`."""
        self._do("DELETE FROM outcomes WHERE key = ?", key)

    def close(self) -> None:
        """Update the times of use, drop the least recently used outcomes beyond the limit, and close the file."""
        if self._base is None:
            return
        now = time.time()
        for key in self._used:
            self._do("UPDATE outcomes SET used = ? WHERE key = ?", now, key)
        self._do(
            "DELETE FROM outcomes WHERE key IN (SELECT key FROM (SELECT key, SUM(size) OVER (ORDER BY used DESC, key)"
            " AS total FROM outcomes) WHERE total > ?)",
            self.limit,
        )
        base, self._base = self._base, None
        base.close()

    def __enter__(self) -> OutcomeCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, statement: str, *values: object) -> list[tuple[bytes, ...]]:
        """The rows of `statement`; none once the file was found to be unusable."""
        if self._off:
            return []
        try:
            if self._base is None:
                self._base = _open(self.path)
            return self._base.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            self._off = True
            if not isinstance(error, sqlite3.OperationalError):  # damaged: start over next time
                self.path.unlink(missing_ok=True)
        except OSError:
            self._off = True
        return []


def _open(path: Path) -> sqlite3.Connection:
    """The connection; each statement commits by itself, and losing the last one costs only time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    base = sqlite3.connect(path, timeout=2.0, isolation_level=None)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA synchronous = OFF")
    base.execute(_TABLE)
    return base
