//! Raises the loopback interface of a sandbox's own network namespace, where it is down at first.
//!
//! Maintainer scripts ask for the machine's addresses: Postfix's `newaliases` fails where not even 127.0.0.1 is there.
//! Nothing else is in the namespace, so no program reaches anything beyond itself. The kernel gives the interface its
//! addresses, `::1` too unless IPv6 is switched off.
//!
//! Format: netdevice(7).
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// The interface's name, with the NUL that ends it.
const NAME: &[u8] = b"lo\0";

/// Raises the interface of the namespace that this process is in.
///
/// # Errors
/// If the kernel refuses it: it takes `CAP_NET_ADMIN` in the namespace's user namespace.
pub(super) fn raise() -> Result<()> {
    let about = "raising the loopback interface of the sandbox's network namespace, which takes CAP_NET_ADMIN";
    let family = AddressFamily::Unix;
    let any = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).context(about)?;
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(NAME) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP)?;
    // SAFETY: the structure has the kernel's layout and lives until the call returns.
    let set = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request) };
    Errno::result(set).context(about)?;
    Ok(())
}
