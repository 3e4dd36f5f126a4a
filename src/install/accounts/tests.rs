//! Accounts of a tree, renumbered and added to.

use std::collections::BTreeMap;

use super::*;

const PASSWD_TEXT: &str = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
    messagebus:x:996:996:System Message Bus:/nonexistent:/usr/sbin/nologin\nsshd:x:989:65534:sshd user:/run/sshd:/usr/sbin/nologin\n\
    fixed:x:777:777::/:/usr/sbin/nologin\nother:x:996:996::/:/usr/sbin/nologin\n";
const GROUP_TEXT: &str = "root:x:0:\nusers:x:100:\nnogroup:x:65534:\nmessagebus:x:996:\nsystemd-journal:x:999:a,b\nfixed:x:777:\n";

fn accounts() -> Accounts {
    let gshadow = "root:*::\nusers:!::\nsystemd-journal:!*::a,b\n";
    let shadow = "root:*:1::::::\n";
    let sysusers = "u! fixed 777 - /\ng nobodys -\nu sshd -:nogroup\n";
    Accounts::parse([PASSWD_TEXT, GROUP_TEXT, shadow, gshadow], sysusers).unwrap()
}

fn user(name: &str) -> User {
    User {
        name: name.to_owned(),
        uid: 0,
        gid: 0,
        comment: "An agent".to_owned(),
        home: "/nonexistent".to_owned(),
        shell: "/usr/sbin/nologin".to_owned(),
    }
}

/// Each number follows from the name; those of Debian's base system and of packages that fix theirs stay.
#[test]
fn accounts_of_scripts_have_their_own_numbers() {
    let mut accounts = accounts();
    accounts.renumber(&Fixed::default());
    let uid = |name: &str| accounts.user(name).unwrap().uid;
    assert_eq!([uid("root"), uid("nobody"), uid("fixed")], [0, 65534, 777]);
    assert_eq!([uid("messagebus"), uid("sshd")], [120, 122]);
    // Two names of one account stay one.
    assert_eq!(uid("other"), 120);
    assert_eq!(accounts.user("messagebus").unwrap().gid, 120);
    assert_eq!(accounts.user("sshd").unwrap().gid, 65534);
    let gid = |name: &str| accounts.group(name).unwrap().gid;
    assert_eq!([gid("users"), gid("systemd-journal")], [100, 101]);
    assert_eq!(accounts.clashes(), []);
}

/// Where scripts made the same accounts in another order, the result is the same.
#[test]
fn the_order_of_scripts_does_not_count() {
    let text = |passwd: &str, group: &str| {
        let mut accounts = Accounts::parse([passwd, group, "", ""], "").unwrap();
        accounts.renumber(&Fixed::default());
        let users = accounts
            .users
            .iter()
            .map(|user| (user.name.clone(), user.uid));
        let groups = accounts
            .groups
            .iter()
            .map(|group| (group.name.clone(), group.gid));
        (users.collect(), groups.collect())
    };
    let one: (BTreeMap<_, _>, BTreeMap<_, _>) = text(
        "a:x:999:998::/:/\nb:x:998:999::/:/\n",
        "b:x:999:\na:x:998:\n",
    );
    let two = text(
        "b:x:101:102::/:/\na:x:102:103::/:/\n",
        "b:x:102:\na:x:103:\n",
    );
    assert_eq!(one, two);
    assert_eq!(one.0["a"], one.1["a"]);
}

/// adduser's first system user without a group of its own has the number that is a group's in every base system.
#[test]
fn the_user_of_the_number_of_users_has_its_own() {
    let passwd = "_rpc:x:100:65534::/:/\nstatd:x:101:65534::/:/\n";
    let group = "users:x:100:\nnogroup:x:65534:\n";
    let mut accounts = Accounts::parse([passwd, group, "", ""], "").unwrap();
    accounts.renumber(&Fixed::default());
    let uids = accounts.users.iter().map(|user| user.uid);
    assert_eq!(uids.collect::<Vec<_>>(), ["_rpc", "statd"].map(number));
    assert_eq!(accounts.group("users").unwrap().gid, USERS);
    assert_eq!(accounts.clashes(), []);
}

#[test]
fn fixed_numbers_and_clashes() {
    let mut accounts = accounts();
    let users = [("sshd".to_owned(), 120), ("agent".to_owned(), 2000)].into();
    let groups = [("systemd-journal".to_owned(), 100)].into();
    let fixed = Fixed { users, groups };
    accounts.renumber(&fixed);
    accounts.add_group("agent", &fixed);
    accounts.add_user(user("agent"), "agent", &fixed, 86_400 * 20);
    let clash = |users, names: [&str; 2], number| Clash {
        users,
        names: names.map(str::to_owned),
        number,
    };
    let expected = [
        clash(true, ["messagebus", "sshd"], 120),
        clash(false, ["users", "systemd-journal"], 100),
    ];
    assert_eq!(accounts.clashes(), expected);
    let agent = accounts.user("agent").unwrap();
    assert_eq!((agent.uid, agent.gid), (2000, 2000));
    assert_eq!(
        agent.line(),
        "agent:x:2000:2000:An agent:/nonexistent:/usr/sbin/nologin\n"
    );
    assert!(accounts.shadow.ends_with("agent:!*:20::::::\n"));
    assert!(accounts.gshadow.ends_with("\nagent:!*::\n"));
    let free = accounts.free().unwrap();
    assert!(accounts.users.iter().all(|user| user.uid != free));
}

#[test]
fn members_are_in_both_files_once() {
    let mut accounts = accounts();
    for _ in 0..2 {
        accounts.add_member("systemd-journal", "agent");
        accounts.add_member("users", "agent");
    }
    let members = |name: &str| accounts.group(name).unwrap().members.join(",");
    assert_eq!(members("systemd-journal"), "a,b,agent");
    assert_eq!(members("users"), "agent");
    let expected = "root:*::\nusers:!::agent\nsystemd-journal:!*::a,b,agent\n";
    assert_eq!(accounts.gshadow, expected);
}

#[test]
fn owners_in_the_list_of_var_follow() {
    let mut accounts = accounts();
    accounts.renumber(&Fixed::default());
    let seed = "# A line with 996 996 numbers\nd /var/a 0755 996 996 -\nC /var/b\\x20c 0644 0 999 - /usr/share/factory/var/b\\x20c\nL /var/l - - - - x\n";
    let expected = "# A line with 996 996 numbers\nd /var/a 0755 120 120 -\nC /var/b\\x20c 0644 0 101 - /usr/share/factory/var/b\\x20c\nL /var/l - - - - x\n";
    assert_eq!(accounts.seed(seed), expected);
}

#[test]
fn a_line_that_is_no_account_is_named() {
    let error = Accounts::parse(["a:x:b:0::/:/\n", "", "", ""], "").unwrap_err();
    assert!(format!("{error:#}").contains("/etc/passwd has the line \"a:x:b:0::/:/\""));
}
