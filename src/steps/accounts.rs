//! Accounts: the numbers of those that packages' scripts have made, and the users and groups of the recipe, in an installed tree.

use anyhow::{Context, Result};

use crate::install::Rootfs;
use crate::install::accounts::{Accounts, Clash, Fixed, User};
use crate::recipe::{self, Mistake, Mistakes, Recipe, nearest};

/// The root's accounts: each number follows from the account's name or is fixed by the recipe, whose users and groups are added. `epoch` is
/// in seconds since 1970.
///
/// # Errors
/// Accounts of the recipe that do not fit those of the packages, as [`Mistakes`].
pub(super) fn of_root(recipe: &Recipe, rootfs: Rootfs, epoch: u64) -> Result<Rootfs> {
    let fixed = fixed(recipe);
    let mut accounts = Accounts::read(&rootfs).context("reading the accounts")?;
    accounts.renumber(&fixed);
    let mut mistakes = recipe.places.mistakes();
    for name in recipe.accounts.groups.keys() {
        accounts.add_group(name, &fixed);
    }
    for (name, wanted) in &recipe.accounts.users {
        // Of two users each may be in the other's group.
        if accounts.user(name).is_none() && wanted.group.is_none() {
            accounts.add_group(name, &fixed);
        }
    }
    for (name, wanted) in &recipe.accounts.users {
        add(
            recipe,
            &mut accounts,
            (name, wanted),
            &fixed,
            epoch,
            &mut mistakes,
        );
    }
    other_numbers(recipe, &accounts, &mut mistakes);
    for clash in accounts.clashes() {
        mistakes.add(clashing(recipe, &accounts, &clash));
    }
    mistakes.none()?;
    accounts.apply(rootfs)
}

/// A container's accounts: they have the numbers that the root's of these names have.
///
/// # Errors
/// Two accounts with one number, as [`Mistakes`].
pub(super) fn of_container(recipe: &Recipe, rootfs: Rootfs) -> Result<Rootfs> {
    let mut accounts = Accounts::read(&rootfs).context("reading the container's accounts")?;
    accounts.renumber(&fixed(recipe));
    let mut mistakes = recipe.places.mistakes();
    for clash in accounts.clashes() {
        mistakes.add(clashing(recipe, &accounts, &clash));
    }
    mistakes.none()?;
    accounts.apply(rootfs)
}

/// The numbers that the recipe gives.
fn fixed(recipe: &Recipe) -> Fixed {
    let users = recipe.accounts.users.iter();
    let groups = recipe.accounts.groups.iter();
    Fixed {
        users: users
            .filter_map(|(name, user)| Some((name.clone(), user.uid?)))
            .collect(),
        groups: groups
            .filter_map(|(name, gid)| Some((name.clone(), (*gid)?)))
            .collect(),
    }
}

/// Adds a user, or compares it with that of a package; and its memberships.
fn add(
    recipe: &Recipe,
    accounts: &mut Accounts,
    (name, wanted): (&String, &recipe::User),
    fixed: &Fixed,
    epoch: u64,
    mistakes: &mut Mistakes,
) {
    let group = wanted.group.as_ref().unwrap_or(name);
    let mut known = true;
    let further = wanted.groups.iter().map(|group| ("groups", group));
    let all = wanted.group.iter().map(|group| ("group", group));
    for (key, group) in all.chain(further) {
        if accounts.group(group).is_some() {
            continue;
        }
        known = false;
        let keys = ["users", name, key];
        let word = recipe.places.word(&keys, group);
        let mistake = Mistake::of(
            word.or_else(|| recipe.places.value(&keys)),
            format!("the image has no group `{group}`"),
            "expected a group of its packages or of [groups]",
        );
        let groups = accounts.groups.iter().map(|group| group.name.as_str());
        let near = nearest(group, groups).map(|near| format!("did you mean `{near}`?"));
        mistakes.add(mistake.help(near.unwrap_or_else(|| format!("[groups.{group}] makes it"))));
    }
    if !known {
        return;
    }
    if accounts.user(name).is_some() {
        compare(recipe, accounts, (name, wanted), mistakes);
    } else {
        let user = User {
            name: name.clone(),
            uid: 0,
            gid: 0,
            comment: wanted.comment.clone().unwrap_or_default(),
            home: wanted.home().to_owned(),
            shell: wanted.shell().to_owned(),
        };
        accounts.add_user(user, group, fixed, epoch);
    }
    for group in &wanted.groups {
        accounts.add_member(group, name);
    }
}

/// Refuses values that a package's account has otherwise: its scripts and units rely on them.
fn compare(
    recipe: &Recipe,
    accounts: &Accounts,
    (name, wanted): (&str, &recipe::User),
    mistakes: &mut Mistakes,
) {
    let Some(found) = accounts.user(name) else {
        return;
    };
    let mut groups = accounts.groups.iter();
    let group = groups.find(|group| group.gid == found.gid);
    let group = group.map_or("", |group| group.name.as_str());
    for (key, wanted, found) in [
        ("group", &wanted.group, group),
        ("home", &wanted.home, &found.home),
        ("shell", &wanted.shell, &found.shell),
        ("comment", &wanted.comment, &found.comment),
    ] {
        if wanted.as_deref().is_some_and(|wanted| wanted != found) {
            let mistake = Mistake::of(
                recipe.places.value(&["users", name, key]),
                format!("the packages have the user `{name}` with the {key} {found:?}"),
                format!("expected this one, or no `{key}`"),
            );
            mistakes.add(mistake.help(
                "of a package's account a recipe may fix the number and add groups; another account wants another name",
            ));
        }
    }
}

/// Numbers that accounts of Debian's base system cannot have.
fn other_numbers(recipe: &Recipe, accounts: &Accounts, mistakes: &mut Mistakes) {
    let users = recipe.accounts.users.iter().filter_map(|(name, user)| {
        let found = accounts.user(name)?.uid;
        Some((["users", name, "uid"], user.uid?, found))
    });
    let groups = recipe.accounts.groups.iter().filter_map(|(name, gid)| {
        let found = accounts.group(name)?.gid;
        Some((["groups", name, "gid"], (*gid)?, found))
    });
    for (keys, wanted, found) in users.chain(groups) {
        if wanted != found {
            let name = keys[1];
            mistakes.add(Mistake::of(
                recipe.places.value(&keys),
                format!(
                    "`{name}` has the number {found} on every Debian, and cannot have {wanted}"
                ),
                format!("expected {found}, or no `{}`", keys[2]),
            ));
        }
    }
}

fn clashing(recipe: &Recipe, accounts: &Accounts, clash: &Clash) -> Mistake {
    let (table, key) = match clash.users {
        true => ("users", "uid"),
        false => ("groups", "gid"),
    };
    let places = &recipe.places;
    let [one, other] = &clash.names;
    let written = |name: &&String| {
        // The group of a user has the user's number.
        let all = [[table, name.as_str(), key], ["users", name.as_str(), "uid"]];
        let written = |keys: &&[&str; 3]| places.written_key(&keys[..]).is_some();
        places.value(&all.iter().find(written)?[..])
    };
    let table_of = |name: &String| places.written_key(&[table, name]);
    let fixed = [one, other].iter().find_map(written);
    let free = accounts.free().unwrap_or_default();
    let mistake = Mistake::of(
        fixed.or_else(|| table_of(one)).or_else(|| table_of(other)),
        format!("`{one}` and `{other}` both have the {key} {}", clash.number),
        "expected each number once",
    );
    mistake.help(format!(
        "{free} is free: [{table}.{other}] with `{key} = {free}` fixes it for this image and all later ones"
    ))
}
