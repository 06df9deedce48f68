"""Forged Events, and owners whose names are sentences: reports quote them with their source."""

import html
import json

import pytest

from commands.report import inputs
from commands.report.model import LOG, Report
from commands.report.render import as_html, as_markdown, as_text
from commands.report.tables import as_json
from runtime.console import Style
from tests.commands.explain.test_forged_text import EVIL, outside_quotes
from tests.support.reports import deployment, owned, report, running

EVENT = {
    "metadata": {"namespace": "team-a", "name": "forged"},
    "regarding": {"kind": EVIL, "name": EVIL},
    "note": f"{EVIL}; NEU000: {EVIL}; NEU105: {EVIL}",
    "reportingController": "neuron.aws.com/webhook",
    "reason": "ConversionRefused",
}
RENDER = {
    "text": lambda made: as_text(made, Style()),
    "html": lambda made: html.unescape(as_html(made)),
    "markdown": lambda made: as_markdown(made).replace("\\", ""),
}


def forged() -> Report:
    log = json.dumps({"event": "decision", "decision": "shadowed", "namespace": "x", "name": EVIL, "findings": [EVIL]})
    stranger = {"apiVersion": "x/v1", "kind": EVIL, "metadata": {"name": EVIL, "uid": "u", "namespace": "team-a"}}
    seen = (*inputs.of_events([EVENT]), *inputs.of_log([log.encode()]))
    return report(deployment(), owned(running("train-1"), stranger), shadowed=seen)


@pytest.mark.parametrize("form", RENDER)
def test_a_forged_event_of_the_webhook(form: str) -> None:
    shown = RENDER[form](forged())
    assert "cluster-admin" in shown
    for line in shown.replace("<", "\n<").replace("|", "\n").splitlines():
        plain = line.partition(">")[2] if form == "html" else line
        assert "cluster-admin" not in outside_quotes(plain), line


def test_json_output_names_the_source_of_a_text() -> None:
    found = json.loads(as_json(forged()))["shadow"]
    assert {each["source"] for each in found} == {"Event forged", LOG}
    [of_event] = (each for each in found if each["source"] != LOG)
    assert of_event["codes"] == ["NEU407", "NEU105"]
    assert all(each["codes"] == [] for each in found if each["source"] == LOG)
