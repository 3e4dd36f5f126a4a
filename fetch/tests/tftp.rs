//! Downloads by TFTP from a server on loopback that conforms to RFC 1350 and 2347 to 2349, over a link that loses and
//! doubles packets.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fetch::{Failure, Options, Patience, Want, blocking};

/// The faults of the link.
#[derive(Clone, Copy, Debug, Default)]
struct Wire {
    /// The first transmission of each of the server's packets with this number is lost.
    lost: Option<u16>,
    /// Each of the server's packets is sent twice.
    doubled: bool,
    /// The first acknowledgement of each block is lost.
    deaf: bool,
    /// Another sender sends a block from another port.
    stranger: bool,
}

/// How the server answers.
#[derive(Clone, Debug)]
enum Manner {
    /// With the requested options, and the given block size if there is one.
    Options(Option<usize>),
    /// As a server from before RFC 2347, which ignores options.
    Old,
    /// As a server that refuses requests with options.
    Refusing,
    /// With an error.
    Error(u16, &'static str),
    /// With a size that is not the file's.
    WrongSize(u64),
    /// With the first block only.
    Dying,
}

/// A server of one file for as many requests as there are manners; returns its address and the requests.
fn serve(
    content: Vec<u8>,
    manners: Vec<Manner>,
    wire: Wire,
) -> (SocketAddr, Arc<Mutex<Vec<Vec<String>>>>) {
    let door = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    std::thread::spawn(move || {
        for manner in manners {
            let mut packet = [0; 2048];
            let (len, client) = door.recv_from(&mut packet).unwrap();
            assert_eq!(packet[..2], [0, 1], "the first packet is a read request");
            let words: Vec<String> = packet[2..len - 1]
                .split(|byte| *byte == 0)
                .map(|word| String::from_utf8(word.to_vec()).unwrap())
                .collect();
            seen.lock().unwrap().push(words.clone());
            transfer(&content, &manner, wire, client, words.len() > 2);
        }
    });
    (address, requests)
}

fn transfer(content: &[u8], manner: &Manner, wire: Wire, client: SocketAddr, options: bool) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut block = 512;
    let error = |code: u16, text: &str| {
        let packet = [&[0, 5][..], &code.to_be_bytes(), text.as_bytes(), &[0]].concat();
        socket.send_to(&packet, client).unwrap();
    };
    match manner {
        Manner::Error(code, text) => return error(*code, text),
        Manner::Refusing if options => return error(8, "no options"),
        Manner::Options(_) | Manner::WrongSize(_) | Manner::Dying if options => {
            block = 1428;
            let mut size = content.len().to_string();
            match manner {
                Manner::Options(Some(own)) => block = *own,
                Manner::WrongSize(other) => size = other.to_string(),
                _ => {}
            }
            let words = format!("blksize\0{block}\0TSIZE\0{size}\0");
            let packet = [&[0, 6][..], words.as_bytes()].concat();
            if !say(&socket, client, &packet, 0, wire) {
                return;
            }
        }
        _ => {}
    }
    // A file whose length is a multiple of the block's ends with an empty block.
    for (i, at) in (0..=content.len()).step_by(block).enumerate() {
        let number = u16::try_from((i + 1) % 65536).unwrap();
        let data = &content[at..content.len().min(at + block)];
        let packet = [&[0, 3][..], &number.to_be_bytes(), data].concat();
        if wire.stranger {
            let theirs = [&[0, 3][..], &number.to_be_bytes(), b"stranger"].concat();
            stranger.send_to(&theirs, client).unwrap();
        }
        if !say(&socket, client, &packet, number, wire) {
            return;
        }
        if matches!(manner, Manner::Dying) {
            return;
        }
    }
    if wire.stranger {
        let mut packet = [0; 64];
        let (len, _) = stranger.recv_from(&mut packet).unwrap();
        assert_eq!(packet[..4], [0, 5, 0, 5], "{:?}", &packet[..len]);
    }
}

/// Sends a packet until it is acknowledged, as a server does.
fn say(socket: &UdpSocket, client: SocketAddr, packet: &[u8], number: u16, wire: Wire) -> bool {
    let mut lost = wire.lost == Some(number);
    let mut deaf = wire.deaf;
    for _ in 0..10 {
        for _ in 0..=u8::from(wire.doubled) {
            if !lost {
                socket.send_to(packet, client).unwrap();
            }
        }
        lost = false;
        let mut answer = [0; 64];
        while let Ok((len, _)) = socket.recv_from(&mut answer) {
            if answer[..len] == [&[0, 4][..], &number.to_be_bytes()].concat() {
                if std::mem::take(&mut deaf) {
                    break;
                }
                return true;
            }
        }
    }
    false
}

