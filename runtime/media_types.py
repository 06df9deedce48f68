"""Media types of requests to the API server."""

from typing import Final

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
COMPACT: Final = "application/yaml"
"""For objects with opaque configs: they are sent as JSON without spaces, which is YAML too.

The API server stores the text of an opaque config as it was sent, and writes it without spaces and in order when a
driver applies `status.devices`. To it, both texts differ, so it refuses the driver's change. The client puts spaces
into JSON.
"""
PARTIAL: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""`Accept` header for requests and watches that need only `metadata`."""
PARTIAL_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""The same for lists."""
