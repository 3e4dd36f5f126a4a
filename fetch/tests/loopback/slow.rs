//! Answers that come slowly: steady ones are waited for, others end at a limit; and downloads that share memory.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fetch::{Failure, Pace, Patience, Room, Want};

use super::client;

/// Serves each request with these pieces, one after each pause, and then closes; without an end if there is none.
fn drip(length: usize, pause: Duration, ends: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut request = [0; 1024];
            assert!(connection.read(&mut request).unwrap() > 0);
            let announced = if ends { length } else { 1 << 20 };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {announced}\r\n\r\n");
            connection.write_all(head.as_bytes()).unwrap();
            for _ in 0..length {
                std::thread::sleep(pause);
                // The client may have had enough.
                if connection.write_all(b"x").is_err() {
                    break;
                }
            }
        }
    });
    url
}

fn want(url: &str, patience: Patience) -> Want<'_> {
    Want {
        patience: Patience {
            attempts: None,
            header_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_millis(500),
            first_wait: Duration::from_millis(10),
            ..patience
        },
        ..Want::new(url, 1 << 20)
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_slow_steady_answer_is_waited_for_and_each_byte_is_progress() {
    let url = drip(20, millis(60), true);
    let patience = Patience {
        // It takes twice as long, but never without a byte.
        without_bytes: Some(millis(600)),
        slowest: Some(Pace {
            bytes: 4,
            within: millis(500),
        }),
        ..Patience::default()
    };
    let pieces = Mutex::new(Vec::new());
    let began = Instant::now();
    let content = client()
        .bytes(&want(&url, patience), &|word| panic!("{word}"), &|bytes| {
            pieces.lock().unwrap().push(bytes)
        })
        .unwrap();
    assert_eq!(content, b"xxxxxxxxxxxxxxxxxxxx");
    assert!(began.elapsed() > millis(1200));
    let pieces = pieces.into_inner().unwrap();
    assert_eq!(pieces.iter().sum::<u64>(), 20);
    assert!(pieces.len() > 10, "{pieces:?}");
}

#[test]
fn a_drip_without_end_ends_at_the_total() {
    let url = drip(10_000, millis(50), false);
    let patience = Patience {
        total: Some(millis(700)),
        ..Patience::default()
    };
    let failure = client()
        .bytes(&want(&url, patience), &|_| (), &|_| ())
        .unwrap_err();
    assert!(
        failure.to_string().ends_with("not complete within 0.7 s"),
        "{failure}"
    );
}

/// `ignition.timeouts` of a config takes any number of seconds.
#[test]
fn a_limit_beyond_the_range_of_the_clock_is_none() {
    for limit in [Duration::from_secs(i64::MAX.unsigned_abs()), Duration::MAX] {
        let url = drip(3, millis(1), true);
        let patience = Patience {
            header_timeout: limit,
            idle_timeout: limit,
            total: Some(limit),
            without_bytes: Some(limit),
            ..Patience::default()
        };
        let want = Want {
            patience,
            ..Want::new(&url, 10)
        };
        let content = client().bytes(&want, &|_| (), &|_| ());
        assert_eq!(content.unwrap(), b"xxx", "{limit:?}");
    }
}

#[test]
fn an_answer_below_the_pace_is_asked_for_anew() {
    let url = drip(10_000, millis(90), false);
    let patience = Patience {
        total: Some(millis(1500)),
        slowest: Some(Pace {
            bytes: 100,
            within: millis(400),
        }),
        ..Patience::default()
    };
    let words = Mutex::new(Vec::new());
    client()
        .bytes(
            &want(&url, patience),
            &|word| words.lock().unwrap().push(word.to_owned()),
            &|_| (),
        )
        .unwrap_err();
    let words = words.into_inner().unwrap();
    assert!(
        words[0].contains("the answer comes too slowly, ") && words[0].contains("attempt 2 in"),
        "{words:?}"
    );
}

#[test]
fn the_same_bytes_again_and_again_are_no_progress() {
    // Each answer breaks off after three bytes, and none can be resumed.
    let url = drip(3, millis(1), false);
    let patience = Patience {
        without_bytes: Some(millis(400)),
        ..Patience::default()
    };
    let bytes = Mutex::new(0);
    let failure = client()
        .bytes(&want(&url, patience), &|_| (), &|count| {
            *bytes.lock().unwrap() += count;
        })
        .unwrap_err();
    assert!(
        matches!(failure, Failure::Unreachable { attempts: 2.., .. }),
        "{failure}"
    );
    assert_eq!(bytes.into_inner().unwrap(), 3);
}

#[test]
fn downloads_share_their_memory() {
    let room = Room::new(50);
    let fetch = |length: usize| {
        let url = drip(length, Duration::ZERO, true);
        let want = Want {
            room: Some(&room),
            ..want(&url, Patience::default())
        };
        client().bytes(&want, &|_| (), &|_| ())
    };
    assert_eq!(fetch(30).unwrap().len(), 30);
    assert_eq!(room.left(), 20);
    let failure = fetch(21).unwrap_err();
    assert!(
        matches!(failure, Failure::NoRoom { room: 50, .. }),
        "{failure}"
    );
    // What failed has given its part back.
    assert_eq!(room.left(), 20);
    assert_eq!(fetch(20).unwrap().len(), 20);
    assert_eq!(room.left(), 0);
}
