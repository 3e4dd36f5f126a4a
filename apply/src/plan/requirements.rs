//! The programs, kernel modules and TPM that a plan requires, checked before the first write.

use anyhow::Result;

use super::DiskPlan;
use crate::filesystems::FilesystemAction;
use linux::block;
use linux::programs::Programs;
use linux::tools;
use linux::tools::Tool;
use linux::world::World;

/// Drivers of TPMs; a kernel with built-in drivers has found its TPM already.
const TPM_DRIVERS: [&str; 2] = ["tpm_crb", "tpm_tis"];

impl DiskPlan {
    /// The requirements that root and machine do not meet, each with its remedy.
    pub(crate) fn missing_requirements(&self, root: &Programs) -> Result<Vec<String>> {
        let mut out = self.missing_tools(root);
        if !out.is_empty() {
            return Ok(out);
        }
        for (at, module) in self.modules() {
            if !tools::has_module(root, module)? {
                let whose = if root.in_image { "image's " } else { "" };
                out.push(format!("{at}: the {whose}kernel has no module {module}"));
            }
        }
        let mut volumes = self.volumes.iter();
        if let Some(bound) = volumes.find(|volume| volume.spec.needs_tpm())
            && !has_tpm(root)
        {
            out.push(format!(
                "{}.clevis: this machine has no TPM 2; add one, or use a keyFile alone",
                bound.spec.at
            ));
        }
        Ok(out)
    }

    /// The kernel modules that the plan requires, each with the entry that requires it.
    fn modules(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let arrays = self.arrays.iter();
        let arrays = arrays.map(|array| (array.spec.at.as_str(), array.spec.module()));
        let volumes = self.volumes.iter();
        arrays.chain(volumes.map(|volume| (volume.spec.at.as_str(), "dm_crypt")))
    }

    /// The programs and libraries that are absent.
    pub(super) fn missing_tools(&self, root: &Programs) -> Vec<String> {
        let mut out = Vec::new();
        let mut need = |at: &str, tools: &[Tool]| {
            for tool in tools {
                if let Err(error) = tool.find(root) {
                    out.push(format!("{at}: {error}"));
                }
            }
        };
        for array in &self.arrays {
            need(&array.spec.at, &[Tool::Mdadm, Tool::Modprobe]);
        }
        for volume in &self.volumes {
            need(&volume.spec.at, &[Tool::Modprobe]);
            let mut tools = volume.spec.tools();
            // The programs that open the volume on the running system are in that system's root, which is another one
            // if an initrd runs Ignition.
            let of_running = [Tool::CryptsetupGenerator, Tool::ClevisAgent];
            tools.retain(|tool| root.in_image || !of_running.contains(tool));
            need(&volume.spec.at, &tools);
        }
        for job in &self.filesystems {
            // A file system that is not decided yet may have to be made.
            let wipes = matches!(
                job.action,
                Some(FilesystemAction::Wipe | FilesystemAction::Remake)
            );
            let makes = matches!(
                job.action,
                None | Some(FilesystemAction::Make | FilesystemAction::Remake)
            );
            let wipefs = wipes.then_some(Tool::Wipefs);
            let mkfs = job.spec.tool().filter(|_| makes);
            let tools: Vec<Tool> = wipefs.into_iter().chain(mkfs).collect();
            need(&job.spec.at, &tools);
        }
        out
    }
}

fn has_tpm(root: &Programs) -> bool {
    if knows_tpm(&root.world) {
        return true;
    }
    for driver in TPM_DRIVERS {
        // Best effort: this machine may need neither.
        if let Err(error) = tools::load_module(root, driver) {
            tracing::debug!("{error:#}");
        }
    }
    knows_tpm(&root.world)
}

/// Whether the kernel drives a TPM 2, which has a resource manager.
fn knows_tpm(world: &World) -> bool {
    !block::entries(&world.sys.join("class/tpmrm")).is_empty()
}
