"""Shared by both programs: settings, API transport, logs, metrics server, files. Imports no other package of ours."""
