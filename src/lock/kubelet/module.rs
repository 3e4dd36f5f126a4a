//! The kubelet, the other components and CoreDNS, compiled from their Go modules, for machines without access to a release
//! server, and CoreDNS for all.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::coredns;
use super::program::{Pinned, ask_version, go, keep};
use super::release_module::{Modules, go_mod, link_flags};
use super::toolchain::{Go, Target};
use crate::code;
use crate::host::cache::{Cache, Key};
use crate::host::progress::Step;
use crate::host::session::Session;
use crate::lock::fetching::LockedRecipe;
use crate::lock::file::{LockedFrom, LockedProgram};
use crate::recipe::KubeletRequest;

/// What is compiled, a package of our module each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The kubelet alone: it starts faster and in less memory than a program that is more.
    Kubelet,
    /// All other components and CoreDNS in one program, which acts as the one by whose name it is called: they share most of
    /// their code.
    Components,
    /// CoreDNS alone, where the others are not compiled.
    CoreDns,
}

impl Content {
    const ALL: [Self; 3] = [Self::Kubelet, Self::Components, Self::CoreDns];

    /// The name of the package's folder and of the program.
    const fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Components => "components",
            Self::CoreDns => coredns::NAME,
        }
    }

    /// The sources of the program: (file name, text).
    const fn sources(self) -> &'static [(&'static str, &'static str)] {
        const COREDNS: (&str, &str) = ("coredns.go", include_str!("module/coredns.go"));
        match self {
            Self::Kubelet => &[("main.go", include_str!("module/kubelet.go"))],
            Self::Components => &[("main.go", include_str!("module/components.go")), COREDNS],
            Self::CoreDns => &[("main.go", include_str!("module/coredns_main.go")), COREDNS],
        }
    }

    /// The sources of all: (path below our module's folder, text).
    fn all_sources() -> impl Iterator<Item = (String, &'static str)> {
        Self::ALL.into_iter().flat_map(|content| {
            let sources = content.sources().iter();
            sources.map(move |(name, text)| (format!("{}/{name}", content.name()), *text))
        })
    }
}