fn get(address: SocketAddr, limit: u64, attempts: u32) -> Result<Vec<u8>, Failure> {
    let url = format!("tftp://{address}/folder/a%20file");
    let client = blocking::Client::new(&Options {
        ca_bundle: Some(Vec::new()),
        ..Options::default()
    })
    .unwrap();
    let patience = Patience {
        attempts: Some(attempts),
        header_timeout: Duration::from_secs(2),
        idle_timeout: Duration::from_secs(2),
        first_wait: Duration::from_millis(10),
        ..Patience::default()
    };
    let want = Want {
        patience,
        ..Want::new(&url, limit)
    };
    client.bytes(&want, &|_| (), &|_| ())
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

#[test]
fn files_of_all_lengths_come_whole_from_servers_of_all_ages() {
    for manner in [Manner::Options(None), Manner::Old, Manner::Options(Some(8))] {
        for len in [0, 1, 511, 512, 513, 1428, 2856, 5000] {
            let (address, requests) = serve(content(len), vec![manner.clone()], Wire::default());
            assert_eq!(
                get(address, 9999, 1).unwrap(),
                content(len),
                "{manner:?} {len}"
            );
            let asked = ["/folder/a file", "octet", "blksize", "1428", "tsize", "0"];
            assert_eq!(requests.lock().unwrap()[0], asked);
        }
    }
}

#[test]
fn what_the_wire_does_is_survived() {
    for wire in [
        Wire {
            lost: Some(0),
            ..Wire::default()
        },
        Wire {
            lost: Some(2),
            ..Wire::default()
        },
        Wire {
            doubled: true,
            ..Wire::default()
        },
        Wire {
            deaf: true,
            ..Wire::default()
        },
        Wire {
            stranger: true,
            ..Wire::default()
        },
        Wire {
            doubled: true,
            deaf: true,
            lost: Some(1),
            ..Wire::default()
        },
    ] {
        let (address, requests) = serve(content(3000), vec![Manner::Options(None)], wire);
        assert_eq!(get(address, 9999, 1).unwrap(), content(3000), "{wire:?}");
        assert_eq!(requests.lock().unwrap().len(), 1, "{wire:?}");
    }
}

#[test]
fn a_lost_request_is_sent_again() {
    let door = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut first = [0; 512];
        let (len, _) = door.recv_from(&mut first).unwrap();
        let mut second = [0; 512];
        let (again, client) = door.recv_from(&mut second).unwrap();
        assert_eq!(first[..len], second[..again]);
        transfer(b"late", &Manner::Old, Wire::default(), client, true);
    });
    assert_eq!(get(address, 99, 1).unwrap(), b"late");
    server.join().unwrap();
}

#[test]
fn block_numbers_begin_again_after_the_last_one() {
    let (address, _) = serve(
        content(8 * 65_540),
        vec![Manner::Options(Some(8))],
        Wire::default(),
    );
    assert_eq!(get(address, 1 << 20, 1).unwrap(), content(8 * 65_540));
}

#[test]
fn a_server_that_refuses_options_is_asked_without() {
    let manners = vec![Manner::Refusing, Manner::Refusing];
    let (address, requests) = serve(content(600), manners, Wire::default());
    assert_eq!(get(address, 9999, 2).unwrap(), content(600));
    let lengths: Vec<usize> = requests.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(lengths, [6, 2]);
}

#[test]
fn errors_that_last_end_it_and_others_are_tried_again() {
    for (code, text) in [(1, "File not found"), (2, "Access violation")] {
        let (address, requests) =
            serve(Vec::new(), vec![Manner::Error(code, text)], Wire::default());
        let failure = get(address, 9999, 5).unwrap_err();
        assert!(matches!(failure, Failure::Refused { .. }), "{failure}");
        assert!(failure.to_string().contains(text), "{failure}");
        assert_eq!(requests.lock().unwrap().len(), 1);
    }
    let manners = vec![Manner::Error(0, "busy"), Manner::Options(None)];
    let (address, _) = serve(content(9), manners, Wire::default());
    assert_eq!(get(address, 9999, 2).unwrap(), content(9));
}

#[test]
fn what_is_too_large_or_cut_short_or_gone_is_told() {
    let (address, _) = serve(content(600), vec![Manner::Options(None)], Wire::default());
    assert!(matches!(
        get(address, 599, 1),
        Err(Failure::TooLarge { .. })
    ));
    // A server that does not announce the size.
    let (address, _) = serve(content(600), vec![Manner::Old], Wire::default());
    assert!(matches!(
        get(address, 599, 1),
        Err(Failure::TooLarge { .. })
    ));
    let (address, _) = serve(content(600), vec![Manner::WrongSize(700)], Wire::default());
    let failure = get(address, 9999, 1).unwrap_err().to_string();
    assert!(
        failure.contains("announced 700 bytes and sent 600"),
        "{failure}"
    );
    let (address, _) = serve(content(3000), vec![Manner::Dying], Wire::default());
    let began = Instant::now();
    let failure = get(address, 9999, 1).unwrap_err().to_string();
    assert!(failure.contains("no answer for 2."), "{failure}");
    assert!(began.elapsed() < Duration::from_secs(6));
}

#[test]
fn packets_that_mean_nothing_are_passed_over() {
    let door = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut request = [0; 512];
        let (_, client) = door.recv_from(&mut request).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let noise: [&[u8]; 12] = [
            b"",
            &[0],
            &[0, 3],
            &[0, 3, 0],
            &[0, 4, 0, 0],
            &[0, 9, 1, 2],
            &[0, 1, 47, 0],
            // Blocks with later and with impossible numbers.
            &[0, 3, 0, 2, 120],
            &[0, 3, 255, 255],
            &[0, 3, 0, 0, 1, 2, 3],
            // Options that cannot be parsed.
            &[255; 600],
            &[0; 3],
        ];
        for packet in noise {
            socket.send_to(packet, client).unwrap();
        }
        transfer(
            &content(900),
            &Manner::Options(None),
            Wire::default(),
            client,
            true,
        );
    });
    assert_eq!(get(address, 9999, 1).unwrap(), content(900));
}

#[test]
fn options_that_were_not_offered_are_refused() {
    for block in [0, 7, 1429, 65_464] {
        let (address, _) = serve(
            content(9),
            vec![Manner::Options(Some(block.max(1)))],
            Wire::default(),
        );
        let outcome = get(address, 9999, 1);
        let failure = outcome.unwrap_err().to_string();
        assert!(failure.contains("block size"), "{block}: {failure}");
    }
}
