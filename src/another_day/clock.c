/* Preloaded, adds CLOCK_AHEAD seconds to the clock that a program reads. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int outcome = (int)syscall(SYS_clock_gettime, clock, time);
    const char *ahead = getenv("CLOCK_AHEAD");
    if (outcome == 0 && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += atoll(ahead);
    return outcome;
}
