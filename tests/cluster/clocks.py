"""A wall clock that jumps, for real processes: a library that is loaded before libc answers for it.

Everything in such a process sees the jump, also OpenSSL and gRPC. The monotonic clock goes on, as on a real node.
"""

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DAY: Final = 86400
_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t zero, *seconds = &zero;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, sizeof zero, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) seconds = at;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, found);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += *seconds;
    return result;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """The wall clock of processes that start with `environment`.

    Attributes:
        available: whether there is a C compiler to make it.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / "clock-shift"
        self.shift(0)
        compiler = shutil.which("cc")
        self.available = compiler is not None
        self.environment: Mapping[str, str] = {}
        if compiler is not None:
            source, library = directory / "clock.c", directory / "clock.so"
            source.write_text(_SOURCE)
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
            self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._file)}

    def shift(self, days: float) -> None:
        """Set the clock ahead by days, or behind if negative."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("q", int(days * _DAY)))
