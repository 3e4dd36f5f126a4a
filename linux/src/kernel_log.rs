//! The kernel's log: what the kernel said since it started.

use std::fs::File;
use std::io::{ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;

use crate::world::World;

/// How many records are read at most: a kernel that complains without end holds no report up.
const MOST: usize = 200_000;

/// The first line of each record without its prefix, oldest first; none if the log cannot be read. What the init wrote is left
/// out.
#[must_use]
pub fn lines(world: &World) -> Vec<String> {
    let opened = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(world.dev.join("kmsg"));
    match opened {
        Ok(mut kmsg) => first_lines(|record| kmsg.read(record)),
        Err(_) => Vec::new(),
    }
}

/// The first lines of the records that `next` gives, one with each call.
fn first_lines(mut next: impl FnMut(&mut [u8]) -> Result<usize>) -> Vec<String> {
    let (mut record, mut found) = ([0; 8192], Vec::new());
    for _ in 0..MOST {
        let length = match next(&mut record) {
            Ok(length @ 1..) => length,
            // The kernel has overwritten the record that came next, as it does with the oldest ones while a disk fails request
            // after request. The next call gives the oldest that is left (Documentation/ABI/testing/dev-kmsg).
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) =>
            {
                continue;
            }
            // At the end of the log: EAGAIN.
            _ => break,
        };
        let text = String::from_utf8_lossy(&record[..length]);
        // "priority,number,microseconds,flags;message" (Documentation/ABI/testing/dev-kmsg).
        let message = text.split_once(';').map_or("", |(_, message)| message);
        let line = message.lines().next().unwrap_or_default();
        if !line.contains("slipway-init") {
            found.push(line.to_owned());
        }
    }
    found
}

/// Of each disk that failed a request, the first line about that: `I/O error, dev vda, sector 5310464 op 0x1:(WRITE) …`
/// (`blk_print_req_error`).
#[must_use]
pub fn failed_disks(lines: &[String]) -> Vec<&str> {
    let (mut names, mut found) = (Vec::new(), Vec::new());
    for line in lines {
        let name = line
            .split_once(" error, dev ")
            .and_then(|(_, rest)| rest.split_once(", sector "))
            .map(|(name, _)| name);
        if let Some(name) = name
            && !names.contains(&name)
        {
            names.push(name);
            found.push(line.as_str());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::world::Clock;

    #[test]
    fn each_disk_that_failed_is_named_once_with_its_first_error() {
        let lines = [
            "Linux version 6.12",
            "I/O error, dev vda, sector 8 op 0x1:(WRITE) flags 0x800 phys_seg 2 prio class 2",
            "Buffer I/O error on dev vda7, logical block 1034, lost async page write",
            "I/O error, dev vda, sector 16 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
            "critical space allocation error, dev sdb, sector 0 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 2",
        ]
        .map(str::to_owned);
        let found = failed_disks(&lines);
        assert_eq!(found, [&lines[1], &lines[4]]);
        assert!(failed_disks(&lines[..1]).is_empty());
    }

    #[test]
    fn records_that_the_kernel_has_overwritten_hide_no_others() {
        let mut answers = VecDeque::from([
            Err(ErrorKind::BrokenPipe),
            Ok("3,7,1,-;I/O error, dev vda, sector 8\n"),
            Err(ErrorKind::BrokenPipe),
            Err(ErrorKind::Interrupted),
            Ok("3,9,1,-;I/O error, dev vdb, sector 8\n"),
            Err(ErrorKind::WouldBlock),
            Ok("3,10,1,-;after the end\n"),
        ]);
        let found = first_lines(|record| {
            let answer = answers.pop_front().unwrap()?;
            record[..answer.len()].copy_from_slice(answer.as_bytes());
            Ok(answer.len())
        });
        let expected = ["vda", "vdb"].map(|disk| format!("I/O error, dev {disk}, sector 8"));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_record_is_read_without_its_prefix_and_the_inits_own_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        assert!(lines(&world).is_empty());
        std::fs::create_dir_all(&world.dev).unwrap();
        let kmsg = world.dev.join("kmsg");
        std::fs::write(
            &kmsg,
            "3,900,6465232,-;I/O error, dev vda, sector 8\n DEVICE=b1:2\n",
        )
        .unwrap();
        assert_eq!(lines(&world), ["I/O error, dev vda, sector 8"]);
        std::fs::write(
            &kmsg,
            "30,901,6,-;slipway-init: I/O error, dev vda, sector 8\n",
        )
        .unwrap();
        assert!(lines(&world).is_empty());
    }
}
