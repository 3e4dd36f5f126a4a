//! Mistakes of a recipe that only the archive, the packages or the kernel know: all of a stage in one run, with their places.

use std::fs;
use std::process::{Command, Output, Stdio};

use super::{Place, RECIPE};

/// Runs `slipway --json` there without naming the recipe, which is the only one of its folder; gives its output.
fn run(place: &Place, command: &str) -> Output {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(["--json", command])
        .current_dir(place.folder.join("recipes"))
        .env("SLIPWAY_CACHE", place.folder.join("cache"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The mistakes of a failed command: file, line, what was found, the suggestion.
fn mistakes(output: &Output) -> Vec<(String, u64, String, String)> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let events = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let errors: Vec<serde_json::Value> = events
        .filter(|event: &serde_json::Value| event["event"] == "error")
        .collect();
    let [error] = errors.as_slice() else {
        panic!("{said}")
    };
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let all = error["mistakes"].as_array().unwrap().iter();
    all.map(|one| {
        let line = one["line"].as_u64().unwrap();
        (
            text(&one["file"]),
            line,
            text(&one["found"]),
            text(&one["suggestion"]),
        )
    })
    .collect()
}

/// The line of the recipe, from 1, that has a word.
fn line(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap();
    (before.matches('\n').count() + 1).try_into().unwrap()
}

fn expect(output: &Output, expected: &[(&str, u64, &str, &str)]) {
    let found = mistakes(output);
    for (file, line, word, suggestion) in expected {
        let is_it = |one: &&(String, u64, String, String)| one.2.contains(word);
        let one = found.iter().find(is_it);
        let one = one.unwrap_or_else(|| panic!("{word} is not in {found:?}"));
        assert_eq!((one.0.as_str(), one.1), (*file, *line), "{one:?}");
        assert!(one.3.contains(suggestion), "{one:?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:?}");
}

/// Packages of several lists at once when the recipe is locked; then units, users, paths, set-uid files and modules at once
/// when it is built; and of the recipe that it extends with that one's places. Nothing is written.
#[test]
fn every_wrong_word_has_its_place_and_the_nearest_one_that_exists() {
    let place = Place::new("mistakes", None);
    let folder = place.folder.join("recipes");
    let parent = "[units]\ndisable = [\"e2scrub_al.timer\"]\n[debian]\npackages = [\"jqq\"]\n";
    fs::write(folder.join("parent.inc"), parent).unwrap();
    let wrong = RECIPE
        .replace("[image]", "extends = \"parent.inc\"\n[image]")
        .replace("\"kmod\"", "\"kmodd\"")
        .replace("linux-image-cloud-amd64", "linux-image-clod-amd64");
    let wrong = format!(
        "{wrong}\n[root]\nset-uid = [\"/usr/bin/suu\"]\n\
         [files.\"/usr/bin/containerd-shimm\"]\nremove = true\n\
         [files.\"/etc/key\"]\ncontent = \"\"\nuser = \"sshdd\"\n\
         [files.\"/etc/modules-load.d/x.conf\"]\ncontent = \"overlayy\"\n"
    );
    let wrong = wrong.replace(
        "enable = [\"containerd.service\"]",
        "enable = [\"contained.service\"]\nmask = [\"systemd-firstbot.service\"]",
    );
    let wrong = wrong.replace("cmdline = ", "modules = [\"xfss\"]\ncmdline = ");
    let path = folder.join("small.toml");
    fs::write(&path, &wrong).unwrap();
    let at = |word: &str| ("small.toml", line(&wrong, word));
    let expected = |words: &[(&'static str, &'static str, &'static str)]| {
        let one = |&(word, found, near): &(&str, &'static str, &'static str)| {
            let (file, line) = at(word);
            (file, line, found, near)
        };
        words.iter().map(one).collect::<Vec<_>>()
    };

    let mut of_lock = expected(&[
        ("kmodd", "no package `kmodd`", "`kmod`"),
        (
            "linux-image-clod-amd64",
            "no package `linux-image-clod-amd64`",
            "`linux-image-cloud-amd64`",
        ),
    ]);
    of_lock.push(("parent.inc", 4, "no package `jqq`", "`jq`"));
    expect(&run(&place, "lock"), &of_lock);
    assert!(!folder.join("small.lock").exists());

    // Lines stay where they are.
    let packages_right = wrong.replace("kmodd", "kmod").replace("-clod-", "-cloud-");
    fs::write(&path, packages_right).unwrap();
    fs::write(folder.join("parent.inc"), parent.replace("jqq", "jq")).unwrap();
    let mut of_build = expected(&[
        (
            "suu",
            "set-uid or set-gid file /usr/bin/suu",
            "`/usr/bin/su`",
        ),
        (
            "contained.service",
            "no unit `contained.service` to enable",
            "`containerd.service`",
        ),
        (
            "systemd-firstbot",
            "no unit `systemd-firstbot.service` to mask",
            "`systemd-firstboot.service`",
        ),
        ("xfss", "no module `xfss`", "`xfs`"),
        (
            "overlayy",
            "no module `overlayy` to load at boot",
            "`overlay`",
        ),
        ("user = \"sshdd\"", "no user `sshdd`", "`sshd`"),
    ]);
    let removed = line(&wrong, "containerd-shimm") + 1;
    let shim = "nothing at /usr/bin/containerd-shimm to remove";
    of_build.push(("small.toml", removed, shim, "`/usr/bin/containerd-shim`"));
    let timer = "no unit `e2scrub_al.timer` to disable";
    of_build.push(("parent.inc", 2, timer, "`e2scrub_all.timer`"));
    expect(&run(&place, "build"), &of_build);
    assert!(!folder.join("out").exists());
}
