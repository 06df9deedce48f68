"""What becomes of an object, decided purely: no HTTP, no cluster, no clock."""
