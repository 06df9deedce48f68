import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import forked
from tests.support.diffs import patched
from tests.support.invoking import invoke
from tests.support.trainium import ENVIRONMENT

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  containers:
  - name: main
    image: app:1  # pinned
    resources:
      limits:
        aws.amazon.com/neuron: {count}
"""
HEAVY = (
    "uvicorn",
    "starlette",
    "pydantic",
    "kubernetes",
    "aiohttp",
    "prometheus_client",
    "grpc",
    "celpy",
    "cryptography",
)


def legacy(name: str = "train", count: object = 4) -> str:
    return POD.format(name=name, count=count)


def run_convert(
    directory: Path, *arguments: str, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, in a directory."""
    variables = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(Path.cwd()), **environment}
    return forked.run("commands", ["convert", *arguments], cwd=directory, environment=variables, stdin=stdin)


def messages_of(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stderr.decode().splitlines()


def kinds(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return [line.removeprefix("kind: ") for line in done.stdout.decode().splitlines() if line.startswith("kind: ")]


def test_a_converted_file_can_be_applied_by_kubectl(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(legacy())
    done = run_convert(tmp_path, "-f", "pod.yaml")
    assert (done.returncode, done.stderr) == (0, b"")
    template, _, pod = done.stdout.decode().partition("---\n")
    assert "kind: ResourceClaimTemplate" in template
    assert "    image: app:1  # pinned\n    resources:\n      claims:\n      - name: neuron\n" in pod


def test_standard_input_is_read_and_its_output_can_be_read_again(tmp_path: Path) -> None:
    once = run_convert(tmp_path, "-f", "-", stdin=legacy().encode())
    assert kinds(once) == ["ResourceClaimTemplate", "Pod"]
    assert run_convert(tmp_path, "-f", "-", stdin=once.stdout).stdout == once.stdout
    assert run_convert(tmp_path, "-f", "-", "-o", "diff", stdin=once.stdout).stdout == b""


def test_directories_are_read_recursively_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a/z.yml", "a/b.json", "c.txt", ".hidden.yaml", ".git/config.yaml"):
        file = tmp_path / "all" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shown = name.replace("/", "-").removeprefix(".")
        text = legacy(shown)
        file.write_text(
            json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": shown}}) if "json" in name else text
        )
    done = run_convert(tmp_path, "-f", "all", "-o", "json")
    found = [item["metadata"]["name"] for item in json.loads(done.stdout)["items"] if item["kind"] == "Pod"]
    assert found == ["a-b.json", "a-z.yml", "b.yaml"]


def test_a_file_that_is_named_twice_is_converted_once(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(legacy())
    done = run_convert(
        tmp_path, "-f", "pod.yaml", "-f", ".", "-f", "./pod.yaml", "-f", "-", "-f", "-", stdin=legacy("other").encode()
    )
    assert kinds(done) == ["ResourceClaimTemplate", "Pod", "Pod"]


def test_files_are_joined_to_one_stream(tmp_path: Path) -> None:
    (tmp_path / "1.yaml").write_bytes(b"\xef\xbb\xbf" + legacy("one", 1).rstrip().encode())
    (tmp_path / "2.yaml").write_text(f"# two\n---\n{legacy('two', 7)}")
    (tmp_path / "3.yaml").write_bytes(b"\xef\xbb\xbf" + legacy("three", 7).encode())
    done = run_convert(tmp_path, "-f", ".")
    text = done.stdout.decode()
    assert text.startswith("\ufeffapiVersion: resource.k8s.io/v1\n")
    assert text.endswith(f"\n---\n# two\n---\n{legacy('two', 7)}---\n{legacy('three', 7)}")
    assert text.count("\ufeff") == 1


def test_documents_that_kubectl_cannot_read_in_a_stream_are_rewritten(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"kind": "A", "apiVersion": "v1", "a": "\\ud83d\\ude00\\/"}')
    (tmp_path / "2.yaml").write_text("# c\n%YAML 1.1\n# d\n---\nkind: B\napiVersion: v1\n")
    (tmp_path / "3.yaml").write_text("--- {kind: C, apiVersion: v1}\n")
    (tmp_path / "4.yaml").write_text("%TAG !k! tag:yaml.org,2002:\n---\nkind: D # d\napiVersion: !k!str 1\n")
    done = run_convert(tmp_path, "-f", ".")
    assert done.stdout.decode() == (
        '---\n{"kind": "A", "apiVersion": "v1", "a": "😀/"}\n'
        "---\n# c\n# d\n---\nkind: B\napiVersion: v1\n"
        "---\n{kind: C, apiVersion: v1}\n"
        '---\nkind: D\napiVersion: "1"\n'
    )
    alone = run_convert(tmp_path, "-f", "1.json")
    assert alone.stdout == (tmp_path / "1.json").read_bytes()


def test_the_diff_of_every_file_applies_to_it(tmp_path: Path) -> None:
    files = {
        "a b.yaml": f"%YAML 1.1\n---\n{legacy()}",
        "dir/crlf.yaml": legacy("crlf").replace("\n", "\r\n"),
        "dir/list.json": json.dumps({"kind": "Pod", "apiVersion": "v1", "spec": {"containers": []}}),
        "dir/pods.json": json.dumps(json.loads(_json_pod()), indent=2) + _json_pod(),
        "last.yaml": f"a: 1\n...\n{legacy('last', 1)}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    done = run_convert(tmp_path, "-f", ".", "-o", "diff")
    diffs = done.stdout.decode().split("--- a/")[1:]
    assert [each.partition("\n")[0].rstrip("\t") for each in diffs] == [
        *("a b.yaml", "dir/crlf.yaml", "dir/pods.json", "last.yaml")
    ]
    for each in diffs:
        name = each.partition("\n")[0].rstrip("\t")
        (tmp_path / name).write_bytes(patched(files[name], f"--- a/{each}").encode())
    assert run_convert(tmp_path, "-f", ".", "-o", "diff").stdout == b""
    assert (tmp_path / "dir/pods.json").read_text().startswith("{\n  ")


def _json_pod() -> str:
    container = {"name": "m", "resources": {"limits": {"aws.amazon.com/neuron": 4}}}
    return json.dumps(
        {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "j"}, "spec": {"containers": [container]}}
    )


def test_a_diff_of_files_elsewhere_names_the_directory_to_apply_it_in(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "pod.yaml").write_text(legacy())
    elsewhere = run_convert(tmp_path / "in", "-f", "../pod.yaml", "-o", "diff")
    assert elsewhere.stdout.startswith(b"--- a/pod.yaml\n")
    assert messages_of(elsewhere) == [f"The paths in the diff are relative to {tmp_path}: apply it there."]
    (tmp_path / "other.yaml").write_text("{apiVersion: v1, kind: Service, metadata: {name: s}}")
    unchanged = run_convert(tmp_path / "in", "-f", "../other.yaml", "-o", "diff")
    assert (unchanged.stdout, messages_of(unchanged)) == (b"", [])
    assert run_convert(tmp_path, "-f", str(tmp_path / "pod.yaml"), "-o", "diff").stdout.startswith(b"--- a/pod.yaml\n")
    assert run_convert(tmp_path, "-f", "-", "-o", "diff", stdin=legacy().encode()).stdout.startswith(b"--- a/stdin\n")


def test_json_output_is_one_list_of_all_objects(tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text(f"{legacy()}---\nnot: an object\n---\n{legacy('refused', 7)}")
    done = run_convert(tmp_path, "-f", "pods.yaml", "-o", "json")
    listed = json.loads(done.stdout)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    assert [(item["kind"], item["metadata"]["name"][:7]) for item in listed["items"]] == [
        *(("ResourceClaimTemplate", "neuron-"), ("Pod", "train"), ("Pod", "refused"))
    ]
    assert done.returncode == 1


REFUSAL = (
    "pods.yaml:11: [document 1, Pod seven] spec.containers[0].resources.limits[aws.amazon.com/neuron]: NEU105: Instance"
    " type trn1.32xlarge does not support requests for device: 7. Please request a different number of devices. Nearest"
    " valid counts: 4 or 8. Instance types that serve 7: inf2.48xlarge, inf1.24xlarge."
)


def test_a_refused_object_is_unchanged_and_the_rest_is_converted(tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text(f"{legacy('seven', 7)}---\n{legacy()}")
    done = run_convert(tmp_path, "-f", "pods.yaml")
    assert (done.returncode, messages_of(done)) == (1, [REFUSAL])
    assert done.stdout.decode().startswith(f"{legacy('seven', 7)}---\napiVersion: resource.k8s.io/v1\n")
    assert kinds(done) == ["Pod", "ResourceClaimTemplate", "Pod"]


def test_unreadable_files_are_reported_and_the_rest_is_converted(tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text(legacy("seven", 7))
    (tmp_path / "bad.yaml").write_text("# only\n---\nb: [\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.yaml").write_text("- a\n")
    names = ["bad.yaml", "pods.yaml", "empty", "list.yaml", "missing.yaml", ""]
    done = run_convert(tmp_path, *(part for name in names for part in ("-f", name)))
    assert done.returncode == 2
    assert messages_of(done) == [
        "bad.yaml:4:1: did not find expected node content while parsing a flow node.",
        "empty: It contains no file *.yaml, *.yml, *.json.",
        "list.yaml:1:1: the document is a list, not a mapping with apiVersion and kind.",
        "missing.yaml: No such file or directory.",
        ": A file name must not be empty.",
        REFUSAL,
    ]
    assert done.stdout.decode() == legacy("seven", 7)


def test_one_document_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(f"{legacy('seven', 7)}---\nb: [\n---\n{legacy('four', 4)}")
    done = run_convert(tmp_path, "-f", "bad.yaml")
    assert done.returncode == 2
    assert [line.partition(" ")[0] for line in messages_of(done)] == ["bad.yaml:14:1:", "bad.yaml:11:"]
    assert done.stdout.decode().startswith(f"{legacy('seven', 7)}---\nb: [\n---\napiVersion: resource.k8s.io/v1\n")
    assert "resourceClaimTemplateName: neuron-4-" in done.stdout.decode()


def test_a_directory_that_cannot_be_listed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(top: str, onerror: object) -> list[object]:
        assert callable(onerror)
        onerror(PermissionError(13, "Permission denied", f"{top}/locked"))
        return []

    # Root may list everything, so that no real directory would do.
    monkeypatch.setattr(os, "walk", walk)
    done = invoke("convert", "-f", tmp_path)
    assert (done.exit_code, done.stderr) == (2, f"{tmp_path}/locked: Permission denied.\n")


SETTINGS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "flag": (["--device-class", "flag.example"], {"NEURON_DRA_DEVICE_CLASS": "env.example"}, "flag.example"),
    "variable": (["--config", "config.yaml"], {"NEURON_DRA_DEVICE_CLASS": "env.example"}, "env.example"),
    "config-file": (["--config", "config.yaml"], {}, "config.example"),
    "mode-of-the-server": ([], {"NEURON_DRA_MODE": "off", "NEURON_DRA_PORT": "nonsense"}, "neuron.aws.com"),
}


@pytest.mark.parametrize(("flags", "environment", "device_class"), SETTINGS.values(), ids=SETTINGS)
def test_settings_of_the_webhook_apply(
    tmp_path: Path, flags: list[str], environment: dict[str, str], device_class: str
) -> None:
    (tmp_path / "config.yaml").write_text("deviceClass: config.example\nmode: shadow\n")
    done = run_convert(tmp_path, *flags, "-f", "-", stdin=legacy().encode(), **environment)
    assert f"deviceClassName: {device_class}\n" in done.stdout.decode()


@pytest.mark.parametrize(("flags", "requests"), [([], 6), (["--kubernetes-version", "1.36"], 4)])
def test_the_version_of_the_cluster_decides_whether_claims_are_divided(
    tmp_path: Path, flags: list[str], requests: int
) -> None:
    done = run_convert(tmp_path, *flags, "--families", "trn1", "-f", "-", stdin=legacy(count=16).encode())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"deviceClassName: ") == requests, done.stdout.decode()


def test_hints_can_be_switched_off_and_namespaces_left_out(tmp_path: Path) -> None:
    hints = ["--no-hint-affinity", "--no-hint-toleration", "--no-hint-scheduler"]
    done = run_convert(tmp_path, *hints, "-f", "-", stdin=f"{legacy()}  schedulerName: my-scheduler\n".encode())
    assert b"resourceClaims" in done.stdout
    assert b"schedulerName: my-scheduler\n" in done.stdout
    assert b"affinity" not in done.stdout
    assert b"tolerations" not in done.stdout
    text = legacy().replace("  name: train\n", "  name: train\n  namespace: kept\n")
    kept = run_convert(tmp_path, "--exclude-namespace", "kept", "-f", "-", stdin=text.encode())
    assert (kept.returncode, kept.stdout.decode()) == (0, text)
    assert messages_of(kept) == [
        "<stdin>:5: [document 1, Pod kept/train] metadata.namespace: not converted: namespace kept is excluded"
        " (--exclude-namespace)."
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Error: No manifests to convert: name files or directories, or - for standard input."),
        (
            ["-f", "-", "-o", "xml"],
            "Error: Invalid value for '-o' / '--output': 'xml' is not one of 'yaml', 'json', 'diff'.",
        ),
        (["-f", "-", "--device-class", "A B"], "Error: --device-class is 'A B', and must be a DNS subdomain."),
    ],
    ids=["no-file", "unknown-format", "bad-setting"],
)
def test_wrong_arguments_are_usage_errors(arguments: list[str], message: str) -> None:
    done = invoke("convert", *arguments)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1] == message


def closing(redirection: str, directory: Path) -> subprocess.CompletedProcess[bytes]:
    command = f'exec "{sys.executable}" -m commands convert -f "$0" {redirection}'
    argument = "-" if "<" in redirection else "pod.yaml"
    return subprocess.run(
        ["sh", "-c", command, argument],
        cwd=directory,
        capture_output=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(Path.cwd())},
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        (">/dev/full", "Error: Cannot write to standard output: No space left on device.\n"),
        (">&-", "Error: Standard output is closed.\n"),
        ("<&-", "<stdin>: Standard input is closed.\n"),
    ],
    ids=["full", "no-output", "no-input"],
)
def test_failed_standard_streams_are_reported(tmp_path: Path, redirection: str, message: str) -> None:
    (tmp_path / "pod.yaml").write_text(legacy())
    done = closing(redirection, tmp_path)
    assert (done.returncode, done.stderr.decode()) == (2, message)


def test_a_closed_output_pipe_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(legacy())
    done = closing("| :", tmp_path)
    assert done.stderr == b""


def test_a_thousand_documents_and_a_big_one_are_converted(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text("---\n".join(legacy(f"pod-{number}") for number in range(1000)))
    variables = "".join(f"    - name: V{number}\n      value: {'x' * 300}\n" for number in range(10_000))
    big = legacy("big").replace("    resources:", f"    env:\n{variables}    resources:")
    assert len(big) > 3 << 20
    (tmp_path / "big.yaml").write_text(big)
    done = run_convert(tmp_path, "-f", ".")
    assert (done.returncode, done.stderr) == (0, b"")
    assert kinds(done) == ["ResourceClaimTemplate", *["Pod"] * 1001]
    assert done.stdout.count(b"resourceClaimTemplateName: ") == 1001
    assert variables.encode() in done.stdout
    assert run_convert(tmp_path, "-f", "-", "-o", "diff", stdin=done.stdout).stdout == b""


HOSTILE: dict[str, bytes] = {
    "deep-flow": b"a: " + b"[" * 100_000,
    "deep-block": b"- " * 100_000,
    "deep-json": b'{"a":' * 100_000,
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"a%d: &b%d [%s]\n" % (n, n, b",".join([b"*b%d" % (n - 1) if n else b"*a"] * 10)) for n in range(12)),
    "binary": bytes(range(256)),
    "utf-16": legacy().encode("utf-16"),
    "one-long-line": b"a: " + b"x" * (1 << 20) + b": y",
    "nul": b"a: \x00\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_input_gets_one_clear_line(content: bytes) -> None:
    done = invoke("convert", "-f", "-", stdin=content)
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(r"<stdin>:[0-9]+:[0-9]+: .+\.\n", done.stderr)


@given(
    st.one_of(
        st.binary(),
        st.text().map(str.encode),
        st.tuples(st.integers(0, len(legacy())), st.text("\x00\t {}[]&*!|>'\"%@`#,:?-\n0aé", max_size=4)).map(
            lambda change: (legacy()[: change[0]] + change[1] + legacy()[change[0] :]).encode()
        ),
    ),
    st.sampled_from(["yaml", "json", "diff"]),
)
def test_any_input_ends_with_a_known_exit_code(content: bytes, output: str) -> None:
    done = invoke("convert", "-f", "-", "-o", output, stdin=content)
    assert done.exit_code in (0, 1, 2)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.exit_code == 0 or done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["-f", "pod.yaml"]], ids=["help", "pod"])
