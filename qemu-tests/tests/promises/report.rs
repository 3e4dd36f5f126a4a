//! Reports of failures.

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use image::cmdline::REPORT_URL;
use image::layout::LABEL_ROOT_A;
use image::report::{LINE, PORT, Report};
use qemu_tests::disk_content::flip;
use qemu_tests::http::{self, Request};
use qemu_tests::lab::{BootOptions, Lab};
use qemu_tests::timeouts;
use slipway::vm::channel::Waited;
use slipway::vm::disks::partition;
use slipway::vm::machine::{OnReset, Start};

/// Offset of EROFS's superblock.
const SUPERBLOCK: u64 = 1024;

/// The report on the console is also sent, unchanged, to the machine's port and to the server that the command line names;
/// the init tries again if the server fails at first.
pub(crate) fn a_report_goes_to_the_port_and_to_the_server(lab: &mut Lab) -> Result<()> {
    let node = lab.node()?;
    let (start, _) = partition(&node.system(), LABEL_ROOT_A)?;
    flip(&node.system(), start + SUPERBLOCK)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for status in ["503 Service Unavailable", "204 No Content"] {
            let body = take(&listener, status);
            if tell.send(body).is_err() {
                return;
            }
        }
    });

    let plan = BootOptions {
        on_reset: OnReset::Stop,
        ..BootOptions::default()
    };
    let mut machine = lab.machine(&node, &plan)?;
    machine.ports.push(PORT.to_owned());
    if let Start::Direct { cmdline, .. } = &mut machine.start {
        // The host's address in QEMU's user network.
        cmdline.push_str(&format!(" {REPORT_URL}=http://10.0.2.2:{port}/report"));
    }
    let running = lab.start(&node, machine, None)?;
    let shown = running.wait_report(timeouts::INIT)?;
    let report: Report = serde_json::from_str(&shown).context("reading the report")?;
    ensure!(
        report.step == "root",
        "the report is about the step {:?}",
        report.step
    );
    for _ in 0..2 {
        let body = told
            .recv_timeout(timeouts::INIT)
            .context("waiting for the report's arrival")?
            .context("reading what was posted")?;
        ensure!(body == shown, "posted {body:?}, shown {shown:?}");
    }
    let line = running
        .vm
        .port(PORT)?
        .wait(Duration::from_secs(10), |text| {
            let (line, _) = text.split_once(LINE)?.1.split_once('\n')?;
            Some(line.trim().to_owned())
        });
    ensure!(
        line == Waited::Found(shown.clone()),
        "the port has {line:?}, the console {shown:?}"
    );
    running.wait_console(&["report sent to the report server"], timeouts::INIT)?;
    Ok(())
}

/// Answers one request; returns its body.
fn take(listener: &TcpListener, status: &str) -> Result<String> {
    let (mut connection, _) = listener.accept()?;
    let Request { head, body } = Request::read(&mut connection)?;
    ensure!(head.starts_with("POST /report "), "{head}");
    http::answer(&mut connection, status, b"")?;
    Ok(body)
}
