"""What both programs need of the machine that they run on: files and the metrics port. Imports none of ours."""
