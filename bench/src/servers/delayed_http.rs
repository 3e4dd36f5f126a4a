//! An HTTP server on loopback that delays each answer, to imitate a distant server.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Answers each request `/NAME` with [`content`] after `delay`, until this program ends; several at once.
pub(crate) fn serve(delay: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A client that closes the connection reports the failure itself.
            thread::spawn(move || drop(answer(&connection, delay)));
        }
    });
    Ok(address)
}

/// Content of the file `name`.
pub(crate) fn content(name: &str) -> String {
    format!("the content of {name}\n")
}

/// All requests of one connection, one after another.
fn answer(mut connection: &TcpStream, delay: Duration) -> io::Result<()> {
    let mut lines = BufReader::new(connection).lines();
    while let Some(request) = lines.next() {
        let request = request?;
        for line in lines.by_ref() {
            if line?.is_empty() {
                break;
            }
        }
        thread::sleep(delay);
        let path = request.split(' ').nth(1).unwrap_or_default();
        let body = content(path.trim_start_matches('/'));
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        connection.write_all((head + &body).as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::time::Instant;

    #[test]
    fn two_requests_of_one_connection_each_wait() {
        let delay = Duration::from_millis(30);
        let address = serve(delay).unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        for name in ["a", "b"] {
            let begin = Instant::now();
            let request = format!("GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n");
            connection.write_all(request.as_bytes()).unwrap();
            let expected = content(name);
            let mut answer = String::new();
            while !answer.ends_with(&expected) {
                let mut piece = [0; 256];
                let n = connection.read(&mut piece).unwrap();
                assert!(n > 0, "{answer}");
                answer += std::str::from_utf8(&piece[..n]).unwrap();
            }
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(begin.elapsed() >= delay);
        }
    }
}
