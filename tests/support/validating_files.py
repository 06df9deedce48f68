"""Files through `neuron-dra validate`, without its command line."""

import asyncio
import dataclasses
from collections.abc import Collection, Sequence

from cluster.store import Store
from commands.objects.file_policies import FilePolicies
from commands.objects.manifest_files import ManifestSource
from commands.objects.manifests import DEFAULT_NAMESPACE, manifests
from commands.present import Located
from commands.validate import FileValidator, FindingTally
from conversion.asks.conversion_context import ConversionOptions


@dataclasses.dataclass(frozen=True)
class Validated:
    """The findings about all files, and their numbers."""

    located: Sequence[Located]
    tally: FindingTally


def validate_sources(
    sources: Sequence[ManifestSource],
    options: ConversionOptions,
    policies: FilePolicies | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    live: Store | None = None,
    served: Collection[str] | None = None,
    rules: str | None = None,
) -> Validated:
    """Validate files as the command does."""
    validator = FileValidator(options, policies, namespace)
    validator.join(live, served, rules)
    for source in sources:
        for document in source.documents:
            for manifest in manifests(document, namespace):
                validator.take(manifest)

    async def validate() -> list[Located]:
        return [
            each
            for source in sources
            for document in source.documents
            for each in await validator.validate(source.name, document)
        ]

    return Validated(asyncio.run(validate()), validator.tally)