def test_convert_does_not_import_the_server(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "pod.yaml").write_text(legacy())
    program = (
        "import sys\nfrom commands.cli.main import main\n"
        f"main(['convert', *{arguments!r}], standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        text=True,
        timeout=100,
        check=True,
    )
    loaded = {module.partition(".")[0] for module in done.stderr.split()}
    assert "webhook" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_a_policy_moves_efa_limits_into_the_claim(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "efa.yaml").write_text(
        "apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ConversionPolicy\nmetadata: {name: fabric}\n"
        "spec: {order: 1, families: [trn2], efa: {}}\n"
    )
    manifest = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec:\n  containers:\n  - name: main\n    resources:\n"
        "      limits: {aws.amazon.com/neuron: 4, vpc.amazonaws.com/efa: 4}\n"
    )
    (tmp_path / "pod.yaml").write_text(manifest)
    moved = run_convert(tmp_path, "-f", "pod.yaml", "--policies", "policies")
    assert moved.returncode == 0
    assert b"deviceClassName: efa.networking.k8s.aws" in moved.stdout
    assert b"vpc.amazonaws.com/efa" not in moved.stdout
    (tmp_path / "moved.yaml").write_bytes(moved.stdout)
    assert run_convert(tmp_path, "-f", "moved.yaml", "--policies", "policies").stdout == moved.stdout
    (tmp_path / "pod.yaml").write_text(manifest.replace("efa: 4", "efa: 5"))
    refused = run_convert(tmp_path, "-f", "pod.yaml", "--policies", "policies")
    assert refused.returncode == 1
    assert b"NEU125" in refused.stderr


