//! The kernel's log: what the kernel said since it started.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use crate::world::World;

/// The first line of each record without its prefix, oldest first; none if the log cannot be read. What the init wrote is left
/// out.
#[must_use]
pub fn lines(world: &World) -> Vec<String> {
    let opened = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(world.dev.join("kmsg"));
    let Ok(mut kmsg) = opened else {
        return Vec::new();
    };
    let (mut record, mut found) = ([0; 8192], Vec::new());
    // One read returns one record; at the end of the log it fails with EAGAIN.
    while let Ok(length @ 1..) = kmsg.read(&mut record) {
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
