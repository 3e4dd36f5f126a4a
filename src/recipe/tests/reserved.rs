//! Files of a recipe at paths of Slipway's.

use super::{SMALL, written};

/// A recipe with a kubelet and etcd, and more.
fn with(more: &str, files: &[(&str, &str)]) -> Result<(), String> {
    let text = format!(
        "{SMALL}
[kubernetes]
version = '1.36'
kubelet = [{{ go-module = true }}]
[containers]
images = ['pause', 'etcd']
[node]
role = 'control-plane'
etcd = {{ serial = 'etcd', cluster = 'c' }}
{more}"
    );
    let mut all = vec![("a.toml", text.as_str())];
    all.extend(files);
    written(&all).map(drop)
}

fn files(paths: &[(&str, &str)]) -> String {
    let entry = |(path, value): &(&str, &str)| format!("[files.{path:?}]\n{value}\n");
    paths.iter().map(entry).collect()
}

const TEXT: &str = "content = 'x'";
const REMOVE: &str = "remove = true";

/// Path and entry, and words of the refusal.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "/etc/containerd/config.toml",
        TEXT,
        "/etc/containerd/conf.d/NAME.toml",
    ),
    (
        "/etc/containerd/config.toml",
        "link = '/etc/x'",
        "is reserved",
    ),
    ("/etc/containerd/config.toml", REMOVE, "is reserved"),
    (
        "/etc/containerd",
        REMOVE,
        "is a folder with /etc/containerd/config.toml",
    ),
    (
        "/etc/containerd",
        "link = 'x'",
        "is a folder with /etc/containerd/config.toml",
    ),
    (
        "/usr/bin/slipway-node",
        "directory = true",
        "/usr/lib/slipway/slipway-node",
    ),
    (
        "/sbin/init",
        TEXT,
        "/sbin/init is /usr/sbin/init, which is reserved: the boot ends",
    ),
    ("/usr/sbin/init", REMOVE, "the boot ends with its execution"),
    (
        "/lib/systemd/system/slipway-certs.timer",
        TEXT,
        "slipway-certs.timer.d/NAME.conf",
    ),
    (
        "/usr/lib/systemd/system/timers.target.wants/slipway-certs.timer",
        REMOVE,
        "\"slipway-certs.timer\" in `units.mask`",
    ),
    (
        "/etc/systemd/system/slipway-certs.service",
        TEXT,
        "would hide /usr/lib/systemd/system/slipway-certs.service",
    ),
    (
        "/etc/systemd/system/kubelet.service",
        TEXT,
        "/etc/systemd/system/kubelet.service.d/NAME.conf",
    ),
    (
        "/lib/systemd/system/kubelet.service",
        TEXT,
        "Slipway writes it",
    ),
    (
        "/usr/lib/slipway/slipway-init",
        TEXT,
        "which has files of Slipway alone",
    ),
    ("/usr/lib/slipway", REMOVE, "is a folder with"),
    ("/usr", REMOVE, "is a folder with"),
    ("/usr/lib/os-release", TEXT, "/etc/os-release"),
    (
        "/usr/lib/sysctl.d/50-slipway.conf",
        TEXT,
        "/etc/sysctl.d/60-NAME.conf",
    ),
    (
        "/etc/kubernetes/manifests/etcd.yaml",
        TEXT,
        "`containers.images`",
    ),
    ("/etc/kubernetes/kubelet.yaml", TEXT, "cluster object"),
    (
        "/usr/lib/systemd/system-preset/00-slipway.preset",
        TEXT,
        "`units.enable`",
    ),
    (
        "/usr/lib/slipway/var-layers.conf",
        TEXT,
        "/usr/lib/slipway, which has files of Slipway alone",
    ),
];

#[test]
fn each_way_to_a_path_of_slipways_is_refused_with_what_takes_its_place() {
    for (path, value, expected) in REFUSED {
        let text = with(&files(&[(path, value)]), &[]).unwrap_err();
        assert!(text.contains(*expected), "{path} {value}: {text}");
        let line = SMALL.lines().count() + 10;
        assert!(text.contains(&format!("a.toml:{line}:8")), "{text}");
        assert!(!text.contains("mistakes"), "{text}");
    }
}

