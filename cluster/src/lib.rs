//! What a cluster's configuration comes to, without I/O: kubeadm's configuration is read, completed and checked, and
//! gives everything that `kubeadm init` writes on the first control plane of a cluster.
//!
//! A configuration goes through one column of named steps ([`config::read`], then [`render::render`]): the documents are
//! read with their positions → decoded by the fields of their kinds → completed with kubeadm's defaults → validated by
//! kubeadm's rules → rendered: certificates, kubeconfigs, static pods, the kubelet's files, the objects of the cluster,
//! the addons. What differs between versions of kubeadm is one table, [`release`].
//!
//! A cluster object ([`object`]) is the shorter way to the same: its fields become kubeadm's documents. A worker joins by what
//! a cluster shows to everybody ([`discovery`]), as `kubeadm join` does.
//!
//! Nothing here touches a disk, a network or a clock: what kubeadm asks of the machine is a [`host::Host`], and what only
//! the moment of a bootstrap knows (the authority's certificate, the time) an [`objects::Moment`]. [`pki`] makes keys and
//! certificates of the specifications; of the machine it takes random numbers.
//!
//! Sources: kubeadm's API v1beta4 and v1beta3
//! (<https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/>), its implementation notes
//! (<https://kubernetes.io/docs/reference/setup-tools/kubeadm/implementation-details/>), and what kubeadm itself answered
//! to the cases in `tests/kubeadm`.

// Floor: values
pub mod address;
pub mod duration;
pub mod host;
mod quantity;
pub mod report;
mod wording;

// Floor: YAML
pub mod yaml;

// Floor: TOML as a tree of YAML's; the kubelet's credential providers
pub mod credential_providers;
mod source;

// Floor: versions, what a node learns of a cluster before it trusts it, and as a further control plane
pub mod discovery;
pub mod etcd_members;
pub mod release;
pub mod shared_keys;

// Floor: fields
mod schema;

// Floor: kinds
mod fields;

// Floor: documents, the components' flags
mod documents;
mod flags;

// Floor: the configuration's types
mod types;

// Floor: completing
mod components;
mod default;

// Floor: checking
mod validate;

// Floor: configurations
pub mod config;

// Floor: cluster objects
pub mod object;

// Floor: nodes by kubeadm's own documents
pub mod from_kubeadm;

// Floor: parts of pods
mod arguments;
mod images;
mod probes;
mod volumes;

// Floor: what is rendered
pub mod certs;
pub mod objects;
pub mod static_pods;

// Floor: addons, kubeconfigs, the kubelet's files and identity
mod addons;
pub mod cloud_controller;
pub mod flannel;
pub mod identity;
pub mod kubeconfigs;
pub mod kubelet;
pub mod metrics_server;

// Floor: manifests of a cluster's addons
pub mod manifests;

// Floor: keys and certificates, requests for them
pub mod pki;
pub mod serving;

// Floor: rendering
pub mod render;

// Floor: answers
pub mod answer;
