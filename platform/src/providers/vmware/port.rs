//! The hypervisor's I/O port: one exchange of registers. The hypervisor, not a device, answers it.
#![allow(unsafe_code)]

use std::arch::asm;

use super::rpc::Registers;

/// Reads from the port. The caller holds a guard of `vmw_backdoor`, which has seen that the hypervisor answers: on another
/// processor the access is a fault.
pub(super) fn call(_guard: &vmw_backdoor::BackdoorGuard, registers: Registers) -> Registers {
    let Registers {
        mut a,
        b,
        mut c,
        mut d,
        mut si,
        mut di,
    } = registers;
    let mut b = u64::from(b);
    // SAFETY: the hypervisor changes these registers and no memory. rbx, which the compiler keeps for itself, is swapped in
    // and out; the guard vouches for the hypervisor.
    unsafe {
        asm!(
            "xchg {b}, rbx",
            "in eax, dx",
            "xchg {b}, rbx",
            b = inout(reg) b,
            inout("eax") a,
            inout("ecx") c,
            inout("edx") d,
            inout("esi") si,
            inout("edi") di,
            options(nostack, nomem),
        );
    }
    Registers {
        a,
        b: u32::try_from(b & u64::from(u32::MAX)).unwrap_or_default(),
        c,
        d,
        si,
        di,
    }
}
