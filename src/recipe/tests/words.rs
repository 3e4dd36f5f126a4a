//! `[sysctl]`, `[kernel]`'s words about modules, `[users]`, `[groups]` and `[locale]`: what they come to, and each mistake at its place.

use super::{SMALL, written};
use crate::recipe::{FileKind, Recipe};

fn with(text: &str) -> Result<Recipe, String> {
    let text = format!("extends = 'p.toml'\n\n\n\n{text}\n");
    written(&[("a.toml", &text), ("p.toml", SMALL)])
}

/// The text or the link of a file.
fn file(recipe: &Recipe, path: &str) -> String {
    let file = recipe.files.iter().find(|file| file.path == path);
    match &file.unwrap().kind {
        FileKind::Content(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        FileKind::Link(target) => target.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn settings_are_one_file_however_they_are_written() {
    let child =
        "extends = 'p.toml'\nsysctl.vm.max_map_count = 3\n[sysctl.net]\ncore.somaxconn = 1024\n";
    let parent = format!(
        "{SMALL}\n[sysctl]\nvm.max_map_count = 1\n'net/ipv4/conf/eth0.100/forwarding' = 1\n\
         'net.ipv4.ip_local_port_range' = '32768 60999'\n"
    );
    let recipe = written(&[("c.toml", child), ("p.toml", &parent)]).unwrap();
    let expected = "# [sysctl] of the recipe. Made by the build.\nnet.core.somaxconn = 1024\n\
                    net/ipv4/conf/eth0.100/forwarding = 1\nnet.ipv4.ip_local_port_range = 32768 60999\n\
                    vm.max_map_count = 3\n";
    assert_eq!(file(&recipe, "/etc/sysctl.d/90-recipe.conf"), expected);
    assert!(with("").unwrap().files.is_empty());
}

#[test]
fn words_about_modules_are_files_of_their_programs() {
    let recipe = with(
        "kernel.load = ['br_netfilter', 'overlay']\nkernel.blacklist = ['floppy']\n\
         kernel.options = { nvme_core = 'io_timeout=60  multipath=N ' }",
    )
    .unwrap();
    let load = "# `kernel.load` of the recipe. Made by the build.\nbr_netfilter\noverlay\n";
    assert_eq!(file(&recipe, "/etc/modules-load.d/recipe.conf"), load);
    let text = file(&recipe, "/etc/modprobe.d/zz-recipe.conf");
    let options = "\noptions nvme_core io_timeout=60  multipath=N\nblacklist floppy\n";
    assert!(text.ends_with(options), "{text}");
}

#[test]
fn dkms_compiles_in_a_set_of_its_own_for_a_kernel_that_loads_its_modules() {
    let dkms = "kernel.dkms = ['acpi-call-dkms']\n";
    let recipe = with(dkms).unwrap();
    let sets = recipe.sets();
    let set = sets.iter().find(|set| set.name == "dkms").unwrap();
    assert_eq!(set.packages, ["dkms", "gcc", "acpi-call-dkms"]);
    assert!(!set.is_tools());
    for (more, words) in [
        (
            "kernel.lockdown = 'integrity'",
            "with `lockdown` the kernel loads none of them",
        ),
        (
            "kernel.module-signatures = true",
            "with `module-signatures` the kernel loads none",
        ),
        (
            "kernel.cmdline = ['module.sig_enforce']",
            "expected module-signatures = true",
        ),
        (
            "debian.packages = ['acpi-call-dkms']",
            "`acpi-call-dkms` is in `kernel.dkms` and in `debian.packages`",
        ),
    ] {
        let report = with(&format!("{dkms}{more}")).unwrap_err();
        assert!(report.contains(words), "{report}");
        let line = if more.contains("cmdline") { 6 } else { 5 };
        assert!(report.contains(&format!("a.toml:{line}:")), "{report}");
    }
    let report = with("kernel.dkms = ['Acpi call']").unwrap_err();
    assert!(report.contains("a.toml:5:16"), "{report}");
}

#[test]
fn locale_and_zone_are_a_file_and_a_link() {
    let recipe = with(
        "[locale]\nlang = 'de_DE.UTF-8'\ngenerate = ['de_DE.UTF-8']\ntimezone = 'Europe/Berlin'",
    )
    .unwrap();
    assert!(file(&recipe, "/etc/locale.conf").ends_with("\nLANG=de_DE.UTF-8\n"));
    let zone = "/usr/share/zoneinfo/Europe/Berlin";
    assert_eq!(file(&recipe, "/etc/localtime"), zone);
    let sets = recipe.sets();
    assert!(sets.iter().any(|set| set.name == "locales"), "{sets:?}");
    with("locale.lang = 'C.UTF-8'").unwrap();
}

#[test]
fn accounts_have_what_is_written_and_defaults() {
    let recipe = with(
        "[groups.ops]\ngid = 700\n[users.agent]\nuid = 701\ngroups = ['ops']\nhome = '/var/lib/agent'\n[users.plain]\n",
    )
    .unwrap();
    assert_eq!(recipe.accounts.groups["ops"], Some(700));
    let agent = &recipe.accounts.users["agent"];
    assert_eq!(
        (agent.uid, agent.wanted_home()),
        (Some(701), Some("/var/lib/agent"))
    );
    let plain = &recipe.accounts.users["plain"];
    assert_eq!(
        (plain.home(), plain.shell()),
        ("/nonexistent", "/usr/sbin/nologin")
    );
    assert_eq!((plain.uid, plain.wanted_home()), (None, None));
}

/// Each text has one mistake, at this place and with these words.
fn shown(cases: &[(&str, &str, &str)]) {
    for (text, place, words) in cases {
        let report = with(text).unwrap_err();
        assert!(report.contains(place), "{text}\n{report}");
        assert!(report.contains(words), "{text}\n{report}");
        assert!(!report.contains(" mistakes"), "{text}\n{report}");
    }
}

#[test]
fn mistakes_of_settings_are_shown_at_their_places() {
    shown(&[
        (
            "[sysctl]\nkernl.panic = 10",
            "a.toml:6:1",
            "did you mean `kernel`?",
        ),
        (
            "[sysctl]\nkernel.panic = 0",
            "a.toml:6:16",
            "would never come back",
        ),
        (
            "[sysctl]\nkernel.modules_disabled = 1",
            "a.toml:6:27",
            "load a module any more",
        ),
        (
            "[sysctl]\nvm.swappiness = \"1\\n2\"",
            "a.toml:6:17",
            "expected a value on one line",
        ),
        (
            "[sysctl]\nvm.swappiness = true",
            "a.toml:6:17",
            "expected a text in quotes or a whole number",
        ),
        (
            "[sysctl]\nkernel.shmmax = 18446744073692774399",
            "a.toml:6:17",
            "write it in quotes: \"18446744073692774399\"",
        ),
        (
            "[sysctl]\n'vm.swap piness' = 1",
            "a.toml:6:1",
            "is not the name of a setting",
        ),
        (
            "[sysctl]\n'vm..x' = 1",
            "a.toml:6:1",
            "is not the name of a setting",
        ),
        (
            "[sysctl]\n'vm.x' = 1\nvm.x = 2",
            "a.toml:",
            "vm.x is given twice",
        ),
        (
            "[sysctl]\nvm.x = 1\n[files.'/etc/sysctl.d/90-recipe.conf']\ncontent = ''",
            "a.toml:7:8",
            "is what [sysctl] writes",
        ),
    ]);
}

#[test]
fn mistakes_of_modules_are_shown_at_their_places() {
    shown(&[
        (
            "kernel.load = ['a/b']",
            "a.toml:5:16",
            "is not a module name or alias",
        ),
        ("kernel.load = ['a', 'a']", "a.toml:5:21", "is given twice"),
        (
            "kernel.blacklist = ['a']\nkernel.load = ['a']",
            "a.toml:5:21",
            "is in `kernel.blacklist` and in `kernel.load`",
        ),
        (
            "kernel.options = { 'a/b' = 'x=1' }",
            "a.toml:5:20",
            "is not a module name",
        ),
        (
            "kernel.options = { a = \"x=1\\ny=2\" }",
            "a.toml:5:24",
            "is not a module's options",
        ),
        (
            "kernel.options = { a = '' }",
            "a.toml:5:24",
            "is not a module's options",
        ),
        (
            "kernel.options = { a = 1 }",
            "a.toml:5:24",
            "write it in quotes",
        ),
        ("kernel.lod = []", "a.toml:5:8", "did you mean `load`?"),
    ]);
}

#[test]
fn mistakes_of_locale_and_zone_are_shown_at_their_places() {
    shown(&[
        (
            "[locale]\nlang = 'de_DE.UTF-8'",
            "a.toml:6:8",
            "generate = [\"de_DE.UTF-8\"] makes it",
        ),
        (
            "[locale]\nlang = 'de_DE.UFT-8'\ngenerate = ['de_DE.UTF-8']",
            "a.toml:6:8",
            "did you mean `de_DE.UTF-8`?",
        ),
        (
            "[locale]\ntimezone = '../x'",
            "a.toml:6:12",
            "is not a time zone",
        ),
        (
            "[locale]\ntimezone = 'Etc/UTC'\n[files.'/etc/localtime']\nlink = 'x'",
            "a.toml:7:8",
            "is what `locale.timezone` writes",
        ),
    ]);
}

#[test]
fn mistakes_of_accounts_are_shown_at_their_places() {
    shown(&[
        (
            "[users.'a b']",
            "a.toml:5:8",
            "is not the name of an account",
        ),
        ("[users.0a]", "a.toml:5:8", "is not the name of an account"),
        (
            "[groups.'a:b']",
            "a.toml:5:9",
            "is not the name of an account",
        ),
        (
            "[users.a]\nuid = 65534",
            "a.toml:6:7",
            "no account may have the number 65534",
        ),
        (
            "[users.a]\nuid = 7\n[users.b]\nuid = 7",
            "a.toml:8:7",
            "both have the uid 7",
        ),
        (
            "[groups.a]\ngid = 7\n[groups.b]\ngid = 7",
            "a.toml:8:7",
            "both have the gid 7",
        ),
        (
            "[users.a]\nhome = 'x'",
            "a.toml:6:8",
            "is not the path of a file",
        ),
        ("[users.a]\nhome = '/x:y'", "a.toml:6:8", "without colons"),
        (
            "[users.a]\nshell = '/tmp/sh'",
            "a.toml:6:9",
            "would never be seen",
        ),
        (
            "[users.a]\ncomment = 'a:b'",
            "a.toml:6:11",
            "without colons",
        ),
        (
            "[users.a]\ngroups = ['A B']",
            "a.toml:6:11",
            "is not the name of an account",
        ),
        (
            "[users.a]\npassword = 'x'",
            "a.toml:6:1",
            "unknown key `password`",
        ),
    ]);
}

#[test]
fn names_of_the_etcd_disk_that_no_disk_has_are_shown_at_their_places() {
    shown(&[
        (
            "[node.etcd]\npartlabel = ''",
            "a.toml:6:13",
            "`node.etcd.partlabel` is empty",
        ),
        (
            "[node.etcd]\nserial = 'etcd'\ncluster = ' '",
            "a.toml:7:11",
            "`node.etcd.cluster` is empty",
        ),
        (
            "[node.etcd]\nlabel = 'a-label-of-17-byt'",
            "a.toml:6:9",
            "expected at most 16 characters",
        ),
    ]);
    with("[node.etcd]\nlabel = 'a-label-of-16-b.'").unwrap();
    with("[node.etcd]\npartlabel = 'a-label-of-a-partition-has-room-more'").unwrap();
}

#[test]
fn numbers_out_of_range_are_shown_at_their_places() {
    let of_ids = "expected a whole number from 0 to 4294967295";
    shown(&[
        ("[users.a]\nuid = -1", "a.toml:6:7", of_ids),
        ("[groups.a]\ngid = 4294967296", "a.toml:6:7", of_ids),
        // What has more than 64 bits would count as not given.
        (
            "[users.a]\nuid = 99999999999999999999",
            "a.toml:6:7",
            of_ids,
        ),
        (
            "[disk]\nroot = 99999999999999999999",
            "a.toml:6:8",
            "cannot be the number 99999999999999999999",
        ),
        (
            "[disk]\nroot = -1",
            "a.toml:6:8",
            "expected a whole number from 0 to",
        ),
        // The sum of all partitions would be beyond 64 bits.
        (
            "[disk]\nstate = '8388608 TiB'",
            "a.toml:6:9",
            "expected at most 1 PiB",
        ),
    ]);
}

/// What the kubelet sets when it starts, or cannot work without, is refused with a kubelet and free without one.
#[test]
fn settings_that_a_kubelet_needs_are_refused_with_the_reason() {
    let kubernetes = "[kubernetes]\nversion = '1.36.3'\nkubelet = [{ go-module = true }]\n";
    for (setting, why) in [
        ("net.ipv4.ip_forward = 0", "pods would have no network"),
        ("net.ipv6.conf.all.forwarding = '0'", "over IPv6"),
        // Another path of the same variable, and patterns of both.
        (
            "net.ipv4.conf.all.forwarding = 0",
            "pods would have no network",
        ),
        (
            "'net/ipv4/conf/*/forwarding' = 0",
            "pods would have no network",
        ),
        ("'net.ipv4.ip_*ward' = 0", "pods would have no network"),
        ("'net.ipv6.conf.a*.forwarding' = 0", "over IPv6"),
        ("'vm.panic*' = 1", "the kubelet sets it"),
        ("net.bridge.bridge-nf-call-iptables = 0", "services"),
        ("vm.overcommit_memory = 2", "the kubelet sets it"),
        ("vm.panic_on_oom = 1", "the kubelet sets it"),
        ("kernel.panic_on_oops = 0", "the kubelet sets it"),
    ] {
        let text = format!("[sysctl]\n{setting}\n");
        with(&text).unwrap();
        let report = with(&format!("{text}{kubernetes}")).unwrap_err();
        assert!(
            report.contains(why) && report.contains("a.toml:6:"),
            "{report}"
        );
    }
}

#[test]
fn settings_that_are_not_what_a_kubelet_needs_are_free() {
    let kubernetes = "[kubernetes]\nversion = '1.36.3'\nkubelet = [{ go-module = true }]\n";
    for setting in [
        "net.ipv4.conf.all.forwarding = 1",
        "'net/ipv4/conf/*/forwarding' = 1",
        "'net/ipv4/conf/eth*/forwarding' = 0",
        "'net/ipv4/conf/*/rp_filter' = 0",
    ] {
        with(&format!("[sysctl]\n{setting}\n{kubernetes}")).unwrap();
    }
    let report = with("[sysctl]\n'kernel.pani*' = 0").unwrap_err();
    assert!(report.contains("would never come back"), "{report}");
}
