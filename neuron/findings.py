"""Findings: errors, warnings and notes with code, field path, message, value and fix.

`CODES` lists each stable code once; `docs/errors.md` explains each.
"""

import dataclasses
import difflib
import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

MOST_QUOTED: Final = 100
"""Characters of a value that a message quotes, and of `Finding.value`."""
MOST_SHOWN: Final = 64
"""Findings of one kind (errors, or all others) in one answer."""
MOST_COLLECTED: Final = 256
"""Findings of one kind that are kept for one object. The others are counted."""
LONGEST_PATH: Final = 512
LONGEST_MESSAGE: Final = 5 * 1024
"""Characters; as for a ValidatingAdmissionPolicy (admissionregistration/v1, `messageExpression`)."""
LONGEST_FIX: Final = 1024

_CODE: Final = re.compile(r"(?<![A-Za-z0-9])(NEU[0-9]{3})(?=: )")
_LONGEST_WORD: Final = 128
_SIMILARITY: Final = 0.7
_MOST_CANDIDATES: Final = 64
"""Known words with which one word is compared: each comparison takes up to 0.2 ms."""


def short(text: str, most: int = MOST_QUOTED) -> str:
    """The text, or its beginning and an ellipsis: at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quoted(value: object, most: int = MOST_QUOTED) -> str:
    """`ascii(value)` for a message, at most `most` characters."""
    if isinstance(value, str | bytes):
        value = value[: most + 1]  # An escape is longer than its character.
    elif isinstance(value, int) and value.bit_length() > _LARGEST_NUMBER:
        return "a number of more than 1000 digits"  # str() raises for more than 4300 digits.
    text = ascii(value)
    return text if len(text) <= most else f"{text[: most - 2]}…{text[-1]}"


_LARGEST_NUMBER: Final = 3322
"""Bits of a number of 1000 digits."""


class Severity(enum.StrEnum):
    """Effect of a finding on the request."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    """Neither refuses nor warns; for reports."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One error, warning or note about one field.

    Attributes:
        code: stable code, a key of `CODES`.
        path: field path as Kubernetes writes it, e.g. `spec.containers[0].resources.limits[aws.amazon.com/neuron]`.
        message: one sentence that stands alone and contains the offending value.
        fix: one sentence that says what to do; empty if the message says it.
        value: the offending value as the user wrote it, for programs.
        severity: error, warning or note.
        misspelt: whether the message suggests a known word.

    Texts are cut to `LONGEST_PATH`, `LONGEST_MESSAGE`, `LONGEST_FIX` and `MOST_QUOTED`, so that findings do not become
    many times as large as the object.
    """

    code: str
    path: str
    message: str
    fix: str = ""
    value: str = ""
    severity: Severity = Severity.ERROR
    misspelt: bool = False

    def __post_init__(self) -> None:
        """Cut texts that are too long."""
        if (
            len(self.path) > LONGEST_PATH
            or len(self.message) > LONGEST_MESSAGE
            or len(self.fix) > LONGEST_FIX
            or len(self.value) > MOST_QUOTED
        ):
            object.__setattr__(self, "path", short(self.path, LONGEST_PATH))
            object.__setattr__(self, "message", short(self.message, LONGEST_MESSAGE))
            object.__setattr__(self, "fix", short(self.fix, LONGEST_FIX))
            object.__setattr__(self, "value", short(self.value))

    def __str__(self) -> str:
        """Code, message and fix, as kubectl and Events show them."""
        return f"{self.code}: {self.message} {self.fix}".rstrip()


def warning(code: str, path: str, message: str, fix: str = "", value: str = "") -> Finding:
    """A finding that refuses nothing."""
    return Finding(code, path, message, fix, value, Severity.WARNING)


def as_warning(finding: Finding) -> Finding:
    """The finding with severity warning."""
    return dataclasses.replace(finding, severity=Severity.WARNING)


class Findings:
    """Findings about one object, each once and in order. Keeps the first `most` of a kind and counts the others.

    Errors and all others are counted separately, so that many warnings cannot hide an error.
    """

    def __init__(self, found: Iterable[Finding] = (), most: int = MOST_COLLECTED) -> None:
        """Keep `most` errors and `most` others."""
        self._most = most
        self._kept: dict[Finding, None] = {}
        self._errors = self._others = 0
        self._beyond: dict[bool, Finding] = {}
        if found != ():
            self.add(found)

    def add(self, found: Iterable[Finding]) -> None:
        """Add findings."""
        for finding in found:
            is_error = finding.severity is Severity.ERROR
            if (self._errors if is_error else self._others) >= self._most:
                self._beyond.setdefault(is_error, finding)
            elif finding in self._kept:
                continue
            else:
                self._kept[finding] = None
            if is_error:
                self._errors += 1
            else:
                self._others += 1

    def add_at(self, found: Iterable[Finding], path: str) -> None:
        """Add findings with another path. Copies only those that are kept."""
        for finding in found:
            if (self._errors if finding.severity is Severity.ERROR else self._others) < self._most:
                self.add([dataclasses.replace(finding, path=path)])
            else:
                self.add([finding])

    def __iter__(self) -> Iterator[Finding]:
        """The kept findings, and one for each kind with more: their number."""
        if not self._beyond:
            return iter(self._kept)
        counts = {True: self._errors, False: self._others}
        more = [_more(first, counts[is_error] - self._most) for is_error, first in self._beyond.items()]
        return iter([*self._kept, *more])

    def __len__(self) -> int:
        """Number of findings that were added."""
        return self._errors + self._others


def for_answer(findings: Iterable[Finding], most: int = MOST_SHOWN) -> tuple[Finding, ...]:
    """At most `most` findings; the last one has the number of those left out."""
    found = tuple(findings)
    return found if len(found) <= most else (*found[: most - 1], _more(found[most - 1], len(found) - most + 1))


def _more(first: Finding, count: int) -> Finding:
    """Replaces findings that are left out, with code and severity of the first of them."""
    message = f"and {count} more finding{'s' if count > 1 else ''} like this; correct those that are shown first."
    return dataclasses.replace(first, path="", message=message, fix="", value=str(count), misspelt=False)


def few(items: Sequence[str], most: int) -> str:
    """The first of these items, and how many more there are, for a message."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question with the closest known word, or an empty text: ` Did you mean 'trn2.48xlarge'?`."""
    close = closest_word(word, known)
    return f" Did you mean '{short(close)}'?" if close else ""


