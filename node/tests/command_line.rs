//! The command line of `slipway-node`: usage, version and exit codes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::disallowed_methods,
    reason = "the program under test is started here"
)]

use std::process::{Command, Output};

use image::kubelet::{BLESS_COMMAND, GATE_COMMAND, PREPARE_COMMAND};
use image::paths::BLESS_BOOT_COMMAND;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway-node"));
    command.args(arguments).output().unwrap()
}

#[test]
fn help_and_version_are_printed_to_stdout() {
    for flag in ["--help", "-h"] {
        let output = run(&[flag]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        for command in [
            GATE_COMMAND,
            PREPARE_COMMAND,
            BLESS_COMMAND,
            BLESS_BOOT_COMMAND,
        ] {
            assert!(text.contains(&format!("  {command} ")), "{text}");
        }
    }
    let output = run(&["--version"]);
    assert!(output.status.success());
    let expected = format!("slipway-node {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn a_wrong_command_line_ends_with_2_and_the_usage() {
    for arguments in [
        &[][..],
        &["reboot"],
        &[BLESS_COMMAND, "now"],
        &["--hlep"],
        &["render"],
        &["render", "--batch"],
        &["kubelet"],
        &["kubelet", "lint", "--yaml"],
        &["kubelet", "lint", "a", "b"],
    ] {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        assert!(text.contains("expected one command, found"), "{text}");
        assert!(text.contains(GATE_COMMAND), "{text}");
    }
}

#[test]
fn a_lint_ends_with_1_where_a_rule_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = image::container::kubelet(image::paths::KUBELET_ROOTFS, &[], &|_| true);
    let written = |name: &str, spec: &image::runtime_spec::Spec| {
        let file = folder.path().join(name);
        std::fs::write(&file, serde_json::to_string(spec).unwrap()).unwrap();
        file.display().to_string()
    };
    let good = run(&["kubelet", "lint", &written("good.json", &spec)]);
    assert!(good.status.success() && good.stderr.is_empty());
    spec.linux.rootfs_propagation = "rslave".to_owned();
    let broken = written("broken.json", &spec);
    let output = run(&["kubelet", "lint", "--json", &broken]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["broken"][0]["rule"], "root-propagation");
    assert_eq!(report["broken"][0]["place"], broken.as_str());
    let absent = run(&["kubelet", "lint", "/nowhere/config.json"]);
    assert_eq!(absent.status.code(), Some(1));
    let text = String::from_utf8(absent.stderr).unwrap();
    assert!(text.contains("/nowhere/config.json"), "{text}");
}

#[test]
fn render_answers_each_line_of_a_batch() {
    let cluster =
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nclusterName: demo\n";
    let init = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 10.0.0.5}\nnodeRegistration: {name: node1}\n";
    let case = |name: &str, config: String| {
        serde_json::json!({"name": name, "kubeadm": "1.36.3", "config": config}).to_string()
    };
    let good = case("good", format!("{init}---\n{cluster}"));
    let wrong = case(
        "wrong",
        format!("{init}---\n{cluster}certificatesDir: pki\nnew: 1\n"),
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cases.jsonl");
    std::fs::write(&file, format!("{good}\n\n{wrong}\n")).unwrap();
    let output = run(&["render", "--batch", file.to_str().unwrap()]);
    assert!(output.status.success());
    let warnings = String::from_utf8(output.stderr).unwrap();
    let warning = "warning: wrong: new: unknown field: it is ignored (line 10, column 6)\n";
    assert_eq!(warnings, format!("slipway-node: render: {warning}"));
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&answers[0]["name"], &answers[0]["rc"]),
        (&"good".into(), &0.into())
    );
    assert_eq!(answers[0]["kubeconfigs"]["admin.conf"]["cluster"], "demo");
    assert_eq!(
        (&answers[1]["name"], &answers[1]["rc"]),
        (&"wrong".into(), &1.into())
    );
    let error = "certificatesDir: \"pki\" is not an absolute path (line 9, column 18)";
    assert_eq!(answers[1]["error"], serde_json::json!([error]));
}

#[test]
fn render_follows_an_older_kubeadm_from_its_first_patch_version_on() {
    let config = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 10.0.0.5}\n";
    let case = |kubeadm: &str| {
        serde_json::json!({"name": kubeadm, "kubeadm": kubeadm, "config": config}).to_string()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cases.jsonl");
    std::fs::write(&file, ["1.32.13", "1.32.12"].map(case).join("\n")).unwrap();
    let output = run(&["render", "--batch", file.to_str().unwrap()]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((answers.len(), &answers[0]["rc"]), (2, &0.into()));
    let etcd = answers[0]["files"]["/etc/kubernetes/manifests/etcd.yaml"].as_str();
    assert!(
        etcd.unwrap()
            .contains("image: registry.k8s.io/etcd:3.5.24-0\n")
    );
    assert_eq!(answers[1]["rc"], 1);
    let error = answers[1]["error"][0].as_str().unwrap();
    assert!(
        error.contains("\"1.32.12\"") && error.contains("1.32 from 1.32.13 on"),
        "{error}"
    );
}

#[test]
fn render_names_the_line_that_is_no_case() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cases.jsonl");
    std::fs::write(&file, "{\"name\": \"a\"}\n").unwrap();
    let output = run(&["render", "--batch", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("cases.jsonl, line 1: expected text as \"config\""),
        "{text}"
    );
}
