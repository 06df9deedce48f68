"""Metrics of policies. Kept in dictionaries, and converted to metric families when Prometheus scrapes them."""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from policies.files.store import PolicyStore
from policies.judging.mutations import Mutated
from policies.judging.verdicts import Verdict
from runtime.metrics_server import Histogram

SECONDS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)


class PolicyMetrics(Collector):
    """Counts verdicts, and exports the state of the store."""

    def __init__(self, store: PolicyStore) -> None:
        self._store = store
        self._results: dict[tuple[str, str, str], int] = {}
        self._errors: dict[str, int] = {}
        self._exceptions: dict[tuple[str, str], int] = {}
        self._seconds = Histogram(SECONDS)

    def judged(self, verdicts: Iterable[Verdict]) -> None:
        """Count the verdicts on one request."""
        for verdict in verdicts:
            name = verdict.rule.name
            key = (name, verdict.rule.actions, verdict.outcome)
            self._results[key] = self._results.get(key, 0) + 1
            if verdict.errors:
                self._errors[name] = self._errors.get(name, 0) + 1
            if verdict.exemption is not None:
                used = (name, verdict.exemption.name)
                self._exceptions[used] = self._exceptions.get(used, 0) + 1
            self._seconds.observe(verdict.seconds)

    def mutated(self, result: Mutated) -> None:
        """Count the result of a mutating policy for one request."""
        name = result.rule.name
        key = (name, "", result.outcome)
        self._results[key] = self._results.get(key, 0) + 1
        if result.failures:
            self._errors[name] = self._errors.get(name, 0) + 1
        self._seconds.observe(result.seconds)

    def collect(self) -> Iterator[Metric]:
        """All metric families. The scraping thread calls it, hence the copies."""
        results = CounterMetricFamily(
            "neuron_dra_policy_results", "Policy results.", labels=("policy", "action", "outcome")
        )
        for labels, count in self._results.copy().items():
            results.add_metric(labels, count)
        errors = CounterMetricFamily(
            "neuron_dra_policy_errors", "Reviews for which the evaluation of a policy failed.", labels=("policy",)
        )
        for name, count in self._errors.copy().items():
            errors.add_metric((name,), count)
        used = CounterMetricFamily(
            "neuron_dra_policy_exceptions_used", "Reviews admitted by an exception.", labels=("policy", "exception")
        )
        for names, count in self._exceptions.copy().items():
            used.add_metric(names, count)
        seconds = HistogramMetricFamily(
            "neuron_dra_policy_evaluation_seconds", "Evaluation time of one policy for one review."
        )
        seconds.add_metric((), self._seconds.buckets(), self._seconds.total)
        yield from (results, errors, used, seconds)
        store = self._store
        reloads = CounterMetricFamily("neuron_dra_policy_reloads", "Reloads of the policy folder.", labels=("result",))
        for result, count in store.reloads.copy().items():
            reloads.add_metric((result,), count)
        yield reloads
        yield GaugeMetricFamily(
            "neuron_dra_policy_last_reload_success",
            "1 if the policies in force are those in the folder, 0 if the folder's were refused.",
            value=0 if store.problems else 1,
        )
        yield GaugeMetricFamily(
            "neuron_dra_policy_last_good_timestamp_seconds",
            "Load time of the policies in force, seconds since the epoch.",
            value=store.loaded_at.timestamp(),
        )
        older = store.older_since
        yield GaugeMetricFamily(
            "neuron_dra_policy_older_set_timestamp_seconds",
            "If files of an older set are in force, because those in the folder have problems: the load time of that"
            " set, seconds since the epoch; else 0.",
            value=0 if older is None else older.timestamp(),
        )
        yield GaugeMetricFamily(
            "neuron_dra_policy_kept",
            "0 if the policies in force cannot be kept for the next start; else 1.",
            value=0 if store.keep_problem else 1,
        )
        yield GaugeMetricFamily(
            "neuron_dra_policy_files_rejected",
            "Files in the folder that are not in force: their last good versions are, or nothing of a new file.",
            value=len(store.rejected),
        )
        yield GaugeMetricFamily("neuron_dra_policies", "Policies in force.", value=len(store.current.rules))
        expiry = GaugeMetricFamily(
            "neuron_dra_policy_exception_expiry_timestamp_seconds",
            "Expiry of an exception, seconds since the epoch.",
            labels=("policy", "exception"),
        )
        for rule in store.current.validating:
            for exemption in rule.exemptions:
                expiry.add_metric((rule.name, exemption.name), exemption.expires.timestamp())
        yield expiry
