//! Tests with a tiny guest whether KVM works on this host.
//!
//! An accessible `/dev/kvm` is no proof: on some hosts a guest then hangs, or QEMU fails on a register of the
//! processor. So the probe runs a ROM of 64 KiB, with the processor model of real guests, under a short deadline; the
//! guest's result is one value written to QEMU's exit device.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::machine::Accel;
use super::machine::line::INSIDE;
use super::{process, reap};
use crate::install::tools::Tools;

/// Size of the ROM, bytes; the processor starts 16 bytes before its end.
const ROM: usize = 64 << 10;
/// The value that the guest writes to port 0xf4; QEMU's exit code is twice that and one.
const VALUE: u8 = 0x2a;
/// Time limit of the probe; a working KVM needs a tenth of a second, QEMU's start included.
const DEADLINE: Duration = Duration::from_secs(4);

/// The user's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// KVM if the probe succeeds, else emulation.
    #[default]
    Auto,
    /// KVM or an error.
    Kvm,
    /// Emulation, without the probe.
    Tcg,
}

impl std::str::FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            _ => Err(format!(
                "{text:?} is not an acceleration; expected auto, kvm or tcg"
            )),
        }
    }
}

/// Selects the acceleration. With [`Choice::Auto`] the second value is the reason for emulation.
///
/// # Errors
/// If KVM was demanded and does not work, or the probe cannot be set up.
pub fn choose(tools: &Tools, choice: Choice) -> Result<(Accel, Option<String>)> {
    if choice == Choice::Tcg {
        return Ok((Accel::Tcg, None));
    }
    match (prove_kvm(tools)?, choice) {
        (Ok(_), _) => Ok((Accel::Kvm, None)),
        (Err(why), Choice::Kvm) => Err(anyhow::anyhow!("KVM does not work here: {why}")),
        (Err(why), _) => Ok((Accel::Tcg, Some(why))),
    }
}

/// Runs the tiny guest on KVM. The inner result is its duration, or the reason why KVM is not usable.
///
/// # Errors
/// If the probe itself cannot be set up.
pub fn prove_kvm(tools: &Tools) -> Result<Result<Duration, String>> {
    let device = Path::new("/dev/kvm");
    if let Err(error) = nix::unistd::access(
        device,
        nix::unistd::AccessFlags::R_OK | nix::unistd::AccessFlags::W_OK,
    ) {
        return Ok(Err(format!("{}: {}", device.display(), error.desc())));
    }
    run(tools.sandbox().device(device), "kvm", "host")
}

/// Runs the tiny guest on software emulation, which always works: a check of the guest itself.
///
/// # Errors
/// If the probe itself cannot be set up.
pub fn prove_emulation(tools: &Tools) -> Result<Result<Duration, String>> {
    run(tools.sandbox(), "tcg", "max")
}

/// Runs the tiny guest.
fn run(
    sandbox: crate::host::sandbox::Sandbox,
    accel: &str,
    cpu: &str,
) -> Result<Result<Duration, String>> {
    let folder = tempfile::tempdir().context("making a folder for the probe")?;
    std::fs::write(folder.path().join("rom"), rom()).context("writing the probe's ROM")?;
    let begin = Instant::now();
    let mut child = sandbox
        .bind(folder.path(), INSIDE)
        .command(process::PROGRAM)
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-machine",
            "q35",
            "-accel",
            accel,
            "-cpu",
            cpu,
            "-m",
            "16",
            "-bios",
        ])
        .arg(format!("{INSIDE}/rom"))
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"])
        .stderr(std::fs::File::create(folder.path().join("stderr"))?)
        .spawn()
        .context("starting the probe")?;
    loop {
        if let Some(status) = child.try_wait().context("waiting for the probe")? {
            if status.code() == Some(i32::from(VALUE) * 2 + 1) {
                return Ok(Ok(begin.elapsed()));
            }
            let said = std::fs::read_to_string(folder.path().join("stderr")).unwrap_or_default();
            return Ok(Err(format!(
                "a tiny guest ended with {status}: {}",
                said.trim()
            )));
        }
        if begin.elapsed() >= DEADLINE {
            reap::end(&mut child);
            return Ok(Err(format!(
                "a tiny guest hung for {} s",
                DEADLINE.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The guest. Broken hosts run the first instruction, but fail in protected mode and at instructions
/// that a host without proper acceleration would have to emulate. So the guest enters 32-bit mode, runs
/// one BMI2 instruction if the processor reports them, and only then writes its value.
fn rom() -> Vec<u8> {
    /// The ROM's address: it ends at 4 GiB.
    const BASE: u32 = 0xffff_0000;
    const CODE: u16 = 0xff00;
    const MODE_32: u16 = 0xff20;
    const GDT: u16 = 0xff60;
    const POINTER: u16 = 0xff70;
    const RESET: u16 = 0xfff0;

    let mut rom = vec![0xf4; ROM];
    let mut put = |at: u16, bytes: &[u8]| {
        let at = usize::from(at);
        rom[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let address = |at: u16| (BASE | u32::from(at)).to_le_bytes();

    // jmp CODE (relative to the end of these three bytes)
    let [low, high] = CODE.wrapping_sub(RESET + 3).to_le_bytes();
    put(RESET, &[0xe9, low, high]);
    // cli; lgdt cs:[POINTER]; mov eax, cr0; or al, 1; mov cr0, eax; jmp 8:MODE_32
    let [low, high] = POINTER.to_le_bytes();
    let [a, b, c, d] = address(MODE_32);
    put(
        CODE,
        &[
            0xfa, 0x66, 0x2e, 0x0f, 0x01, 0x16, low, high, 0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f,
            0x22, 0xc0, 0x66, 0xea, a, b, c, d, 0x08, 0x00,
        ],
    );
    // mov eax, 7; xor ecx, ecx; cpuid; test ebx, 1 << 8 (BMI2); jz +5; shlx eax, ebx, ecx;
    // mov al, VALUE; out 0xf4, al; hlt
    put(
        MODE_32,
        &[
            0xb8, 7, 0, 0, 0, 0x31, 0xc9, 0x0f, 0xa2, 0xf7, 0xc3, 0, 1, 0, 0, 0x74, 5, 0xc4, 0xe2,
            0x71, 0xf7, 0xc3, 0xb0, VALUE, 0xe6, 0xf4, 0xf4,
        ],
    );
    // The null descriptor, and flat 32-bit code.
    put(
        GDT,
        &[0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0x9a, 0xcf, 0],
    );
    let [a, b, c, d] = address(GDT);
    put(POINTER, &[15, 0, a, b, c, d]);
    rom
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_vector_leads_to_the_code() {
        let rom = rom();
        assert_eq!(rom.len(), ROM);
        let jump = i16::from_le_bytes([rom[0xfff1], rom[0xfff2]]);
        assert_eq!(0xfff3 + i32::from(jump), 0xff00);
        assert_eq!(rom[0xff00], 0xfa);
    }

    #[test]
    fn choices_are_words() {
        assert_eq!("auto".parse(), Ok(Choice::Auto));
        assert!("fast".parse::<Choice>().unwrap_err().contains("tcg"));
    }
}
