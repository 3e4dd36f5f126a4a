//! QEMU's arguments.

use image::layout::SectorSize;

use super::disk::{Bus, SERIAL_LENGTH};
use super::*;

fn machine(folder: &Path) -> Machine {
    for name in ["kernel", "initrd", "a,b.raw"] {
        std::fs::write(folder.join(name), b"").unwrap();
    }
    Machine {
        memory: 2048,
        cpus: 2,
        accel: Accel::Tcg,
        clock: Clock::Real,
        uuid: Guid([1; 16]),
        start: Start::Direct {
            kernel: folder.join("kernel"),
            initrd: folder.join("initrd"),
            cmdline: "console=ttyS0".into(),
        },
        disks: vec![Disk {
            path: folder.join("a,b.raw"),
            format: Format::Raw,
            bus: Bus::Scsi,
            serial: "system".into(),
            sector: SectorSize::default(),
            read_only: false,
        }],
        names: BTreeMap::new(),
        faults: BTreeMap::new(),
        tpm: None,
        folders: vec![],
        config: None,
        forwards: vec![Forward {
            host: 2222,
            guest: 22,
        }],
        ports: vec!["slipway.verdict".into()],
        nets: vec![Net::default()],
        peer: None,
        capture: false,
        on_reset: OnReset::Stop,
        record: None,
    }
}

#[test]
fn files_are_named_by_where_they_are_inside() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let line = machine(folder.path()).line(place.path()).unwrap();
    let text = line.args.join(" ");
    assert!(text.contains("-kernel /run/vm/1/kernel"), "{text}");
    assert!(text.contains("filename=/run/vm/1/a,,b.raw,"), "{text}");
    assert!(text.contains("hostfwd=tcp:127.0.0.1:2222-:22"), "{text}");
    assert!(
        text.contains("scsi-hd,bus=scsi0.0,drive=disk0,serial=system,bootindex=1"),
        "{text}"
    );
    assert_eq!(line.binds.len(), 2);
    assert!(!text.contains(folder.path().to_str().unwrap()), "{text}");
}

#[test]
fn a_lost_clock_begins_in_1970_and_runs_on() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (clock, begin) in [
        (Clock::Real, None),
        (Clock::Virtual, Some("base=2026-01-01T00:00:00,clock=vm")),
        (Clock::Lost, Some("base=1970-01-01T00:00:00")),
    ] {
        let machine = Machine {
            clock,
            ..machine(folder.path())
        };
        let args = machine.line(place.path()).unwrap().args;
        let at = args.iter().position(|arg| arg == "-rtc");
        assert_eq!(at.map(|at| args[at + 1].as_str()), begin, "{clock:?}");
    }
}

#[test]
fn a_tpm_is_reached_by_its_socket() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut machine = machine(folder.path());
    let words = |machine: &Machine| machine.line(place.path()).unwrap().args.join(" ");
    assert!(!words(&machine).contains("tpm"));
    machine.tpm = Some(folder.path().join("tpm"));
    let text = words(&machine);
    assert!(text.contains("path=/run/vm/0/tpm.sock"), "{text}");
    assert!(text.contains("-device tpm-crb,tpmdev=tpm"), "{text}");
}

#[test]
fn virtual_time_is_refused_on_kvm_and_repeatable_on_tcg() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut machine = machine(folder.path());
    machine.clock = Clock::Virtual;
    let text = machine.line(place.path()).unwrap().args.join(" ");
    assert!(
        text.contains("shift=1,sleep=off") && text.contains(REPEATABLE),
        "{text}"
    );
    machine.accel = Accel::Kvm;
    assert!(machine.line(place.path()).is_err());
}

/// The kernel's options that an emulated machine adds reach it by each start that has a command line; a host's processor needs none.
#[test]
fn an_emulated_machine_has_a_kernel_without_what_emulation_makes_slow() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut machine = machine(folder.path());
    let words = |machine: &Machine| machine.line(place.path()).unwrap().args.join(" ");
    machine.accel = Accel::Tcg;
    let direct = words(&machine);
    assert!(
        direct.contains(" highres=off mitigations=off -") && direct.contains("-cpu max,-erms,"),
        "{direct}"
    );
    assert!(!direct.contains("-smbios"), "{direct}");
    let vars = folder.path().join("vars");
    std::fs::write(&vars, b"").unwrap();
    machine.start = Start::Firmware { vars };
    let firmware = words(&machine);
    let word =
        "-smbios type=11,value=io.systemd.stub.kernel-cmdline-extra=highres=off mitigations=off";
    assert!(firmware.contains(word), "{firmware}");
    machine.accel = Accel::Kvm;
    let host = words(&machine);
    assert!(
        !host.contains("highres") && host.contains("-cpu host"),
        "{host}"
    );
}

