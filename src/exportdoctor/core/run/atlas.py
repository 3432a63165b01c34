"""The atlas, `exportdoctor.atlas/1`: what a sweep becomes. Keys are a contract; new ones may be added."""

from __future__ import annotations

from typing import Literal

import msgspec

ATLAS_SCHEMA = "exportdoctor.atlas/1"

Sizes = Literal["static", "dynamic"]
Also = Literal["", "strict", "decomposed"]
"""A column with a scan of its own; empty for the columns of the scan that is always made."""
CellVerdict = Literal["passes", "cured", "fails", "not_asked", "no_verdict"]
TRIED: frozenset[str] = frozenset({"passes", "cured", "fails"})


class AtlasCell(msgspec.Struct, frozen=True, kw_only=True):
    """One part at one stage. `failures` are identities of root causes, the first failure first.

    `why` says what is missing where there is no verdict. `part` is empty where no part was reached. `seconds` are the
    part's, `memory_mb` the whole run's, both 0 where a limit ended the run before they were known. `cut_off` says which
    limit ended the search for shims of a part that fails, or came before the numbers of one that passes.
    """

    part: str
    sizes: Sizes
    stage: str
    verdict: CellVerdict
    failures: tuple[str, ...] = ()
    kind: str = ""
    exception: str = ""
    place: str = ""
    source: str = ""
    cure: tuple[str, ...] = ()
    soundness: str = ""
    seconds: float = 0.0
    memory_mb: float = 0.0
    command: str = ""
    run: str = ""
    why: str = ""
    cut_off: str = ""

    @property
    def column(self) -> tuple[str, str, str]:
        """Where the cell stands."""
        return self.part, self.sizes, self.stage


class AtlasRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `at` = when it was asked, in seconds since the epoch. `notes` are those of its runs: that it was
    scanned in another form, or without some of its inputs, holds for every verdict.

    `complete` is false where its runs were stopped or lost. `timeout` (seconds) and `memory_mb` (MiB) are the limits of
    one run; 0 where they are not known. `kept` is true if the row is taken from an earlier atlas. `few_layers` says
    where the model had fewer layers or experts than its configuration: `num_hidden_layers 2 for 40`. `seconds` are the
    wall time of all its runs, one after the other; 0 where it is not known. `digest` is of the model: its
    configuration, or its factory's file with what that imports; empty where there is none, or in an older atlas.
    """

    name: str
    ref: str
    digest: str = ""
    at: float = 0.0
    cells: tuple[AtlasCell, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True
    timeout: float = 0.0
    memory_mb: float = 0.0
    kept: bool = False
    few_layers: str = ""
    seconds: float = 0.0


class StageShare(msgspec.Struct, frozen=True, kw_only=True):
    """How many models pass a stage with all their parts: as they are, or also with shims that are not unsound.

    `tried` have a verdict for every part that was reached, and no search for shims of `ended` of them was cut off;
    `of` are all.
    """

    sizes: Sizes
    stage: str
    of: int
    tried: int
    ended: int = 0
    as_is: int
    with_shims: int


class RootCause(msgspec.Struct, frozen=True, kw_only=True):
    """Failures that have one identity, independent of the names of models and files.

    `unlocks` are the models of `models` that show no other failure: one fix would let them pass what was asked, unless
    another failure hides behind this one. `cures` counts the sets of shims that cure a part which fails so.
    """

    identity: str
    kind: str
    exception: str
    source: str = ""
    places: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    unlocks: tuple[str, ...] = ()
    cures: dict[str, int] = {}


class SampleFact(msgspec.Struct, frozen=True, kw_only=True):
    """The atlas shows `drawn` of `of` targets, drawn with `seed`."""

    drawn: int
    of: int
    seed: int


class AtlasChange(msgspec.Struct, frozen=True, kw_only=True):
    """A cell, a model or a version that differs; empty where it does not exist."""

    what: str
    before: str
    after: str


class AtlasDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since an earlier atlas, named by its file. `same` cells are as they were."""

    earlier: str
    environment: tuple[AtlasChange, ...] = ()
    cells: tuple[AtlasChange, ...] = ()
    models_gone: tuple[str, ...] = ()
    models_new: tuple[str, ...] = ()
    same: int = 0


class Atlas(msgspec.Struct, frozen=True, kw_only=True):
    """A whole sweep. `complete` is false where some targets are still to be asked."""

    schema: str = ATLAS_SCHEMA
    at: float = 0.0
    command: str = ""
    environment: dict[str, str] = {}
    sample: SampleFact | None = None
    difference: AtlasDifference | None = None
    shares: tuple[StageShare, ...] = ()
    causes: tuple[RootCause, ...] = ()
    rows: tuple[AtlasRow, ...] = ()
    complete: bool = True
