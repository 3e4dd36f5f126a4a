//! The timeline of a boot.

use anyhow::{Context, Result, ensure};
use image::paths::RUN_TIMELINE;
use qemu_tests::lab::Lab;
use slipway::vm::timeline::{read, svg, table};

use crate::ignition::probes;

/// The node records the timeline of its boot with every step of the init; the tool prints it as a table and as a
/// picture.
pub(crate) fn each_boot_leaves_a_timeline_that_the_tool_draws(lab: &mut Lab) -> Result<()> {
    let node = lab.healthy(&probes())?;
    let running = node.run(&format!("cat {RUN_TIMELINE}"))?;
    let spans = read(&running)?;
    for step in ["modules", "root", "state", "config", "etcd"] {
        let span = spans
            .iter()
            .find(|span| span.name == step)
            .with_context(|| format!("finding {step} in {running}"))?;
        ensure!(
            span.end.is_some_and(|end| end >= span.start),
            "{step} ends before it begins: {span:?}"
        );
        ensure!(table(&spans).contains(step), "the table has no {step}");
    }
    let picture = svg(&spans, "a boot");
    ensure!(picture.contains("</svg>"), "{picture}");
    Ok(())
}
