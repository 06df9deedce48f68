"""One cluster, seen through its API server: connection, list-watch caches, templates."""
