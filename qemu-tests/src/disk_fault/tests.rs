//! The rules of a fault.

use super::*;
use nix::errno::Errno;

#[test]
fn a_fault_counts_the_requests_before_it_by_states() {
    let mut fault = DiskFault {
        request: Request::Write,
        number: 2,
        times: Times::Once,
        errno: Errno::ENOSPC,
    };
    let first = "[set-state]\nevent = \"write_aio\"\nstate = \"1\"\nnew_state = \"2\"\n";
    let second = "[set-state]\nevent = \"write_aio\"\nstate = \"2\"\nnew_state = \"3\"\n";
    let fails = "[inject-error]\nevent = \"write_aio\"\niotype = \"write\"\nstate = \"2\"\nerrno = \"28\"\n";
    assert_eq!(
        fault.rules(),
        format!("{first}{second}{fails}once = \"on\"\n")
    );
    fault.times = Times::Always;
    assert_eq!(fault.rules(), format!("{first}{fails}once = \"off\"\n"));
}