def test_policies_steer_conversion_and_are_loaded_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(legacy())
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "off.yaml").write_text(
        "apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ConversionPolicy\nmetadata: {name: none}\n"
        "spec: {order: 1, mode: off}\n"
    )
    done = run_convert(tmp_path, "-f", "pod.yaml", "--policies", "policies", "-o", "diff")
    assert (done.returncode, done.stdout) == (0, b"")
    assert messages_of(done) == ["pod.yaml:1: [document 1, Pod train]: not converted: policy 'none' turns it off."]
    faulty = run_convert(tmp_path, "-f", "pod.yaml", "--policies", "nowhere")
    assert (faulty.returncode, faulty.stdout) == (2, b"")
    assert messages_of(faulty) == ["nowhere: this is not a directory. Give the folder of the policy files."]


# --- families -----------------------------------------------------------------------------------------------


def test_unknown_families_give_a_warning_and_no_affinity(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(legacy(count=4))
    done = run_convert(tmp_path, "-f", "pod.yaml", NEURON_DRA_FAMILIES="")
    assert done.returncode == 0
    assert b"affinity" not in done.stdout
    (line,) = messages_of(done)
    assert line.startswith("pod.yaml:5: [document 1, Pod train] spec: NEU216: ")


@pytest.mark.parametrize(
    "arguments",
    [("--families", "inf2,trn1"), ("--families", "inf2", "--families=trn1"), ("--families", " inf2 , trn1,")],
    ids=["commas", "repeated", "spaces"],
)
def test_given_families_remove_the_warning(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "pod.yaml").write_text(legacy(count=1))
    done = run_convert(tmp_path, "-f", "pod.yaml", *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    types = re.findall(r"^ +- ((?:inf|trn)\S+)$", done.stdout.decode(), re.MULTILINE)
    assert {name.partition(".")[0] for name in types} == {"inf2", "trn1"}


def test_a_family_hint_in_the_manifest_overrides_the_flag(tmp_path: Path) -> None:
    text = legacy(count=12).replace("spec:\n", "spec:\n  nodeSelector:\n    instanceType: inferentia-inf2\n")
    (tmp_path / "pod.yaml").write_text(text)
    done = run_convert(tmp_path, "-f", "pod.yaml", "--families", "trn1")
    assert done.returncode == 0
    assert b"inf2.48xlarge" in done.stdout
    (line,) = messages_of(done)
    assert line.startswith("pod.yaml:7: [document 1, Pod train] spec.nodeSelector[instanceType]: NEU217: ")


CATALOGUE = """\
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec:
  instanceTypes:
    - {name: trn9.48xlarge, family: trn9, devices: 16, coresPerDevice: 8, deviceGroups: [4, 8, 16]}
"""


def test_unknown_family_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(legacy())
    done = run_convert(tmp_path, "-f", "pod.yaml", "--families", "inf5")
    assert done.returncode == 2
    wanted = (
        "Error: --families names 'inf5', which is no family of instance types with Neuron devices. Did you mean 'inf2'?"
        " Known: trn1, "
    )
    assert wanted in done.stderr.decode()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "catalogue.yaml").write_text(CATALOGUE)
    known = run_convert(tmp_path, "-f", "pod.yaml", "--families", "trn9", "--policies", "policies")
    assert (known.returncode, known.stderr) == (0, b"")
    assert b"trn9.48xlarge" in known.stdout
    unknown = run_convert(tmp_path, "-f", "pod.yaml", "--families", "trn8", "--policies", "policies")
    assert unknown.returncode == 2
    assert b"names 'trn8', which is no family of instance types with Neuron devices." in unknown.stderr


MAPPED = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: team-a}
spec:
  order: 1
  families: [trn2]
  templates:
  - {demand: {devices: 16}, name: xl-trn2}
  - demand: {devices: 8}
    template:
      metadata: {name: eight}
      spec: {spec: {devices: {
        requests: [{name: r, exactly: {deviceClassName: neuron.aws.com, count: 8}}],
        constraints: [{matchAttribute: resource.aws.com/devicegroup8_id}]}}}