#[test]
fn parts_of_one_file_are_recorded_together() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut machine = machine(folder.path());
    std::fs::write(folder.path().join("log"), b"").unwrap();
    let part = |at: u64| Disk {
        format: Format::Part { at, size: 512 },
        bus: Bus::Virtio,
        ..machine.disks[0].clone()
    };
    machine.disks = vec![part(0), part(512)];
    let text = machine.line(place.path()).unwrap().args.join(" ");
    assert!(!text.contains("blklogwrites"), "{text}");
    machine.record = Some(folder.path().join("log"));
    let text = machine.line(place.path()).unwrap().args.join(" ");
    for wanted in [
        "driver=blklogwrites,node-name=shared,file=below,log=record",
        "node-name=disk1,file=shared,offset=512,size=512",
        "drive=disk0,serial=system,bootindex=1,share-rw=on",
    ] {
        assert!(text.contains(wanted), "{wanted} not in {text}");
    }
    assert_eq!(text.matches("a,,b.raw").count(), 1, "{text}");
    machine.disks[1].path = folder.path().join("kernel");
    let error = machine.line(place.path()).unwrap_err().to_string();
    assert!(error.contains("to be of one"), "{error}");
}

#[test]
fn a_disk_that_fails_has_its_rules_below_it_and_passes_the_errors_to_the_guest() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut machine = machine(folder.path());
    machine
        .faults
        .insert("system".to_owned(), folder.path().join("kernel"));
    let words = |machine: &Machine| machine.line(place.path()).unwrap().args.join(" ");
    let text = words(&machine);
    for wanted in [
        "driver=blkdebug,node-name=fault0,image=file0,config=/run/vm/1/kernel,",
        "driver=raw,node-name=disk0,file=fault0,discard=unmap ",
        "serial=system,bootindex=1,rerror=report,werror=report",
    ] {
        assert!(text.contains(wanted), "{wanted} not in {text}");
    }
    machine.disks[0].format = Format::Part { at: 0, size: 512 };
    let text = words(&machine);
    for wanted in [
        "driver=blkdebug,node-name=fault0,image=shared,",
        "driver=raw,node-name=disk0,file=fault0,offset=0,size=512,",
    ] {
        assert!(text.contains(wanted), "{wanted} not in {text}");
    }
    machine.faults.clear();
    assert!(!words(&machine).contains("report"));
}

#[test]
fn a_serial_that_a_guest_would_see_cut_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut machine = machine(folder.path());
    machine.disks[0].serial = "x".repeat(SERIAL_LENGTH + 1);
    let error = machine.line(place.path()).unwrap_err();
    assert!(error.to_string().contains("at most 20"), "{error}");
}

#[test]
fn a_disk_of_large_sectors_has_them_on_every_controller_that_can() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut machine = machine(folder.path());
    let words =
        |machine: &Machine| Ok::<_, anyhow::Error>(machine.line(place.path())?.args.join(" "));
    assert!(!words(&machine).unwrap().contains("block_size"));
    machine.disks[0].sector = SectorSize::B4096;
    for (bus, device) in [
        (Bus::Virtio, "virtio-blk-pci"),
        (Bus::Nvme, "nvme-ns"),
        (Bus::Scsi, "scsi-hd"),
    ] {
        machine.disks[0].bus = bus;
        let text = words(&machine).unwrap();
        let (_, rest) = text.split_once(&format!("-device {device},")).unwrap();
        let words = rest.split(' ').next().unwrap();
        assert!(
            words.ends_with(",logical_block_size=4096,physical_block_size=4096"),
            "{words}"
        );
    }
    machine.disks[0].bus = Bus::Sata;
    let error = words(&machine).unwrap_err().to_string();
    assert!(error.contains("choose virtio, nvme or scsi"), "{error}");
    machine.disks[0].sector = SectorSize::B512;
    machine.disks[0].bus = Bus::CdRom;
    let text = words(&machine).unwrap();
    assert!(text.contains("-device ide-cd,bus=ide.0,"), "{text}");
    assert!(text.contains(",read-only=on"), "{text}");
}

#[test]
fn forwards_and_buses_name_what_they_expect() {
    assert_eq!(
        "2222:22".parse(),
        Ok(Forward {
            host: 2222,
            guest: 22
        })
    );
    assert!("22".parse::<Forward>().unwrap_err().contains("2222:22"));
    assert!("ide".parse::<Bus>().unwrap_err().contains("nvme"));
}
