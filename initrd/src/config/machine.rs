//! The machine that the init passes to a provider: the network, media, kernel modules, waiting.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use apply::gather::amount;
use linux::media::Media;
use linux::waiter::Waiter;
use platform::config_source::{self, Named};
use platform::machine::{LOOK_EVERY, MEDIA_WAIT, Machine};
use platform::medium::Medium;
use platform::problem::Problem;
use platform::userdata::UserConfig;

use crate::context::Boot;

/// The file of the platform `file`, inside the initramfs.
const CONFIG_FILE: &str = "/config.ign";

/// The user's config and the metadata, in the order of [`config_source`].
pub(super) fn user_config(
    boot: &Boot,
    patience: fetch::Patience,
) -> Result<config_source::User, Problem> {
    let world = &boot.world;
    let media = Media::new(world, &boot.modules);
    let network = |stop: &AtomicBool| boot.network.up_unless(&boot.modules, stop);
    let mount = |medium: &Medium<'_>| {
        media.mount(match medium {
            Medium::Labels(labels) => linux::media::Medium::Labels(labels),
            Medium::Disc(file) => linux::media::Medium::Disc(file),
        })
    };
    let load_modules = |names: &[&str]| {
        // One by one: a module that fails does not prevent the loading of the others.
        for name in loadable(boot, names) {
            if let Err(error) = boot.modules.load(&[name]) {
                tracing::warn!("config: {error:#}");
            }
        }
    };
    let say = |text: &str| {
        Waiter::for_ever(world).attempted();
        tracing::warn!("config: {text}");
    };
    let progress = Mutex::new((Waiter::for_ever(world), 0));
    let received = |address: &str, more: u64| {
        let Ok(mut progress) = progress.lock() else {
            return;
        };
        let (waiter, bytes) = &mut *progress;
        *bytes += more;
        waiter.received(more);
        waiter.say(&format!("{address}, {} so far", amount::text(*bytes)));
    };
    let machine = Machine {
        service: None,
        sys: &world.sys,
        dev: &world.dev,
        file: &world.in_initrd(CONFIG_FILE),
        // A service is asked without end: the boot cannot go on without its answer.
        patience: fetch::Patience {
            total: None,
            without_bytes: None,
            ..patience
        },
        look_every: LOOK_EVERY,
        media_wait: MEDIA_WAIT,
        load_modules: &load_modules,
        links: &boot.links(),
        network: &network,
        mount: &mount,
        say: &say,
        received: &received,
    };
    let named = Named::from(&boot.cmdline);
    config_source::user(boot.identity.platform, &named, &machine)
}

/// The name in messages of the config that [`local`] reads.
pub(super) fn local_name(boot: &Boot) -> Option<String> {
    let local = boot.identity.platform.local.as_ref()?;
    Some((local.name)(&boot.world.in_initrd(CONFIG_FILE)))
}

/// The user's config, if the platform shows it at every boot without a network.
pub(super) fn local(boot: &Boot) -> Result<Option<UserConfig>> {
    let Some(local) = &boot.identity.platform.local else {
        return Ok(None);
    };
    boot.modules.load(&loadable(boot, local.modules))?;
    let file = boot.world.in_initrd(CONFIG_FILE);
    Ok((local.read)(&boot.world.sys, &file)?)
}

/// The modules of `names` that the initramfs holds; the others are built into the kernel, or the image is not for them.
fn loadable<'a>(boot: &Boot, names: &[&'a str]) -> Vec<&'a str> {
    let index = boot.modules.index();
    let held = |name: &&str| index.module(name).is_some();
    names.iter().copied().filter(held).collect()
}
