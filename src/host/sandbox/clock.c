/* Preloaded (ld.so(8)), gives a program the clock of another day: AHEAD seconds later than the kernel's.
 *
 * Linked against no C library: the functions that it calls are those of the program that it is in. Deadlines that a program has
 * computed from this clock are moved back, or it would wait for them; a condition may count by the monotonic clock instead, whose
 * times are small.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef AHEAD
/* Another year, month, day of the month and day of the week, on every day: a year and 35 days. */
#define AHEAD (400 * 24 * 3600L)
#endif
/* In 2001: no machine runs for as many seconds. */
#define A_DATE 1000000000L

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int outcome = (int)syscall(SYS_clock_gettime, clock, now);
    if (outcome == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        now->tv_sec += AHEAD;
    return outcome;
}

time_t time(time_t *to)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to)
        *to = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

static struct timespec back(const struct timespec *until)
{
    struct timespec real = *until;
    real.tv_sec -= AHEAD;
    return real;
}

int pthread_cond_timedwait(pthread_cond_t *restrict what, pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    if (until->tv_sec < A_DATE)
        return pthread_cond_clockwait(what, mutex, CLOCK_MONOTONIC, until);
    struct timespec real = back(until);
    return pthread_cond_clockwait(what, mutex, CLOCK_REALTIME, &real);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    struct timespec real = back(until);
    return pthread_mutex_clocklock(mutex, CLOCK_REALTIME, &real);
}

int sem_timedwait(sem_t *restrict what, const struct timespec *restrict until)
{
    struct timespec real = back(until);
    return sem_clockwait(what, CLOCK_REALTIME, &real);
}
