//! A library that gives programs the clock of another day, by preloading: the time of the kernel's clock is that of the whole
//! machine, and time namespaces have none of their own (time_namespaces(7)).

/// The library, a shared object of this machine's architecture that needs no other: what is preloaded with it has a clock 400
/// days ahead, which is another year, month, day of the month and day of the week. Static programs, and those of Go, keep the
/// kernel's.
pub static ANOTHER_DAY: &[u8] = include_bytes!(env!("SLIPWAY_ANOTHER_DAY"));

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "the C compiler, and what it has compiled"
)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;
    use std::time::{Duration, Instant, SystemTime};

    use super::*;

    /// Reads the clock by each function and waits by each that has a deadline.
    const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

int main(void)
{
    struct timespec a, b, monotonic;
    struct timeval c;
    time_t d;
    clock_gettime(CLOCK_REALTIME, &a);
    timespec_get(&b, TIME_UTC);
    gettimeofday(&c, NULL);
    time(&d);
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    printf("%ld %ld %ld %ld %ld %ld\n", (long)a.tv_sec, (long)b.tv_sec, (long)c.tv_sec, (long)d, (long)time(NULL),
           (long)monotonic.tv_sec);

    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t plain = PTHREAD_COND_INITIALIZER, counting;
    pthread_condattr_t kind;
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    pthread_condattr_init(&kind);
    pthread_condattr_setclock(&kind, CLOCK_MONOTONIC);
    pthread_cond_init(&counting, &kind);
    pthread_mutex_lock(&mutex);
    a.tv_sec++;
    monotonic.tv_sec++;
    int one = pthread_cond_timedwait(&plain, &mutex, &a);
    int two = pthread_cond_timedwait(&counting, &mutex, &monotonic);
    int three = pthread_mutex_timedlock(&mutex, &a);
    int four = sem_timedwait(&semaphore, &a);
    printf("%d %d %d %d\n", one, two, three, four);
    return 0;
}
"#;

    #[test]
    fn every_clock_of_the_day_is_ahead_and_no_deadline_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("another-day.so"), ANOTHER_DAY).unwrap();
        fs::write(at("program.c"), PROGRAM).unwrap();
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let compiled = Command::new(compiler)
            .args(["-pthread", "-O1", "-o"])
            .args([at("program"), at("program.c")])
            .status();
        assert!(compiled.unwrap().success());
        let run = |preload: &Path| {
            let begin = Instant::now();
            let run = Command::new(at("program"))
                .env("LD_PRELOAD", preload)
                .output()
                .unwrap();
            assert!(run.stderr.is_empty() && run.status.success(), "{run:?}");
            let said = String::from_utf8(run.stdout).unwrap();
            let (clocks, waits) = said.split_once('\n').unwrap();
            // ETIMEDOUT three times, and -1.
            assert_eq!(waits, "110 110 110 -1\n");
            // Each deadline is a second ahead, and all are of one moment.
            let took = begin.elapsed();
            assert!(took >= Duration::from_millis(900), "{took:?}");
            let clocks = clocks.split(' ').map(|text| text.parse().unwrap());
            clocks.collect::<Vec<u64>>()
        };
        // The kernel's clock: this test may have another day's itself.
        let written = fs::metadata(at("program")).unwrap().modified().unwrap();
        let now = written.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let (plain, ahead) = (run(Path::new("")), run(&at("another-day.so")));
        for (at, (plain, ahead)) in plain.iter().zip(&ahead).enumerate() {
            let days = if at < 5 { 400 } else { 0 };
            let apart = ahead - plain - days * 24 * 3600;
            assert!(apart < 60, "{at}: {plain} {ahead}");
        }
        assert!(plain[0].abs_diff(now.as_secs()) < 60, "{plain:?} {now:?}");
    }
}