pub(super) fn pin(
    request: &KubeletRequest,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<Pinned> {
    let go = Go::new(go(session, locked)?, session)?;
    let release = format!("v{}", request.version);
    let (go_mod, go_sum) = resolve(&go, &release, &session.cache, step)?;
    let modules = Modules {
        go_mod: &go_mod,
        go_sum: &go_sum,
    };
    let (kubelet, hit) = pin_one(&go, Content::Kubelet, &release, modules, session, step)?;
    let found = ask_version(&session.cache, &session.cache.object(&kubelet.sha256))?;
    ensure!(
        found == release,
        "the compiled kubelet reports version {found}, expected {release}"
    );
    let mut pinned = Pinned::kubelet(kubelet, hit);
    if !request.components.is_empty() {
        let (program, hit) = pin_one(&go, Content::Components, &release, modules, session, step)?;
        pinned.hit &= hit;
        for name in &request.components {
            let program = LockedProgram {
                version: version_of(name, &release, modules)?,
                ..program.clone()
            };
            pinned.components.insert(name.clone(), program);
        }
    }
    Ok(pinned)
}

/// Adds CoreDNS to programs of a release that came from elsewhere.
pub(super) fn add_coredns(
    pinned: &mut Pinned,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<()> {
    let go = Go::new(go(session, locked)?, session)?;
    let release = &pinned.kubelet.version;
    let (go_mod, go_sum) = resolve(&go, release, &session.cache, step)?;
    let modules = Modules {
        go_mod: &go_mod,
        go_sum: &go_sum,
    };
    let (program, hit) = pin_one(&go, Content::CoreDns, release, modules, session, step)?;
    pinned.hit &= hit;
    let version = version_of(coredns::NAME, release, modules)?;
    let program = LockedProgram { version, ..program };
    pinned.components.insert(coredns::NAME.to_owned(), program);
    Ok(())
}

/// The version of a compiled program: the release, or CoreDNS's own.
fn version_of(name: &str, release: &str, modules: Modules<'_>) -> Result<String> {
    let version = match name {
        coredns::NAME => coredns::version_in(modules.go_mod),
        _ => Some(release),
    };
    version
        .map(str::to_owned)
        .context("the modules have no CoreDNS")
}

/// Compiles a program for a lock; tells whether it came from the cache.
fn pin_one(
    go: &Go,
    content: Content,
    release: &str,
    modules: Modules<'_>,
    session: &Session,
    step: &Step,
) -> Result<(LockedProgram, bool)> {
    let (program, hit) = compile(go, content, release, modules, &session.cache, step)?;
    let (sha256, size) = keep(&session.cache, &program)?;
    let source = match content {
        Content::Kubelet | Content::CoreDns => LockedFrom::GoModule {
            go_mod: modules.go_mod.to_owned(),
            go_sum: modules.go_sum.to_owned(),
        },
        Content::Components => LockedFrom::KubeletModule,
    };
    let program = LockedProgram {
        version: release.to_owned(),
        sha256,
        size,
        source,
    };
    Ok((program, hit))
}

/// `go.mod` and `go.sum` of our module, for all programs: a kubelet is the same with and without the components, and
/// compiled once. A published release never changes, so they are made once.
fn resolve(go: &Go, release: &str, cache: &Cache, step: &Step) -> Result<(String, String)> {
    let coredns = coredns::version_for(release);
    let mut key = Key::of("kubelet modules", code::PROGRAMS)
        .key("go", go.compiler())
        .text("release", release)
        .text("coredns", coredns.unwrap_or_default());
    for (name, text) in Content::ALL.iter().flat_map(|content| content.sources()) {
        key = key.text(name, text);
    }
    let key = key.finish();
    let made = cache.step("kubelet-modules", &key, |folder| {
        let ours = go_mod(&go.module_file(release)?, release, coredns)?;
        go.write(Content::all_sources(), &ours, None)?;
        go.resolve(folder, step)
    })?;
    let read = |name: &str| fs::read_to_string(made.path.join(name));
    Ok((read("go.mod")?, read("go.sum")?))
}

/// Compiles a locked program of a release again and compares the digests.
pub(super) fn fetch(
    content: Content,
    modules: Modules<'_>,
    release: &str,
    program: &LockedProgram,
    session: &Session,
    locked: &LockedRecipe,
    step: &Step,
) -> Result<()> {
    knows_coredns(content, modules)?;
    let go = Go::new(go(session, locked)?, session)?;
    let (file, _) = compile(&go, content, release, modules, &session.cache, step)?;
    let (sha256, _) = keep(&session.cache, &file)?;
    ensure!(
        sha256 == program.sha256,
        "the compiled program has SHA-256 {sha256}, expected {} as the lock says: it was made \
         with another Go, or by another version of Slipway; `slipway lock --renew` makes it anew",
        program.sha256
    );
    Ok(())
}

/// Refuses the modules of a lock that is older than CoreDNS's place beside the components.
fn knows_coredns(content: Content, modules: Modules<'_>) -> Result<()> {
    ensure!(
        content == Content::Kubelet || coredns::version_in(modules.go_mod).is_some(),
        "the lock was made by a version of Slipway that did not compile CoreDNS; `slipway lock --renew` makes it anew"
    );
    Ok(())
}

/// The program, and whether it came from the cache. The modules (2 GB) are removed with the work folder, and until then serve the
/// other program.
fn compile(
    go: &Go,
    content: Content,
    release: &str,
    modules: Modules<'_>,
    cache: &Cache,
    step: &Step,
) -> Result<(PathBuf, bool)> {
    let flags = link_flags(release)?;
    let name = content.name();
    let package = format!("./{name}");
    let mut key = Key::of("kubelet", code::PROGRAMS).key("go", go.compiler());
    for (name, text) in content.sources() {
        key = key.text(name, text);
    }
    let key = key
        .text("go.mod", modules.go_mod)
        .text("go.sum", modules.go_sum)
        .text("flags", &flags)
        .finish();
    let made = cache.step(name, &key, |folder| {
        let target = Target {
            package: &package,
            tests: false,
        };
        go.write(Content::all_sources(), modules.go_mod, Some(modules.go_sum))?;
        let total = go.fetch(target, step)?;
        if content != Content::Kubelet {
            coredns::adapt(modules.go_mod, &go.modules())?;
        }
        go.build(target, &flags, &folder.join(name), total, step)
    })?;
    Ok((made.path.join(name), made.hit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_without_coredns_names_its_renewal() {
        let modules = |go_mod| Modules { go_mod, go_sum: "" };
        let old = "require k8s.io/kubernetes v1.36.3\n";
        for content in [Content::Components, Content::CoreDns] {
            let error = knows_coredns(content, modules(old)).unwrap_err();
            assert!(error.to_string().contains("lock --renew"), "{error}");
            knows_coredns(
                content,
                modules("require github.com/coredns/coredns v1.14.2"),
            )
            .unwrap();
        }
        knows_coredns(Content::Kubelet, modules(old)).unwrap();
    }

    #[test]
    fn coredns_has_its_own_version() {
        let modules = Modules {
            go_mod: "require github.com/coredns/coredns v1.14.2",
            go_sum: "",
        };
        for (name, version) in [("coredns", "v1.14.2"), ("kube-proxy", "v1.36.3")] {
            assert_eq!(version_of(name, "v1.36.3", modules).unwrap(), version);
        }
    }
}
