"""What is fuzzed: functions that take any bytes and raise only if our code is wrong.

Each target calls the real reader. The errors that a reader documents are results; any other exception, and any broken
property, is a finding.
"""

import asyncio
import copy
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import jsonpatch
import msgspec

from commands.objects.documents import ManifestError
from commands.objects.text_edits import apply
from commands.rewrite.yaml_edits import EditError, edit
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision, Outcome
from kubecel.budget import Budget, Limits
from kubecel.checking import UNLIMITED, CostLimit
from kubecel.compile import Cel
from kubecel.errors import CelError
from kubecel.types import DYN
from kubecel_tests.evaluating import frozen_clock
from kubecel_tests.random_expressions import Generator, Numbers
from kubecel_tests.record_answers import POD
from kubeletplugin.discover import sysfs
from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare import checkpoint
from kubeletplugin.prepare.cdi import DamagedSpecError, SpecFiles
from neuron import quantities
from neuron.api import allocation, configs
from neuron.hardware.instances import Catalogue
from policies.files.folders import PolicyError
from policies.files.loader import load
from tests.attacks import worst_pods
from tests.support.clusters import mutator
from tests.support.converting import convert_texts, documents
from tests.support.trainium import trainium
from tests.support.validation import judge
from webhook.edge import reviews
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import LARGE_OBJECT
from webhook.server.standalone import StandaloneBackend

LEGACY: Final = ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore")
_OURS: Final = ("metadata", "spec")
UID: Final = "6ac1d2a5-9a9c-4f61-8d2e-0d4d6a4ad6a1"

_loop: Final = asyncio.new_event_loop()


def review(data: bytes) -> None:
    """Any body is a readable review or a documented error; the answer is JSON and has the review's uid."""
    try:
        request = reviews.decode(data)
    except (reviews.BadReviewError, reviews.UnreadableReviewError):
        return
    for decision in (_mutated(request), _validated(request)):
        answer = json.loads(reviews.encode(request, decision))
        assert answer["response"]["uid"] == request.uid
        assert len(json.dumps(answer)) < 2 * 1024 * 1024


def pod(data: bytes) -> None:
    """The patch gives the intended object: no legacy name, all other fields as they were, and no second patch."""
    manifest = _json_object(data)
    if manifest is None:
        return
    try:
        request = reviews.decode(_review_of(manifest))
    except (reviews.BadReviewError, reviews.UnreadableReviewError):
        return
    decision = _mutated(request)
    if not decision.patch:
        return
    assert decision.outcome is not Outcome.DENIED
    patched = jsonpatch.apply_patch(copy.deepcopy(manifest), list(decision.patch))
    for container in _containers(patched):
        for kind in ("limits", "requests"):
            assert not set(LEGACY) & set(((container.get("resources") or {}).get(kind)) or {}), container
    assert {key: value for key, value in patched.items() if key not in _OURS} == {
        key: value for key, value in manifest.items() if key not in _OURS
    }
    assert [_without_resources(each) for each in _containers(patched)] == [
        _without_resources(each) for each in _containers(manifest)
    ]
    again = _mutated(reviews.decode(_review_of(patched)))
    assert not again.patch, again
    assert again.outcome is not Outcome.DENIED, again


def claim(data: bytes) -> None:
    """Any spec of a claim is read and judged; a finding is one line with a code."""
    spec = _json_object(data)
    if spec is None:
        return
    for version in ("v1", "v1beta1"):
        for finding in judge(spec, api_version=f"resource.k8s.io/{version}"):
            assert str(finding).startswith("NEU")
            assert len(str(finding)) < 16 * 1024


def allocated(data: bytes) -> None:
    """Any allocated claim is read, or refused with a sentence."""
    content = _json_object(data)
    if content is None:
        return
    try:
        allocation.read_allocation(content, "neuron.aws.com", "node-1", UID)
    except allocation.AllocationError as error:
        _check_message(error)


def opaque_config(data: bytes) -> None:
    """Any parameters are decoded to a config or to findings, never to neither."""
    decoded = configs.decode_text(data)
    assert decoded.config is not None or decoded.findings


def quantity(data: bytes) -> None:
    """Canonical quantities have the value of what was written."""
    text = data.decode("utf-8", "replace")
    try:
        amount = quantities.parse_amount(text)
    except quantities.NotAQuantityError:
        return
    assert isinstance(amount, Decimal)
    assert quantities.parse_amount(quantities.canonical(text)) == amount


def cel(data: bytes) -> None:
    """Any expression gives a value or an error with a position, within its budget."""
    source = data.decode("utf-8", "surrogateescape")
    try:
        program = Cel(Limits()).compile(source, {"object": DYN, "params": DYN})
        program.evaluate({"object": {"a": [1, "b", None, {"c": 2.5}]}, "params": {}}, Budget(time.monotonic))
    except CelError as error:
        _check_message(error)


