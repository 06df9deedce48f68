"""Patches: of a converted pod, one that is restored, an enriched claim, an annotated LeaderWorkerSet."""
