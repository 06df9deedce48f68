"""Prepares claims: decide, write the checkpoint, write the CDI spec. Unpreparing uses the reverse order.

The order makes a crash harmless: a claim is in the checkpoint as long as its CDI spec exists. So every spec on the
disk belongs to a known claim, and no device is prepared twice. `recover` makes both consistent after a crash.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kubeletplugin.discover.devices import device_name
from kubeletplugin.files import DiskFiles, is_leftover, locked
from kubeletplugin.ports import WAITS
from kubeletplugin.prepare import cdi
from kubeletplugin.prepare.checkpoint import (
    Checkpoint,
    CheckpointStore,
    DamagedCheckpointError,
    PreparedClaim,
    difference,
    uid_before,
)
from kubeletplugin.prepare.decide import (
    DeviceHeldError,
    NodeView,
    Others,
    PrepareError,
    Told,
    allocation_digest,
    as_told,
    decide,
    undecided,
    undecided_device,
)
from neuron.api.allocation import AllocatedClaim

LOCK_NAME: Final = "serialize.lock"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """The answer to the kubelet for one device."""

    request: str
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Recovery:
    """Repairs of the state on the disk; one sentence each, for the log.

    Attributes:
        errors: for operators.
        notes: for information.
    """

    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Preparer:
    """Prepares and unprepares claims. Every method takes the state's lock, which other processes share."""

    def __init__(
        self,
        files: DiskFiles,
        *,
        state_dir: Path,
        specs: cdi.SpecFiles,
        boot_id: str,
        lock_timeout: float = WAITS.state_lock,
    ) -> None:
        self._files = files
        self._state_dir = state_dir
        self._lock = state_dir / LOCK_NAME
        self._store = CheckpointStore(files, state_dir)
        self._specs = specs
        self._boot_id = boot_id
        self._lock_timeout = lock_timeout
        self._lock_hangs = False
        self._problems: list[str] = []
        self._damaged = b""
        self._unprepared: set[str] = set()  # while claims may be missing in the state

    def recover(self) -> Recovery:
        """Make checkpoint and CDI specs consistent after a start.

        Raises:
            OSError: the checkpoint can neither be read nor written, so no claim could be prepared.
            TimeoutError: another instance holds the lock.
        """
        notes: list[str] = []
        with self._locked():
            for name in self._files.names(self._state_dir):
                if is_leftover(name):
                    self._files.remove(self._state_dir / name)
            checkpoint = self._load(notes)
            notes += self._align(checkpoint)
        return Recovery(self.take_problems(), tuple(notes))

    def prepare(self, claim: AllocatedClaim, view: NodeView) -> tuple[DeviceAnswer, ...]:
        """Prepare a claim, or repeat the answer if it is prepared.

        Raises:
            PrepareError: it cannot be prepared.
            OSError: the state cannot be written; nothing has changed, or the next call completes the change.
            TimeoutError: another instance holds the lock.
        """
        with self._locked():
            checkpoint = self._load()
            checkpoint = dataclasses.replace(checkpoint, count=checkpoint.count + 1)
            self._unprepared.discard(claim.uid)
            before = checkpoint.claims.get(claim.uid)
            if before is not None and before.allocation == allocation_digest(claim):
                prepared = dataclasses.replace(before, asked=checkpoint.count)
                # The answer is the same if the disk is full; the number only ends a release that has begun.
                with contextlib.suppress(OSError):
                    self._store.save(checkpoint.with_claim(prepared))
            else:
                if before is not None and not _is_restored_as(before, claim, view):
                    # It was allocated again, or it was restored without its cores: what its containers have is held
                    # until they have ended.
                    self._specs.remove(claim.uid)
                    checkpoint, before = checkpoint.ended(claim.uid), None
                    self._store.save(checkpoint)
                others = Others(tuple(checkpoint.claims.values()), number=checkpoint.count)
                prepared = decide(claim, view, others)
                if checkpoint.incomplete:
                    _refuse_unknown(prepared)
                if before is not None:
                    # The containers of a claim that was restored in part run already.
                    prepared = dataclasses.replace(prepared, number=before.number)
                self._store.save(checkpoint.with_claim(prepared))
            self._specs.ensure(prepared)
        return answers(prepared)

    def unprepare(self, uid: str, *, hold: bool = False, asked: int | None = None) -> None:
        """Unprepare a claim. It need not be prepared.

        Args:
            hold: keep its devices from other claims, because its containers still run.
            asked: do nothing if the claim was prepared again since this number.

        Raises:
            OSError: the state cannot be written; the next call completes the change.
            TimeoutError: another instance holds the lock.
        """
        with self._locked():
            checkpoint = self._load()
            claim = checkpoint.claims.get(uid)
            if asked is not None and claim is not None and claim.asked != asked:
                return
            with contextlib.suppress(ValueError):  # such a UID has no spec
                self._specs.remove(uid)
            rest = checkpoint.ended(uid) if hold else checkpoint.without_claims(uid, uid_before(uid))
            if rest != checkpoint:
                self._store.save(rest)
            if rest.incomplete:
                self._unprepared.add(uid)

    def release(self, claim: PreparedClaim) -> bool:
        """Release a claim, unless it was prepared since it was read; returns whether. Raises as `unprepare`."""
        with self._locked():
            checkpoint = self._load()
            if checkpoint.claims.get(claim.uid) != claim:
                return False
            with contextlib.suppress(ValueError):
                self._specs.remove(claim.uid)
            self._store.save(checkpoint.without_claims(claim.uid))
        return True

    def checkpoint(self) -> Checkpoint:
        """The present state. Raises OSError, TimeoutError."""
        with self._locked():
            return self._load()

    def mend(self) -> tuple[str, ...]:
        """Write CDI specs again that were lost or changed while the driver runs; returns notes, as `Recovery` has them.

        Raises:
            OSError: the state cannot be written.
            TimeoutError: another instance holds the lock.
        """
        with self._locked():
            checkpoint = self._load()
            written = [
                claim for claim in checkpoint.claims.values() if not claim.has_ended and self._specs.ensure(claim)
            ]
        return tuple(f"The CDI spec of claim {claim} was lost or changed, and was written again." for claim in written)

    def complete(
        self,
        running: Iterable[PreparedClaim],
        allocated: Iterable[AllocatedClaim],
        view: NodeView,
        told: Told = Told(),  # noqa: B008 - immutable
    ) -> Recovery:
        """Add the claims that a lost or damaged checkpoint may have had.

        Args:
            running: claims that pods use, as the kubelet tells them: their objects may not exist any more.
            allocated: those of them that have devices of this node and are reserved for pods.
            told: what containers and `status.devices` tell.

        Raises:
            OSError: the state cannot be written.
            TimeoutError: another instance holds the lock.
        """
        notes, errors = [], []
        with self._locked():
            checkpoint = self._load()
            checkpoint = dataclasses.replace(checkpoint, count=max([checkpoint.count, *told.numbers]))
            # The kubelet may have unprepared a claim since it told of it.
            known = checkpoint.claims.keys() | self._unprepared
            lost = {claim.uid: claim for claim in running if claim.uid not in known}
            # A claim that was allocated again by force has no device that it was not prepared for.
            objects = {
                each.uid: each
                for each in allocated
                if each.uid not in lost or undecided(each, view).held <= lost[each.uid].held
            }
            # A claim whose cores are not known comes after those whose cores are.
            for uid in sorted(lost, key=lambda uid: (*told.rank(uid), uid not in objects, uid)):
                restored, count = lost[uid], checkpoint.count + 1
                if uid in objects:
                    others = Others(tuple(checkpoint.claims.values()), number=count)
                    found, error = _restored(objects[uid], restored, others, view, told)
                    errors.extend([error] if error else [])
                    if found is None:
                        continue
                    restored = found
                restored = dataclasses.replace(restored, number=told.number(restored) or count, asked=count)
                checkpoint = dataclasses.replace(checkpoint.with_claim(restored), count=count)
                # Devices of an earlier allocation. The kubelet does not say what is admin access.
                admin = any(device.admin_access for device in restored.devices)
                left = frozenset() if admin else lost[uid].held - restored.held
                if left:
                    ended = _ended(uid, left, view, objects.get(uid))
                    checkpoint = checkpoint.with_claim(dataclasses.replace(ended, asked=count))
                source = "API server" if uid in objects else "kubelet, whose pods use it"
                notes.append(f"Claim {restored.namespace}/{restored.name} was restored from the {source}.")
                notes += [
                    f"The cores that claim {restored.namespace}/{restored.name} uses of {each.device} are not known: "
                    "no other claim gets cores of this device until its pods have ended."
                    for each in restored.devices
                    if each.in_doubt
                ]
            for uid, indices in told.ended(checkpoint.claims, view).items():
                before = checkpoint.claims.get(uid_before(uid))
                all_indices = indices | before.held if before is not None else indices
                ended = _ended(uid, all_indices, view, objects.get(uid))
                checkpoint = checkpoint.with_claim(dataclasses.replace(ended, asked=checkpoint.count))
                notes.append(f"Claim {ended} has ended, and its containers still run: its devices are held.")
            checkpoint = dataclasses.replace(checkpoint, incomplete=False)
            self._store.save(checkpoint)
            if self._damaged and (lines := difference(self._damaged, checkpoint)):
                notes.append(f"The damaged checkpoint and the restored state differ:\n{lines}")
            self._damaged = b""
            self._unprepared.clear()
            notes += self._align(checkpoint)
        return Recovery(tuple(errors), tuple(notes))

    def take_problems(self) -> tuple[str, ...]:
        """Problems of the state since the last call, for log and metrics."""
        problems, self._problems = tuple(self._problems), []
        return problems

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self._files.identity(self._state_dir) is None:
            self._files.make_directory(self._state_dir)
        with contextlib.ExitStack() as stack:
            try:
                # An instance that hangs with the lock is waited for once, and not again by each claim.
                stack.enter_context(locked(self._lock, self._lock_timeout, waits=not self._lock_hangs))
            except TimeoutError:
                self._lock_hangs = True
                raise
            self._lock_hangs = False
            yield

    def _load(self, notes: list[str] | None = None) -> Checkpoint:
        try:
            checkpoint = self._store.load()
        except DamagedCheckpointError as error:
            aside, self._damaged = self._store.set_aside()
            self._problems.append(
                f"The checkpoint {self._store.path} is damaged: {error}. It was copied to {aside}, and the state is "
                "rebuilt from the CDI specs, the kubelet and the API server."
            )
            return self._rebuild()
        if checkpoint is None:
            return self._rebuild()
        if checkpoint.boot_id != self._boot_id:
            if notes is not None:
                count = len(checkpoint.claims)
                notes.append(f"The node was rebooted: {count} prepared claims are not prepared any more.")
            checkpoint = Checkpoint(self._boot_id)
            self._store.save(checkpoint)
        return checkpoint

    def _rebuild(self) -> Checkpoint:
        """Build a state from the CDI specs of this boot, and save it. Claims without a spec may be missing in it."""
        claims: dict[str, PreparedClaim] = {}
        try:
            uids = self._specs.uids()
        except OSError as error:
            self._problems.append(f"The CDI specs cannot be listed: {error}.")
            uids = []
        for uid in uids:
            try:
                claims[uid] = self._specs.read(uid)
            except (cdi.DamagedSpecError, OSError) as error:
                self._problems.append(f"{error}.")
        count = max((claim.number for claim in claims.values()), default=0)
        checkpoint = Checkpoint(self._boot_id, claims, incomplete=True, count=count)
        self._store.save(checkpoint)
        return checkpoint

    def _align(self, checkpoint: Checkpoint) -> list[str]:
        """Write missing CDI specs and remove those without a claim. An error is a problem: `mend` writes them later."""
        notes = []
        try:
            for uid in self._specs.uids():
                # While claims may be missing, a spec without a claim may belong to a claim that is not restored yet.
                known = checkpoint.claims.get(uid)
                if (known is None and not checkpoint.incomplete) or (known is not None and known.has_ended):
                    self._specs.remove(uid)
                    notes.append(f"The CDI spec of claim {uid}, which is not prepared, was removed.")
            for claim in checkpoint.claims.values():
                if not claim.has_ended:
                    self._specs.ensure(claim)
        except OSError as error:
            self._problems.append(f"The CDI specs cannot be brought up to date: {error}.")
        return notes


