"""Policy files at work in a server: the current set, who is subject to it, and what it says."""
