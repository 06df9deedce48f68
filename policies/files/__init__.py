"""Policy files: read, load, run their embedded cases, follow a folder."""
