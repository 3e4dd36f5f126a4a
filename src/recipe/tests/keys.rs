//! What of a recipe is in the keys of steps and in its digest.

use super::{SMALL, hashed, written};

#[test]
fn where_words_are_written_is_in_no_key() {
    let moved = format!("# One line more.\n\n{}", SMALL.replace("    ", "  "));
    let keys = |text: &str| {
        let recipe = written(&[("a.toml", text)]).unwrap();
        let whole = serde_json::to_string(&recipe).unwrap();
        (whole, recipe.lock_request())
    };
    assert_eq!(keys(SMALL), keys(&moved));
}

#[test]
fn a_change_is_in_the_outputs_key_and_as_far_as_it_concerns_the_lock_in_its_digest() {
    let parent =
        format!("{SMALL}\nkubernetes = {{ version = '1.36', kubelet = [{{ go-module = true }}] }}");
    let with = |change: &str| {
        let child = format!("extends = 'parent.toml'\n{change}\n");
        let files = [
            ("a.toml", child.as_str()),
            ("parent.toml", &parent),
            ("kubelet", ""),
        ];
        hashed(&written(&files).unwrap_or_else(|report| panic!("{report}")))
    };
    let (output, lock) = with("");
    for (change, in_output, in_lock) in [
        ("debian.packages = ['nano']", true, true),
        ("debian.backports = ['nano']", true, true),
        ("kernel.package = 'linux-image-cloud-amd64'", true, true),
        ("kubernetes.version = '1.35'", true, true),
        ("containers.images = ['pause', 'etcd']", true, true),
        (
            "containers = { images = ['pause', 'etcd'], images-from = 'registry' }",
            true,
            true,
        ),
        ("kubernetes.tools = ['crictl']", true, true),
        ("kubernetes.cni-plugins = 'release'", true, true),
        ("kubernetes.cni-plugins = 'debian'", true, true),
        (
            "containers = { images = ['pause', 'etcd'], etcd = '3.6' }",
            true,
            true,
        ),
        ("containerd.release = '2.2'", true, true),
        ("containerd.release = '1.7'", false, false),
        // Of use only with a program that it has.
        ("kubernetes.github = 'http://x.example'", false, false),
        ("debian.docs = true", true, false),
        ("disk.var-minimum = '8 GiB'", true, false),
        ("artifacts = [{ kind = 'aws' }]", true, false),
        (
            "node = { role = 'control-plane', etcd = { serial = 'x' } }",
            true,
            false,
        ),
        ("files.'/etc/x'.content = 'x'", true, false),
        // Sources of inputs. The lock pins the kubelet that a source gave, and the root's key contains it.
        ("kubernetes.kubelet = [{ file = 'kubelet' }]", false, true),
        (
            "debian.mirror = 'http://mirror.example/debian'",
            false,
            false,
        ),
        (
            "debian.security-mirror = 'http://mirror.example/debian'",
            false,
            false,
        ),
        (
            "debian.snapshots = ['http://mirror.example/debian']",
            false,
            false,
        ),
    ] {
        let changed = with(change);
        assert_eq!(changed.0 != output, in_output, "the output, by {change}");
        assert_eq!(changed.1 != lock, in_lock, "the lock, by {change}");
    }
}

#[test]
fn the_recipes_folder_is_in_no_key() {
    let text = format!(
        "{SMALL}\nfiles.'/etc/x'.source = 'x'\nignition.config = 'base.ign'\n\
         kubernetes = {{ version = '1.36', kubelet = [{{ file = 'kubelet' }}] }}"
    );
    let config = r#"{"ignition": {"version": "3.4.0"}}"#;
    let files = [
        ("a.toml", text.as_str()),
        ("x", "x"),
        ("base.ign", config),
        ("kubelet", ""),
    ];
    // Each call has a folder with another name.
    let [one, other] = [0, 1].map(|_| hashed(&written(&files).unwrap()));
    assert_eq!(one, other);
}
