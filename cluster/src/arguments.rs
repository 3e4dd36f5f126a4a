//! Command lines: kubeadm's arguments in the order of their names, then the configuration's as they are written. An
//! argument of the configuration replaces all of kubeadm's of that name.

use crate::types::Arg;

/// An argument.
pub(crate) fn arg(name: &str, value: impl Into<String>) -> Arg {
    Arg {
        name: name.to_owned(),
        value: value.into(),
    }
}

/// The arguments `--NAME=VALUE`.
pub(crate) fn merged(mut base: Vec<Arg>, extra: &[Arg]) -> Vec<String> {
    base.retain(|arg| !extra.iter().any(|extra| extra.name == arg.name));
    base.sort();
    let all = base.iter().chain(extra);
    all.map(|Arg { name, value }| format!("--{name}={value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configurations_arguments_follow_in_their_order_and_replace() {
        let base = vec![arg("b", "1"), arg("a", "2"), arg("c", "3")];
        let extra = [arg("z", "9"), arg("b", "4"), arg("b", "5")];
        assert_eq!(
            merged(base, &extra),
            ["--a=2", "--c=3", "--z=9", "--b=4", "--b=5"]
        );
    }
}
