//! The options of a bond, by its files in sysfs: set where they differ, and read back.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use image::bond::{self, MODE, PRIMARY};
use image::network::Bond;
use linux::world::World;

/// The kernel changes these only while the bond has no members.
const WITHOUT_MEMBERS: [&str; 2] = [MODE, "fail_over_mac"];
/// These name a member, which must be there first.
const OF_MEMBERS: [&str; 2] = [PRIMARY, "active_slave"];
/// What other options depend on comes before them: delays need `miimon`, and each way of monitoring ends the other.
const FIRST: [&str; 3] = [MODE, "miimon", "arp_interval"];

/// The options of one bond.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    folder: PathBuf,
    bond: &'a Bond,
}

impl<'a> Options<'a> {
    pub(crate) fn new(world: &World, bond: &'a Bond) -> Self {
        let folder = world.sys.join("class/net").join(&bond.name).join("bonding");
        Self { folder, bond }
    }

    /// The options that the bond does not have as they are requested, in the order in which the kernel takes them. Those that
    /// name a member are not among them.
    pub(crate) fn differing(&self) -> Vec<&'a (String, String)> {
        let rank = |key: &str| FIRST.iter().position(|first| *first == key);
        let mut out: Vec<_> = self
            .bond
            .options
            .iter()
            .filter(|(key, value)| !OF_MEMBERS.contains(&key.as_str()) && !self.has(key, value))
            .collect();
        out.sort_by_key(|(key, _)| rank(key).unwrap_or(FIRST.len()));
        out
    }

    /// Whether members must leave the bond before these options are set.
    pub(crate) fn need_no_members(options: &[&(String, String)]) -> bool {
        let needs = |(key, _): &&(String, String)| WITHOUT_MEMBERS.contains(&key.as_str());
        options.iter().any(needs)
    }

    /// The options that name a member.
    pub(crate) fn of_members(&self) -> impl Iterator<Item = &'a (String, String)> {
        let all = self.bond.options.iter();
        all.filter(|(key, _)| OF_MEMBERS.contains(&key.as_str()))
    }

    /// Sets one option, and reads it back.
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<()> {
        for one in bond::values(key, value) {
            // A list is changed by its parts.
            let text = match bond::is_list(key) {
                true => format!("+{one}"),
                false => one.to_owned(),
            };
            fs::write(self.folder.join(key), text)
                .with_context(|| format!("setting {key} to {one}"))?;
        }
        let found = self.read(key).unwrap_or_default();
        ensure!(
            self.has(key, value),
            "{key}: expected {value}, found {found}"
        );
        Ok(())
    }

    /// Whether an option has a value. The kernel shows a name with its number, as `802.3ad 4`, and a list with spaces.
    pub(crate) fn has(&self, key: &str, value: &str) -> bool {
        let found = self.read(key).unwrap_or_default();
        let mut values = bond::values(key, value);
        values.all(|value| {
            found
                .split(' ')
                .any(|found| found.eq_ignore_ascii_case(value))
        })
    }

    fn read(&self, key: &str) -> Result<String> {
        read(&self.folder.join(key))
    }

    /// The options that were requested, as the kernel has them: for the log.
    pub(crate) fn shown(&self) -> String {
        let one =
            |(key, _): &(String, String)| format!("{key} {}", self.read(key).unwrap_or_default());
        let shown: Vec<String> = self.bond.options.iter().map(one).collect();
        shown.join(", ")
    }
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::world::Clock;

    #[test]
    fn options_that_differ_are_set_in_order_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::below(folder.path(), Clock::Real);
        let own = world.sys.join("class/net/bond0/bonding");
        fs::create_dir_all(&own).unwrap();
        // As the kernel shows a bond that its module has made.
        for (key, text) in [
            ("mode", "balance-rr 0\n"),
            ("miimon", "0\n"),
            ("updelay", "0\n"),
            ("lacp_rate", "slow 0\n"),
            ("arp_ip_target", "192.0.2.1 192.0.2.2 \n"),
            ("primary", "\n"),
        ] {
            fs::write(own.join(key), text).unwrap();
        }
        let words = "updelay=200,primary=eth1,miimon=100,lacp_rate=slow,mode=4,arp_ip_target=192.0.2.2;192.0.2.1";
        let plan = image::cmdline::Cmdline::parse(&format!("bond=bond0:eth0:{words}")).unwrap();
        let bond = &plan.network.bonds[0];
        let options = Options::new(&world, bond);
        let differing = options.differing();
        let keys: Vec<&str> = differing.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["mode", "miimon", "updelay"]);
        assert!(Options::need_no_members(&differing));
        for (key, value) in &differing {
            options.set(key, value).unwrap();
        }
        assert!(options.differing().is_empty());
        assert_eq!(fs::read_to_string(own.join("mode")).unwrap(), "802.3ad");
        let members: Vec<_> = options.of_members().collect();
        assert_eq!(members, [&("primary".to_owned(), "eth1".to_owned())]);
        assert!(
            options.shown().contains("miimon 100, lacp_rate slow 0"),
            "{}",
            options.shown()
        );
        assert!(!options.has("no_such_option", "1"));
    }
}