def closest_word(word: str, known: Iterable[str]) -> str:
    """The closest known word, or an empty text.

    Of more than `_MOST_CANDIDATES` known words it compares those with the longest common prefix.
    """
    # Comparison takes quadratic time, and a text this long is not a misspelt name.
    if not word or len(word) > _LONGEST_WORD:
        return ""
    candidates = list(known)
    if len(candidates) > _MOST_CANDIDATES:
        candidates.sort(key=lambda each: -_common_start(word, each))
        del candidates[_MOST_CANDIDATES:]
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=_SIMILARITY)
    return close[0] if close else ""


def _common_start(one: str, other: str) -> int:
    """Length of the common prefix of two words."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def known_codes(text: str) -> list[str]:
    """Codes of findings in a text that is not trusted: only those that exist, as findings are printed (`NEU105: `)."""
    return list(dict.fromkeys(code for code in _CODE.findall(text) if code in CODES))


CODES: Final = {
    # 1xx: requests of a pod
    "NEU101": "A Neuron resource quantity is not a whole number of devices or cores",
    "NEU102": "A Neuron resource is requested without a limit",
    "NEU103": "A Neuron resource request differs from its limit",
    "NEU104": "One container asks for both devices and cores",
    "NEU105": "No candidate instance type serves this number of devices",
    "NEU106": "No candidate instance type has this many devices or cores",
    "NEU108": "The pod asks for more than one ResourceClaim can hold",
    "NEU109": "An annotation has a value that is not allowed",
    "NEU110": "Node selection excludes every instance type that could serve the pod",
    "NEU111": "The logical NeuronCore setting does not exist on the candidate instance types",
    "NEU112": "An UltraServer needs the whole node",
    "NEU113": "The names for the pod's Neuron claim are taken",
    "NEU114": "The object is not a readable Pod",
    "NEU115": "The Neuron devices of a converted pod cannot change",
    "NEU118": "The UltraServer nodes publish another kind of device than the pod needs",
    "NEU120": "A policy names a ResourceClaimTemplate that does not exist",
    "NEU121": "A ResourceClaimTemplate that a policy names does not serve the pod",
    "NEU122": "Another ResourceClaimTemplate has the name of one that a policy carries",
    "NEU123": "A claim can get devices that a locked policy does not allow",
    "NEU124": "A claim sets another logical NeuronCore than a locked policy",
    "NEU125": "EFA interfaces do not fit into the claim of the Neuron devices",
    # 2xx: warnings of conversion
    "NEU201": "A pod with nodeName is not converted",
    "NEU202": "More cores are allocated than were asked for",
    "NEU203": "A custom scheduler may not know DRA",
    "NEU204": "A legacy ResourceQuota does not count the converted pod",
    "NEU205": "A LimitRange refuses the converted pod",
    "NEU206": "The pod also claims Neuron devices itself",
    "NEU207": "A dry run created no ResourceClaimTemplate",
    "NEU208": "Shadow mode: nothing was changed",
    "NEU209": "One container refers to the claim more than once",
    "NEU210": "The pod was admitted unchanged because its ResourceClaimTemplate could not be made",
    "NEU211": "The record of a conversion is not readable",
    "NEU212": "The exclusive topology of a LeaderWorkerSet does not fit its UltraServer mode",
    "NEU213": "Instance types that need other requests are left out",
    "NEU214": "A locked policy overrules an annotation",
    "NEU215": "Devices of one container need not be connected",
    "NEU216": "Nothing says which instance types there are",
    "NEU217": "A value of the node selection is taken as a hint to families",
    "NEU218": "An instance type, or the number of its devices, is not known",
    "NEU219": "Some runs of consecutive devices are not tried",
    "NEU220": "An object with Neuron limits was left as it is",
    "NEU221": "The name of a resource looks like a Neuron resource and is none",
    "NEU222": "A key looks like one that is read, and is none",
    "NEU230": "A ResourceClaimTemplate that a policy names was not checked",
    "NEU231": "EFA interfaces stay a limit because their DeviceClass does not exist",
    "NEU232": "A queue or a limit does not count converted pods",
    "NEU240": "Shadow mode: a claim was not enriched",
    "NEU241": "A claim with class and count stays as it is",
    # 3xx: ResourceClaimTemplates
    "NEU301": "The API server refused to create the ResourceClaimTemplate",
    "NEU302": "The API server cannot be reached",
    "NEU303": "A foreign ResourceClaimTemplate has the name of ours",
    # 4xx: opaque configs
    "NEU401": "An opaque config is not readable JSON",
    "NEU402": "An opaque config is not a JSON object",
    "NEU403": "An opaque config is larger than Kubernetes allows",
    "NEU404": "An opaque config has a field twice",
    "NEU405": "The apiVersion of an opaque config is missing or unknown",
    "NEU406": "The kind of an opaque config is missing or unknown",
    "NEU407": "An opaque config has an unknown field",
    "NEU408": "An opaque config lacks its setting",
    "NEU409": "A field of an opaque config has the wrong type",
    "NEU410": "A setting of an opaque config has a value that does not exist",
    "NEU411": "An opaque config has an older apiVersion",
    "NEU412": "The instance type does not have this logical NeuronCore setting",
    "NEU413": "The instance type does not have this UltraServer mode",
    "NEU414": "An UltraServerConfig applies to a device that is no whole node",
    # 5xx: claims, templates and DeviceClasses
    "NEU501": "A field of a claim or DeviceClass is unknown",
    "NEU502": "A field of a claim or DeviceClass is missing or has the wrong type",
    "NEU503": "The apiVersion of a claim or DeviceClass is unknown",
    "NEU504": "A request has neither or both of one request and alternatives",
    "NEU505": "The name of a request is malformed or taken",
    "NEU506": "An allocation mode does not exist",
    "NEU507": "A count and its allocation mode do not fit",
    "NEU508": "A constraint or config names a request that does not exist",
    "NEU509": "A list is longer than Kubernetes allows",
    "NEU510": "Two configs of one kind disagree about a request",
    "NEU511": "A config is for a driver whose devices are not requested",
    "NEU512": "The driver of a config is misspelt",
    "NEU513": "A DeviceClass does not exist",
    "NEU514": "Some of the instance types that a request admits do not have a setting",
    "NEU520": "An instance type does not support this number of devices",
    "NEU521": "More devices are requested than one node has",
    "NEU522": "More devices are to be connected than a group has",
    "NEU523": "No admitted device has the attribute of a constraint",
    "NEU524": "Nothing keeps the devices of a request connected",
    "NEU525": "A number of devices is not sure to be connected",
    "NEU526": "More devices are requested than a claim can hold",
    "NEU527": "The requests of a claim have no instance type in common",
    "NEU528": "An alternative of a request can never be chosen",
    "NEU529": "The attribute of a constraint has no domain",
    "NEU530": "A list is too long to be judged",
    "NEU531": "No admitted device has a capacity",
    "NEU532": "More of a capacity is requested than a device has",
    "NEU533": "A share of cores is rounded up",
    "NEU534": "A share has no cores",
    "NEU535": "A share is not a whole number of logical cores",
    "NEU536": "allocationMode All leaves out shared devices that are in use",
    "NEU537": "adminAccess fails on shared devices that are used up",
    "NEU538": "No device that the cluster publishes now has the attribute of a constraint",
    "NEU539": "Cores are requested of devices that are not shared",
    "NEU540": "adminAccess waits for free devices where they consume shared counters",
    "NEU541": "A constraint fails beside devices in use where they consume shared counters",
    "NEU542": "The search for the devices of a claim costs the scheduler seconds",
    "NEU543": "More EFA interfaces are tied to devices than their group has",
    "NEU544": "adminAccess gives a claim devices that other claims hold",
    "NEU545": "A DeviceTaintRule may taint other devices than it should",
    "NEU546": "A DeviceTaintRule is not valid",
    # 6xx: device selectors
    "NEU601": "A device selector is not CEL",
    "NEU602": "A device selector can never be evaluated",
    "NEU603": "A device selector was not checked",
    "NEU604": "A device selector is too long",
    "NEU605": "A device selector costs too much",
    "NEU606": "No Neuron device has an attribute or a capacity",
    "NEU607": "An attribute is compared with a value of another type",
    "NEU608": "The Neuron driver version is no semantic version",
    "NEU609": "An attribute or a capacity is read without a guard",
    "NEU610": "No device matches the selectors of a request",
    "NEU611": "A device selector fails on devices",
    "NEU612": "No device that the cluster publishes now matches",
    # 7xx: pods and workloads
    "NEU701": "The pods of a workload would be refused",
    "NEU702": "No container refers to a claim of the pod",
    "NEU703": "A container refers to a claim that the pod does not declare",
    "NEU704": "A pod asks for Neuron devices in both ways",
    "NEU705": "A ResourceClaimTemplate does not exist",
    "NEU706": "A ResourceClaim does not exist",
    "NEU707": "A converted pod has lost its claim",
    "NEU708": "A container refers to a request that its claim does not have",
    "NEU709": "Devices that one container uses together are not connected",
    "NEU710": "The size of a LeaderWorkerSet does not fit its UltraServer mode",
    "NEU711": "Pod templates of a workload were not checked",
    "NEU712": "A claim of a PodGroup is not valid",
    "NEU713": "A pod does not share the claim of its PodGroup",
    "NEU714": "A converted pod shares the claim of its PodGroup",
    "NEU715": "A field of an object of AWS's UltraServer operator is not valid",
    "NEU716": "An API version is none of AWS's UltraServer operator",
    "NEU720": "An API version is not served by every cluster",
    # 8xx: policy files
    "NEU801": "A policy refuses the object",
    "NEU802": "A policy warns of the object",
    "NEU803": "A policy could not be evaluated",
    "NEU804": "A policy's exception ends soon",
    "NEU805": "A policy notes the object",
    # 9xx: reports
    "NEU901": "A container pins its cores",
    "NEU903": "Karpenter makes the nodes of the pods",
    "NEU904": "No node can serve the claim of a workload",
}
