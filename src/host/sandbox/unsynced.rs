//! A seccomp filter under which a program's requests to write data to the disk succeed at once and do nothing.
//!
//! Maintainer scripts and dpkg sync every small file that they write, thousands of times in an installation, since their tree is a
//! machine's. Here it is a folder that a failed build removes whole, and whose archive the cache syncs itself.
//!
//! Format: the kernel's `Documentation/userspace-api/seccomp_filter.rst` and `include/uapi/linux/bpf_common.h`.
#![allow(unsafe_code)]

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;

/// The calls that only ask for a write to the disk.
const CALLS: [libc::c_long; 5] = [
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync,
    libc::SYS_syncfs,
    SYNC_RANGE,
];
#[cfg(target_arch = "x86_64")]
const SYNC_RANGE: libc::c_long = libc::SYS_sync_file_range;
#[cfg(not(target_arch = "x86_64"))]
const SYNC_RANGE: libc::c_long = libc::SYS_syncfs;
/// `AUDIT_ARCH_…` of this program, the only one whose numbers of calls are known (`include/uapi/linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;
/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Sets the filter for this process and all that it starts. A kernel without filters changes nothing but the time.
///
/// # Errors
/// If the kernel has filters and refuses this one.
pub(super) fn enter() -> Result<()> {
    let mut filter = program();
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).context("a filter of this length")?,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    match Errno::result(set) {
        Ok(_) | Err(Errno::EINVAL | Errno::ENOSYS) => Ok(()),
        Err(error) => Err(error).context("filtering the program's requests to sync"),
    }
}

fn program() -> Vec<libc::sock_filter> {
    let last = u8::try_from(CALLS.len()).unwrap_or(u8::MAX);
    let mut program = vec![
        step(LOAD, ARCHITECTURE_AT, 0, 0),
        // Another architecture's calls are let through: over the load and the comparisons.
        step(EQUAL, ARCHITECTURE, 0, last + 1),
        step(LOAD, NUMBER_AT, 0, 0),
    ];
    for (call, left) in CALLS.iter().zip((1..=last).rev()) {
        // The numbers of calls are small.
        let number = u32::try_from(*call).unwrap_or(u32::MAX);
        program.push(step(EQUAL, number, left, 0));
    }
    program.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    // An errno of 0: the call succeeds.
    program.push(step(RETURN, libc::SECCOMP_RET_ERRNO, 0, 0));
    program
}

fn step(code: u32, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter {
        // The codes that are used here fit.
        code: u16::try_from(code).unwrap_or_default(),
        jt: if_true,
        jf: if_false,
        k: value,
    }
}