def answers(claim: PreparedClaim) -> tuple[DeviceAnswer, ...]:
    """The answers to the kubelet for a prepared claim; always the same."""
    return tuple(
        DeviceAnswer(
            device.parent_request,
            device.pool,
            device.device,
            cdi.device_ids(claim, position),
            device.share.id if device.share is not None else None,
        )
        for position, device in enumerate(claim.devices)
    )


def _is_restored_as(before: PreparedClaim, claim: AllocatedClaim, view: NodeView) -> bool:
    """Whether a claim, of which a lost state left devices only, has all of them still, and no part of a device."""
    shares = any(device.share_id for device in claim.devices)
    return not before.allocation and not shares and before.held <= undecided(claim, view).held


def _refuse_unknown(claim: PreparedClaim) -> None:
    """While claims may be missing, any device may be in use."""
    device = next((device.device for device in claim.devices if not device.admin_access), None)
    if device is not None:
        raise DeviceHeldError(
            f"Device {device} may be in use: the driver still restores which claims are prepared, because its state "
            "was lost. The kubelet tries again by itself."
        )


def _restored(
    claim: AllocatedClaim, used: PreparedClaim, others: Others, view: NodeView, told: Told
) -> tuple[PreparedClaim | None, str]:
    """A claim of the API server as it was prepared, or else as a claim that holds its devices; and why, if else.

    Args:
        used: the claim as the kubelet tells it.

    Returns:
        None if it holds no device, or if others hold its devices.
    """
    as_it_was = as_told(claim, told.variables(claim.uid) or {}, view)
    # Devices of which a claim has unknown cores are left out: they must not keep another claim from its known cores.
    known = (
        dataclasses.replace(each, devices=tuple(device for device in each.devices if not device.in_doubt))
        for each in others.claims
    )
    try:
        found = decide(claim, view, dataclasses.replace(others, claims=(*known, as_it_was)))
    except PrepareError as error:
        # With adminAccess it holds no device. Else, as while nodes elect, its pod may use them.
        lost = any(device.admin_access for device in claim.devices)
        lost = lost or (isinstance(error, DeviceHeldError) and others.hold(used))
        return None if lost else used, f"Claim {claim.namespace}/{claim.name} cannot be restored: {error}"
    # Its containers may have other cores than those that are free now.
    return found if _cores(found) == _cores(as_it_was) else undecided(claim, view), ""


def _cores(claim: PreparedClaim) -> dict[str, tuple[int, ...] | None]:
    """By the id of the share."""
    return {each.share.id: each.cores for each in claim.devices if each.share is not None}


def _ended(uid: str, indices: Iterable[int], view: NodeView, claim: AllocatedClaim | None) -> PreparedClaim:
    devices = tuple(undecided_device("", device_name(index), "", None, view) for index in sorted(indices))
    namespace, name = (claim.namespace, claim.name) if claim is not None else ("", "")
    return PreparedClaim(uid_before(uid), namespace, name, "", devices)


def devices_held(claims: Mapping[str, PreparedClaim]) -> int:
    """Number of devices that prepared claims hold; `adminAccess` does not hold a device."""
    return len(frozenset().union(*(claim.held for claim in claims.values())))