#[test]
fn links_of_the_recipe_lead_to_reserved_paths_too() {
    let more = files(&[
        ("/etc/alias", "link = 'containerd'"),
        ("/etc/alias/config.toml", TEXT),
    ]);
    let text = with(&more, &[]).unwrap_err();
    let expected = "/etc/alias/config.toml is /etc/containerd/config.toml, which is reserved";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn an_overlay_is_refused_by_folder_and_path_and_all_paths_at_once() {
    let more = format!(
        "[overlay]\ntrees = ['base', 'mine']\n{}",
        files(&[("/usr/bin/slipway-node", TEXT)])
    );
    let text = with(
        &more,
        &[
            ("base/etc/motd", "hello"),
            ("mine/etc/containerd/config.toml", "version = 2"),
            ("mine/sbin/init", "#!/bin/sh"),
            ("mine/home", "a file in place of a link"),
        ],
    )
    .unwrap_err();
    let line = SMALL.lines().count() + 11;
    for expected in [
        format!("a.toml:{line}:18"),
        "/etc/containerd/config.toml is reserved".to_owned(),
        "/sbin/init is /usr/sbin/init".to_owned(),
        "/home cannot be of the recipe".to_owned(),
        "/usr/bin/slipway-node is reserved".to_owned(),
        "4 mistakes".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
}

#[test]
fn what_a_platform_team_changes_stays_allowed() {
    let more = files(&[
        ("/etc/sysctl.d/60-mine.conf", TEXT),
        ("/etc/sysctl.d/50-slipway.conf", TEXT),
        ("/etc/containerd/certs.d/registry.example/hosts.toml", TEXT),
        ("/etc/kubernetes/manifests", "directory = true"),
        ("/etc/kubernetes/manifests/proxy.yaml", TEXT),
        ("/etc/os-release", TEXT),
        ("/etc/resolv.conf", "link = '/run/other'"),
        ("/etc/systemd/system/kubelet.service.d/10-mine.conf", TEXT),
        ("/etc/systemd/system/mine.service", TEXT),
        (
            "/etc/systemd/system/slipway-certs.timer",
            "link = '/dev/null'",
        ),
        ("/etc/systemd/system/slipway-certs.timer.d/a.conf", TEXT),
        ("/usr/lib/modules/6.12/updates/mine.ko", TEXT),
        (
            "/usr/lib/systemd/system-generators/systemd-ssh-generator",
            REMOVE,
        ),
        ("/usr/bin/containerd-shim", REMOVE),
    ]);
    let units = "[units]\nmask = ['slipway-certs.timer', 'kubelet.service']\n";
    if let Err(text) = with(&format!("{units}{more}"), &[]) {
        panic!("{text}");
    }
    // Without a kubelet nothing of it is reserved.
    let alone = format!(
        "{SMALL}{}",
        files(&[
            ("/etc/containerd/config.toml", TEXT),
            ("/etc/systemd/system/kubelet.service", TEXT),
        ])
    );
    written(&[("a.toml", &alone)]).unwrap();
}

#[test]
fn a_drop_in_of_containerd_keeps_what_the_node_needs() {
    let path = "/etc/containerd/conf.d/mirror.toml";
    let check = |text: &str| {
        let more = files(&[(path, "source = 'mirror.toml'")]);
        with(&more, &[("mirror.toml", text)])
    };
    let cri = "[plugins.'io.containerd.grpc.v1.cri'";
    check("version = 2\n[debug]\nlevel = 'debug'\n").unwrap();
    check("[plugins.'io.containerd.gc.v1.scheduler']\npause_threshold = 0.02\n").unwrap();
    let ours = crate::node_files::containerd();
    let table = &ours[ours.find("[plugins.").unwrap()..];
    check(table).unwrap();
    let more = "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.kata.v2'\n";
    check(&format!("{table}\n{more}")).unwrap();
    for (text, expected) in [
        (
            format!("{cri}.registry.mirrors.'docker.io']\nendpoint = ['https://m.example']\n"),
            vec![
                "mirror.toml:1:10",
                "leaves out what the node needs",
                "sandbox_image = \"slipway.local/pause:baked\"",
                "containerd.runtimes.crun.options.SystemdCgroup = true",
                "/etc/containerd/certs.d/HOST/hosts.toml",
            ],
        ),
        (
            table.replace("slipway.local/pause:baked", "pause:3"),
            vec![
                "`sandbox_image` is the text \"pause:3\"",
                "mirror.toml:3:17",
                "expected \"slipway.local/pause:baked\"",
            ],
        ),
        (
            "version = 3\n".to_owned(),
            vec!["mirror.toml:1:11", "expected 2"],
        ),
        (
            "imports = ['/etc/x']\nroot = '/x'\n".to_owned(),
            vec!["`imports` is given", "`root` is given", "2 mistakes"],
        ),
        (
            "[grpc]\naddress = '/x'\n".to_owned(),
            vec!["`grpc.address` is given"],
        ),
        (
            "disabled_plugins = ['io.containerd.grpc.v1.cri']\n".to_owned(),
            vec!["mirror.toml:1:21", "no pod starts without it"],
        ),
        (
            "[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/x'\n".to_owned(),
            vec!["has no plugin", "\"io.containerd.grpc.v1.cri\""],
        ),
        ("a = \n".to_owned(), vec!["mirror.toml:1:5"]),
    ] {
        let found = check(&text).unwrap_err();
        for expected in expected {
            assert!(found.contains(expected), "{expected}: {found}");
        }
    }
    let link = with(&files(&[(path, "link = '/usr/share/x.toml'")]), &[]).unwrap_err();
    assert!(link.contains("whose file is not checked"), "{link}");
}