"""
OWN = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: {name}, namespace: team-a}}
spec: {{spec: {{devices: {{requests: [{{name: r, exactly: {{deviceClassName: neuron.aws.com, count: {count}}}}}]}}}}}}
"""


def test_templates_of_operators_are_named_compared_and_printed(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "mapped.yaml").write_text(MAPPED)
    for name, count in (("whole", 16), ("eight", 8)):
        placed = legacy(name, count).replace("metadata:\n", "metadata:\n  namespace: team-a\n")
        (tmp_path / f"{name}.yaml").write_text(placed)
    (tmp_path / "right.yaml").write_text(OWN.format(name="xl-trn2", count=16))
    (tmp_path / "wrong.yaml").write_text(OWN.format(name="xl-trn2", count=1))
    (tmp_path / "taken.yaml").write_text(OWN.format(name="eight", count=1))

    alone = run_convert(tmp_path, "-f", "whole.yaml", "--policies", "policies")
    assert b"resourceClaimTemplateName: xl-trn2" in alone.stdout
    assert b"NEU230: ResourceClaimTemplate xl-trn2, which policy 'team-a' names for 16 devices, was not" in alone.stderr
    both = run_convert(tmp_path, "-f", "whole.yaml", "-f", "right.yaml", "--policies", "policies")
    assert (both.returncode, both.stderr) == (0, b"")
    differs = run_convert(tmp_path, "-f", "whole.yaml", "-f", "wrong.yaml", "--policies", "policies")
    assert differs.returncode == 1
    assert b"NEU121: ResourceClaimTemplate team-a/xl-trn2" in differs.stderr
    carried = run_convert(tmp_path, "-f", "eight.yaml", "--policies", "policies")
    assert (carried.returncode, carried.stderr) == (0, b"")
    assert b"neuron.aws.com/template-digest" in carried.stdout
    taken = run_convert(tmp_path, "-f", "eight.yaml", "-f", "taken.yaml", "--policies", "policies")
    assert taken.returncode == 1
    assert (
        b"NEU122: a ResourceClaimTemplate eight in the manifests has another spec than policy 'team-a'" in taken.stderr
    )
