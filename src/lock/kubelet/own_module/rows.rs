//! The programs that are compiled from Go modules of their own, each a row.

/// crictl's name in a lock.
pub(in crate::lock::kubelet) const CRICTL: &str = "crictl";
/// The name of all CNI plugins in a lock.
pub(in crate::lock::kubelet) const CNI_PLUGINS: &str = "cni-plugins";

/// The name of containerd, its shim and its client in a lock.
pub(in crate::lock::kubelet) const CONTAINERD: &str = "containerd";

/// etcd's name in a lock.
pub(in crate::lock::kubelet) const ETCD: &str = "etcd";
/// flannel's name in a lock.
pub(in crate::lock::kubelet) const FLANNEL: &str = "flannel";
/// metrics-server's name in a lock.
pub(in crate::lock::kubelet) const METRICS_SERVER: &str = "metrics-server";
/// The name of Amazon's cloud controller in a lock.
pub(in crate::lock::kubelet) const AWS_CLOUD_CONTROLLER: &str = "aws-cloud-controller-manager";
/// The programs that are in images, as the components of Kubernetes are; the others are of the root.
pub(in crate::lock::kubelet) const OF_IMAGES: [&str; 4] =
    [ETCD, FLANNEL, METRICS_SERVER, AWS_CLOUD_CONTROLLER];

/// What is compiled of one module.
pub(super) struct Row {
    /// The name in a lock.
    pub(super) name: &'static str,
    /// The Go module.
    pub(super) module: &'static str,
    /// Its programs: packages below the module, or an empty name for that of the module. Several are packed as a tar archive.
    pub(super) packages: &'static [&'static str],
    /// The variable that the linker writes the version to, if its sources do not have it.
    variable: &'static str,
    /// Whether the variable's value begins with `v`, as upstream's does.
    with_v: bool,
    /// The source of a program of ours over the module's packages, in place of its own one.
    pub(super) own: Option<&'static str>,
    /// Modules that the module replaces by others of the same sources, which a proxy need not have: they stay.
    pub(super) kept: &'static [&'static str],
}

pub(super) const ROWS: [Row; 7] = [
    Row {
        name: CRICTL,
        module: "sigs.k8s.io/cri-tools",
        packages: &["cmd/crictl"],
        variable: "sigs.k8s.io/cri-tools/pkg/version.Version",
        with_v: false,
        own: None,
        kept: &[],
    },
    Row {
        name: CNI_PLUGINS,
        module: "github.com/containernetworking/plugins",
        // All that upstream's archive for Linux has.
        packages: &[
            "plugins/ipam/dhcp",
            "plugins/ipam/host-local",
            "plugins/ipam/static",
            "plugins/main/bridge",
            "plugins/main/dummy",
            "plugins/main/host-device",
            "plugins/main/ipvlan",
            "plugins/main/loopback",
            "plugins/main/macvlan",
            "plugins/main/ptp",
            "plugins/main/tap",
            "plugins/main/vlan",
            "plugins/meta/bandwidth",
            "plugins/meta/firewall",
            "plugins/meta/portmap",
            "plugins/meta/sbr",
            "plugins/meta/tuning",
            "plugins/meta/vrf",
        ],
        variable: "github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion",
        with_v: true,
        own: None,
        kept: &[],
    },
    Row {
        name: CONTAINERD,
        module: "github.com/containerd/containerd/v2",
        packages: &["cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"],
        variable: "github.com/containerd/containerd/v2/version.Version",
        with_v: true,
        own: None,
        kept: &[],
    },
    Row {
        name: ETCD,
        module: "go.etcd.io/etcd/server/v3",
        packages: &[""],
        variable: "",
        with_v: true,
        own: None,
        kept: &[],
    },
    Row {
        name: FLANNEL,
        module: "github.com/flannel-io/flannel",
        packages: &[""],
        variable: "github.com/flannel-io/flannel/pkg/version.Version",
        with_v: true,
        // Its own program imports the clients of clouds, whose modules a proxy need not have.
        own: Some(include_str!("flanneld.go")),
        kept: &[],
    },
    Row {
        name: METRICS_SERVER,
        module: "sigs.k8s.io/metrics-server",
        packages: &["cmd/metrics-server"],
        // It says the version of its client's library, which upstream's Makefile sets.
        variable: "k8s.io/client-go/pkg/version.gitVersion",
        with_v: true,
        own: None,
        kept: &[],
    },
    Row {
        name: AWS_CLOUD_CONTROLLER,
        module: "k8s.io/cloud-provider-aws",
        packages: &["cmd/aws-cloud-controller-manager"],
        // As upstream's Makefile.
        variable: "k8s.io/component-base/version.gitVersion",
        with_v: true,
        own: None,
        // The same under its new name.
        kept: &["github.com/google/cel-go"],
    },
];

impl Row {
    /// The full name of a package.
    pub(super) fn full(&self, package: &str) -> String {
        match package {
            "" => self.module.to_owned(),
            package => format!("{}/{package}", self.module),
        }
    }

    /// What the linker is given.
    pub(super) fn flags(&self, version: &str) -> String {
        let flags = "-s -w -buildid=";
        let value = match self.with_v {
            true => version,
            false => version.trim_start_matches('v'),
        };
        match self.variable {
            "" => flags.to_owned(),
            variable => format!("{flags} -X {variable}={value}"),
        }
    }
}