def cel_random(data: bytes) -> None:
    """An expression of fitting types has the same value at the same cost again, or an error with a position.

    `make cel-oracle` compares the expressions that the fuzzer keeps with an API server.
    """
    source = Generator(Numbers(data)).one()
    variables = {"object": POD, "oldObject": None}
    try:
        program = Cel(Limits()).compile(
            source, dict.fromkeys(variables, DYN), limit=CostLimit(UNLIMITED, lambda _: None)
        )
        budgets = Budget(frozen_clock), Budget(frozen_clock)
        first, again = (program.evaluate(variables, budget) for budget in budgets)
    except CelError as error:
        _check_message(error)
        return
    assert repr(first) == repr(again)
    assert budgets[0].spent == budgets[1].spent


def policy_file(data: bytes) -> None:
    """Any file is a set of policies, or a list of problems with file and line."""
    try:
        load({"a.yaml": data}, run_tests=False)
    except PolicyError as error:
        _check_problems(error)


def manifest_file(data: bytes) -> None:
    """Conversion of any file keeps the meaning of what it does not convert, and its output can be read."""
    try:
        documents(data)
    except ManifestError as error:
        _check_message(error)
        return
    converted = convert_texts(data.decode())
    json.loads(converted.json)
    documents(converted.yaml)


def yaml_edit(data: bytes) -> None:
    """An edit in place gives exactly the wanted data or raises an error."""
    try:
        found = documents(data)
    except ManifestError:
        return
    for document in found:
        if document.root is None or document.data is None:
            continue
        wanted = copy.deepcopy(document.data)
        wanted["added"] = {"by": ["the", "edit"]}
        for key in list(wanted)[:1]:
            del wanted[key]
        try:
            splices = edit(document.text, document.root, wanted)
        except EditError:
            continue
        (edited,) = documents(apply(document.text, splices))
        assert edited.data == wanted


def sysfs_files(data: bytes) -> None:
    """Any content of the kernel driver's files is read without an error."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-sysfs-"))
    try:
        device = root / sysfs.DEVICES / "neuron0"
        (device / "info").mkdir(parents=True)
        (root / sysfs.PRODUCT_NAME).parent.mkdir(parents=True)
        parts = data.split(b"\0")
        names = (root / sysfs.PRODUCT_NAME, *(device / name for name in _DEVICE_FILES))
        for path, content in zip(names, parts, strict=False):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        hardware = sysfs.discover(root, root / "dev")
        assert len(hardware.devices) <= 1
    finally:
        shutil.rmtree(root)


_DEVICE_FILES: Final = (
    "core_count",
    "connected_devices",
    "info/serial_number",
    "stats/hardware/sram_ecc_uncorrected",
    "unhealthy_components",
)


def checkpoint_file(data: bytes) -> None:
    """Any content, also with the right checksum, is written as it was read, or is reported as damaged."""
    digest = hashlib.sha256(data).hexdigest().encode()
    sealed = b'{"apiVersion":"%s","kind":"%s","checksum":"sha256:%s","data":%s}' % (
        checkpoint.API_VERSION.encode(),
        checkpoint.KIND.encode(),
        digest,
        data,
    )
    for content in (data, sealed):
        try:
            read = checkpoint.decode(content)
        except checkpoint.DamagedCheckpointError:
            continue
        assert checkpoint.decode(checkpoint.encode(read)) == read


def cdi_file(data: bytes) -> None:
    """Any CDI spec of ours is read back, or is reported as damaged."""
    with tempfile.TemporaryDirectory(prefix="fuzz-cdi-") as name:
        files = SpecFiles(DiskFiles(), Path(name), "boot")
        files.path(UID).write_bytes(data)
        try:
            assert files.read(UID).uid == UID
        except DamagedSpecError as error:
            _check_message(error)


def work_on_the_loop(data: bytes) -> None:
    """No pod of at most 8 KiB takes much work on the event loop, counted in calls of functions."""
    shape = worst_pods.from_bytes(data)
    if len(json.dumps(shape.pod())) <= LARGE_OBJECT:
        calls = _work.on_the_loop(shape)
        assert calls < worst_pods.MOST_CALLS, (calls, shape)


_work: Final = worst_pods.Work()

TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "allocated": allocated,
    "cdi": cdi_file,
    "cel": cel,
    "cel-random": cel_random,
    "checkpoint": checkpoint_file,
    "claim": claim,
    "config": opaque_config,
    "manifests": manifest_file,
    "pod": pod,
    "policies": policy_file,
    "quantity": quantity,
    "review": review,
    "sysfs": sysfs_files,
    "work": work_on_the_loop,
    "yaml-edit": yaml_edit,
}


def _mutated(request: AdmissionRequest) -> Decision:
    return _loop.run_until_complete(mutator().review(request))


def _validated(request: AdmissionRequest) -> Decision:
    return _loop.run_until_complete(Validator(trainium(), Catalogue(), StandaloneBackend().view).review(request))


def _review_of(manifest: Any) -> bytes:
    return json.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "operation": "CREATE",
                "namespace": "team-a",
                "userInfo": {},
                "object": manifest,
            },
        }
    ).encode()


def _check_message(error: Exception) -> None:
    assert str(error)


def _check_problems(error: PolicyError) -> None:
    assert error.problems
    assert {problem.file for problem in error.problems} == {"a.yaml"}


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _containers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    spec = manifest["spec"]
    return [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]


def _without_resources(container: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in container.items() if key not in ("resources", "env")}
